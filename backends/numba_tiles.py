"""The tile engine: softmax attention of one head over a list of tiles, forward and backward, in O(tile) memory.

    forward, tile by tile (Milakov & Gimelshein, arXiv:1805.02867):
        s = scale q kᵀ     m' = max(m, max_j s)     o ← e^(m − m') o + e^(s − m') v     l ← e^(m − m') l + Σ_j e^(s − m')
    and at the end        o ← o / l     lse = m + log l
    backward:             p = e^(s − lse)     ds = p ∘ (do vᵀ − D)     dv += pᵀ do     dq += scale ds k     dk += scale dsᵀ q

Arrays of one head: q (n, d), k (m, d), v (m, e), o and do (n, e), lse and D (n,). ``see`` (n, m) uint8 is one more mask,
(0, 0) if there is none. Scores that are −inf count as invisible, as in the generic text; NaN is never hidden.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import types

from refattn.backends.numba_words import (
    LANES,
    exp,
    exponentials,
    keep_nan,
    kernel,
    largest,
    times,
    times_turned,
    turned_times,
    word,
)

Array = Any
HIDDEN, SOME, ALL = 0, 1, 2


@word()
def _shown(see: Array) -> int:
    """Whether a tile of the further mask shows nothing, something or everything."""
    rows = see.shape[0] if see.strides[0] != 0 else min(see.shape[0], 1)
    most, least = False, True
    for r in range(rows):
        count = 0
        for c in range(see.shape[1]):
            count += see[r, c]
        most |= count > 0
        least &= count == see.shape[1]
    return (ALL if least else SOME) if most else HIDDEN


@word()
def _spans(mask: int, n: int, m: int, masks: Array, spans: Array, span: Array) -> None:
    """The visible span of each row of a tile."""
    for r in range(n):
        span[r, 0] = 0 if mask < 0 else spans[masks[mask, 0] + r, 0]
        span[r, 1] = m if mask < 0 else spans[masks[mask, 0] + r, 1]


@word()
def _hide(s: Array, span: Array, mask: int, masks: Array, bits: Array, see: Array) -> None:
    """−∞ for what is invisible inside of the spans."""
    hidden = s.dtype.type(-np.inf)
    if mask >= 0 and masks[mask, 1] >= 0:
        wide = (s.shape[1] + 7) // 8
        for r in range(s.shape[0]):
            row = bits[masks[mask, 1] + r * wide:masks[mask, 1] + (r + 1) * wide]
            for c in range(span[r, 0], span[r, 1]):
                s[r, c] = s[r, c] if (row[c >> 3] >> (c & 7)) & 1 else hidden
    if see.shape[0]:
        for r in range(s.shape[0]):
            for c in range(span[r, 0], span[r, 1]):
                s[r, c] = s[r, c] if see[r, c] else hidden


@word()
def _stream(s: Array, span: Array, m: Array, l: Array, o: Array, lanes: Array) -> None:
    """Scores to weights against the running maximum m, with l and o rescaled where it rises."""
    zero, one, nothing = s.dtype.type(0), s.dtype.type(1), s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        first, last = span[r, 0], span[r, 1]
        s[r, :first] = zero
        s[r, last:] = zero
        row = s[r, first:last]
        top = largest(row, lanes)
        top = top if top > m[r] else m[r]
        if top == nothing:
            l[r] += keep_nan(row)
            continue
        shrink = exp(m[r] - top)
        l[r] = l[r] * shrink + exponentials(row, top)
        m[r] = top
        if shrink != one:
            for c in range(o.shape[1]):
                o[r, c] *= shrink


@word()
def _finish(m: Array, l: Array, o: Array, lse: Array) -> None:
    zero = o.dtype.type(0)
    for r in range(o.shape[0]):
        if l[r] == zero:
            o[r] = zero
            lse[r] = -np.inf
            continue
        scale = o.dtype.type(1) / l[r]
        for c in range(o.shape[1]):
            o[r, c] *= scale
        lse[r] = m[r] + math.log(l[r])


def forward(gemm, scale, q, k, v, see, at, groups, masks, spans, bits, keys, first, last, o, lse):  # type: ignore[no-untyped-def]
    """o and lse of the groups first … last − 1, `keys` keys of a full tile at a time; o must be 0 and lse −∞ before."""
    zero, one = o.dtype.type(0), o.dtype.type(1)
    rows, area = _sizes(at, groups, first, last, keys)
    buffer, lanes, span = np.empty(area, o.dtype), np.empty(LANES, o.dtype), np.empty((rows, 2), np.int32)
    m, l = np.empty(rows, o.dtype), np.empty(rows, o.dtype)
    for g in range(first, last):
        a, b = groups[g, 0], groups[g, 1]
        m[:b - a] = -np.inf
        l[:b - a] = zero
        for t in range(groups[g, 2], groups[g, 3]):
            q0, q1, k0, end, mask = at[t]
            step = keys if mask < 0 else end - k0
            for j in range(k0, end, step):
                k1 = min(j + step, end)
                seen = see[q0:q1, j:k1]
                shown = _shown(seen) if see.shape[0] else ALL
                if shown == HIDDEN:
                    continue
                s = buffer[:(q1 - q0) * (k1 - j)].reshape(q1 - q0, k1 - j)
                times_turned(gemm, scale, q[q0:q1], k[j:k1], zero, s)
                _spans(mask, q1 - q0, k1 - j, masks, spans, span)
                _hide(s, span, mask, masks, bits, seen if shown == SOME else seen[:0])
                _stream(s, span, m[q0 - a:q1 - a], l[q0 - a:q1 - a], o[q0:q1], lanes)
                times(gemm, one, s, v[j:k1], one, o[q0:q1])
        _finish(m[:b - a], l[:b - a], o[a:b], lse[a:b])


@word()
def _sizes(at: Array, groups: Array, first: int, last: int, keys: int) -> tuple[int, int]:
    """Rows of the largest of these groups, and elements of the largest tile that is computed at once."""
    rows, area = 0, 0
    for g in range(first, last):
        rows = max(rows, groups[g, 1] - groups[g, 0])
        for t in range(groups[g, 2], groups[g, 3]):
            width = at[t, 3] - at[t, 2]
            area = max(area, (at[t, 1] - at[t, 0]) * (width if at[t, 4] >= 0 else min(width, keys)))
    return rows, area


@word()
def _slopes(s: Array, dp: Array, span: Array, lse: Array, D: Array) -> None:
    """s ← p = e^(s − lse) and dp ← ds = p ∘ (dp − D), both 0 where nothing is visible."""
    zero = s.dtype.type(0)
    for r in range(s.shape[0]):
        first, last, top, less = span[r, 0], span[r, 1], lse[r], D[r]
        s[r, :first] = zero
        s[r, last:] = zero
        dp[r, :first] = zero
        dp[r, last:] = zero
        _slope(s[r, first:last], dp[r, first:last], top, less)


@word()
def _slope(x: Array, y: Array, top: Any, less: Any) -> None:
    for c in range(x.shape[0]):
        x[c] = exp(x[c] - top)
    for c in range(x.shape[0]):
        y[c] = x[c] * (y[c] - less)


def backward(gemm, scale, q, k, v, see, at, groups, masks, spans, bits, keys, first, last, lse, do, D, dq, dk, dv):  # type: ignore[no-untyped-def]
    """Adds to dq, dk, dv what the keys first … last − 1 bring, which split no mask.

    lse, do and D of a query that sees nothing must be 0.
    """
    zero, one = dq.dtype.type(0), dq.dtype.type(1)
    rows, area = _sizes(at, groups, 0, groups.shape[0], keys)
    buffer, other, span = np.empty(area, dq.dtype), np.empty(area, dq.dtype), np.empty((rows, 2), np.int32)
    for t in range(at.shape[0]):
        q0, q1, start, end, mask = at[t]
        if mask >= 0 and not first <= start < last:
            continue
        start, end = max(start, first), min(end, last)
        step = keys if mask < 0 else max(end - start, 1)
        for j in range(start, end, step):
            k1 = min(j + step, end)
            seen = see[q0:q1, j:k1]
            shown = _shown(seen) if see.shape[0] else ALL
            if shown == HIDDEN:
                continue
            s = buffer[:(q1 - q0) * (k1 - j)].reshape(q1 - q0, k1 - j)
            dp = other[:(q1 - q0) * (k1 - j)].reshape(q1 - q0, k1 - j)
            times_turned(gemm, scale, q[q0:q1], k[j:k1], zero, s)
            times_turned(gemm, one, do[q0:q1], v[j:k1], zero, dp)
            _spans(mask, q1 - q0, k1 - j, masks, spans, span)
            _hide(s, span, mask, masks, bits, seen if shown == SOME else seen[:0])
            _slopes(s, dp, span, lse[q0:q1], D[q0:q1])
            turned_times(gemm, one, s, do[q0:q1], one, dv[j:k1])
            times(gemm, scale, dp, k[j:k1], one, dq[q0:q1])
            turned_times(gemm, scale, dp, q[q0:q1], one, dk[j:k1])


@functools.cache
def compiled(which: str, dtype: str) -> Any:
    """"forward" or "backward" for one dtype, compiled once for arrays of any layout and read from the cache afterwards."""
    real = getattr(types, dtype)

    def given(kind: Any, ndim: int) -> Any:
        return types.Array(kind, ndim, "A", readonly=True)

    def made(ndim: int) -> Any:
        return types.Array(real, ndim, "C")

    matrix, vector, whole = given(real, 2), given(real, 1), given(types.int64, 2)
    lists = (given(types.uint8, 2), whole, whole, whole, given(types.int32, 2), given(types.uint8, 1))
    start = (types.intp, real, matrix, matrix, matrix, *lists, types.int64, types.int64, types.int64)
    rest = {"forward": (made(2), made(1)), "backward": (vector, matrix, vector, made(2), made(2), made(2))}
    text = {"forward": forward, "backward": backward}[which]
    return kernel(text, *start, *rest[which])
