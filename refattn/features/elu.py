"""φ(x) = elu(x) + 1: positive everywhere, with a gradient everywhere.

    φ = x + 1 for x > 0, eˣ else = max(x, 0) + exp(min(x, 0))        φ' = 1 for x > 0, φ else = min(φ, 1)

Katharopoulos et al. (arXiv:2006.16236), eq. 7. Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from refattn.backend import of

Array = Any


@dataclass(frozen=True)
class Elu:
    """elu + 1; the module has the equation."""

    positive: ClassVar[bool] = True

    def __call__(self, x: Array) -> Array:
        xp = of(x).xp
        return xp.maximum(x, 0.0) + xp.exp(xp.minimum(x, 0.0))

    def vjp(self, x: Array, phi: Array, dphi: Array) -> Array:
        return dphi * of(x).xp.minimum(phi, 1.0)

    def width(self, d: int) -> int:
        return d

    def exps(self, d: int) -> int:
        return d
