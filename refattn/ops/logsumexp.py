"""The logarithm of a sum of exponentials: a smooth maximum, and the normaliser of a softmax.

    y = log Σ_j see_j exp(s_j)           −∞ for a row that sees nothing, without a gradient

s: (..., m)   see: bool, broadcasts to (..., m), or None   y: (...).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.softmax import check_see, row_max, weights
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class LogSumExp:
    """y = log Σ exp(s) over the last axis; raises ShapeError."""

    class Inputs(NamedTuple):
        s: Array  # (..., m)
        see: Array | None = None  # bool, broadcasts to (..., m)

    class Saved(NamedTuple):
        inputs: LogSumExp.Inputs
        y: Array  # (...)

    kinds: ClassVar[Mapping[str, str]] = {"see": "bool"}

    def forward(self, s: Array, see: Array | None = None) -> tuple[Array, Saved]:
        """y, which the backward needs."""
        inputs = self.Inputs(s, see)
        check_see(inputs)
        xp = of(s).xp
        c = row_max(s, see)
        z = xp.sum(weights(s, see, c), axis=-1, keepdims=True)
        none = z == 0.0
        y = xp.where(none, -math.inf, c + xp.log(xp.where(none, 1.0, z)))[..., 0]
        return y, self.Saved(inputs, y)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """ds_j = see_j exp(s_j − y) dy, and 0 where y = −∞."""
        (s, see), y = saved
        xp = of(s, y, dy).xp
        none = y[..., None] == -math.inf
        p = weights(s, see, xp.where(none, 0.0, y[..., None]))
        return self.Inputs(p * xp.where(none, 0.0, dy[..., None]), None)

    def cost(self, shapes: Inputs) -> Passes:
        """One exponential for each score, forward and backward."""
        shape = check_see(shapes)
        size = product(shape)
        return Passes(Count(0, size, product(shape[:-1])), Count(0, size, size))
