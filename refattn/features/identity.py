"""φ(x) = x: no map at all. Weights have a sign, so that they are usually not normalised.

Sun et al. (arXiv:2307.08621), §2, without decay; fla and ONNX call this linear attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

Array = Any


@dataclass(frozen=True)
class Identity:
    """No map; the module has the equation."""

    positive: ClassVar[bool] = False

    def __call__(self, x: Array) -> Array:
        return x

    def vjp(self, x: Array, phi: Array, dphi: Array) -> Array:
        return dphi

    def width(self, d: int) -> int:
        return d

    def exps(self, d: int) -> int:
        return 0
