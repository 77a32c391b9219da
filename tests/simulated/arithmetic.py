"""How simulated kernels compute: formats that numbers are rounded to, and products that sum in different orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
_HALVES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_KEPT_BITS = {"float32": 23, "tf32": 10}


def rounded(x: Array, form: str) -> Array:
    """x to the nearest number of a format, kept in x's own dtype: float64, float32, tf32, bfloat16 or float16."""
    if form == "tf32":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)  # ties away from zero
    if form in _HALVES:
        return x.astype(_HALVES[form]).astype(x.dtype)
    return x.astype(form)


def truncated(x: Array, form: str = "float32") -> Array:
    """float64 numbers cut off, towards zero, to the significand of a format."""
    cut = 52 - _KEPT_BITS[form]
    return (np.ascontiguousarray(x).view(np.int64) & np.int64(-(1 << cut))).view(np.float64)


def blas(a: Array, b: Array) -> Array:
    """The library's own order: blocked, with fused multiply-adds."""
    return np.matmul(a, b)


def sequential(a: Array, b: Array) -> Array:
    """One term after another, first to last."""
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for t in range(a.shape[1]):
        out += a[:, t : t + 1] * b[t]
    return out


def backwards(a: Array, b: Array) -> Array:
    """One term after another, last to first."""
    return sequential(a[:, ::-1], b[::-1])


def interleaved(a: Array, b: Array, ways: int = 4) -> Array:
    """Several partial sums of every so-manieth term, added at the end, as unrolled loops and split-K products do."""
    parts = [np.matmul(np.ascontiguousarray(a[:, w::ways]), b[w::ways]) for w in range(ways)]
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def truncating(a: Array, b: Array) -> Array:
    """Products kept whole, every partial sum cut off to float32: an accumulator that does not round to nearest."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    out = np.zeros((a.shape[0], b.shape[1]))
    for t in range(a.shape[1]):
        out = truncated(out + left[:, t : t + 1] * right[t])
    return out.astype(a.dtype)


def truncating_groups(a: Array, b: Array, group: int = 8) -> Array:
    """Groups of eight products summed whole, then added to a truncating accumulator: a tensor core's inner step."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    out = np.zeros((a.shape[0], b.shape[1]))
    for t in range(0, a.shape[1], group):
        out = truncated(out + left[:, t : t + group] @ right[t : t + group])
    return out.astype(a.dtype)


PRODUCTS: dict[str, Callable[[Array, Array], Array]] = {
    f.__name__: f for f in (blas, sequential, backwards, interleaved, truncating, truncating_groups)
}
