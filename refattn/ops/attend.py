"""Softmax attention over heads that broadcast: what the schemes share whose keys, in the end, are few or all of them.

    s = ``Scores`` of q·k    p_ij = see_ij exp(s_ij) / z_i    z_i = exp(sink) + Σ_j see_ij exp(s_ij)
    o_i = Σ_j p_ij (keep_ij / keep_rate) v_j    lse_i = log z_i          (0 and −∞ for a query that sees nothing)

q: (..., n, d)   k: (..., m, d)   v: (..., m, e)   o: (..., n, e)   lse: (..., n, 1); the two kernels, ``attend`` and
``attend_vjp``, are those that backends replace. Vaswani et al. (arXiv:1706.03762), eq. 1; see refattn.schemes.dense.
"""

from __future__ import annotations

import math
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.ops.heads import unbroadcast
from refattn.ops.scores import Scores
from refattn.ops.softmax import row_max, weights
from refattn.ops.visibility import Visibility, query_rows
from refattn.shapes import blocks

Array = Any


@kernel("attend")
def attend(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Visibility, scores: Scores, *,
           keep_rate: float | None, block: int | None) -> tuple[Array, Array]:
    """o (..., n, e) and lse (..., n, 1) for arrays whose leading axes broadcast."""
    xp = of(q, k, v).xp
    parts = [_rows(q[..., at, :], k, v, sink, _at(keep, at), see.rows(at), scores, at, keep_rate)
             for at in blocks(q.shape[-2], block)]
    if len(parts) == 1:
        return parts[0]
    o, lse = zip(*parts, strict=True)
    return xp.concat(o, axis=-2), xp.concat(lse, axis=-2)


def _rows(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Array | None, scores: Scores,
          at: slice, keep_rate: float | None) -> tuple[Array, Array]:
    xp = of(q, k, v).xp
    q, k, v = select(see, q, k, v)
    s, _ = scores.rows(xp.matmul(q, xp.matrix_transpose(k)), at)
    c = row_max(s, see, sink)
    e = weights(s, see, c)
    z = xp.sum(e, axis=-1, keepdims=True)
    z = z if sink is None else z + xp.exp(sink - c)
    none = z == 0.0
    z = xp.where(none, 1.0, z)
    lse = xp.where(none, -math.inf, c + xp.log(z))
    return xp.matmul(_kept(e, keep), v) / (z if keep is None else z * keep_rate), lse


@kernel("attend_vjp")
def attend_vjp(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Visibility, scores: Scores,
               o: Array, lse: Array, do: Array, dlse: Array | None, *, keep_rate: float | None, block: int | None
               ) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """dq, dk, dv, dbias (in the shape of scores.bias), dsink (to be summed); dk and dv are accumulated block by block.

    dk and dv have the leading axes of q, to be summed over those that k has not, or are summed already and have k's.
    """
    xp = of(q, k, v, do).xp
    one_row = scores.bias is None or scores.bias.shape[-2] == 1  # of bias for all queries: its gradient is a sum over blocks
    dqs, dbiases, dk, dv, dbias, dsink = [], [], None, None, None, None
    for at in blocks(q.shape[-2], block):
        part = _rows_vjp(q[..., at, :], k, v, sink, _at(keep, at), see.rows(at), scores, at, o[..., at, :], lse[..., at, :],
                         do[..., at, :], _at(dlse, at), keep_rate)
        dqs.append(part[0])
        dk, dv, dsink = _plus(dk, part[1]), _plus(dv, part[2]), _plus(dsink, part[4])
        if one_row:
            dbias = _plus(dbias, part[3])
        else:
            dbiases.append(part[3])
    return xp.concat(dqs, axis=-2), dk, dv, dbias if one_row else xp.concat(dbiases, axis=-2), dsink


def _plus(total: Array | None, part: Array | None) -> Array | None:
    return part if total is None else total + part


def _rows_vjp(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Array | None, scores: Scores,
              at: slice, o: Array, lse: Array, do: Array, dlse: Array | None, keep_rate: float | None) -> tuple[Array, ...]:
    xp = of(q, k, v, do).xp
    none = lse == -math.inf
    q, k, v = select(see, q, k, v)
    o, do = xp.where(none, 0.0, o), xp.where(none, 0.0, do)
    lse = xp.where(none, 0.0, lse)
    s, bent = scores.rows(xp.matmul(q, xp.matrix_transpose(k)), at)
    p = weights(s, see, lse)
    D = xp.sum(do * o, axis=-1, keepdims=True)
    D = D if dlse is None else D - xp.where(none, 0.0, dlse)
    dp = _kept(xp.matmul(do, xp.matrix_transpose(v)), keep)
    ds = p * ((dp if keep is None else dp / keep_rate) - D)
    dqk = scores.pull(ds, bent) * scores.scale
    dv = xp.matmul(xp.matrix_transpose(_kept(p, keep)), do)
    dbias = None if scores.bias is None else unbroadcast(ds, query_rows(scores.bias, at).shape)
    dsink = None if sink is None else xp.sum(xp.where(none, 0.0, -xp.exp(sink - lse) * D), axis=-2, keepdims=True)
    return (xp.matmul(dqk, k), xp.matmul(xp.matrix_transpose(dqk), q), dv if keep is None else dv / keep_rate, dbias, dsink)


def select(see: Array | None, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Queries that see nothing, and keys that no query of the block sees, are set to 0: 0·NaN must not reach the others."""
    if see is None:
        return q, k, v
    xp = of(q, k, v).xp
    seen = xp.matrix_transpose(xp.any(see, axis=-2, keepdims=True))
    return xp.where(xp.any(see, axis=-1, keepdims=True), q, 0.0), xp.where(seen, k, 0.0), xp.where(seen, v, 0.0)


def _kept(p: Array, keep: Array | None) -> Array:
    return p if keep is None else of(p).xp.where(keep, p, 0.0)


def _at(x: Array | None, at: slice) -> Array | None:
    return None if x is None else query_rows(x, at)
