"""Softmax attention whose pairs differ from item to item: members see every key and are seen by every query.

    c_ij = max(count_ij, [member_i ∨ member_j] ∧ within_ij)        e_ij = c_ij see_ij exp(s_ij − top_i)      s = scale q kᵀ
    o_i = Σ_j e_ij v_j / z_i      z_i = Σ_j e_ij      lse_i = top_i + log z_i     (0 and −∞ for a query that sees nothing)

Which pairs these are, only the values of an array say, so that the text looks at all of them, a block of queries at a time;
a backend that has the values at hand may look at those that count. Otherwise as refattn.ops.attend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.ops.attend import select
from refattn.ops.heads import HeadMap
from refattn.ops.softmax import row_max, weights
from refattn.ops.visibility import Visibility
from refattn.rows import Rows, numbers
from refattn.shapes import blocks

Array = Any


@dataclass(frozen=True)
class Pairs:
    """How often each pair counts; arrays broadcast to (..., n, m) of the scores.

    patterns: one for all heads or one for each query head, each a part of `within` if that is given; offset: the position
    of query 0. members: per query (..., n, 1) and per key (..., 1, m). see: what hides pairs after that. lists(at): the
    entries of every pattern if the members are the positions `at`.
    """

    patterns: tuple[Any, ...]
    within: Any | None
    offset: int
    heads: HeadMap
    members: tuple[Array, Array]
    see: Visibility
    lists: Callable[[tuple[int, ...]], Sequence[Rows]]

    def rows(self, q: Array, m: int, at: slice) -> tuple[Array | None, Array]:
        """c (None: all are 0 or 1) and [c > 0] ∧ see of the queries in `at`."""
        xp, n = of(q).xp, at.stop - at.start
        c = pair_counts(q, self.patterns, n, m, self.offset + at.start)
        c = self.heads.full(c, q.ndim - 1) if self.heads.kv is not None else c[0, :, :]
        added = self.members[0][..., at, :] | self.members[1]
        if self.within is not None:
            added = added & (pair_counts(q, (self.within,), n, m, self.offset + at.start)[0, :, :] > 0.0)
        see, hidden = (c > 0.0) | added, self.see.rows(at)
        see = see if hidden is None else see & hidden
        multiple = any(p.most > 1 for p in self.patterns)
        return xp.where(added, xp.where(c > 0.0, c, 1.0), c) if multiple else None, see


@kernel("pair_counts")
def pair_counts(like: Array, patterns: tuple[Any, ...], n: int, m: int, offset: int) -> Array:
    """The counts of all pairs as numbers beside `like`, pattern by pattern.   (patterns, n, m)"""
    return of(like).xp.stack([numbers(like, p.dense(n, m, offset)) for p in patterns])


@kernel("attend_counts")
def attend_counts(q: Array, k: Array, v: Array, pairs: Pairs, *, scale: Any, block: int | None) -> tuple[Array, Array]:
    """o (..., n, e) and lse (..., n, 1) for arrays whose leading axes broadcast."""
    xp = of(q, k, v).xp
    parts = [_rows(q[..., at, :], k, v, *pairs.rows(q, k.shape[-2], at), scale) for at in blocks(q.shape[-2], block)]
    o, lse = zip(*parts, strict=True)
    return (o[0], lse[0]) if len(parts) == 1 else (xp.concat(o, axis=-2), xp.concat(lse, axis=-2))


def _rows(q: Array, k: Array, v: Array, c: Array | None, see: Array, scale: Any) -> tuple[Array, Array]:
    xp = of(q, k, v).xp
    q, k, v = select(see, q, k, v)
    s = xp.matmul(q, xp.matrix_transpose(k)) * scale
    top = row_max(s, see)
    e = weights(s, see, top)
    e = e if c is None else c * e
    z = xp.sum(e, axis=-1, keepdims=True)
    none = z == 0.0
    z = xp.where(none, 1.0, z)
    return xp.matmul(e, v) / z, xp.where(none, -math.inf, top + xp.log(z))


@kernel("attend_counts_vjp")
def attend_counts_vjp(q: Array, k: Array, v: Array, pairs: Pairs, lse: Array, do: Array, D: Array, *, scale: Any,
                      block: int | None) -> tuple[Array, Array, Array]:
    """dq, dk, dv; lse, do and D of a query that sees nothing are 0. dk and dv as those of ``attend_vjp``."""
    xp = of(q, k, v, do).xp
    dqs, dk, dv = [], None, None
    for at in blocks(q.shape[-2], block):
        part = _rows_vjp(q[..., at, :], k, v, *pairs.rows(q, k.shape[-2], at), lse[..., at, :],
                         do[..., at, :], D[..., at, :], scale)
        dqs.append(part[0])
        dk, dv = (part[1], part[2]) if dk is None else (dk + part[1], dv + part[2])
    return xp.concat(dqs, axis=-2), dk, dv


def _rows_vjp(q: Array, k: Array, v: Array, c: Array | None, see: Array, lse: Array, do: Array, D: Array, scale: Any
              ) -> tuple[Array, Array, Array]:
    xp = of(q, k, v, do).xp
    q, k, v = select(see, q, k, v)
    p = weights(xp.matmul(q, xp.matrix_transpose(k)) * scale, see, lse)
    p = p if c is None else c * p
    ds = p * (xp.matmul(do, xp.matrix_transpose(v)) - D) * scale
    return xp.matmul(ds, k), xp.matmul(xp.matrix_transpose(ds), q), xp.matmul(xp.matrix_transpose(p), do)
