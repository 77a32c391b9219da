"""Sigmoid attention: every pair is weighed by itself, with a sigmoid in the place of the softmax.

    o_i = Σ_j σ(s_ij) v_j,   s_ij = scale · q_i·k_j + b,   σ(s) = 1 / (1 + e⁻ˢ)

q: (..., n, d)   k: (..., m, d)   v: (..., m, e)   o: (..., n, e)
Ramapuram et al. (arXiv:2409.04431). Departures: none; b = −ln m is theirs, and the default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Cost, Count
from refattn.ops.scores import inverse_root
from refattn.schemes.base import core, number, plain_fields
from refattn.shapes import blocks, product, shape_of, sizes

Array = Any


@dataclass(frozen=True)
class Sigmoid:
    """Sigmoid attention; the module has the equation. scale: None is 1/√d. b: None is −ln m.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in all."""

        q: Array  # (..., n, d)
        k: Array  # (..., m, d)
        v: Array  # (..., m, e)

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given. o is kept because it is the result."""

        inputs: Sigmoid.Inputs
        o: Array  # (..., n, e)

    scale: float | None = None
    b: float | None = None

    outputs: ClassVar = ("o",)
    stored: ClassVar = ("o",)
    kinds: ClassVar[Mapping[str, str]] = {}
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        number(self, "scale")
        number(self, "b")

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together, showing them."""
        sizes({"q": "* n d", "k": "* m d", "v": "* m e"}, {name: shape_of(x) for name, x in inputs._asdict().items()})

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array]:
        """(o,): pair by pair, without a matrix product."""
        (q, k, v), xp = inputs, of(inputs.q).xp
        s = xp.sum(q[..., :, None, :] * k[..., None, :, :], axis=-1) * self._scale(q) + self._b(k)
        return (xp.sum((1.0 / (1.0 + xp.exp(-s)))[..., None] * v[..., None, :, :], axis=-2),)

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o, `block` queries at a time."""
        (q, k, v), xp = inputs, of(inputs.q).xp
        parts = [xp.matmul(self._weights(q[..., at, :], k), v) for at in blocks(q.shape[-2], block)]
        return Sigmoid.Saved(inputs, xp.concat(parts, axis=-2))

    @core
    def vjp(self, saved: Saved, do: Array, *, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩.

        dv = wᵀ do,   ds = w ∘ (1 − w) ∘ (do vᵀ),   dq = scale · ds k,   dk = scale · dsᵀ q
        """
        (q, k, v), xp = saved.inputs, of(do).xp
        dq, dk, dv = [], 0.0, 0.0
        for at in blocks(q.shape[-2], block):
            w = self._weights(q[..., at, :], k)
            ds = w * (1.0 - w) * xp.matmul(do[..., at, :], xp.matrix_transpose(v)) * self._scale(q)
            dq.append(xp.matmul(ds, k))
            dk = dk + xp.matmul(xp.matrix_transpose(ds), q[..., at, :])
            dv = dv + xp.matmul(xp.matrix_transpose(w), do[..., at, :])
        return Sigmoid.Inputs(xp.concat(dq, axis=-2), dk, dv)

    @core
    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """For each of the n·m pairs: d + e multiply-adds forward, 3d + 2e backward, an exponential in both."""
        (*lead, n, d), m, e = shapes.q, shapes.k[-2], shapes.v[-1]
        many, rows = product(lead), min(n if block is None else block, n)
        gradients = n * d + m * (d + e)
        return Cost(
            Count(many * n * m * (d + e), many * n * m, many * n * e),
            Count(many * n * m * (3 * d + 2 * e), many * n * m, many * gradients),
            many * n * m * (d + e),
            many * (5 * rows * m + 2 * gradients + 2 * n * e),
        )

    def _scale(self, q: Array) -> Any:
        d = q.shape[-1]
        return self.scale if self.scale is not None else inverse_root(q, d) if d else 1.0

    def _b(self, k: Array) -> float:
        return self.b if self.b is not None else -math.log(max(k.shape[-2], 1))

    def _weights(self, q: Array, k: Array) -> Array:
        xp = of(q, k).xp
        s = xp.matmul(q, xp.matrix_transpose(k)) * self._scale(q) + self._b(k)
        return 1.0 / (1.0 + xp.exp(-s))
