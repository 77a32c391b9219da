"""Layer normalisation: each row with mean 0 and variance 1, then scaled and shifted.

    y = g ∘ (x − μ) / √(σ² + eps) + b,      μ = mean x,   σ² = mean (x − μ)²          over the last axis

x, y: (..., d)   g, b: (d,) or None (1 and 0).   The squares of x must be finite in its dtype.
Ba et al. (arXiv:1607.06450); eps under the root as in torch.nn.LayerNorm.
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
class LayerNorm:
    """eps: positive, so that a constant row has a result (b). Raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        x: Array  # (..., d)
        g: Array | None = None  # (d,)
        b: Array | None = None  # (d,)

    class Saved(NamedTuple):
        inputs: LayerNorm.Inputs
        mean: Array  # (..., 1)
        rstd: Array  # (..., 1), 1/√(σ² + eps)

    eps: float = 1e-5

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        positive(eps=self.eps)

    def forward(self, x: Array, g: Array | None = None, b: Array | None = None) -> tuple[Array, Saved]:
        """y, with mean and 1/√(σ² + eps) saved."""
        inputs = self.Inputs(x, g, b)
        axes(inputs, x="* d", g="d", b="d")
        xp = of(x).xp
        middle = mean(x)
        centred = x - middle
        rstd = 1.0 / xp.sqrt(mean(centred * centred) + self.eps)
        y = centred * rstd
        y = y if g is None else y * g
        return (y if b is None else y + b), self.Saved(inputs, middle, rstd)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """With u = (x − μ)/√(σ² + eps) and h = g ∘ dy:

        dx = (h − mean h − u mean(h ∘ u)) / √(σ² + eps),   dg = Σ_rows dy ∘ u,   db = Σ_rows dy.
        """
        x, g, b = saved.inputs
        unit = (x - saved.mean) * saved.rstd
        h = dy if g is None else dy * g
        dx = (h - mean(h) - unit * mean(h * unit)) * saved.rstd
        return self.Inputs(dx, None if g is None else over_rows(dy * unit), None if b is None else over_rows(dy))

    def parameters(self, d: int) -> dict[str, tuple[tuple[int, ...], float]]:
        """Shapes and initial values of g and b."""
        return {"g": ((d,), 1.0), "b": ((d,), 0.0)}

    def cost(self, shapes: Inputs) -> Passes:
        """No contraction and no exponential; two statistics of each row are saved."""
        at = axes(shapes, x="* d", g="d", b="d")
        rows = product(at["*"])
        return Passes(Count(0, 0, rows * (at["d"] + 2)), Count(0, 0, total(shapes)))
