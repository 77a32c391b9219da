"""One tensor against its band: outside the rigorous bound it fails; inside, statistics may still warn.

    ratio = |got − want| / bound        FAIL above 1, or where NaN and infinities differ, or in shape or dtype
    rms   = √mean((got − want)² / σ²)   WARN above 1.6 (one-signed sequential sums reach 1.45), lse above 3; or an error > 6σ
    bias  = mean sign((got − want)·want) of half-precision results: WARN at |bias| ≥ 0.5 and |z| ≥ 8, as truncation gives;
            z from the spread between rows, of at least 32, since the elements of a row may share one error

Where the median bound exceeds the median |want| (eager half precision, long sums) single elements can't be judged: then
rms > 3 over at least 256 elements fails too, and the reason says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.testing.locate import locate
from refattn.testing.tolerance import largest
from refattn.testing.verdicts import Band, Level, TensorVerdict, Worst, finite

Values = Any
SIGMAS, RMS, RMS_LSE, BIAS, BIAS_Z, BIAS_ROWS, STATISTICAL, ENOUGH = 6.0, 1.6, 3.0, 0.5, 8.0, 32, 3.0, 256

EXCHANGED = "heads and tokens are exchanged"


def judge(name: str, got: Values, band: Band, dtype: str) -> TensorVerdict:
    """The verdict on tensor `name`; statistics (lse) may come in any float dtype, everything else in `dtype`."""
    got = np.asarray(got)
    if got.shape != band.value.shape:
        return TensorVerdict(name, Level.FAIL, "shape", where=_shapes(name, got.shape, band.value.shape))
    if got.dtype.name != dtype and not (name == "lse" and got.dtype.name in ("float32", "float64", "float16", "bfloat16")):
        return TensorVerdict(name, Level.FAIL, "dtype", where=f"dtype {got.dtype.name} instead of {dtype}")
    held, got = got.dtype.name, got.astype(np.float64)
    if got.size == 0:
        return TensorVerdict(name, Level.OK)
    wrong = np.isfinite(got) != np.isfinite(band.value)
    wrong |= ~np.isfinite(band.value) & (got != band.value)
    wrong &= ~_overflows(got, band, held)
    ratio = ratios(got, band)
    out = wrong | (ratio > 1)
    rms = spread(got, band)
    worst = _worst(got, band, np.where(wrong, np.inf, ratio))
    level, reason, where = Level.FAIL, "class" if wrong.any() else "bound", locate(out)
    if not out.any():
        (level, reason), where = _statistics(name, got, band, rms, dtype in ("float16", "bfloat16") and name != "lse"), ""
    return TensorVerdict(name, level, reason, worst, float(worst.ratio), rms, float(out.mean()), where)


def _shapes(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> str:
    text = f"shape {got} instead of {want}"
    at = -1 if name == "lse" else -2  # where the queries stand, behind the heads
    exchanged = len(want) > 2 and got == (*want[: at - 1], want[at], want[at - 1], *(want[at + 1 :] if at < -1 else ()))
    return f"{text}: {EXCHANGED}" if exchanged else text


def missing(name: str) -> TensorVerdict:
    """The verdict on a tensor that was owed and did not come."""
    why = "the candidate returned no o" if name == "o" else "the vjp gives none, and does not say so by NotImplemented"
    return TensorVerdict(name, Level.FAIL, "missing", where=why)


def ratios(got: Values, band: Band) -> Values:
    """|got − want| / bound; 0 where both are 0 and where either is not finite."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(np.isfinite(got) & np.isfinite(band.value), np.abs(got - band.value), 0.0)
        return np.where(error == 0, 0.0, error / band.bound)


def spread(got: Values, band: Band) -> float:
    """Root mean square of error ÷ σ over the elements whose σ says something."""
    ok = np.isfinite(got) & np.isfinite(band.value) & (band.sigma > 0)
    if not ok.any():
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(((got[ok] - band.value[ok]) / floor(band.sigma)[ok]) ** 2)))


def floor(sigma: Values) -> Values:
    """σ with a floor, so that elements that a correct kernel gets all but exactly do not weigh infinitely."""
    positive = sigma[sigma > 0]
    least = 1e-2 * float(np.median(positive)) if positive.size else 1.0
    return np.maximum(sigma, max(least, 1e-300))


def _overflows(got: Values, band: Band, dtype: str) -> Values:
    """Where infinity is the right way to store a number: beyond the dtype's largest, within the bound of it."""
    return np.isinf(got) & (np.sign(got) == np.sign(band.value)) & (np.abs(band.value) + band.bound > largest(dtype))


def _worst(got: Values, band: Band, ratio: Values) -> Worst:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    return Worst(index, *(float(x[index]) for x in (got, band.value, band.bound, ratio)))


def _statistics(name: str, got: Values, band: Band, rms: float, half: bool) -> tuple[Level, str]:
    """Level and reason of a tensor that is inside its bound."""
    ok = np.isfinite(got) & np.isfinite(band.value) & (band.value != 0) & (band.sigma > 0)
    if not ok.any():
        return Level.OK, ""
    error, want = got[ok] - band.value[ok], band.value[ok]
    if np.median(band.bound[ok]) > np.median(np.abs(want)) and rms > STATISTICAL and want.size >= ENOUGH:
        return Level.FAIL, "statistical"
    if half and _biased(got, band, ok):  # first: truncation doubles the rms too, and this says why
        return Level.WARN, "bias"
    # The rms of k independent errors has itself a spread of 1/√2k: of the gradient of one sink it says little.
    if rms > max(RMS_LSE if name == "lse" else RMS, 1.0 + SIGMAS / (2.0 * want.size) ** 0.5):
        return Level.WARN, "rms"
    return (Level.WARN, "sigma") if np.any(np.abs(error) > SIGMAS * floor(band.sigma)[ok]) else (Level.OK, "")


def _biased(got: Values, band: Band, ok: Values) -> bool:
    """True if errors lean away from or towards zero, as truncation makes them; elements near zero say nothing.

    A row's elements may all have the error of one factor, as those of dq = dS k of one query and one key: rows are what is
    independent. With bias = Σ s / Σ n over rows of n signs that add up to s, its variance is Σ (s − bias n)² / (Σ n)².
    """
    signs = np.sign((finite(got) - finite(band.value)) * finite(band.value)) * (ok & (np.abs(band.value) > band.bound))
    signs = signs.reshape(-1, signs.shape[-1] if signs.ndim > 1 else 1)
    s, n = signs.sum(axis=-1), np.abs(signs).sum(axis=-1)
    total, rows = float(n.sum()), int(np.count_nonzero(n))
    bias = float(s.sum()) / total if total else 0.0
    spread = max(float(np.sum((s - bias * n) ** 2)) ** 0.5 / total, total**-0.5) if total else 1.0
    return abs(bias) >= BIAS and rows >= BIAS_ROWS and abs(bias) >= BIAS_Z * spread
