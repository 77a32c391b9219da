"""The matched filter: how much of a known mistake is in an error?

With δ = mutant − reference, err = candidate − reference and σ the spread that a correct kernel is predicted to have,

    power P = √Σ (δ/σ)²        t = Σ err·δ/σ² / P        amplitude a = t / P        residual = ‖err − a δ‖ / ‖err‖  (in σ)

A correct kernel has t of order 1 and so an amplitude near 0; a kernel with the mistake has amplitude 1. P is known before
any kernel runs. Four interleaved quarters of the rows must agree, so that errors that happen to be correlated do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.testing.judge import floor
from refattn.testing.verdicts import Band

Values = Any
QUARTERS = 4
MOST = 1e140  # σ: squares of errors beyond it would not be finite
CLASS_POWER = 1e3  # one element that is NaN or infinite where the reference is not


@dataclass(frozen=True)
class Match:
    """power, t, amplitude, residual as above; quarters: the amplitude in each quarter of the rows that has its share of P.

    classes: None if neither has NaN or infinities out of place, else whether the candidate has them where the mutant has.
    """

    power: float
    t: float
    amplitude: float
    residual: float
    quarters: tuple[float, ...]
    classes: bool | None = None

    @property
    def steady(self) -> bool:
        """True if every quarter of the rows says about the same."""
        return all(0.5 <= q / self.amplitude <= 1.6 for q in self.quarters) if self.amplitude else False


@np.errstate(invalid="ignore", over="ignore")
def match(got: Mapping[str, Values], ref: Mapping[str, Band], mutant: Mapping[str, Values]) -> Match:
    """Filter the tensors that the candidate returned and the mutant predicts."""
    sums = np.zeros((QUARTERS, 3))  # Σ err·δ, Σ δ², Σ err², all over σ²
    odd_got = odd_mutant = same = 0
    for name in mutant.keys() & ref.keys() & got.keys():
        band, g, m = ref[name], got[name], mutant[name]
        if np.shape(g) != np.shape(band.value) or np.shape(m) != np.shape(band.value):
            continue
        error, delta = g - band.value, m - band.value
        if not (np.isfinite(error).all() and np.isfinite(delta).all()):
            wrong_g, wrong_m = out_of_class(g, band.value), out_of_class(m, band.value)
            odd_got, odd_mutant = odd_got + int(wrong_g.sum()), odd_mutant + int(wrong_m.sum())
            same += int((wrong_g & wrong_m).sum())
            ok = np.isfinite(error) & np.isfinite(delta)
            error, delta = np.where(ok, error, 0.0), np.where(ok, delta, 0.0)
        weight = _weight(band)
        sums += quarters(*(np.clip(x * weight, -MOST, MOST) for x in (error, delta)))
    return _summary(sums, odd_got, odd_mutant, same)


def _weight(band: Band) -> Values:
    """1/σ, computed once for a band: it is asked for with every mutant."""
    kept = vars(band)
    if "_weight" not in kept:
        kept["_weight"] = 1.0 / floor(band.sigma)
    return kept["_weight"]


def out_of_class(x: Values, want: Values) -> Values:
    """Where x is NaN or infinite and `want` is not the same, or the reverse."""
    return (np.isfinite(x) != np.isfinite(want)) | (~np.isfinite(want) & (x != want) & ~(np.isnan(x) & np.isnan(want)))


def quarters(error: Values, delta: Values) -> Values:
    """(QUARTERS, 3) sums of err·δ, δ², err² over interleaved rows (axis 2, or the first axis of short arrays)."""
    axis = min(2, error.ndim - 1)
    others = tuple(a for a in range(error.ndim) if a != axis)
    parts = np.zeros((-(-error.shape[axis] // QUARTERS) * QUARTERS, 3))
    with np.errstate(over="ignore"):
        for a, product in enumerate((error * delta, delta * delta, error * error)):
            parts[: error.shape[axis], a] = np.clip(product.sum(axis=others), -1e290, 1e290)
    return parts.reshape(-1, QUARTERS, 3).sum(axis=0)


def _summary(sums: Values, odd_got: int, odd_mutant: int, same: int) -> Match:
    ed, dd, ee = sums.sum(axis=0)
    power = float(np.sqrt(dd))
    amplitude = float(ed / dd) if dd > 0 else 0.0
    left = max(float(ee - ed * ed / dd), 0.0) if dd > 0 else float(ee)
    residual = float(np.sqrt(left / ee)) if ee > 0 else 0.0
    parts = tuple(float(s[0] / s[1]) for s in sums if s[1] > 0.05 * dd)
    classes = None
    if odd_got or odd_mutant:
        classes = same == odd_mutant == odd_got
        power = float(np.hypot(power, CLASS_POWER * odd_mutant))
    return Match(power, amplitude * float(np.sqrt(dd)), amplitude, residual, parts, classes)
