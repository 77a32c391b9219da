"""The rules that projects compare attention kernels by, on the results of one run: does the rule object?

Every rule gets what it is never given in practice: the reference in float64, and lse beside o and the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refattn.testing.tolerance import storage

Array = Any
Results = Mapping[str, Array]
DEFAULTS = {"bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}


def distance(got: Array, want: Array) -> Array:
    """|got − want|, 0 where both are the same infinity, ∞ where one is not finite or either is NaN."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - want)
    return np.where(got == want, 0.0, np.where(np.isnan(apart), np.inf, apart))


def close(got: Array, want: Array, dtype: str, base: Array) -> bool:
    """torch.testing.assert_close: |got − want| ≤ atol + rtol·|want|, both in one dtype, by its default tolerances."""
    rtol, atol = DEFAULTS[dtype]
    want = want.astype(storage(dtype)).astype(np.float64)
    return bool(np.all(distance(got, want) <= atol + rtol * np.where(np.isfinite(want), np.abs(want), 0.0)))


def twice(factor: float) -> Callable[[Array, Array, str, Array], bool]:
    """flash-attention: the largest error is at most so many times that of a naive kernel of the same precision (+ 1e-5)."""

    def rule(got: Array, want: Array, dtype: str, base: Array) -> bool:
        return bool(distance(got, want).max(initial=0.0) <= factor * distance(base, want).max(initial=0.0) + 1e-5)

    return rule


def fixed(got: Array, want: Array, dtype: str, base: Array) -> bool:
    """The largest error is at most 10⁻²."""
    return bool(np.all(distance(got, want) <= 1e-2))


def rms(got: Array, want: Array, dtype: str, base: Array) -> bool:
    """flash-linear-attention: the largest error is at most 10⁻⁶, or its RMS at most 0.005 of the reference's."""
    apart = distance(got, want)
    if apart.max(initial=0.0) <= 1e-6:
        return True
    size = np.sqrt(np.mean(np.where(np.isfinite(want), want, 0.0) ** 2))
    return bool(np.sqrt(np.mean(apart**2)) <= 5e-3 * size)


def correlated(got: Array, want: Array, dtype: str, base: Array) -> bool:
    """Pearson's correlation with the reference is at least .999; 1 where there is none, as for constants."""
    ok = np.isfinite(want)
    if not np.array_equal(np.isfinite(got), ok):
        return False
    x, y = got[ok] - got[ok].mean() if ok.any() else got[ok], want[ok] - want[ok].mean() if ok.any() else want[ok]
    size = np.sqrt(np.sum(x * x) * np.sum(y * y))
    return bool(size == 0 or np.sum(x * y) / size >= 0.999)


Rule = Callable[[Array, Array, str, Array], bool]
RULES: dict[str, tuple[Rule, Rule]] = {  # of o and lse, of gradients
    "assert_close": (close, close),
    "2× (3×)": (twice(2.0), twice(3.0)),
    "atol 1e-2": (fixed, fixed),
    "RMS 0.005": (rms, rms),
    "PCC .999": (correlated, correlated),
}


def objections(got: Results, want: Results, base: Results, dtype: str) -> frozenset[str]:
    """The rules that some tensor of a run breaks. got, want, base: results as float64; dtype: what the kernel promises."""
    broken = set()
    for name, x in got.items():
        form = dtype if name != "lse" or dtype == "float64" else "float32"
        for rule, (forward, backward) in RULES.items():
            if rule not in broken and not (forward if name in ("o", "lse") else backward)(x, want[name], form, base[name]):
                broken.add(rule)
    return frozenset(broken)
