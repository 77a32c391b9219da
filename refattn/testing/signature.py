"""What can be said of a wrong kernel that no known mistake explains: when it fails, and what its errors look like.

    condition   the one property of inputs that separates failing cases from passing ones
    dtype       the values are right, in another dtype than was asked for
    factor      a tensor is α times what it must be, with the same or a telling α
    rows        every row of o has a factor of its own: the sum of weights is wrong, the weighted values are right
    precision   errors look like roundings of a relative size 2⁻ᵏ that the contract does not allow
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refattn.testing.cases import Case
from refattn.testing.diagnose import Evidence
from refattn.testing.judge import ratios
from refattn.testing.match import out_of_class
from refattn.testing.mutants_forward import blind, own_scale
from refattn.testing.verdicts import Band, Naming

Values = Any
TILES = (8, 16, 32, 64, 128)
ROUGH, NEAR = 2.0**-4, 0.03
LEFT = 0.5  # of an error that a factor explains, at most this part is left


def conditions() -> Iterable[tuple[str, Callable[[Case], bool]]]:
    """Properties of a case in words, the telling ones first."""
    for name in ("sink", "bias", "keep", "mask", "key_valid", "segment_ids", "k_positions", "q_positions"):
        yield f"{name} is given", lambda c, name=name: c.given(name) is not None  # type: ignore[misc]
    yield "inputs are strided", lambda c: c.strided
    yield "H > H_kv", lambda c: c.sizes["h"] > c.sizes.get("g", c.sizes["h"])
    yield "m > n", lambda c: c.sizes.get("m", 0) > c.sizes["n"]
    yield "n > m", lambda c: c.sizes["n"] > c.sizes.get("m", c.sizes["n"])
    yield "n ≠ m", lambda c: c.sizes["n"] != c.sizes.get("m", c.sizes["n"])
    yield "some query sees nothing", blind
    yield "d ≠ e", lambda c: c.sizes["d"] != c.sizes["e"]
    yield "d is no power of two", lambda c: c.sizes["d"] & (c.sizes["d"] - 1) != 0
    for axis in "mn":
        for t in TILES:
            yield f"{axis} is no multiple of {t}", lambda c, axis=axis, t=t: c.sizes.get(axis, 0) % t != 0  # type: ignore[misc]
            yield f"{axis} > {t} and no multiple of it", lambda c, axis=axis, t=t: _uneven(c.sizes.get(axis, 0), t)  # type: ignore[misc]
        for t in (1, *TILES, 256):
            yield f"{axis} > {t}", lambda c, axis=axis, t=t: c.sizes.get(axis, 0) > t  # type: ignore[misc]
            yield f"⌈{axis}/{t}⌉ is odd and not 1", lambda c, axis=axis, t=t: _odd_tiles(c.sizes.get(axis, 0), t)  # type: ignore[misc]
    yield "B > 1", lambda c: c.sizes["b"] > 1
    yield "H > 1", lambda c: c.sizes["h"] > 1
    yield "scores are large", lambda c: c.family in ("large", "far below", "rising", "half range")


def _uneven(size: int, tile: int) -> bool:
    return size > tile and size % tile != 0


def _odd_tiles(size: int, tile: int) -> bool:
    count = -(-size // tile)
    return count % 2 == 1 and count > 1


def condition(evidence: Sequence[Evidence]) -> str:
    """The first property that all failing cases have and no other does, in words; empty if there is none."""
    failing = [e.case for e in evidence if e.failing]
    passing = [e.case for e in evidence if not e.failing]
    if not failing:
        return ""
    if not passing:
        return "every case fails"
    fits = [text for text, holds in conditions() if all(map(holds, failing)) and not any(map(holds, passing))]
    if fits:
        return f"fails exactly where {fits[0]}" + (f" (or where {' or '.join(fits[1:3])})" if fits[1:] else "")
    few = len(passing) // 4
    needs = [text for text, holds in conditions() if all(map(holds, failing)) and sum(map(holds, passing)) <= few]
    return f"fails only where {needs[0]}, and not always there" if needs else ""


def signature(evidence: Sequence[Evidence]) -> tuple[list[Naming], list[str]]:
    """(classes of mistakes, findings in words) for a candidate that no mutant explains."""
    failing = [e for e in evidence if e.failing]
    forward = any(e.fails_forward for e in failing)
    tensors = [t for e in failing[:1] for t in order(e) if any(t in e.failing for e in failing)]
    tensors = [t for t in tensors if not forward or not t.startswith("d")]
    names, words = [], [when] if (when := condition(evidence)) else []
    if forward:
        right = [t for t in ("o", "lse") if t not in tensors and any(t in e.got for e in failing)]
        words += [f"{t} is right in every case" for t in right]
    for t in tensors:
        kind, text = _class(t, [e for e in failing if t in e.failing])
        if text:
            words.append(text)
            names.append(Naming(kind, text, 1.0, 0.0, "class"))
    if forward and tensors == ["lse"] and not names:
        text = "lse alone is wrong: o is divided by the right sum, another one is returned"
        names.append(Naming("lse", text, 1.0, 0.0, "class"))
    return names[:1], words


def order(e: Evidence) -> list[str]:
    """Outputs, then gradients in the order of the inputs."""
    named = (*e.case.scheme.outputs, *(f"d{name}" for name in e.case.scheme.Inputs._fields))
    return list(dict.fromkeys((*(name for name in named), *e.ref)))


Pairs = Sequence[tuple[Values, Band, Case]]


def _class(name: str, evidence: Sequence[Evidence]) -> tuple[str, str]:
    """(class, words) of what is wrong with one tensor; of one whose dtype alone is wrong in every case, just that."""
    wrong = [e for e in evidence if not (name in e.unfit and _right(e.got[name], e.ref[name]))]
    if not wrong:
        return "dtype", f"the values of {name} are right, in {evidence[0].unfit[name]}"
    pairs = [(e.got[name], e.ref[name], e.case) for e in wrong if e.got[name].size]
    return next((found for of in (factor, rows, precision) if (found := of(name, pairs))[1]), ("", ""))


def _right(got: Values, band: Band) -> bool:
    return not (out_of_class(got, band.value).any() or (ratios(got, band) > 1).any())


def _explained(got: Values, band: Band, a: Values) -> bool:
    """True if got is a times the value, within the bounds of both, and the factor is most of what is wrong."""
    ok = np.isfinite(got) & np.isfinite(band.value)
    if np.any(np.isfinite(got) != np.isfinite(band.value)):
        return False
    want = np.where(ok, band.value, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        left, error = (np.where(ok, np.abs(got - f * want), 0.0) for f in (a, 1.0))
        room = (1 + np.abs(a)) * band.bound
    size = float(error.max(initial=0.0)) or 1.0  # so that squares stay finite
    return not np.any(left > room) and bool(np.sum((left / size) ** 2) <= LEFT**2 * np.sum((error / size) ** 2))


@np.errstate(over="ignore", invalid="ignore")
def alpha(got: Values, want: Values) -> float:
    """The factor that fits best, by least squares over finite elements."""
    ok = np.isfinite(got) & np.isfinite(want)
    size = float(np.sum(want[ok] ** 2))
    return float(np.sum(got[ok] * want[ok])) / size if size else 0.0


def factor(name: str, pairs: Pairs) -> tuple[str, str]:
    """One factor for a whole tensor, constant or a known function of the case."""
    found = []
    for got, band, case in pairs:
        a = alpha(got, band.value)
        if not _explained(got, band, a):
            return "factor", ""
        found.append((a, case))
    if not found or all(abs(a - 1) < NEAR for a, _ in found):
        return "factor", ""
    if all(a == 0 for a, _ in found):
        return "factor", f"{name} is zero"
    for text, of_case in FACTORS.items():
        telling = [of_case(c) for _, c in found]
        if all(f and abs(a / f - 1) < 1e-2 for (a, _), f in zip(found, telling, strict=True)):
            return "factor", f"{name} is {text} times what it must be"
    values = [a for a, _ in found]
    if max(values) - min(values) < 1e-2 * abs(values[0]):
        return "factor", f"{name} is {values[0]:.5g} times what it must be"
    return "factor", f"{name} is a multiple of what it must be, by {min(values):.3g} to {max(values):.3g} from case to case"


FACTORS: Mapping[str, Callable[[Case], float | None]] = {  # None or 0 where a case has no such factor
    "the scale": own_scale,
    "1/scale": lambda c: 1 / own_scale(c) if own_scale(c) else None,
    "log 2": lambda c: float(np.log(2)),
    "1/log 2": lambda c: float(1 / np.log(2)),
    "H_kv/H": lambda c: c.sizes.get("g", c.sizes["h"]) / c.sizes["h"],
    "1/H": lambda c: 1 / c.sizes["h"],
    "1/B": lambda c: 1 / c.sizes["b"],
    "the keep rate": lambda c: c.option("keep_rate"),
    "1/keep rate": lambda c: None if c.option("keep_rate") is None else 1 / c.option("keep_rate"),
}


def rows(name: str, pairs: Pairs) -> tuple[str, str]:
    """A factor for each row of o: right directions, wrong lengths."""
    if name != "o" or all(_right(got, band) for got, band, _ in pairs):
        return "rows", ""
    for got, band, _ in pairs:
        size = np.sum(band.value**2, axis=-1, keepdims=True)
        with np.errstate(invalid="ignore", over="ignore"):
            a = np.sum(got * band.value, axis=-1, keepdims=True) / np.where(size > 0, size, 1.0)
        if not _explained(got, band, np.where(size > 0, a, 1.0)):
            return "rows", ""
    return "normaliser", "every row of o is right but for a factor of its own: the sum that it is divided by is wrong"


@np.errstate(over="ignore")
def precision(name: str, pairs: Pairs) -> tuple[str, str]:
    """Errors that are small everywhere, of both signs, and of a relative size that a format has."""
    sizes, signs = [], []
    for got, band, _ in pairs:
        ok = np.isfinite(got) & np.isfinite(band.value)
        if np.any(np.isfinite(got) != np.isfinite(band.value)):
            return "precision", ""
        if not ok.any():
            continue
        size = float(np.sqrt(np.mean(band.value[ok] ** 2)))
        error = (got[ok] - band.value[ok]) * np.sign(band.value[ok])
        sizes.append(float(np.sqrt(np.mean(error**2))) / size if size else 0.0)
        if not sizes[-1] <= ROUGH:
            return "precision", ""
        signs.append(abs(float(np.sum(error))) / max(float(np.sum(np.abs(error))), 1e-300))
    if not sizes or float(np.median(signs)) > 0.5:
        return "precision", ""
    k = round(-np.log2(float(np.median(sizes)) + 1e-300))
    return "precision", f"{name} has lost precision: its errors are about 2^-{k} of its size (rms), small everywhere"
