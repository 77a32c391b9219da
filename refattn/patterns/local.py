"""Patterns of the distance between query and key: windows, the query itself, causal order, strides, powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Pattern
from refattn.patterns.pieces import Class, Edge, Piece

Array = Any


@dataclass(frozen=True, repr=False)
class Local(Pattern):
    """A window: query i sees the keys i + dilation·t for t = −left … right, itself among them.

    Beltagy et al. 2020 (Longformer, arXiv:2004.05150) call left = right = w/2 a window of w. `dilation` is the distance
    between two neighbours: 1 leaves no gap (the paper's dilation 0).
    """

    left: int
    right: int
    dilation: int = 1

    def __post_init__(self) -> None:
        checks.whole("Local", "left", self.left, 0)
        checks.whole("Local", "right", self.right, 0)
        checks.whole("Local", "dilation", self.dilation, 1)

    @classmethod
    def total(cls, width: int) -> Local:
        """A window of `width` keys with the query in the middle; an even one has no middle and is refused."""
        checks.whole("Local.total", "width", width, 1)
        if width % 2 == 0:
            more = f"Local({width // 2}, {width // 2 - 1}) or Local({width // 2 - 1}, {width // 2})"
            raise OptionError(f"Local.total: width={width} is even, so that no key is in the middle: write {more}")
        return cls(width // 2, width // 2)

    @classmethod
    def each_side(cls, w: int) -> Local:
        """w keys on each side of the query: 2·w + 1 in all."""
        return cls(w, w)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        away = j - i
        near = (away >= -self.left * self.dilation) & (away <= self.right * self.dilation)
        return near if self.dilation == 1 else near & (away % self.dilation == 0)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        lower, upper = Edge(1, -self.left * self.dilation), Edge(1, self.right * self.dilation + 1)
        return (Piece(lower=(lower,), upper=(upper,), classes=_every(self.dilation)),)


@dataclass(frozen=True, repr=False)
class Self(Pattern):
    """Query i sees key i and no other: ``Local(7, 0) & ~Self()`` is the window without the query."""

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return i == j

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        return (Piece(lower=(Edge(1, 0),), upper=(Edge(1, 1),)),)


@dataclass(frozen=True, repr=False)
class Causal(Pattern):
    """Query i sees the keys 0 … i."""

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return j <= i

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        return (Piece(upper=(Edge(1, 1),)),)


@dataclass(frozen=True, repr=False)
class Strided(Pattern):
    """Query i sees every key whose distance is a multiple of `period`, on both sides: ``Strided(l) & Causal()`` is A² of
    Child et al. 2019 (arXiv:1904.10509).
    """

    period: int

    def __post_init__(self) -> None:
        checks.whole("Strided", "period", self.period, 1)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return (i - j) % self.period == 0

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        return (Piece(classes=_every(self.period)),)


@dataclass(frozen=True, repr=False)
class LogSparse(Pattern):
    """Query i sees itself and the keys i − 2^p ≥ 0: Li et al. 2019 (arXiv:1907.00235), counting positions from 0."""

    def _count(self, i: Array, j: Array, n: int) -> Array:
        back = i - j
        return (back >= 0) & (back & (back - 1) == 0)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        steps = [0, *(1 << p for p in range(max(last, 0).bit_length()))]
        return tuple(Piece(lower=(Edge(1, -step),), upper=(Edge(1, 1 - step),)) for step in steps)


def _every(period: int) -> tuple[Class, ...]:
    return (Class(period, Edge(1, 0)),) if period > 1 else ()
