"""Patterns of positions that form a grid, row after row: along one axis, or along all of them at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Pattern, Union
from refattn.patterns.pieces import Class, Edge, Piece

Array = Any


@dataclass(frozen=True, repr=False)
class Axial(Pattern):
    """Query and key differ along one axis of a grid only; Ho et al. 2019 (arXiv:1912.12180).

    The last axis of `shape` runs fastest; axis −1 of (H, W) is a row of W positions. A sequence that is longer than the
    grid is grid after grid.
    """

    shape: tuple[int, ...]
    axis: int = -1

    def __post_init__(self) -> None:
        _check_shape("Axial", self.shape)
        axes = len(self.shape)
        if isinstance(self.axis, bool) or not isinstance(self.axis, int) or not -axes <= self.axis < axes:
            raise OptionError(f"Axial: axis={self.axis!r} must be a whole number from {-axes} to {axes - 1}")

    def _count(self, i: Array, j: Array, n: int) -> Array:
        same = np.ones(np.broadcast_shapes(i.shape, j.shape), dtype=bool)
        for axis, (a, b) in enumerate(zip(_places(i, self.shape), _places(j, self.shape), strict=True), start=-1):
            if axis != self.axis % len(self.shape):
                same = same & (a == b)
        return same

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        axis = self.axis % len(self.shape)
        step = math.prod(self.shape[axis + 1 :])
        block = step * self.shape[axis]
        classes = (Class(step, Edge(1, 0)),) if step > 1 else ()
        return (Piece(lower=(Edge(block, 0),), upper=(Edge(block, block),), classes=classes),)


@dataclass(frozen=True, repr=False)
class Cross(Pattern):
    """Query and key differ along at most one axis of a grid, in one softmax: the query itself counts once.

    Criss-cross attention of Huang et al. 2019 (CCNet, arXiv:1811.11721) for two axes: H + W − 1 keys.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_shape("Cross", self.shape)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        grid, *places = zip(_places(i, self.shape), _places(j, self.shape), strict=True)
        differing = sum((a != b).astype(np.int64) for a, b in places)
        return (grid[0] == grid[1]) & (differing <= 1)

    def resolved(self, n: int) -> Pattern:
        return Union(tuple(Axial(self.shape, axis) for axis in range(len(self.shape))))


def _check_shape(owner: str, shape: Any) -> None:
    checks.wholes(owner, "shape", shape, 1)
    if len(shape) < 1:
        raise OptionError(f"{owner}: shape={shape!r} must have at least one axis, as shape=(32, 32)")


def _places(x: Array, shape: tuple[int, ...]) -> list[Array]:
    """The number of the grid and the place on each axis of position x."""
    found = []
    for size in reversed(shape):
        x, place = np.divmod(x, size)
        found.append(place)
    return [x, *reversed(found)]
