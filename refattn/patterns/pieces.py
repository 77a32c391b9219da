"""Pieces: sets of pairs (i, j) simple enough to be counted without listing them. Leaves are made of disjoint pieces.

    first ≤ i < stop,   max_e e(i) ≤ j < min_e e(i) over lower and upper edges,   (j − a(i)) mod M < w for each class,
    j in one of the runs of `keys`;     an edge is e(i) = plus, i + plus, or block·⌊i/block⌋ + plus

What two pieces share is a piece again. The number of keys that query i sees takes a few operations, however many they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

Array = Any
FAR = 1 << 60
"""Beyond every position."""
SAFE = 1 << 61
"""Moduli from here on are handled as Python integers."""


@dataclass(frozen=True)
class Edge:
    """A key position that depends on the query: block·⌊i/block⌋ + plus; block 1 moves with i, block 0 stands still."""

    block: int
    plus: int

    def at(self, i: Array) -> Array:
        if self.block == 0:
            return np.full(np.shape(i), self.plus, dtype=np.int64)
        return i + self.plus if self.block == 1 else i // self.block * self.block + self.plus


@dataclass(frozen=True)
class Class:
    """(j − anchor(i)) mod modulus < width."""

    modulus: int
    anchor: Edge
    width: int = 1

    def singles(self) -> tuple[Class, ...]:
        """The same as classes of one residue each."""
        return tuple(
            Class(self.modulus, Edge(self.anchor.block, self.anchor.plus + step)) for step in range(self.width)
        )


Run = tuple[int, int]


@dataclass(frozen=True)
class Piece:
    """See the module's docstring; every part left out restricts nothing."""

    first: int = -FAR
    stop: int = FAR
    lower: tuple[Edge, ...] = ()
    upper: tuple[Edge, ...] = ()
    classes: tuple[Class, ...] = ()
    keys: tuple[Run, ...] | None = None

    def __and__(self, other: Piece) -> Piece | None:
        """The pairs in both; None where that is obviously nothing."""
        lower, upper = _tightest(self.lower + other.lower, max), _tightest(self.upper + other.upper, min)
        ends = {e.block: e.plus for e in upper}
        empty = any(e.block in ends and e.plus >= ends[e.block] for e in lower)
        keys = self.keys if other.keys is None else other.keys if self.keys is None else _common(self.keys, other.keys)
        first, stop = max(self.first, other.first), min(self.stop, other.stop)
        if empty or first >= stop or keys == ():
            return None
        return Piece(first, stop, lower, upper, tuple(dict.fromkeys(self.classes + other.classes)), keys)

    def interval(self, i: Array, m: int) -> tuple[Array, Array]:
        """lo and hi: query i sees no key outside lo … hi − 1; rows outside first … stop − 1 have hi ≤ lo."""
        lo = np.full(i.shape, max([0, *(e.plus for e in self.lower if e.block == 0)]), dtype=np.int64)
        hi = np.full(i.shape, min([m, *(e.plus for e in self.upper if e.block == 0)]), dtype=np.int64)
        for edge in self.lower:
            lo = np.maximum(lo, edge.at(i)) if edge.block else lo
        for edge in self.upper:
            hi = np.minimum(hi, edge.at(i)) if edge.block else hi
        hi = np.maximum(hi, lo)
        everywhere = self.first == -FAR and self.stop == FAR
        return lo, hi if everywhere else np.where((i >= self.first) & (i < self.stop), hi, lo)

    def parts(self) -> Iterator[Piece]:
        """Disjoint pieces with one run of keys each, and with single residues wherever there are several classes."""
        runs = (None,) if self.keys is None else self.keys
        choices: Iterable[Sequence[Class]] = [self.classes]
        if len(self.classes) > 1:
            choices = product(*(c.singles() for c in self.classes))
        for classes, run in product(list(choices), runs):
            edges = () if run is None else (Edge(0, run[0]),), () if run is None else (Edge(0, run[1]),)
            lower, upper = _tightest(self.lower + edges[0], max), _tightest(self.upper + edges[1], min)
            yield replace(self, lower=lower, upper=upper, classes=tuple(classes), keys=None)

    def counts(self, i: Array, m: int) -> Array:
        """How many keys each query sees, of m. Only for what `parts` gives."""
        lo, hi = self.interval(i, m)
        if not self.classes:
            return hi - lo
        modulus, start, width, valid = self.residue(i)
        found = _up_to(hi - start, modulus, width) - _up_to(lo - start, modulus, width)
        return np.where(valid, found, 0).astype(np.int64)

    def residue(self, i: Array) -> tuple[int, Array, int, Array]:
        """All classes as one: (j − start) mod modulus < width, in rows that are valid (classes may exclude each other)."""
        first, *others = self.classes
        modulus, start, valid = first.modulus, first.anchor.at(i), np.ones(i.shape, dtype=bool)
        for other in others:
            common = math.gcd(modulus, other.modulus)
            both, step = modulus // common * other.modulus, other.modulus // common
            if both >= SAFE or step >= 1 << 31:
                start = start.astype(object)
            gap = other.anchor.at(i) - start
            turns = gap // common % step * pow(modulus // common, -1, step) % step if step > 1 else gap * 0
            valid = valid & np.asarray(gap % common == 0, dtype=bool)
            start, modulus = (start + modulus * turns) % both, both
        return modulus, start, first.width, valid


def _tightest(edges: Iterable[Edge], pick: Any) -> tuple[Edge, ...]:
    """For each block the one edge that matters."""
    found: dict[int, int] = {}
    for e in edges:
        found[e.block] = pick(found.get(e.block, e.plus), e.plus)
    return tuple(Edge(block, found[block]) for block in sorted(found))


def _common(a: Sequence[Run], b: Sequence[Run]) -> tuple[Run, ...]:
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return tuple(sorted(run for run in both if run[0] < run[1]))


def _up_to(x: Array, modulus: int, width: int) -> Array:
    """Σ_{t<x} [t mod modulus < width], up to a constant."""
    return x // modulus * width + np.minimum(x % modulus, width)


def conjunction(groups: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
    """Disjoint pieces of the pairs that lie in every group; each group is disjoint."""
    found: list[Piece] = [Piece()]
    for group in groups:
        met = (a & b for a in found for b in group)
        found = [piece for piece in met if piece is not None]
    return tuple(found)


def listed(piece: Piece, i: Array, m: int) -> tuple[Array, Array]:
    """row and col of every pair of the piece, where row is the place in `i`; rows rise, and the keys of a row too unless
    `parts` gives several pieces.
    """
    rows, cols = [], []
    for part in piece.parts():
        first, length, step = _spans(part, i, m)
        row = np.repeat(np.repeat(np.arange(len(i)), first.shape[1]), length.ravel())
        stop = np.cumsum(length)
        place = np.arange(len(row)) - np.repeat(stop - length.ravel(), length.ravel())
        rows.append(row)
        cols.append(np.repeat(first.ravel(), length.ravel()) + step * place)
    return np.concatenate(rows), np.concatenate(cols)


def _spans(part: Piece, i: Array, m: int) -> tuple[Array, Array, int]:
    """The keys of each row as runs: first and length (rows, runs), and the step from key to key."""
    lo, end = part.interval(i, m)
    if not part.classes:
        return lo[:, None], (end - lo)[:, None], 1
    modulus, start, width, valid = part.residue(i)
    hi: Array = np.where(valid, end, lo)
    if width == 1:  # one run in steps of the modulus
        first = np.minimum(lo + (start - lo) % modulus, hi).astype(np.int64)
        step = min(modulus, SAFE)
        length: Array = -((first - hi) // step)
        return first[:, None], length[:, None], step
    turn = (lo - start) // modulus
    turns = turn[:, None] + np.arange(int(((hi - start) // modulus - turn).max(initial=0)) + 1)
    first = start[:, None] + turns * modulus
    stop = np.minimum(first + width, hi[:, None])
    first = np.maximum(first, lo[:, None])
    return first, np.maximum(stop - first, 0), 1
