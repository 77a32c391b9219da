"""Patterns as kernels get them wrong: transposed, wrapped, moved, clamped. They are written out densely and not shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.patterns import Local, Pattern, Strided

Array = Any


@dataclass(frozen=True, repr=False)
class Turned(Pattern):
    """Query and key exchanged."""

    pattern: Pattern

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.pattern.most

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return np.where((i >= 0) & (i < n), self.pattern._count(j, i, n), 0)


@dataclass(frozen=True, repr=False)
class Wrapped(Pattern):
    """Keys beyond an end are taken from the other end."""

    pattern: Pattern

    def _count(self, i: Array, j: Array, n: int) -> Array:
        found = [np.asarray(self.pattern._count(i, j + turn * n, n)) for turn in (-1, 0, 1)]
        return np.maximum(np.maximum(found[0], found[1]), found[2])


@dataclass(frozen=True, repr=False)
class Clamped(Pattern):
    """A window that does not fit at an end is moved inwards, not cut."""

    window: Local

    def _count(self, i: Array, j: Array, n: int) -> Array:
        d = self.window.dilation
        low, high = self.window.left * d, n - 1 - self.window.right * d
        return self.window._count(np.clip(i, min(low, high), high), j, n)


@dataclass(frozen=True, repr=False)
class Moved(Pattern):
    """Positions are counted from 1: blocks and grids begin one position late, distances stay."""

    pattern: Pattern
    by: int

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.pattern.most

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return self.pattern._count(i - self.by, j - self.by, n)


@dataclass(frozen=True, repr=False)
class Phase(Pattern):
    """Strides that do not begin at the query, but `by` keys after it."""

    strides: Strided
    by: int

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return self.strides._count(i, j - self.by, n)


@dataclass(frozen=True, repr=False)
class Tail(Pattern):
    """The pattern without the keys, or without the queries, of a last block that is not full."""

    pattern: Pattern
    size: int
    queries: bool

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.pattern.most

    def _count(self, i: Array, j: Array, n: int) -> Array:
        whole = n // self.size * self.size
        return np.where((i if self.queries else j) < whole, self.pattern._count(i, j, n), 0)


@dataclass(frozen=True, repr=False)
class Near(Pattern):
    """The pattern without the pairs that lie further apart than a kernel's loop over tiles goes."""

    pattern: Pattern
    tile: int
    back: int

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.pattern.most

    def _count(self, i: Array, j: Array, n: int) -> Array:
        near = np.abs(i // self.tile - j // self.tile) <= self.back
        return np.where(near, self.pattern._count(i, j, n), 0)
