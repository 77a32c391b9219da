"""Compiled loops over rows of entries: softmax attention of one head, query by query and key by key, and the two products.

    forward, query by query:   s_t = scale q_i·k_j     e_t = count_t exp(s_t − max s)     o_i = Σ e_t v_j / Σ e_t
    backward, query by query:  p_t = count_t exp(s_t − lse_i)     ds_t = scale p_t (do_i·v_j − D_i)     dq_i = Σ ds_t k_j
             then key by key:  dk_j += Σ ds_t q_i     dv_j += Σ p_t do_i

Entries of query i are start[i] … start[i + 1] − 1, entry t looks at key col[t]; by key the queries are row, the entries
turn. Four products are taken at once against one row of q, eight rows are added at once to a sum. Every call writes rows
of its own, so that any division into calls gives the same bits. ``ok`` (nnz,) uint8 hides entries, ``count`` (nnz,) weighs
them; (0,) is nothing hidden, all counted once. A score of −∞ counts as hidden, as in the generic text; NaN is never hidden.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import types

from refattn.backends.numba_words import LANES, SUMS, exponentials, keep_nan, kernel, largest, word

Array = Any


@word(SUMS)
def _dots(a: Array, i: int, b: Array, col: Array, first: int, last: int, factor: Any, s: Array) -> None:
    """s[t − first] = factor a_i·b_col(t) for the entries first … last − 1."""
    zero, width, t = s.dtype.type(0), a.shape[1], first
    while t + 4 <= last:
        j0, j1, j2, j3 = col[t], col[t + 1], col[t + 2], col[t + 3]
        x0, x1, x2, x3 = zero, zero, zero, zero
        for c in range(width):
            y = a[i, c]
            x0 += y * b[j0, c]
            x1 += y * b[j1, c]
            x2 += y * b[j2, c]
            x3 += y * b[j3, c]
        s[t - first] = x0 * factor
        s[t - first + 1] = x1 * factor
        s[t - first + 2] = x2 * factor
        s[t - first + 3] = x3 * factor
        t += 4
    while t < last:
        j0, x0 = col[t], zero
        for c in range(width):
            x0 += a[i, c] * b[j0, c]
        s[t - first] = x0 * factor
        t += 1


@word(SUMS)
def _add(s: Array, b: Array, col: Array, first: int, last: int, o: Array, i: int) -> None:
    """o_i += Σ s[t − first] b_col(t) over the entries first … last − 1."""
    width, t = o.shape[1], first
    while t + 8 <= last:
        j0, j1, j2, j3 = col[t], col[t + 1], col[t + 2], col[t + 3]
        j4, j5, j6, j7 = col[t + 4], col[t + 5], col[t + 6], col[t + 7]
        u = t - first
        x0, x1, x2, x3, x4, x5, x6, x7 = s[u], s[u + 1], s[u + 2], s[u + 3], s[u + 4], s[u + 5], s[u + 6], s[u + 7]
        for c in range(width):
            o[i, c] += (((x0 * b[j0, c] + x1 * b[j1, c]) + (x2 * b[j2, c] + x3 * b[j3, c]))
                        + ((x4 * b[j4, c] + x5 * b[j5, c]) + (x6 * b[j6, c] + x7 * b[j7, c])))
        t += 8
    while t < last:
        j0, x0 = col[t], s[t - first]
        for c in range(width):
            o[i, c] += x0 * b[j0, c]
        t += 1


@word()
def _longest(start: Array, first: int, last: int) -> int:
    longest = 0
    for i in range(first, last):
        longest = max(longest, start[i + 1] - start[i])
    return longest


@word()
def _weighed(s: Array, top: Any, count: Array) -> Any:
    """s ← count eˢ⁻ᵗᵒᵖ and its sum."""
    total = exponentials(s, top)
    if count.shape[0]:
        total = s.dtype.type(0)
        for t in range(s.shape[0]):
            s[t] *= count[t]
            total += s[t]
    return total


def forward(scale, q, k, v, ok, start, col, count, first, last, o, lse):  # type: ignore[no-untyped-def]
    """o and lse of the queries first … last − 1."""
    zero, one, hidden = o.dtype.type(0), o.dtype.type(1), o.dtype.type(-np.inf)
    buffer, lanes = np.empty(_longest(start, first, last), o.dtype), np.empty(LANES, o.dtype)
    for i in range(first, last):
        a, b = start[i], start[i + 1]
        s = buffer[:b - a]
        _dots(q, i, k, col, a, b, scale, s)
        if ok.shape[0]:
            for t in range(a, b):
                s[t - a] = s[t - a] if ok[t] else hidden
        top = largest(s, lanes)
        z = keep_nan(s) if top == hidden else _weighed(s, top, count[a:b] if count.shape[0] else count)
        o[i] = zero
        if z == zero:
            lse[i] = hidden
            continue
        _add(s, v, col, a, b, o, i)
        shrink = one / z
        for c in range(o.shape[1]):
            o[i, c] *= shrink
        lse[i] = top + math.log(z)


def by_query(scale, q, k, v, ok, start, col, count, first, last, lse, do, D, pair, dq):  # type: ignore[no-untyped-def]
    """(p, ds) of the entries, and dq, of the queries first … last − 1; lse, do and D of a query that sees nothing are 0."""
    zero, one, longest = dq.dtype.type(0), dq.dtype.type(1), _longest(start, first, last)
    p, ds = np.empty(longest, dq.dtype), np.empty(longest, dq.dtype)
    for i in range(first, last):
        a, b = start[i], start[i + 1]
        x, y = p[:b - a], ds[:b - a]
        _dots(q, i, k, col, a, b, scale, x)
        _dots(do, i, v, col, a, b, one, y)
        exponentials(x, lse[i])
        if count.shape[0]:
            for t in range(a, b):
                x[t - a] *= count[t]
        if ok.shape[0]:
            for t in range(a, b):
                x[t - a] = x[t - a] if ok[t] else zero
        for t in range(b - a):
            y[t] = x[t] * (y[t] - D[i]) * scale
            pair[a + t, 0], pair[a + t, 1] = x[t], y[t]
        dq[i] = zero
        _add(y, k, col, a, b, dq, i)


def by_key(q, start, row, turn, first, last, do, pair, dk, dv):  # type: ignore[no-untyped-def]
    """Adds to dk and dv of the keys first … last − 1 what the entries of one query head bring."""
    x, y = np.empty(_longest(start, first, last), dk.dtype), np.empty(_longest(start, first, last), dk.dtype)
    for j in range(first, last):
        a, b = start[j], start[j + 1]
        for t in range(a, b):
            x[t - a], y[t - a] = pair[turn[t], 0], pair[turn[t], 1]
        _add(y, q, row, a, b, dk, j)
        _add(x, do, row, a, b, dv, j)


def scores(q, k, start, col, first, last, s):  # type: ignore[no-untyped-def]
    """The products of the entries of the queries first … last − 1."""
    one = s.dtype.type(1)
    for i in range(first, last):
        _dots(q, i, k, col, start[i], start[i + 1], one, s[start[i]:start[i + 1]])


def sums(p, v, start, col, first, last, o):  # type: ignore[no-untyped-def]
    """The sums of the queries first … last − 1; o must be 0 before."""
    for i in range(first, last):
        _add(p[start[i]:start[i + 1]], v, col, start[i], start[i + 1], o, i)


@functools.cache
def compiled(which: str, dtype: str) -> Any:
    """One of the functions above for one dtype, compiled once and read from the cache afterwards."""
    real = getattr(types, dtype)

    def given(kind: Any, ndim: int = 1) -> Any:
        return types.Array(kind, ndim, "C", readonly=True)

    def made(ndim: int) -> Any:
        return types.Array(real, ndim, "C")

    matrix, vector, whole, at = given(real, 2), given(real), given(types.int64), types.int64
    head = (real, matrix, matrix, matrix, given(types.uint8), whole, whole, vector, at, at)
    takes = {
        "forward": (*head, made(2), made(1)),
        "by_query": (*head, vector, matrix, vector, made(2), made(2)),
        "by_key": (matrix, whole, whole, whole, at, at, matrix, matrix, made(2), made(2)),
        "scores": (matrix, matrix, whole, whole, at, at, made(1)),
        "sums": (vector, matrix, whole, whole, at, at, made(2)),
    }
    text = {f.__name__: f for f in (forward, by_query, by_key, scores, sums)}[which]
    return kernel(text, *takes[which])
