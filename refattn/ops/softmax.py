"""Softmax and its statistics of a row of scores, safe where a row sees nothing.

    p_j = see_j exp(s_j) / Σ_i see_i exp(s_i)           (0 for a row that sees nothing)

    c = max_j s_j  (0 for a row that sees nothing)      e_j = exp(s_j − c)      z = Σ_j e_j      lse = c + log z

c is a gauge: any value gives the same weights, so it passes through ``constant``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import axes
from refattn.shapes import broadcasts, product, shape_of

Array = Any


def row_max(s: Array, see: Array | None, sink: Array | None = None) -> Array:
    """A stabiliser (..., rows, 1): the largest visible score or sink, or 0 where there is none."""
    b = of(s)
    xp = b.xp
    if s.shape[-1] == 0:
        c = xp.sum(s, axis=-1, keepdims=True) - math.inf  # no key: nothing to take the maximum of
    else:
        c = xp.max(s if see is None else xp.where(see, s, -math.inf), axis=-1, keepdims=True)
    c = b.constant(c if sink is None else xp.maximum(c, sink))
    return xp.where(c == -math.inf, 0.0, c)


def weights(s: Array, see: Array | None, c: Array) -> Array:
    """e = exp(s − c) where visible, 0 elsewhere; selected before and after exp, so that nothing invisible leaks."""
    xp = of(s, c).xp
    if see is None:
        return xp.exp(s - c)
    return xp.where(see, xp.exp(xp.where(see, s - c, 0.0)), 0.0)


def merged(o: Array, z: Array, c: Array) -> tuple[Array, Array, Array, Array]:
    """One softmax from several over parts of its row, along axis 1: o, lse, the gauge and z of all of them.

    o: Σ exp(s − c) v (..., r, n, e)   z: Σ exp(s − c) (..., r, n, 1)   c: the gauge of each part (..., r, n, 1), 0 where it
    sees nothing, as ``row_max`` has it. A row that sees nothing in any part: o = 0, lse = −∞, gauge 0, z = 1.
    """
    b = of(o, z, c)
    xp, top = b.xp, b.constant(b.xp.max(c, axis=1, keepdims=True))
    w = xp.exp(c - top)
    z = xp.sum(w * z, axis=1)
    none, top = z == 0.0, top[:, 0, ...]
    z = xp.where(none, 1.0, z)
    return xp.sum(w * o, axis=1) / z, xp.where(none, -math.inf, top + xp.log(z)), top, z


@dataclass(frozen=True)
class Softmax:
    """p = softmax(s) over the last axis, of what may be seen; raises ShapeError."""

    class Inputs(NamedTuple):
        s: Array  # (..., m)
        see: Array | None = None  # bool, broadcasts to (..., m)

    class Saved(NamedTuple):
        inputs: Softmax.Inputs
        p: Array  # (..., m)

    kinds: ClassVar[Mapping[str, str]] = {"see": "bool"}

    def forward(self, s: Array, see: Array | None = None) -> tuple[Array, Saved]:
        """p, which the backward needs."""
        inputs = self.Inputs(s, see)
        check_see(inputs)
        xp = of(s).xp
        e = weights(s, see, row_max(s, see))
        z = xp.sum(e, axis=-1, keepdims=True)
        p = e / xp.where(z == 0.0, 1.0, z)
        return p, self.Saved(inputs, p)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """ds = p ∘ (dp − Σ_j p_j dp_j)."""
        p, see = saved.p, saved.inputs.see
        xp = of(p, dy).xp
        dp = dy if see is None else xp.where(see, dy, 0.0)
        return self.Inputs(p * (dp - xp.sum(p * dp, axis=-1, keepdims=True)), None)

    def cost(self, shapes: Inputs) -> Passes:
        """One exponential for each score, forward; none backward."""
        size = product(check_see(shapes))
        return Passes(Count(0, size, size), Count(0, 0, size))


def check_see(inputs: Any) -> tuple[int, ...]:
    """The shape of the scores; ShapeError if `see` does not broadcast to it."""
    axes(inputs, s="* m")
    s = shape_of(inputs.s)
    if inputs.see is not None:
        broadcasts("see", shape_of(inputs.see), s, "..., m")
    return s
