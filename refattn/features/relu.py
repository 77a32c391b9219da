"""φ(x) = max(x, 0) + ε: sparse features, with ε > 0 never all of them zero.

    φ' = 1 for x > 0, 0 else

Choromanski et al. (arXiv:2009.14794), §5.2 and their code, where ε = 10⁻³ ("generalized attention", there on random
projections of x).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from refattn.backend import of
from refattn.errors import OptionError

Array = Any


@dataclass(frozen=True)
class Relu:
    """relu + ε; the module has the equation."""

    epsilon: float = 0.0

    positive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, Real):
            raise OptionError(f"epsilon={self.epsilon!r} is a {type(self.epsilon).__name__}, not a number")
        if not 0.0 <= self.epsilon < math.inf:
            raise OptionError(f"epsilon={self.epsilon!r} must be finite and not negative")

    def __call__(self, x: Array) -> Array:
        phi = of(x).xp.maximum(x, 0.0)
        return phi + self.epsilon if self.epsilon else phi

    def vjp(self, x: Array, phi: Array, dphi: Array) -> Array:
        return of(x, dphi).xp.where(x > 0.0, dphi, 0.0)

    def width(self, d: int) -> int:
        return d

    def exps(self, d: int) -> int:
        return 0
