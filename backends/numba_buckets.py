"""Compiled loops over buckets: the counting sort, and the hash whose products never leave a tile.

    sort:  place_t = #{s: b_s < b_t} + #{s < t: b_s = b_t}          order_(place_t) = t          n + buckets steps for a row
    hash:  h_m = argmax [p; −p] of the columns p of factor m of x R, from the largest and the smallest product alone:
           the first maximum of p if max p ≥ −min p, else w_m + the first minimum; a NaN is the largest number, as in NumPy

Every call writes rows of its own, so that any division into calls gives the same bits.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from refattn.backends.numba_words import kernel, times, word

Array = Any


def sort(buckets, low, size, first, last, order, place):  # type: ignore[no-untyped-def]
    """order and place of the rows first … last − 1; all buckets are in low … low + size − 1."""
    start = np.empty(size + 1, np.int64)
    for i in range(first, last):
        start[:] = 0
        for t in range(buckets.shape[1]):
            start[buckets[i, t] - low + 1] += 1
        for bucket in range(size):
            start[bucket + 1] += start[bucket]
        for t in range(buckets.shape[1]):
            bucket = buckets[i, t] - low
            at = start[bucket]
            start[bucket] = at + 1
            order[i, at] = t
            place[i, t] = at


@word()
def _digit(p: Array, start: int, half: int) -> int:
    """The first largest entry of [p; −p], of `half` columns from `start` on."""
    largest, smallest = p[start], p[start]
    high, low = 0, 0
    for a in range(half):
        x = p[start + a]
        if x != x:
            return a
        if x > largest:
            largest, high = x, a
        if x < smallest:
            smallest, low = x, a
    return high if largest >= -smallest else half + low


def hashed(gemm, x, rotations, factors, first, last, tile, out):  # type: ignore[no-untyped-def]
    """Buckets of the tokens first … last − 1 of one head and round, `tile` tokens at a time."""
    zero, one, w = x.dtype.type(0), x.dtype.type(1), rotations.shape[1]
    buffer = np.empty((tile, w), x.dtype)
    for a in range(first, last, tile):
        b = min(a + tile, last)
        products = buffer[:b - a]
        times(gemm, one, x[a:b], rotations, zero, products)
        for t in range(a, b):
            start, stride, found = 0, 1, 0
            for f in factors:
                found += stride * _digit(products[t - a], start, f // 2)
                start, stride = start + f // 2, stride * f
            out[t] = found


@functools.cache
def compiled(which: str, dtype: str) -> Any:
    """"sort" of int64, or "hashed" for one dtype, compiled once and read from the cache afterwards."""
    at = types.int64

    def given(kind: Any, ndim: int) -> Any:
        return types.Array(kind, ndim, "C", readonly=True)

    def made(ndim: int) -> Any:
        return types.Array(at, ndim, "C")

    takes: dict[str, tuple[Any, ...]] = {"sort": (given(at, 2), at, at, at, at, made(2), made(2))}
    if which == "hashed":
        matrix = given(getattr(types, dtype), 2)
        takes["hashed"] = (types.intp, matrix, matrix, given(at, 1), at, at, at, made(1))
    text = {"sort": sort, "hashed": hashed}[which]
    return kernel(text, *takes[which])
