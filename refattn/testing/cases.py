"""Adversarial inputs: fixed families, each with a flag that says which mistake it exposes and what that costs a user.

Every family is drawn in a power-of-two tier (n, m, d that real kernels like) and an odd tier (B ≠ H ≠ n ≠ d). Values are
exact in the candidate's dtype, cotangents are random, and a case on which a null model would pass is refused as vacuous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from refattn import rng
from refattn.errors import OptionError
from refattn.testing.families import FAMILIES, Family, Sizes, Want
from refattn.testing.only import Only
from refattn.testing.subjects import Subject, subject_of
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

    def given(self, name: str) -> Any:
        """An optional input; None where it is not given, or where the scheme has none of this name."""
        return getattr(self.inputs, name, None)

    def option(self, name: str) -> Any:
        """A field of the scheme; None where it has none of this name."""
        return getattr(self.scheme, name, None)


def cases(scheme: Any, dtype: str, accepts: frozenset[str], only: Only | None = None) -> Iterator[Case]:
    """The cases for a configured scheme and a candidate whose signature names the optional inputs in `accepts`."""
    want, subject = Want(scheme, dtype, accepts), subject_of(scheme)
    if want.option("keep_rate") is not None and not want.takes("keep"):
        raise OptionError(f"keep_rate={scheme.keep_rate}, but the candidate's signature does not name the mask `keep`")
    seen = set()
    own = subject.cases_of(scheme)
    for family in FAMILIES if own is None else own:
        if not family.applies(want) or (only is not None and only.families and family.name not in only.families):
            continue
        for tier, sizes in family.tiers.items():
            fitted = _fitted(subject, scheme, sizes, only)
            if fitted is None or (family.name, tuple(fitted.items())) in seen or not family.fits(want, fitted):
                continue
            seen.add((family.name, tuple(fitted.items())))
            _refuse_long(subject, fitted)
            yield draw(family, tier, fitted, want)


def _fitted(subject: Subject, scheme: Any, sizes: Sizes, only: Only | None) -> Sizes | None:
    """The sizes that the configuration and the filter take; None if there are none."""
    own = subject.fit(scheme, sizes)
    if own is None or only is None:
        return own
    wanted = only.fit(own)
    return wanted if wanted is not None and subject.fit(scheme, wanted) == wanted else None


def _refuse_long(subject: Subject, sizes: Sizes) -> None:
    weights = "bhn" + ("m" if "m" in sizes else "n")
    numbers = sum(math.prod(sizes[a] for a in axes) for axes in (*subject.shapes.values(), subject.results["o"], weights))
    if numbers > MOST:
        shown = " ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise OptionError(f"{shown} makes a case of {numbers:.2g} numbers; cases that are judged whole have at most "
                          f"{MOST:.2g}: choose smaller sizes, or judge some rows of a long one (--rows K --n N)")


def draw(family: Family, tier: str, sizes: Sizes, want: Want) -> Case:
    """A case of a family: base draws, what the family changes, rounded to the candidate's dtype."""
    name, subject = f"{family.name}/{tier}", subject_of(want.scheme)
    stream = rng.stream(0, "case", name, *sizes.values())

    def normal(axes: str) -> Values:
        return stream.normal(size=tuple(sizes[a] for a in axes))

    inputs: dict[str, Values] = {key: normal(axes) for key, axes in subject.shapes.items()}
    family.change(stream, inputs, sizes, want)
    subject.complete(stream, inputs, sizes, want)
    inputs = {key: exact_in(x, want.dtype) if x.dtype.kind == "f" else x for key, x in inputs.items()}
    statistic = "float64" if want.dtype == "float64" else "float32"
    kinds = {key: statistic if key == "lse" else want.dtype for key in subject.results}
    cotangents = {key: exact_in(normal(axes), kinds[key]) for key, axes in subject.results.items()}
    scheme = want.scheme
    if inputs.get("q_positions") is not None and want.option("align") is not None:
        scheme = replace(scheme, align=None)
    return Case(
        name, family.name, family.flag, family.effect, scheme, scheme.Inputs(**inputs), cotangents["o"],
        cotangents.get("lse"), sizes, family.strided, family.lenient, family.soft, family.exempt,
    )  # fmt: skip


def nulls(case: Case) -> dict[str, Values]:
    """Null models: answers that use no attention. Each must fail a case that is not exempt from it."""
    return subject_of(case.scheme).nulls(case)
