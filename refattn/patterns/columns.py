"""Patterns of chosen positions: global tokens that see and are seen, and the summary columns of fixed attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Pattern
from refattn.patterns.pieces import FAR, Class, Edge, Piece, Run

Array = Any


@dataclass(frozen=True, repr=False)
class Global(Pattern):
    """Chosen positions see every key and are seen by every query: the `first` ones, the `last` ones of n, and those `at`.

    rows=False: they are seen but do not see more than others (columns only); columns=False: they see but are not seen.
    `last` and a position's existence go by the number of keys, which for n ≠ m is not that of queries.
    """

    first: int = 0
    last: int = 0
    at: tuple[int, ...] = ()
    rows: bool = True
    columns: bool = True

    def __post_init__(self) -> None:
        checks.whole("Global", "first", self.first, 0)
        checks.whole("Global", "last", self.last, 0)
        checks.wholes("Global", "at", self.at, 0)
        if not (self.first or self.last or self.at):
            raise OptionError(f"{self!r} chooses no position: give first, last or at")
        if not (self.rows or self.columns):
            raise OptionError(f"{self!r}: with rows=False and columns=False nothing is seen")

    def _chosen(self, x: Array, n: int) -> Array:
        inside = (x >= 0) & (x < n)
        return inside & ((x < self.first) | (x >= n - self.last) | np.isin(x, np.asarray(self.at, dtype=np.int64)))

    def _count(self, i: Array, j: Array, n: int) -> Array:
        row, column = self._chosen(i, n), self._chosen(j, n)
        return (row & self.rows) | (column & self.columns)

    def runs(self, n: int) -> tuple[Run, ...]:
        """The chosen positions among n as maximal intervals a … b − 1."""
        spans = [(0, self.first), (n - self.last, n), *((x, x + 1) for x in self.at)]
        found: list[Run] = []
        for a, b in sorted((max(a, 0), min(b, n)) for a, b in spans):
            if a >= b:
                continue
            if found and a <= found[-1][1]:
                found[-1] = (found[-1][0], max(b, found[-1][1]))
            else:
                found.append((a, b))
        return tuple(found)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        runs = self.runs(n)
        if not runs:
            return ()
        seeing = tuple(Piece(first=a, stop=b) for a, b in runs) if self.rows else ()
        if not self.columns:
            return seeing
        ends = [-FAR, *(x for run in runs for x in run), FAR] if self.rows else [-FAR, FAR]
        gaps = zip(ends[::2], ends[1::2], strict=True)
        return (*seeing, *(Piece(first=a, stop=b, keys=runs) for a, b in gaps))


@dataclass(frozen=True, repr=False)
class Fixed(Pattern):
    """Every query sees c summary columns of each block of l positions: l − (slot + 1)·c ≤ j mod l < l − slot·c.

    A² of fixed attention in Child et al. 2019 (arXiv:1904.10509) is ``Fixed(l, c) & Causal()``; its heads take distinct
    slots, counted from the end of the block as in the authors' code.
    """

    l: int
    c: int = 1
    slot: int = 0

    def __post_init__(self) -> None:
        checks.whole("Fixed", "l", self.l, 1)
        checks.between("Fixed", "c", self.c, 1, self.l, f"a block has l={self.l} positions")
        most = self.l // self.c - 1
        checks.between("Fixed", "slot", self.slot, 0, most, f"a block of l={self.l} holds {most + 1} slots of c={self.c}")

    @property
    def start(self) -> int:
        """The first summary column of a block, counted from its beginning."""
        return self.l - (self.slot + 1) * self.c

    def _count(self, i: Array, j: Array, n: int) -> Array:
        place = j % self.l
        return (place >= self.start) & (place < self.start + self.c) & (i == i)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        if self.c == self.l:
            return (Piece(),)
        return (Piece(classes=(Class(self.l, Edge(0, self.start), self.c),)),)
