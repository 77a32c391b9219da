"""Prefix sums of outer products with a running state, one head at a time: the arithmetic of ``prefix_mix`` in O(c² + d·e).

    chunk by chunk of c tokens:    o = tril(q kᵀ) v + q S      S += kᵀ v          (reverse: triu, from the last chunk on)

q, k (n, d), v, o (n, e). Everything is a matrix product of SciPy's BLAS, in one order whatever the number of workers.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from refattn.backends.numba_words import kernel, times, times_turned, turned_times, word

Array = Any


@word()
def _triangle(s: Array, reverse: bool) -> None:
    """0 for tokens that come later, or earlier; selected, so that NaN there goes too."""
    zero = s.dtype.type(0)
    for r in range(s.shape[0]):
        first, last = (0, r) if reverse else (r + 1, s.shape[1])
        for c in range(first, last):
            s[r, c] = zero


def mix(gemm, chunk, reverse, q, k, v, o):  # type: ignore[no-untyped-def]
    """o, which may hold anything before."""
    zero, one, n = o.dtype.type(0), o.dtype.type(1), q.shape[0]
    state = np.zeros((q.shape[1], v.shape[1]), o.dtype)
    square = np.zeros(min(chunk, n) ** 2, o.dtype)
    count = (n + chunk - 1) // chunk
    for step in range(count):
        a = (count - 1 - step if reverse else step) * chunk
        b = min(a + chunk, n)
        s = square[:(b - a) * (b - a)].reshape(b - a, b - a)
        times_turned(gemm, one, q[a:b], k[a:b], zero, s)
        _triangle(s, reverse)
        times(gemm, one, s, v[a:b], zero, o[a:b])
        if step > 0:
            times(gemm, one, q[a:b], state, one, o[a:b])
        if step < count - 1:
            turned_times(gemm, one, k[a:b], v[a:b], one, state)


@functools.cache
def compiled(dtype: str) -> Any:
    """``mix`` for one dtype, compiled once for rows at any distance and read from the cache afterwards."""
    real = getattr(types, dtype)
    given, made = types.Array(real, 2, "A", readonly=True), types.Array(real, 2, "C")
    arguments = (types.intp, types.int64, types.boolean, given, given, given, made)
    return kernel(mix, *arguments)
