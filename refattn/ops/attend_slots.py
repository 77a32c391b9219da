"""Softmax attention of tokens to the slots that their chunks see, all rounds together: what ``LSH`` is made of.

    k_j = x_j / root_j     s_ij = scale·x_i·k_j, s_ii = self_score     top_i = max s_ij     z_i = Σ exp(s_ij − top_i) / N_ij
    o_i = Σ exp(s_ij − top_i) / N_ij v_j / z_i          lse_i = top_i + log z_i          (0, −∞, top 0, z 1: nothing is seen)

Sums are over the slots that i sees, in all rounds; N_ij counts a token that is met repeatedly, or is 1. x: (items, n, d)
root: (items, n, 1)   v, o: (items, n, e)   lse, top, z: (items, n). The two kernels are those that backends replace; they
take order and buckets as decided, and a token in no slot (padding) neither sees nor is seen, whatever it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.ops import slots
from refattn.ops.slots import Slots, rows
from refattn.ops.softmax import merged, row_max, weights
from refattn.shapes import blocks

Array = Any
TINY = 1e-9  # of the count of 2020


@dataclass(frozen=True)
class Meeting:
    """What it counts that a token meets another; fields as in ``LSH``.

    positions: (items, n), None: that of the sequence. buckets: (items, r, n), for the counts of duplicates.
    """

    scale: Any
    self_score: float | None
    duplicates: str
    causal: bool
    positions: Array | None
    buckets: Array

    def scores(self, found: Slots, x: Array, k: Array, at: slice) -> tuple[Array, Array, Array | None]:
        """s, see and N, (items, chunks, c, width), of the slots of the chunks `at`; x and k with a row of blanks."""
        xp, n = of(x, k).xp, x.shape[1] - 1
        queries, keys = found.queries[:, at, :], found.keys[:, at, :]
        i, j = queries[:, :, :, None], keys[:, :, None, :]
        see, shared = (i < n) & (j < n), found.shared(at)
        see = see if shared is None else see & shared
        if self.causal and self.positions is None:
            see = see & (i >= j)
        elif self.causal:
            where = slots.blank(self.positions[:, :, None])  # type: ignore[index]
            see = see & (rows(where, queries) >= xp.matrix_transpose(rows(where, keys)))
        s = xp.matmul(rows(x, queries), xp.matrix_transpose(rows(k, keys))) * self.scale
        if self.self_score is not None:
            s = xp.where(i == j, self.self_score, s)
        if self.duplicates == "counted":
            return s, see, None
        count = slots.multiplicity(found, self.buckets, queries, keys, s, self.duplicates == "2020")
        return s, see, count + TINY if self.duplicates == "2020" else xp.where(see, count, 1.0)


@kernel("attend_slots")
def attend_slots(x: Array, root: Array | None, v: Array, found: Slots, meeting: Meeting, *, block: int | None
                 ) -> tuple[Array, Array, Array, Array]:
    """o, lse, top and z, `block` slots at a time, in whole chunks; root None: keys are x."""
    xp, k = of(x, v).xp, x if root is None else x / root
    x, k, v = slots.blank(x), slots.blank(k), slots.blank(v)

    def part(at: slice) -> tuple[Array, Array, Array]:
        s, see, count = meeting.scores(found, x, k, at)
        c = row_max(s, see)
        e = weights(s, see, c)
        e = e if count is None else e / count
        return xp.matmul(e, rows(v, found.keys[:, at, :])), xp.sum(e, axis=-1, keepdims=True), c

    parts = [part(at) for at in _chunks(found, block)]
    o, z, c = (found.unsorted(xp.concat(part, axis=1)) for part in zip(*parts, strict=True))
    o, *statistics = merged(o, z, c)
    lse, top, z = (y[..., 0] for y in statistics)
    return o, lse, top, z


@kernel("attend_slots_vjp")
def attend_slots_vjp(x: Array, root: Array | None, v: Array, found: Slots, meeting: Meeting, results: tuple[Array, ...],
                     do: Array, dlse: Array | None, *, block: int | None) -> tuple[Array, Array]:
    """dx, of queries and keys together, and dv; results: what ``attend_slots`` returned. ``LSH.vjp`` has the equations."""
    o, lse, top, z = results
    xp, none, k = of(x, v, do).xp, (lse == -math.inf)[..., None], x if root is None else x / root
    do = xp.where(none, 0.0, do)
    D = xp.sum(do * o, axis=-1, keepdims=True)
    D = D if dlse is None else D - xp.where(none, 0.0, dlse[..., None])
    tokens = tuple(slots.blank(y) for y in (x, k, v, do, top[..., None], z[..., None], D))
    parts = [_chunks_vjp(found, meeting, tokens, at) for at in _chunks(found, block)]
    dq, dk, dv = (xp.concat(part, axis=1) for part in zip(*parts, strict=True))
    dq, dk, dv = (xp.sum(found.unsorted(y), axis=1) for y in (dq, found.gathered(dk), found.gathered(dv)))
    if root is not None:
        dk = (dk - k * xp.sum(k * dk, axis=-1, keepdims=True)) / root
    return dq + dk, dv


def _chunks_vjp(found: Slots, meeting: Meeting, tokens: tuple[Array, ...], at: slice) -> tuple[Array, Array, Array]:
    """dq of the slots of the chunks `at`, and dk and dv of all slots that they see; tokens: x, k, v, do, top, z, D."""
    x, k, v, do, top, z, D = tokens
    xp, queries, keys = of(x, k, v, do).xp, found.queries[:, at, :], found.keys[:, at, :]
    s, see, count = meeting.scores(found, x, k, at)
    z, do = rows(z, queries), rows(do, queries)
    p = weights(s, see, rows(top, queries)) / xp.where(z == 0.0, 1.0, z)
    p = p if count is None else p / count
    ds = p * (xp.matmul(do, xp.matrix_transpose(rows(v, keys))) - rows(D, queries))
    if meeting.self_score is not None:
        ds = xp.where(queries[:, :, :, None] == keys[:, :, None, :], 0.0, ds)
    ds = ds * meeting.scale
    dk, dv = xp.matmul(xp.matrix_transpose(ds), rows(x, queries)), xp.matmul(xp.matrix_transpose(p), do)
    return xp.matmul(ds, rows(k, keys)), dk, dv


def _chunks(found: Slots, block: int | None) -> list[slice]:
    """Chunks to be taken at once."""
    step = None if block is None else max(block // found.window.chunk, 1)
    chunks: list[slice] = blocks(found.queries.shape[1], step)
    return chunks
