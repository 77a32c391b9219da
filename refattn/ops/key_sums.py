"""Sums over keys that form no pairs: features of a query times a state, the sum of outer products of keys and values.

    u_i = fq_i Σ_j fk_j v_jᵀ      over the keys j that query i sees: all, or in causal order those with j ≤ i + offset

fq: (..., n, r)   fk: (..., m, r)   v: (..., m, E)   u: (..., n, E)
With a column of ones beside the values the last column of u is the sum of weights, Σ_j fq_i·fk_j, which normalises the rest:

    o = u / z,   z = (last column of u) + ε      dg = (do, −do·o) / z      for the cotangents of u

In causal order queries and keys are set on one axis of places, n of them (top left) or max(n, m) (bottom right), with zeros
where there is none, so that every query is preceded by the keys that it sees: ``refattn.prefix``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refattn.backend import of
from refattn.ops import visibility
from refattn.ops.heads import HeadMap
from refattn.ops.shift import shift_rows
from refattn.prefix import mix_macs, prefix_mix, prefix_mix_vjp

Array = Any


class Order(NamedTuple):
    """Who sees whom among n queries and m keys. length: places of the causal order; front_q, front_k: before the first."""

    causal: bool
    n: int
    m: int
    offset: int
    length: int
    front_q: int
    front_k: int

    @property
    def reach(self) -> int:
        """How many keys some query sees, from the first one on."""
        return min(max(self.n + self.offset, 0), self.m) if self.causal else self.m


def order(causal: bool, align: str | None, n: int, m: int) -> Order:
    """The order of n queries and m keys; `align` as in ``visibility.offset``."""
    length = max(n, m) if align == "bottom_right" else n
    fronts = (length - n, length - m) if align == "bottom_right" else (0, 0)
    return Order(causal, n, m, visibility.offset(causal, align, n, m), length, *fronts)


def valid_keys(at: Order, key_valid: Array | None, k: Array) -> Array | None:
    """Which keys some query may see, to go with k (..., m, ·); None if that is all of them."""
    if at.reach < at.m:
        near = of(k).lift(range(at.m), k) < at.reach
        key_valid = near if key_valid is None else near & key_valid
    return None if key_valid is None else _rows(key_valid, k)


def blind_queries(at: Order, key_valid: Array | None, q: Array) -> Array | None:
    """Which queries see nothing, to go with q (..., n, ·); None if all see something."""
    if at.m and key_valid is None and (not at.causal or at.offset >= 0):
        return None
    b = of(q)
    xp, i = b.xp, b.lift(range(at.n), q)
    last = i * 0 + (at.m - 1)
    if at.causal:
        last = xp.where(i + at.offset < at.m - 1, i + at.offset, last)
    if key_valid is None or at.m == 0:
        return (last < 0)[:, None]
    first = xp.min(xp.where(key_valid, b.lift(range(at.m), q), at.m), axis=-1, keepdims=True)
    return _rows(last < first, q)


def _rows(x: Array, like: Array) -> Array:
    """Something per item (..., n), as it broadcasts to `like` (..., H, n, d): one for all heads."""
    return x[..., None, :, None] if like.ndim > 2 else x[..., :, None]


def only(valid: Array | None, x: Array) -> Array:
    """x where valid, 0 elsewhere: selected, since 0·NaN must not reach anything."""
    return x if valid is None else of(x).xp.where(valid, x, 0.0)


def state(fk: Array, v: Array) -> Array:
    """Σ_j fk_j v_jᵀ over all keys, (..., r, E)."""
    xp = of(fk, v).xp
    return xp.matmul(xp.matrix_transpose(fk), v)


def key_sums(at: Order, fq: Array, fk: Array, v: Array, chunk: int | None) -> Array:
    """u, for arrays whose leading axes broadcast. chunk: tokens of a triangle in causal order."""
    if not at.causal:
        return of(fq).xp.matmul(fq, state(fk, v))
    return shift_rows(prefix_mix(*_placed(at, fq, fk, v), chunk=chunk), -at.front_q, at.n)


def key_sums_vjp(at: Order, heads: HeadMap, fq: Array, fk: Array, v: Array, du: Array, chunk: int | None
                 ) -> tuple[Array, Array, Array]:
    """dfq, dfk, dv as the inputs were before `heads` split them: gradients of shared keys are summed.

    Without an order S = Σ_j fk_j v_jᵀ gives dfq = du Sᵀ, dS = Σ_i fq_i du_iᵀ, dfk = v dSᵀ, dv = fk dS.
    """
    xp = of(fq).xp
    if at.causal:
        pulled = prefix_mix_vjp(*_placed(at, fq, fk, v), shift_rows(du, at.front_q, at.length), chunk=chunk)
        dfq = shift_rows(pulled[0], -at.front_q, at.n)
        dfk, dv = (shift_rows(x, -at.front_k, at.m) for x in pulled[1:])
    else:
        dfq = xp.matmul(du, xp.matrix_transpose(state(fk, v)))
        dS = heads.share(heads.collect(xp.matmul(xp.matrix_transpose(fq), du)))
        dfk, dv = xp.matmul(v, xp.matrix_transpose(dS)), xp.matmul(fk, dS)
    return heads.join(dfq), heads.collect(dfk), heads.collect(dv)


def _placed(at: Order, fq: Array, fk: Array, v: Array) -> tuple[Array, Array, Array]:
    """fq, fk, v at their places of the causal order, zeros elsewhere."""
    return (shift_rows(fq, at.front_q, at.length), shift_rows(fk, at.front_k, at.length),
            shift_rows(v, at.front_k, at.length))  # fmt: skip


def key_sums_macs(at: Order, r: int, wide: int, many: int, few: int, chunk: int | None) -> tuple[int, int]:
    """Multiply-adds of ``key_sums`` and of its vjp, for `many` query heads and `few` key heads of all items together."""
    if not at.causal:
        return (many * at.n + few * at.m) * r * wide, (2 * many * at.n + 3 * few * at.m) * r * wide
    forward = mix_macs(at.length, r, wide, many, few, chunk=chunk)
    of_queries = mix_macs(at.length, wide, r, many, few, chunk=chunk)
    of_keys = mix_macs(at.length, wide, r, many, many, reverse=True, chunk=chunk)
    return forward, of_queries + of_keys + mix_macs(at.length, r, wide, many, many, reverse=True, chunk=chunk)


def with_ones(v: Array) -> Array:
    """Values with a column of ones, (..., m, e) → (..., m, e + 1)."""
    xp = of(v).xp
    return xp.concat([v, xp.sum(xp.zeros_like(v), axis=-1, keepdims=True) + 1.0], axis=-1)


def normalised(u: Array, more: Any) -> tuple[Array, Array]:
    """o (..., n, e) and z (..., n, 1) from u with its sum of weights; more: what is added to it. o = 0 where z is 0."""
    xp = of(u).xp
    z = u[..., -1:] * 1.0 if more is None else u[..., -1:] + more  # memory of its own: a view would keep u alive
    none = z == 0.0
    return xp.where(none, 0.0, u[..., :-1] / xp.where(none, 1.0, z)), z


def normalised_vjp(o: Array, z: Array, do: Array, blind: Array | None) -> tuple[Array, Array]:
    """The cotangents of u and, alone, of z; queries whose z is 0 pull nothing, whatever their cotangent."""
    xp = of(o, do).xp
    none = z == 0.0 if blind is None else (z == 0.0) | blind
    do, z = xp.where(none, 0.0, do), xp.where(none, 1.0, z)
    dz = -xp.sum(do * o, axis=-1, keepdims=True) / z
    return xp.concat([do / z, dz], axis=-1), dz
