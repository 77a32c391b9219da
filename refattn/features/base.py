"""What every feature map is: a frozen value that maps the last axis, d features to `width(d)`."""

from __future__ import annotations

from typing import Any, Protocol

Array = Any


class Feature(Protocol):
    """φ. positive: φ(q)·φ(k) ≥ 0 always, so that weights can be normalised without a sign."""

    @property
    def positive(self) -> bool: ...

    def __call__(self, x: Array) -> Array:
        """φ(x), (..., n, d) → (..., n, width(d))."""

    def vjp(self, x: Array, phi: Array, dphi: Array) -> Array:
        """dx from the cotangent of φ = φ(x), which was computed already."""

    def width(self, d: int) -> int:
        """How many features d become."""

    def exps(self, d: int) -> int:
        """Elements exponentiated for one row; the vjp needs none."""
