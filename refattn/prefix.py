"""Prefix sums of outer products, mixed by queries: the word that causal linear attention is made of.

    prefix_mix(q, k, v)_i = Σ_{j≤i} (q_i·k_j) v_j = q_i S_i,   S_i = Σ_{j≤i} k_j v_jᵀ          (reverse: Σ_{j≥i})

q, k: (..., n, d)    v, result: (..., n, e)    leading axes broadcast.
The word is trilinear, and its adjoints are itself with its arguments exchanged:

    dq = prefix_mix(do, v, k)     dk = prefix_mix(v, do, q) read the other way     dv = prefix_mix(k, q, do) likewise

Katharopoulos et al. (arXiv:2006.16236), eqs. 9–15; by chunks as in Hua et al. (arXiv:2202.10447), §3.2: a triangle inside of
each, one running state S between them, O(d·e) memory. Prefix sums are never subtracted.
"""

from __future__ import annotations

from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.shapes import blocks

Array = Any


@kernel("prefix_mix")
def prefix_mix(q: Array, k: Array, v: Array, *, reverse: bool = False, chunk: int | None = None) -> Array:
    """The equation. chunk: tokens of a triangle; None takes one for all, whose bound holds for every order of sums."""
    xp = of(q, k, v).xp
    parts, state = [], None
    order = blocks(q.shape[-2], chunk)
    order = order[::-1] if reverse else order
    for at in order:
        q_at, k_at, v_at = (x[..., at, :] for x in (q, k, v))
        weights = xp.matmul(q_at, xp.matrix_transpose(k_at))
        mixed = xp.matmul(xp.triu(weights) if reverse else xp.tril(weights), v_at)
        parts.append(mixed if state is None else mixed + xp.matmul(q_at, state))
        if at is not order[-1]:
            outer = xp.matmul(xp.matrix_transpose(k_at), v_at)
            state = outer if state is None else state + outer
    return parts[0] if len(parts) == 1 else xp.concat(parts[::-1] if reverse else parts, axis=-2)


def prefix_mix_vjp(q: Array, k: Array, v: Array, do: Array, *, reverse: bool = False, chunk: int | None = None
                   ) -> tuple[Array, Array, Array]:
    """dq, dk, dv, each with the leading axes that do, q, k and v broadcast to: what was shared is still to be summed.

        do_i·Σ_j (q_i·k_j) v_j = Σ_j (do_i·v_j) (k_j·q_i),  so dq_i = Σ_j (do_i·v_j) k_j, over j ≤ i;
        dk_j = Σ_i (v_j·do_i) q_i and dv_j = Σ_i (k_j·q_i) do_i, over i ≥ j.
    """
    return (
        prefix_mix(do, v, k, reverse=reverse, chunk=chunk),
        prefix_mix(v, do, q, reverse=not reverse, chunk=chunk),
        prefix_mix(k, q, do, reverse=not reverse, chunk=chunk),
    )


def mix_macs(n: int, inner: int, outer: int, heads: int, shared: int, *, reverse: bool = False, chunk: int | None = None
             ) -> int:
    """Multiply-adds of the generic ``prefix_mix`` of n tokens: q, k have width `inner`, v `outer`.

    heads: items that the arguments broadcast to; shared: items that k and v alone broadcast to, which the state has.
    """
    sizes = [at.stop - at.start for at in blocks(n, chunk)]
    sizes = sizes[::-1] if reverse else sizes
    triangles = sum(c * c for c in sizes) * (inner + outer) * heads
    return int(triangles + (sum(sizes[1:]) * heads + sum(sizes[:-1]) * shared) * inner * outer)
