"""Root mean square normalisation: each row divided by its root mean square, then scaled.

    y = g ∘ x / √(mean x² + eps)            over the last axis

x, y: (..., d)   g: (d,) or None (1).   The squares of x must be finite in its dtype.
Zhang and Sennrich (arXiv:1910.07467). Departure: eps under the root, as every implementation has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import axes, mean, over_rows, positive, total
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class RMSNorm:
    """eps: positive, so that a row of zeros has a result (0). Raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        x: Array  # (..., d)
        g: Array | None = None  # (d,)

    class Saved(NamedTuple):
        inputs: RMSNorm.Inputs
        rrms: Array  # (..., 1), 1/√(mean x² + eps)

    eps: float = 1e-6

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        positive(eps=self.eps)

    def forward(self, x: Array, g: Array | None = None) -> tuple[Array, Saved]:
        """y, with 1/√(mean x² + eps) saved."""
        inputs = self.Inputs(x, g)
        axes(inputs, x="* d", g="d")
        rrms = 1.0 / of(x).xp.sqrt(mean(x * x) + self.eps)
        y = x * rrms
        return (y if g is None else y * g), self.Saved(inputs, rrms)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """With u = x/√(mean x² + eps), h = g ∘ dy:  dx = (h − u mean(h ∘ u)) / √(mean x² + eps),  dg = Σ_rows dy ∘ u."""
        x, g = saved.inputs
        unit = x * saved.rrms
        h = dy if g is None else dy * g
        dx = (h - unit * mean(h * unit)) * saved.rrms
        return self.Inputs(dx, None if g is None else over_rows(dy * unit))

    def parameters(self, d: int) -> dict[str, tuple[tuple[int, ...], float]]:
        """Shape and initial value of g."""
        return {"g": ((d,), 1.0)}

    def cost(self, shapes: Inputs) -> Passes:
        """No contraction and no exponential; one statistic of each row is saved."""
        at = axes(shapes, x="* d", g="d")
        rows = product(at["*"])
        return Passes(Count(0, 0, rows * (at["d"] + 1)), Count(0, 0, total(shapes)))
