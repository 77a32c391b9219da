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
from typing import Any

import numpy as np
from numba import types

from refattn.backends.numba_words import (
    LANES,
    SUMS,
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
FIRST, LAST = np.int32(-(2**31)), np.int32(2**31 - 1)


@word()
def _copy(x: Array, tokens: Array, out: Array) -> None:
    """The rows of these tokens, zeros for slots without one."""
    for i in range(tokens.shape[0]):
        t = tokens[i]
        if t < x.shape[0]:
            for c in range(x.shape[1]):
                out[i, c] = x[t, c]
        else:
            out[i] = out.dtype.type(0)


@word()
def _add(x: Array, tokens: Array, out: Array) -> None:
    """Adds rows to those of these tokens."""
    for i in range(tokens.shape[0]):
        t = tokens[i]
        if 0 <= t < out.shape[0]:
            for c in range(x.shape[1]):
                out[t, c] += x[i, c]


@word()
def _stands(tokens: Array, first: int, keys: Array, j: int, w: int, c: int) -> bool:
    """Whether c tokens of chunk j stand in their block of the ring already."""
    different = 0
    for i in range(c):
        different += tokens[first + i] != keys[j, w + i]
    return different == 0


@word()
def _hide(s: Array, tokens: Array, seat: Array, ring: Array, ring_seats: Array, apart: bool, self_score: Any) -> None:
    """Scores of tokens with themselves, if these stand apart, and −∞ for what may not be seen."""
    hidden = s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        t, mine = (tokens[r] if apart else np.int32(-1)), (seat[tokens[r]] if tokens[r] < seat.shape[0] else FIRST)
        for c in range(s.shape[1]):
            x = self_score if ring[c] == t else s[r, c]
            s[r, c] = x if ring_seats[c] <= mine else hidden


@word()
def _label(others: Array, j: int, w: int, c: int, first: int, of_buckets: Array) -> None:
    """The buckets of c slots that chunk j sees."""
    for i in range(c):
        of_buckets[first + i] = others[j, w + i]


@word()
def _hide_other_buckets(s: Array, own: Array, others: Array) -> None:
    hidden = s.dtype.type(-np.inf)
    for r in range(s.shape[0]):
        for c in range(s.shape[1]):
            s[r, c] = s[r, c] if others[c] == own[r] else hidden


@word()
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


@word(SUMS, error_model="numpy")
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


@word()
def _take(first: int, keys: Array, j: int, w: int, c: int, seat: Array, k: Array, v: Array, tokens: Array, seats: Array,
          ring_k: Array, ring_v: Array) -> None:
    """Puts c tokens of chunk j into a block of the ring, with their seats, k and v; zeros for slots without one."""
    zero = k.dtype.type(0)
    for i in range(c):
        t, to = keys[j, w + i], first + i
        there = t < k.shape[0]
        tokens[to] = t
        seats[to] = seat[t] if there else LAST
        row = t if there else 0
        for a in range(k.shape[1]):
            ring_k[to, a] = k[row, a] if there else zero
        for a in range(v.shape[1]):
            ring_v[to, a] = v[row, a] if there else zero


@word()
def _place(first: int, keys: Array, j: int, w: int, c: int, places: Array, labels: Array, ring_places: Array,
           ring_labels: Array) -> None:
    """The chunks and buckets, by round, of tokens that have been put into a block of the ring."""
    for r in range(places.shape[1]):
        for i in range(c):
            t = keys[j, w + i]
            ring_places[r, first + i] = places[t, r] if t < places.shape[0] else -2
            if labels.shape[0]:
                ring_labels[r, first + i] = labels[t, r] if t < labels.shape[0] else 0


@word()
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


@word()
def _merge(o: Array, tokens: Array, shrink: Array, more: Array) -> None:
    for r in range(tokens.shape[0]):
        t = tokens[r]
        if t < o.shape[0]:
            for c in range(o.shape[1]):
                o[t, c] = o[t, c] * shrink[r] + more[r, c]


def forward(gemm, scale, apart, self_score, least, high, x, k, v, seat, queries, keys, own, others,  # type: ignore[no-untyped-def]
            rules, aims, places, labels, o, m, l):
    """Adds to o, m and l of every token, which must be 0, −∞ and 0 before, `high` queries at a time."""
    zero, one, c, width = o.dtype.type(0), o.dtype.type(1), queries.shape[1], keys.shape[1]
    tokens, seats, of_buckets = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int64)
    ring_k, ring_v = np.empty((width, x.shape[1]), x.dtype), np.empty((width, v.shape[1]), x.dtype)
    ring_places, ring_labels = np.empty((places.shape[1], width), np.int32), np.empty((labels.shape[1], width), np.int64)
    lanes, count = np.empty(LANES, x.dtype), np.empty(width, x.dtype)
    counts = None if rules is None else (count, rules, aims, places, labels, ring_places, ring_labels, least)
    high = min(high, c)
    scores, gathered = np.empty((high, width), o.dtype), np.empty((high, x.shape[1]), o.dtype)
    brought, shrink = np.empty((high, o.shape[1]), o.dtype), np.empty(high, o.dtype)
    tokens[:] = -1
    for j in range(queries.shape[0]):
        for w in range(0, width, c):
            first = (j * c + w) % width
            if not _stands(tokens, first, keys, j, w, c):
                _take(first, keys, j, w, c, seat, k, v, tokens, seats, ring_k, ring_v)
                if rules is not None:
                    _place(first, keys, j, w, c, places, labels, ring_places, ring_labels)
            if own.shape[0]:
                _label(others, j, w, c, first, of_buckets)
        for a in range(0, c, high):
            b = min(a + high, c)
            mine, s, q, more = queries[j, a:b], scores[:b - a], gathered[:b - a], brought[:b - a]
            _copy(x, mine, q)
            times_turned(gemm, scale, q, ring_k, zero, s)
            _hide(s, mine, seat, tokens, seats, apart, self_score)
            if own.shape[0]:
                _hide_other_buckets(s, own[j, a:b], of_buckets)
            _stream(s, mine, m, l, shrink, lanes, counts)
            times(gemm, one, s, ring_v, zero, more)
            _merge(o, mine, shrink, more)


@word(error_model="numpy")
def _slopes(s: Array, dp: Array, tokens: Array, top: Array, z: Array, D: Array, apart: bool, ring: Array,
            counts: Any) -> None:
    """s ← p = e^(s − top) / (z N) and dp ← ds = p (dp − D), which is 0 for a score that stands apart."""
    zero, one = s.dtype.type(0), s.dtype.type(1)
    for r in range(s.shape[0]):
        t, row, other = tokens[r], s[r], dp[r]
        if t >= z.shape[0]:
            row[:] = zero
            other[:] = zero
            continue
        less, share = D[t], one / z[t]
        exponentials(row, top[t])
        if counts is not None:
            _shared(row, t, counts)
        for c in range(row.shape[0]):
            p = row[c] * share
            row[c] = p
            other[c] = zero if apart and ring[c] == t else p * (other[c] - less)


@word()
def _give(first: int, c: int, tokens: Array, ring_dk: Array, ring_dv: Array, dk: Array, dv: Array) -> None:
    """Adds what a block of the ring has brought to the sequence."""
    zero = dk.dtype.type(0)
    for i in range(first, first + c):
        t = tokens[i]
        for a in range(dk.shape[1]):
            if 0 <= t < dk.shape[0]:
                dk[t, a] += ring_dk[i, a]
            ring_dk[i, a] = zero
        for a in range(dv.shape[1]):
            if 0 <= t < dv.shape[0]:
                dv[t, a] += ring_dv[i, a]
            ring_dv[i, a] = zero


def backward(gemm, scale, apart, self_score, least, high, x, k, v, seat, queries, keys, own,  # type: ignore[no-untyped-def]
             others, rules, aims, places, labels, top, z, do, D, dx, dk, dv):
    """Adds to dx (as queries), dk and dv, `high` queries at a time. do and D of a token that saw nothing must be 0."""
    zero, one, c, width = x.dtype.type(0), x.dtype.type(1), queries.shape[1], keys.shape[1]
    tokens, seats, of_buckets = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int64)
    ring_k, ring_v = np.empty((width, x.shape[1]), x.dtype), np.empty((width, v.shape[1]), x.dtype)
    ring_places, ring_labels = np.empty((places.shape[1], width), np.int32), np.empty((labels.shape[1], width), np.int64)
    count = np.empty(width, x.dtype)
    counts = None if rules is None else (count, rules, aims, places, labels, ring_places, ring_labels, least)
    ring_dk, ring_dv = np.zeros((width, x.shape[1]), x.dtype), np.zeros((width, v.shape[1]), x.dtype)
    high = min(high, c)
    scores, slopes = np.empty((high, width), x.dtype), np.empty((high, width), x.dtype)
    gathered, cotangents = np.empty((high, x.shape[1]), x.dtype), np.empty((high, v.shape[1]), x.dtype)
    brought = np.empty((high, x.shape[1]), x.dtype)
    tokens[:] = -1
    for j in range(queries.shape[0]):
        for w in range(0, width, c):
            first = (j * c + w) % width
            if not _stands(tokens, first, keys, j, w, c):
                _give(first, c, tokens, ring_dk, ring_dv, dk, dv)
                _take(first, keys, j, w, c, seat, k, v, tokens, seats, ring_k, ring_v)
                if rules is not None:
                    _place(first, keys, j, w, c, places, labels, ring_places, ring_labels)
            if own.shape[0]:
                _label(others, j, w, c, first, of_buckets)
        for a in range(0, c, high):
            b = min(a + high, c)
            mine, s, ds = queries[j, a:b], scores[:b - a], slopes[:b - a]
            q, g, more = gathered[:b - a], cotangents[:b - a], brought[:b - a]
            _copy(x, mine, q)
            _copy(do, mine, g)
            times_turned(gemm, scale, q, ring_k, zero, s)
            times_turned(gemm, one, g, ring_v, zero, ds)
            _hide(s, mine, seat, tokens, seats, apart, self_score)
            if own.shape[0]:
                _hide_other_buckets(s, own[j, a:b], of_buckets)
            _slopes(s, ds, mine, top, z, D, apart, tokens, counts)
            turned_times(gemm, one, s, g, one, ring_dv)
            times(gemm, scale, ds, ring_k, zero, more)
            _add(more, mine, dx)
            turned_times(gemm, scale, ds, q, one, ring_dk)
    _give(0, width, tokens, ring_dk, ring_dv, dk, dv)


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
    start = (types.intp, real, types.boolean, real, real, types.int64, matrix, matrix, matrix, given(types.int32, 1))
    lists = (places, places, labels, labels, places if counts else types.none, places, places, labels)
    rest = {"forward": (made(2), made(1), made(1)),
            "backward": (vector, vector, matrix, vector, made(2), made(2), made(2))}
    text = {"forward": forward, "backward": backward}[which]
    return kernel(text, *start, *lists, *rest[which])
