"""Scale normalisation: each row divided by its length, then multiplied by one learned number.

    y = g x / r      r = max(‖x‖, eps)            (length="norm", guard="max": Nguyen and Salazar; g starts at √d)
                     r = √(mean x² + eps)         (length="rms", guard="add": FLASH; g starts at 1)
                     r = max(‖x‖/√d, eps)         (length="rms", guard="max": lucidrains' FLASH; g starts at 1)

x, y: (..., d)   g: (), a number in an array.   The squares of x must be finite in its dtype.
Nguyen and Salazar (arXiv:1910.05895), with the eps of their code; Hua et al. (arXiv:2202.10447), appendix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import axes, one_of, positive, total
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class ScaleNorm:
    """length: "norm" or "rms"; guard: how eps keeps r from 0, "max" or "add" (under the root).

    Raises OptionError or ShapeError.
    """

    class Inputs(NamedTuple):
        x: Array  # (..., d)
        g: Array  # ()

    class Saved(NamedTuple):
        inputs: ScaleNorm.Inputs
        inverse: Array  # (..., 1), 1/r

    length: str = "norm"
    guard: str = "max"
    eps: float = 1e-5

    kinds: ClassVar[Mapping[str, str]] = {}
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        one_of(("norm", "rms"), length=self.length)
        one_of(("max", "add"), guard=self.guard)
        positive(eps=self.eps)

    def forward(self, x: Array, g: Array) -> tuple[Array, Saved]:
        """y, with 1/r saved."""
        inputs = self.Inputs(x, g)
        axes(inputs, x="* d", g="")
        xp = of(x, g).xp
        square = self._square(x)  # guarded under the root, where its slope is finite at x = 0 too
        guarded = square + self.eps if self.guard == "add" else xp.maximum(square, self.eps**2)
        inverse = 1.0 / xp.sqrt(guarded)
        return x * inverse * g, self.Saved(inputs, inverse)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dr/dx = [not held by the guard] x/(κ r), κ = 1 for "norm" and d for "rms", so

        dx = (g/r) (dy − [..] x (x·dy)/(κ r²)),   dg = Σ dy·x / r.
        """
        (x, g), inverse = saved
        xp = of(x, g, dy).xp
        along = xp.sum(x * dy, axis=-1, keepdims=True) * inverse
        pull = along * inverse / self._count(x)
        if self.guard == "max":
            pull = xp.where(self._square(x) >= self.eps**2, pull, 0.0)
        return self.Inputs((dy - x * pull) * inverse * g, xp.sum(along))

    def parameters(self, d: int) -> dict[str, tuple[tuple[int, ...], float]]:
        """Shape and initial value of g: rows of mean square 1."""
        return {"g": ((), d**0.5 if self.length == "norm" else 1.0)}

    def _square(self, x: Array) -> Array:
        return of(x).xp.sum(x * x, axis=-1, keepdims=True) / self._count(x)

    def _count(self, x: Array) -> int:
        return max(x.shape[-1], 1) if self.length == "rms" else 1

    def cost(self, shapes: Inputs) -> Passes:
        """No contraction and no exponential; one statistic of each row is saved."""
        at = axes(shapes, x="* d", g="")
        rows = product(at["*"])
        return Passes(Count(0, 0, rows * (at["d"] + 1)), Count(0, 0, total(shapes)))


ScaleNorm.conventions = {
    "nguyen-salazar": ScaleNorm(),  # transformers_without_tears, layers.py: ScaleNorm
    "flash": ScaleNorm(length="rms", guard="add"),  # Hua et al., appendix
    "lucidrains": ScaleNorm(length="rms", guard="max"),  # FLASH-pytorch, ScaleNorm
}
