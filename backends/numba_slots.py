"""LSH attention of one head: chunks of sorted tokens against the slots that they see, as tiles, round after round.

    forward, chunk by chunk (Milakov & Gimelshein, arXiv:1805.02867), with m, l, o of every token kept between rounds:
        s = scale x_i·k_j     m' = max(m, max_j s)     l ← e^(m − m') l + Σ_j e^(s − m') / N     o likewise, with v_j
    backward:  p = e^(s − top) / (z N)    ds = p (do·v − D)    dv += pᵀ do    dx += scale ds k    dk += scale dsᵀ x

Keys and values of a tile stand in a ring of blocks of c slots: a window that moves on by a chunk shares all blocks but one
with the chunk before, so that a round gathers each token once, and adds its dk and dv once to those of the sequence.
One comparison hides what may not be seen: `seat` is a token's position in the causal order (0 where there is none), and
slots without a token have the seat LAST. All that a head writes belongs to one task, in one order.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import njit, types

from refattn.backends.numba_words import (
    EXACT,
    LANES,
    SUMS,
    exp,
    exponentials,
    keep_nan,
    largest,
    times,
    times_turned,
    turned_times,
)

Array = Any
FIRST, LAST = np.int32(-(2**31)), np.int32(2**31 - 1)


@njit(nogil=True, fastmath=EXACT)
def _copy(x: Array, tokens: Array, out: Array) -> None:
    """The rows of these tokens, zeros for slots without one."""
    for i in range(tokens.shape[0]):
        t = tokens[i]
        if t < x.shape[0]:
            for c in range(x.shape[1]):
                out[i, c] = x[t, c]
        else:
            out[i] = out.dtype.type(0)


@njit(nogil=True, fastmath=EXACT)
def _add(x: Array, tokens: Array, out: Array) -> None:
    """Adds rows to those of these tokens."""
    for i in range(tokens.shape[0]):
        t = tokens[i]
        if 0 <= t < out.shape[0]:
            for c in range(x.shape[1]):
                out[t, c] += x[i, c]


@njit(nogil=True, fastmath=EXACT, error_model="numpy")
def _divided(x: Array, root: Array) -> Array:
    """k = x / root; without root x itself."""
    k = np.empty_like(x)
    for t in range(x.shape[0]):
        length = root[t] if root.shape[0] else x.dtype.type(1)
        for c in range(x.shape[1]):
            k[t, c] = x[t, c] / length
    return k


@njit(nogil=True, fastmath=EXACT)
def _stand(ring: Array, keys: Array) -> bool:
    """Whether these tokens stand in a block of the ring already."""
    different = 0
    for i in range(keys.shape[0]):
        different += ring[i] != keys[i]
    return different == 0


@njit(nogil=True, fastmath=EXACT)
def _seats(tokens: Array, seat: Array, none: Any, out: Array) -> None:
    for i in range(tokens.shape[0]):
        out[i] = seat[tokens[i]] if tokens[i] < seat.shape[0] else none


@njit(nogil=True, fastmath=EXACT)
def _hide(s: Array, tokens: Array, seats: Array, ring: Array, ring_seats: Array, apart: bool, self_score: Any) -> None:
    """Scores of tokens with themselves, if these stand apart, and −∞ for what may not be seen."""
    hidden = s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        t, seat = (tokens[r] if apart else np.int32(-1)), seats[r]
        for c in range(s.shape[1]):
            x = self_score if ring[c] == t else s[r, c]
            s[r, c] = x if ring_seats[c] <= seat else hidden


@njit(nogil=True, fastmath=EXACT)
def _hide_other_buckets(s: Array, own: Array, others: Array) -> None:
    hidden = s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        for c in range(s.shape[1]):
            s[r, c] = s[r, c] if others[c] == own[r] else hidden


@njit(nogil=True, fastmath=EXACT)
def _counted(count: Array, t: int, rules: Array, aims: Array, places: Array, labels: Array, ring_places: Array,
             ring_labels: Array, least: Any) -> None:
    """N of a query t with the tokens in the ring: how many of the rules (o, r, a) they meet by.

    Chunk o further on than that of t in round r (``aims``) is the other's chunk in round a; with labels, of one bucket.
    """
    one, zero = count.dtype.type(1), count.dtype.type(0)
    count[:] = least
    for i in range(rules.shape[0]):
        r, a = rules[i, 1], rules[i, 2]
        aim = aims[rules[i, 0], places[t, r]]
        if labels.shape[0]:
            label = labels[t, r]
            for c in range(count.shape[0]):
                count[c] += one if (ring_places[a, c] == aim) & (ring_labels[a, c] == label) else zero
        else:
            for c in range(count.shape[0]):
                count[c] += one if ring_places[a, c] == aim else zero


@njit(nogil=True, fastmath=SUMS, error_model="numpy")
def _shared(e: Array, t: int, counts: Any) -> Any:
    """e ← e / N where it is not 0, and its sum."""
    count, rules, aims, places, labels, ring_places, ring_labels, least = counts
    _counted(count, t, rules, aims, places, labels, ring_places, ring_labels, least)
    total, zero = e.dtype.type(0), e.dtype.type(0)
    for c in range(e.shape[0]):
        x = e[c] / count[c]
        e[c] = zero if e[c] == zero else x
        total += e[c]
    return total


@njit(nogil=True, fastmath=EXACT)
def _take(first: int, keys: Array, seat: Array, k: Array, v: Array, tokens: Array, seats: Array, ring_k: Array, ring_v: Array
          ) -> None:
    """Puts tokens into a block of the ring, with their seats, k and v; zeros for slots without one."""
    zero = k.dtype.type(0)
    for i in range(keys.shape[0]):
        t, at = keys[i], first + i
        there = t < k.shape[0]
        tokens[at] = t
        seats[at] = seat[t] if there else LAST
        row = t if there else 0
        for c in range(k.shape[1]):
            ring_k[at, c] = k[row, c] if there else zero
        for c in range(v.shape[1]):
            ring_v[at, c] = v[row, c] if there else zero


@njit(nogil=True, fastmath=EXACT)
def _place(first: int, keys: Array, places: Array, labels: Array, ring_places: Array, ring_labels: Array) -> None:
    """The chunks and buckets, by round, of tokens that have been put into a block of the ring."""
    for r in range(places.shape[1]):
        for i in range(keys.shape[0]):
            t = keys[i]
            ring_places[r, first + i] = places[t, r] if t < places.shape[0] else -2
            if labels.shape[0]:
                ring_labels[r, first + i] = labels[t, r] if t < labels.shape[0] else 0


@njit(nogil=True, fastmath=EXACT)
def _stream(s: Array, tokens: Array, m: Array, l: Array, shrink: Array, lanes: Array, counts: Any) -> None:
    """Scores to weights against the running maximum m, with l rescaled where it rises, and o still to be: by shrink."""
    nothing = s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        t, row = tokens[r], s[r]
        top = largest(row, lanes)
        top = top if t >= m.shape[0] or top > m[t] else m[t]
        if top == nothing:
            total = keep_nan(row)
            if t < m.shape[0]:
                l[t] += total
                shrink[r] = s.dtype.type(1)
            continue
        shrink[r] = exp(m[t] - top)
        total = exponentials(row, top)
        if counts is not None:
            total = _shared(row, t, counts)
        l[t] = l[t] * shrink[r] + total
        m[t] = top


@njit(nogil=True, fastmath=EXACT)
def _merge(o: Array, tokens: Array, shrink: Array, more: Array) -> None:
    for r in range(tokens.shape[0]):
        t = tokens[r]
        if t < o.shape[0]:
            for c in range(o.shape[1]):
                o[t, c] = o[t, c] * shrink[r] + more[r, c]


@njit(nogil=True, fastmath=EXACT, error_model="numpy")
def _finish(m: Array, l: Array, o: Array, lse: Array) -> None:
    """Sums to averages; of a token that saw nothing o = 0, lse = −∞, top 0, z 1."""
    one = o.dtype.type(1)
    for t in range(o.shape[0]):
        if l[t] == o.dtype.type(0):
            o[t], lse[t], m[t], l[t] = o.dtype.type(0), -np.inf, o.dtype.type(0), one
            continue
        scale = one / l[t]
        for c in range(o.shape[1]):
            o[t, c] *= scale
        lse[t] = m[t] + math.log(l[t])


def forward(gemm, scale, apart, self_score, least, high, x, root, v, seat, queries, keys, own, others,  # type: ignore[no-untyped-def]
            rules, aims, places, labels, o, lse, m, l):
    """o, lse, top (m) and z (l) of every token, `high` queries at a time; they may hold anything before."""
    zero, one, c, width = o.dtype.type(0), o.dtype.type(1), queries.shape[1], keys.shape[1]
    k = _divided(x, root)
    tokens, seats, of_buckets = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int64)
    ring_k, ring_v = np.empty((width, x.shape[1]), x.dtype), np.empty((width, v.shape[1]), x.dtype)
    ring_places, ring_labels = np.empty((places.shape[1], width), np.int32), np.empty((labels.shape[1], width), np.int64)
    lanes, count = np.empty(LANES, x.dtype), np.empty(width, x.dtype)
    counts = None if rules is None else (count, rules, aims, places, labels, ring_places, ring_labels, least)
    high = min(high, c)
    scores, q = np.empty((high, width), o.dtype), np.empty((high, x.shape[1]), o.dtype)
    more = np.empty((high, o.shape[1]), o.dtype)
    at, shrink = np.empty(high, np.int32), np.empty(high, o.dtype)
    tokens[:] = -1
    m[:] = -np.inf
    l[:] = zero
    o[:] = zero
    for j in range(queries.shape[0]):
        for w in range(0, width, c):
            first = (j * c + w) % width
            if not _stand(tokens[first:first + c], keys[j, w:w + c]):
                _take(first, keys[j, w:w + c], seat, k, v, tokens, seats, ring_k, ring_v)
                if rules is not None:
                    _place(first, keys[j, w:w + c], places, labels, ring_places, ring_labels)
            if own.shape[0]:
                of_buckets[first:first + c] = others[j, w:w + c]
        for a in range(0, c, high):
            b = min(a + high, c)
            mine = queries[j, a:b]
            s = scores[:b - a]
            _copy(x, mine, q[:b - a])
            times_turned(gemm, scale, q[:b - a], ring_k, zero, s)
            _seats(mine, seat, FIRST, at[:b - a])
            _hide(s, mine, at[:b - a], tokens, seats, apart, self_score)
            if own.shape[0]:
                _hide_other_buckets(s, own[j, a:b], of_buckets)
            _stream(s, mine, m, l, shrink, lanes, counts)
            times(gemm, one, s, ring_v, zero, more[:b - a])
            _merge(o, mine, shrink, more[:b - a])
    _finish(m, l, o, lse)


@njit(nogil=True, fastmath=EXACT)
def _cotangents(do: Array, lse: Array, tokens: Array, out: Array) -> None:
    """The rows of these tokens; zeros for what saw nothing."""
    _copy(do, tokens, out)
    for i in range(tokens.shape[0]):
        if tokens[i] < lse.shape[0] and lse[tokens[i]] == -np.inf:
            out[i] = out.dtype.type(0)


@njit(nogil=True, fastmath=EXACT, error_model="numpy")
def _slopes(s: Array, dp: Array, tokens: Array, lse: Array, top: Array, z: Array, D: Array, apart: bool, ring: Array,
            counts: Any) -> None:
    """s ← p = e^(s − top) / (z N) and dp ← ds = p (dp − D), which is 0 for a score that stands apart."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    for r in range(s.shape[0]):
        t, row, other = tokens[r], s[r], dp[r]
        if t >= z.shape[0]:
            row[:] = zero
            other[:] = zero
            continue
        less, share = zero if lse[t] == -np.inf else D[t], one / z[t]
        exponentials(row, top[t])
        if counts is not None:
            _shared(row, t, counts)
        for c in range(row.shape[0]):
            p = row[c] * share
            row[c] = p
            other[c] = zero if apart and ring[c] == t else p * (other[c] - less)


@njit(nogil=True, fastmath=SUMS)
def _inner(x: Array, y: Array) -> Any:
    total = x.dtype.type(0)
    for c in range(x.shape[0]):
        total += x[c] * y[c]
    return total


@njit(nogil=True, fastmath=EXACT, error_model="numpy")
def _joined(k: Array, dk: Array, root: Array, dx: Array) -> None:
    """dx += (dk − k (k·dk)) / root, row by row; dk without root."""
    for t in range(k.shape[0]):
        if root.shape[0]:
            along, length = _inner(k[t], dk[t]), root[t]
            for c in range(k.shape[1]):
                dx[t, c] += (dk[t, c] - k[t, c] * along) / length
        else:
            for c in range(k.shape[1]):
                dx[t, c] += dk[t, c]


@njit(nogil=True, fastmath=EXACT)
def _give(tokens: Array, ring_dk: Array, ring_dv: Array, dk: Array, dv: Array) -> None:
    """Adds what a block of the ring has brought to the sequence."""
    _add(ring_dk, tokens, dk)
    _add(ring_dv, tokens, dv)
    ring_dk[:] = ring_dk.dtype.type(0)
    ring_dv[:] = ring_dv.dtype.type(0)


def backward(gemm, scale, apart, self_score, least, high, x, root, v, seat, queries, keys, own,  # type: ignore[no-untyped-def]
             others, rules, aims, places, labels, lse, top, z, do, D, dx, dv):
    """dx and dv, which must be 0 before, `high` queries at a time."""
    zero, one, c, width = x.dtype.type(0), x.dtype.type(1), queries.shape[1], keys.shape[1]
    k, dk = _divided(x, root), np.zeros_like(x)
    tokens, seats, of_buckets = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int64)
    ring_k, ring_v = np.empty((width, x.shape[1]), x.dtype), np.empty((width, v.shape[1]), x.dtype)
    ring_places, ring_labels = np.empty((places.shape[1], width), np.int32), np.empty((labels.shape[1], width), np.int64)
    count = np.empty(width, x.dtype)
    counts = None if rules is None else (count, rules, aims, places, labels, ring_places, ring_labels, least)
    ring_dk, ring_dv = np.zeros_like(ring_k), np.zeros_like(ring_v)
    tokens[:] = -1
    high = min(high, c)
    scores, slopes = np.empty((high, width), x.dtype), np.empty((high, width), x.dtype)
    q, g = np.empty((high, x.shape[1]), x.dtype), np.empty((high, v.shape[1]), x.dtype)
    more = np.empty_like(q)
    at = np.empty(high, np.int32)
    for j in range(queries.shape[0]):
        for w in range(0, width, c):
            first = (j * c + w) % width
            if not _stand(tokens[first:first + c], keys[j, w:w + c]):
                _give(tokens[first:first + c], ring_dk[first:first + c], ring_dv[first:first + c], dk, dv)
                _take(first, keys[j, w:w + c], seat, k, v, tokens, seats, ring_k, ring_v)
                if rules is not None:
                    _place(first, keys[j, w:w + c], places, labels, ring_places, ring_labels)
            if own.shape[0]:
                of_buckets[first:first + c] = others[j, w:w + c]
        for a in range(0, c, high):
            b = min(a + high, c)
            mine, s, ds = queries[j, a:b], scores[:b - a], slopes[:b - a]
            _copy(x, mine, q[:b - a])
            _cotangents(do, lse, mine, g[:b - a])
            times_turned(gemm, scale, q[:b - a], ring_k, zero, s)
            times_turned(gemm, one, g[:b - a], ring_v, zero, ds)
            _seats(mine, seat, FIRST, at[:b - a])
            _hide(s, mine, at[:b - a], tokens, seats, apart, self_score)
            if own.shape[0]:
                _hide_other_buckets(s, own[j, a:b], of_buckets)
            _slopes(s, ds, mine, lse, top, z, D, apart, tokens, counts)
            turned_times(gemm, one, s, g[:b - a], one, ring_dv)
            times(gemm, scale, ds, ring_k, zero, more[:b - a])
            _add(more[:b - a], mine, dx)
            turned_times(gemm, scale, ds, q[:b - a], one, ring_dk)
    for first in range(0, width, c):
        _give(tokens[first:first + c], ring_dk[first:first + c], ring_dv[first:first + c], dk, dv)
    _joined(k, dk, root, dx)


@functools.cache
def compiled(which: str, dtype: str, counts: bool) -> Any:
    """"forward" or "backward" for one dtype, compiled once and read from the cache afterwards.

    counts: N may be other than 1; else `rules` is None, and what counts is not compiled.
    """
    real = getattr(types, dtype)

    def given(kind: Any, ndim: int) -> Any:
        return types.Array(kind, ndim, "C", readonly=True)

    def made(ndim: int) -> Any:
        return types.Array(real, ndim, "C")

    matrix, vector, places, labels = given(real, 2), given(real, 1), given(types.int32, 2), given(types.int64, 2)
    start = (types.intp, real, types.boolean, real, real, types.int64, matrix, vector, matrix, given(types.int32, 1))
    lists = (places, places, labels, labels, places if counts else types.none, places, places, labels)
    rest = {"forward": (made(2), made(1), made(1), made(1)),
            "backward": (vector, vector, vector, matrix, vector, made(2), made(2))}
    text = {"forward": forward, "backward": backward}[which]
    return njit(types.void(*start, *lists, *rest[which]), nogil=True, cache=True, fastmath=EXACT)(text)
