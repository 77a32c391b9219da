"""Few queries against very many keys, within memory: what a correct kernel may return for a row, in pieces.

The rounding reading wants all keys of a row at once, since its bound is one for every order of summation. Here the scores
are made for some keys at a time, the weights of a row stay together, and o and dq are made for some channels at a time:
no number meets more or fewer roundings than in the generic text, and beyond k and v there are only a few arrays (rows, m)
and slices of k and v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from refattn.backend import load, of
from refattn.ops.scores import Scores
from refattn.ops.softmax import row_max, weights
from refattn.ops.visibility import Visibility
from refattn.precision import Precision

Array = Any
KEYS = 1 << 16
CHANNELS = 16


def reading(precision: Precision) -> Any:
    """The rounding reading of `precision` that takes long rows in pieces; arrays without a head axis.

    Its vjp gives dq alone: dk and dv are the number 0 and mean nothing.
    """
    made: Any = load("rounding", precision=precision)
    made.kernels = {"attend": attend, "attend_vjp": attend_vjp}
    return made


def attend(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Visibility, scores: Scores,
           *, keep_rate: float | None, block: int | None) -> Any:
    """o (rows, e) and lse (rows, 1) of all rows at once."""
    if _strange(q, sink, keep, scores):
        return NotImplemented
    xp = of(q, k, v).xp
    seen = see.rows(slice(0, q.shape[-2]))
    q = _rows_that_see(q, seen)
    s = xp.concat([scores.rows(xp.matmul(q, xp.matrix_transpose(k_at)), slice(None))[0]
                   for k_at, _ in _pieces(k, seen)], axis=-1)  # fmt: skip
    c = row_max(s, seen)
    e = weights(s, seen, c)
    del s
    z = xp.sum(e, axis=-1, keepdims=True)
    none = z == 0.0
    z = xp.where(none, 1.0, z)
    lse = xp.where(none, -math.inf, c + xp.log(z))
    return _against(e, v, seen) / z, lse


def attend_vjp(q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Visibility, scores: Scores,
               o: Array, lse: Array, do: Array, dlse: Array | None, *, keep_rate: float | None, block: int | None) -> Any:
    """dq (rows, d); nothing else."""
    if _strange(q, sink, keep, scores) or dlse is not None:
        return NotImplemented
    xp = of(q, k, v, do).xp
    seen = see.rows(slice(0, q.shape[-2]))
    none = lse == -math.inf
    q = _rows_that_see(q, seen)
    o, do, lse = xp.where(none, 0.0, o), xp.where(none, 0.0, do), xp.where(none, 0.0, lse)
    D = xp.sum(do * o, axis=-1, keepdims=True)
    parts = []
    for (k_at, seen_at), (v_at, _) in zip(_pieces(k, seen), _pieces(v, seen), strict=True):
        s, bent = scores.rows(xp.matmul(q, xp.matrix_transpose(k_at)), slice(None))
        ds = weights(s, seen_at, lse) * (xp.matmul(do, xp.matrix_transpose(v_at)) - D)
        parts.append(scores.pull(ds, bent) * scores.scale)
    dqk = xp.concat(parts, axis=-1)
    del parts
    zero = of(q).lift(0.0)
    return _against(dqk, k, seen), zero, zero, None, None


def _strange(q: Array, sink: Array | None, keep: Array | None, scores: Scores) -> bool:
    """True for what only the generic text does."""
    return q.ndim != 2 or sink is not None or keep is not None or scores.bias is not None


def _rows_that_see(q: Array, seen: Array | None) -> Array:
    xp = of(q).xp
    return q if seen is None else xp.where(xp.any(seen, axis=-1, keepdims=True), q, 0.0)


def _pieces(x: Array, seen: Array | None) -> Iterator[tuple[Array, Array | None]]:
    """x (m, ·) some keys at a time, those that nobody sees set to 0, with who sees them."""
    for a in range(0, max(x.shape[-2], 1), KEYS):
        at = slice(a, a + KEYS)
        if seen is None:
            yield x[at, :], None
        else:
            yield _seen(x[at, :], seen[..., at]), seen[..., at]


def _seen(x: Array, seen: Array) -> Array:
    xp = of(x).xp
    return xp.where(xp.matrix_transpose(xp.any(seen, axis=-2, keepdims=True)), x, 0.0)


def _against(w: Array, x: Array, seen: Array | None) -> Array:
    """w (rows, m) times x (m, ·), some channels at a time: each is one sum over all keys."""
    xp = of(w, x).xp
    parts = []
    for a in range(0, max(x.shape[-1], 1), CHANNELS):
        some = x[:, a : a + CHANNELS]
        parts.append(xp.matmul(w, some if seen is None else _seen(some, seen)))
    return xp.concat(parts, axis=-1)
