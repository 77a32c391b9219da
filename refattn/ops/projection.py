"""Linear projection: every row of x times one matrix.

    y = x W + b

x: (..., n, d)   w: (d, e)   b: (e,) or None   y: (..., n, e).   Departure from torch.nn.Linear: W is not transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import axes, flat, over_rows, total
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class Projection:
    """y = x W + b; raises ShapeError if widths do not fit."""

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        w: Array  # (d, e)
        b: Array | None = None  # (e,)

    class Saved(NamedTuple):
        inputs: Projection.Inputs

    kinds: ClassVar[Mapping[str, str]] = {}

    def forward(self, x: Array, w: Array, b: Array | None = None) -> tuple[Array, Saved]:
        """y and what the backward needs."""
        inputs = self.Inputs(x, w, b)
        axes(inputs, x="* n d", w="d e", b="e")
        y = of(x, w).xp.matmul(x, w)
        return (y if b is None else y + b), self.Saved(inputs)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dx = dy Wᵀ,  dW = Σ_rows xᵀ dy,  db = Σ_rows dy."""
        x, w, b = saved.inputs
        xp = of(x, w, dy).xp
        dw = xp.matmul(xp.matrix_transpose(flat(x)), flat(dy))
        return self.Inputs(xp.matmul(dy, xp.matrix_transpose(w)), dw, None if b is None else over_rows(dy))

    def cost(self, shapes: Inputs) -> Passes:
        """rows·d·e multiply-adds forward, twice that backward."""
        at = axes(shapes, x="* n d", w="d e", b="e")
        rows = product(at["*"]) * at["n"]
        macs = rows * at["d"] * at["e"]
        return Passes(Count(macs, 0, rows * at["e"]), Count(2 * macs, 0, total(shapes)))
