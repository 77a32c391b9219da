"""Adversarial inputs: fixed families, each with a flag that says which mistake it exposes and what that costs a user.

Every family is drawn in a power-of-two tier (n, m, d that real kernels like) and an odd tier (B ≠ H ≠ n ≠ d). Values are
exact in the candidate's dtype, cotangents are random, and a case on which a null model would pass is refused as vacuous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refattn import rng
from refattn.errors import OptionError
from refattn.expression import written
from refattn.schemes.dense import Dense
from refattn.testing.families import FAMILIES, Family, Sizes, Want
from refattn.testing.only import Only
from refattn.testing.tolerance import exact_in

Values = Any
MOST = 1 << 26
"""Numbers in the inputs, results and weights of a case: more take minutes and gigabytes to read."""


@dataclass(frozen=True)
class Case:
    """One input with its cotangents. id: family/tier. lenient: an exception there counts as unsupported.

    exempt: null models that are right on this family. soft: judged, but never above WARN.
    """

    id: str
    family: str
    flag: str
    effect: str
    scheme: Any
    inputs: Any
    do: Values
    dlse: Values | None
    sizes: Mapping[str, int]
    strided: bool = False
    lenient: bool = False
    soft: bool = False
    exempt: tuple[str, ...] = ()


def check_scheme(scheme: Any) -> None:
    """Refuse a scheme that there are no cases for."""
    if not isinstance(scheme, Dense):
        raise OptionError(f"{written(scheme)}: the kit judges kernels of Dense, it has no cases for {type(scheme).__name__}")


def cases(scheme: Any, dtype: str, accepts: frozenset[str], only: Only | None = None) -> Iterator[Case]:
    """The cases for a configured scheme and a candidate whose signature names the optional inputs in `accepts`."""
    want = Want(scheme, dtype, accepts)
    if scheme.keep_rate is not None and not want.takes("keep"):
        raise OptionError(f"keep_rate={scheme.keep_rate}, but the candidate's signature does not name the mask `keep`")
    seen = set()
    for family in FAMILIES:
        if not family.applies(want) or (only is not None and only.families and family.name not in only.families):
            continue
        for tier, sizes in family.tiers.items():
            fitted = sizes if only is None else only.fit(sizes)
            if fitted is None or (family.name, tuple(fitted.items())) in seen or not family.fits(want, fitted):
                continue
            seen.add((family.name, tuple(fitted.items())))
            _refuse_long(fitted)
            yield draw(family, tier, fitted, want)


def _refuse_long(sizes: Sizes) -> None:
    b, h, g, n, m, d, e = (sizes[a] for a in "bhgnmde")
    numbers = b * (h * n * (d + e) + g * m * (d + e) + h * n * m)
    if numbers > MOST:
        shown = " ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise OptionError(f"{shown} makes a case of {numbers:.2g} numbers; cases that are judged whole have at most "
                          f"{MOST:.2g}: choose smaller sizes, or judge some rows of a long one (--rows K --n N)")


def draw(family: Family, tier: str, sizes: Sizes, want: Want) -> Case:
    """A case of a family: base draws, what the family changes, rounded to the candidate's dtype."""
    name = f"{family.name}/{tier}"
    stream = rng.stream(0, "case", name, *sizes.values())
    b, h, g, n, m, d, e = (sizes[a] for a in "bhgnmde")
    base = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, e)}
    inputs: dict[str, Values] = {key: stream.normal(size=shape) for key, shape in base.items()}
    family.change(stream, inputs, sizes, want)
    if want.scheme.keep_rate is not None and "keep" not in inputs:
        inputs["keep"] = stream.random((b, h, n, m)) < want.scheme.keep_rate
    inputs = {key: exact_in(x, want.dtype) if x.dtype.kind == "f" else x for key, x in inputs.items()}
    do = exact_in(stream.normal(size=(b, h, n, e)), want.dtype)
    dlse = exact_in(stream.normal(size=(b, h, n)), "float64" if want.dtype == "float64" else "float32")
    scheme = want.scheme
    if inputs.get("q_positions") is not None and scheme.align is not None:
        scheme = replace(scheme, align=None)
    return Case(
        name, family.name, family.flag, family.effect, scheme, scheme.Inputs(**inputs), do, dlse, sizes,
        family.strided, family.lenient, family.soft, family.exempt,
    )  # fmt: skip


def nulls(case: Case) -> dict[str, Values]:
    """Null models: answers that use no attention. Each must fail a case that is not exempt from it.

    Without a previous query, or with a single key, that model is no other answer and is left out.
    """
    v, shape, sizes = case.inputs.v, case.do.shape, case.sizes
    out = {"zeros": np.zeros(shape)}
    if sizes["m"] > 1:
        ratio = sizes["h"] // sizes["g"] if sizes["g"] else 1
        mean = v.mean(axis=-2, keepdims=True)
        mean = np.tile(mean, (1, ratio, 1, 1)) if case.scheme.heads == "tiled" else np.repeat(mean, ratio, axis=1)
        out["mean of V"] = np.broadcast_to(mean, shape)
    if sizes["n"] > 1:
        right, _ = case.scheme.forward(*case.inputs)
        out["previous row"] = np.roll(right, 1, axis=-2)
    return out
