"""What can be said of a wrong kernel that no known mistake explains: when it fails, and what its errors look like.

    condition   the one property of inputs that separates failing cases from passing ones
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
from refattn.testing.verdicts import Band, Naming

Values = Any
TILES = (8, 16, 32, 64, 128)
ROUGH, NEAR = 2.0**-4, 0.03


def conditions() -> Iterable[tuple[str, Callable[[Case], bool]]]:
    """Properties of a case in words, the telling ones first."""
    for name in ("sink", "bias", "keep", "mask", "key_valid", "segment_ids", "k_positions", "q_positions"):
        yield f"{name} is given", lambda c, name=name: getattr(c.inputs, name) is not None  # type: ignore[misc]
    yield "inputs are strided", lambda c: c.strided
    yield "H > H_kv", lambda c: c.sizes["h"] > c.sizes["g"]
    yield "m > n", lambda c: c.sizes["m"] > c.sizes["n"]
    yield "n > m", lambda c: c.sizes["n"] > c.sizes["m"]
    yield "n ≠ m", lambda c: c.sizes["n"] != c.sizes["m"]
    yield "some query sees nothing", _blind
    yield "d ≠ e", lambda c: c.sizes["d"] != c.sizes["e"]
    yield "d is no power of two", lambda c: c.sizes["d"] & (c.sizes["d"] - 1) != 0
    for axis in "mn":
        for t in TILES:
            yield f"{axis} is no multiple of {t}", lambda c, axis=axis, t=t: c.sizes[axis] % t != 0  # type: ignore[misc]
            yield f"{axis} > {t} and no multiple of it", lambda c, axis=axis, t=t: _uneven(c.sizes[axis], t)  # type: ignore[misc]
        for t in (1, *TILES, 256):
            yield f"{axis} > {t}", lambda c, axis=axis, t=t: c.sizes[axis] > t  # type: ignore[misc]
            yield f"⌈{axis}/{t}⌉ is odd and not 1", lambda c, axis=axis, t=t: _odd_tiles(c.sizes[axis], t)  # type: ignore[misc]
    yield "B > 1", lambda c: c.sizes["b"] > 1
    yield "H > 1", lambda c: c.sizes["h"] > 1
    yield "scores are large", lambda c: c.family in ("large", "far below", "rising", "half range")


def _uneven(size: int, tile: int) -> bool:
    return size > tile and size % tile != 0


def _odd_tiles(size: int, tile: int) -> bool:
    count = -(-size // tile)
    return count % 2 == 1 and count > 1


def _blind(case: Case) -> bool:
    from refattn.testing.mutants_forward import blind

    return blind(case)


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
    forward = any(e.failing & {"o", "lse"} for e in failing)
    tensors = [t for t in ("o", "lse", "dq", "dk", "dv", "dbias", "dsink") if any(t in e.failing for e in failing)]
    tensors = [t for t in tensors if not forward or t in ("o", "lse")]
    names, words = [], [when] if (when := condition(evidence)) else []
    if forward:
        right = [t for t in ("o", "lse") if t not in tensors and any(t in e.got for e in failing)]
        words += [f"{t} is right in every case" for t in right]
    for t in tensors:
        pairs = [(e.got[t], e.ref[t], e.case) for e in failing if t in e.failing and t in e.got]
        for kind, text in (factor(t, pairs), rows(t, pairs), precision(t, pairs)):
            if text:
                words.append(text)
                names.append(Naming(kind, text, 1.0, 0.0, "class"))
                break
    if forward and tensors == ["lse"] and not names:
        text = "lse alone is wrong: o is divided by the right sum, another one is returned"
        names.append(Naming("lse", text, 1.0, 0.0, "class"))
    return names[:1], words


Pairs = Sequence[tuple[Values, Band, Case]]


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
        with np.errstate(invalid="ignore"):
            off = np.abs(got - a * band.value) > (1 + abs(a)) * band.bound
        if np.any(off & np.isfinite(band.value)) or not np.all(np.isfinite(got) == np.isfinite(band.value)):
            return "factor", ""
        found.append((a, case))
    if not found or all(abs(a - 1) < NEAR for a, _ in found):
        return "factor", ""
    if all(a == 0 for a, _ in found):
        return "factor", f"{name} is zero"
    for text, of_case in FACTORS.items():
        if all(abs(a / of_case(c) - 1) < 1e-2 for a, c in found if of_case(c)):
            return "factor", f"{name} is {text} times what it must be"
    values = [a for a, _ in found]
    if max(values) - min(values) < 1e-2 * abs(values[0]):
        return "factor", f"{name} is {values[0]:.5g} times what it must be"
    return "factor", f"{name} is a multiple of what it must be, by {min(values):.3g} to {max(values):.3g} from case to case"


def _scale(c: Case) -> float:
    return float(c.scheme.scale or c.sizes["d"] ** -0.5)


FACTORS: Mapping[str, Callable[[Case], float]] = {
    "the scale": _scale,
    "1/scale": lambda c: 1 / _scale(c),
    "log 2": lambda c: float(np.log(2)),
    "1/log 2": lambda c: float(1 / np.log(2)),
    "H_kv/H": lambda c: c.sizes["g"] / c.sizes["h"],
    "1/H": lambda c: 1 / c.sizes["h"],
    "1/B": lambda c: 1 / c.sizes["b"],
    "the keep rate": lambda c: float(c.scheme.keep_rate or 0.0),
}


def rows(name: str, pairs: Pairs) -> tuple[str, str]:
    """A factor for each row of o: right directions, wrong lengths."""
    if name != "o":
        return "rows", ""
    for got, band, _ in pairs:
        size = np.sum(band.value**2, axis=-1, keepdims=True)
        a = np.sum(got * band.value, axis=-1, keepdims=True) / np.where(size > 0, size, 1.0)
        if not np.all(np.isfinite(got)) or np.any(np.abs(got - a * band.value) > (1 + np.abs(a)) * band.bound):
            return "rows", ""
    return "normaliser", "every row of o is right but for a factor of its own: the sum that it is divided by is wrong"


def precision(name: str, pairs: Pairs) -> tuple[str, str]:
    """Errors that are small everywhere, of both signs, and of a relative size that a format has."""
    sizes, signs = [], []
    for got, band, _ in pairs:
        ok = np.isfinite(got) & np.isfinite(band.value)
        if not ok.all() and np.any(np.isfinite(got) != np.isfinite(band.value)):
            return "precision", ""
        size = float(np.sqrt(np.mean(band.value[ok] ** 2)))
        error = (got[ok] - band.value[ok]) * np.sign(band.value[ok])
        signs.append(abs(float(np.sum(error))) / max(float(np.sum(np.abs(error))), 1e-300))
        sizes.append(float(np.sqrt(np.mean((got[ok] - band.value[ok]) ** 2))) / size if size else 0.0)
    if not sizes or max(sizes) > ROUGH or float(np.median(signs)) > 0.5:
        return "precision", ""
    k = round(-np.log2(float(np.median(sizes)) + 1e-300))
    return "precision", f"{name} has lost precision: its errors are about 2^-{k} of its size (rms), small everywhere"
