"""How often tokens meet in sorted chunks, counted from their ranks: nothing is sorted, so that it can judge what is.

    rank_i = #{j before i in (padding, bucket, token)}          chunk_i = ⌊rank_i / c⌋          of each round
    N_ij = Σ_r Σ_o Σ_r' [chunk_r(i) + o = chunk_r'(j)],   o = −before … after,   r' = r unless chunks wrap into other rounds
    M_ij = Σ_r [chunk_r(j) = chunk_r(i)] + [chunk_r(j) = chunk_r(i) − 1]          (of all chunks, around the end)

With ``within_bucket`` only slots of one round and one bucket meet. O(r·n²) work and more: for definitions.
"""

from __future__ import annotations

from typing import Any

from refattn.backend import of
from refattn.ops.slots import Window

Array = Any


def meetings(buckets: Array, valid: Array | None, window: Window, zeros: Array) -> tuple[Array, Array]:
    """N and M as numbers (items, n, n), from buckets (items, r, n); padding meets nobody. zeros: (items, n, n)."""
    xp, rounds = of(zeros).xp, buckets.shape[1]
    place, chunks = _chunk(buckets, valid, window.chunk, zeros)
    period = None if window.wrap == "none" else chunks if window.wrap == "round" else rounds * chunks
    met, once = zeros, zeros
    for r in range(rounds):
        i, same = place[:, r, :, None] + r * chunks, buckets[:, r, :, None] == buckets[:, r, None, :]

        def add(total: Array, hit: Array, same: Array = same) -> Array:
            return total + xp.where(hit & same if window.within_bucket else hit, 1.0, zeros)

        for other in range(rounds) if window.wrap == "rounds" and not window.within_bucket else (r,):
            lag = place[:, other, None, :] + other * chunks - i
            for o in range(-window.before, window.after + 1):
                met = add(met, _equal(lag, o, period))
        for o in (0, -1):
            once = add(once, _equal(place[:, r, None, :] + r * chunks - i, o, rounds * chunks))
    if valid is not None:
        met = xp.where(valid[:, :, None] & valid[:, None, :], met, zeros)
    return met, once


def _chunk(buckets: Array, valid: Array | None, c: int, zeros: Array) -> tuple[Array, int]:
    """The chunk of each token in its round, as a number (items, r, n), and how many chunks a round has."""
    xp, n = of(zeros).xp, zeros.shape[-1]
    token, chunks = of(zeros).lift(range(n), zeros), -(-n // c)
    one, other = buckets[..., :, None], buckets[..., None, :]
    first = (other < one) | ((other == one) & (token[None, :] < token[:, None]))
    if valid is not None:
        i, j = valid[:, None, :, None], valid[:, None, None, :]
        first = (j & ~i) | ((i == j) & first)
    rank = xp.sum(xp.where(first, 1.0, zeros[:, None, :, :]), axis=-1)
    place = xp.zeros_like(rank)
    for t in range(1, chunks):
        place = place + xp.where(rank >= float(t * c), 1.0, xp.zeros_like(rank))
    return place, chunks


def _equal(lag: Array, o: int, period: int | None) -> Array:
    """Whether lag = o, modulo the period if there is one; |lag| is less than the period."""
    hit = lag == float(o)
    if period is None:
        return hit
    for turn in range(1, 2 + abs(o) // max(period, 1)):
        hit = hit | (lag == float(o + turn * period)) | (lag == float(o - turn * period))
    return hit
