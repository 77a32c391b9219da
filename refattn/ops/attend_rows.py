"""Softmax attention over lists of entries: the two kernels of sparse attention, in the words of ``refattn.rows``.

    s_t = scale q_row(t)·k_col(t)     e_t = count_t ok_t exp(s_t − c)     z_i = Σ_t e_t     o_i = Σ_t e_t v_col(t) / z_i
    lse_i = c + log z_i               (0 and −∞ for a query that sees nothing)

q: (..., n, d)   k: (..., m, d)   v: (..., m, e)   o: (..., n, e)   lse: (..., n, 1); see refattn.schemes.sparse.
"""

from __future__ import annotations

import math
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.ops.softmax import weights
from refattn.rows import Rows, row_max, row_scores, row_sum, row_sums, spread, turn, weigh

Array = Any


@kernel("attend_rows")
def attend_rows(q: Array, k: Array, v: Array, ok: Array | None, rows: Rows, *, scale: Any) -> tuple[Array, Array]:
    """o (..., n, e) and lse (..., n, 1) for arrays whose leading axes broadcast; ok (..., nnz) hides entries."""
    b = of(q, k, v)
    xp = b.xp
    s = row_scores(q, k, rows) * scale
    c = b.constant(row_max(s if ok is None else xp.where(ok, s, -math.inf), rows))
    c = xp.where(c == -math.inf, 0.0, c)
    e = weigh(weights(s, ok, spread(c, rows)), rows)
    z = row_sum(e, rows)
    none = z == 0.0
    z = xp.where(none, 1.0, z)
    return row_sums(e, v, rows) / z, xp.where(none, -math.inf, c + xp.log(z))


@kernel("attend_rows_vjp")
def attend_rows_vjp(q: Array, k: Array, v: Array, ok: Array | None, rows: Rows, lse: Array, do: Array, D: Array, *,
                    scale: Any) -> tuple[Array, Array, Array]:
    """dq, dk, dv; lse, do and D of a query that sees nothing are 0."""
    s = row_scores(q, k, rows) * scale
    p = weigh(weights(s, ok, spread(lse, rows)), rows)
    dv = row_sums(turn(p, rows), do, rows.T)
    ds = p * (row_scores(do, v, rows) - spread(D, rows)) * scale
    return row_sums(ds, k, rows), row_sums(turn(ds, rows), q, rows.T), dv
