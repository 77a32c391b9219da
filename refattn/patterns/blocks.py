"""Patterns of blocks: own and neighbouring blocks, blocks that are permuted, and patterns whose positions are blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Complement, Entries, Pattern, _Joined
from refattn.patterns.pieces import FAR, Class, Edge, Piece

Array = Any


@dataclass(frozen=True, repr=False)
class Blocks(Pattern):
    """Query i of block a = ⌊i/size⌋ sees the blocks a + shift − back … a + shift + ahead, and `margin` keys on both sides.

    `size` is the length of a block; for a given number of blocks write ``Split``. Blocks that do not exist are not seen.
    """

    size: int
    shift: int = 0
    back: int = 0
    ahead: int = 0
    margin: int = 0

    def __post_init__(self) -> None:
        checks.whole("Blocks", "size", self.size, 1)
        if isinstance(self.shift, bool) or not isinstance(self.shift, int):
            raise OptionError(f"Blocks: shift={self.shift!r} must be a whole number of blocks")
        for name in ("back", "ahead", "margin"):
            checks.whole("Blocks", name, getattr(self, name), 0)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        first = (i // self.size + self.shift - self.back) * self.size - self.margin
        stop = (i // self.size + self.shift + self.ahead + 1) * self.size + self.margin
        return (j >= first) & (j < stop)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        lower = Edge(self.size, (self.shift - self.back) * self.size - self.margin)
        upper = Edge(self.size, (self.shift + self.ahead + 1) * self.size + self.margin)
        return (Piece(lower=(lower,), upper=(upper,)),)


@dataclass(frozen=True, repr=False)
class Split(Pattern):
    """n keys split into n_blocks blocks of B = ⌈n/n_blocks⌉; a query of block a sees block (a + shift) mod n_blocks.

    Blockwise attention of Qiu et al. 2020 (BlockBERT, arXiv:1911.02972): π(a) is the block that block a sees, not the one
    that it is seen by. The last blocks are shorter or empty where n_blocks does not divide n, as padding that nobody sees.
    """

    n_blocks: int
    shift: int = 0

    def __post_init__(self) -> None:
        checks.whole("Split", "n_blocks", self.n_blocks, 1)
        checks.between("Split", "shift", self.shift, 0, self.n_blocks - 1, f"there are n_blocks={self.n_blocks} blocks")

    def _count(self, i: Array, j: Array, n: int) -> Array:
        size = max(-(-n // self.n_blocks), 1)
        own, other = i // size, j // size
        exists = (own >= 0) & (own < self.n_blocks)
        return exists & ((own + self.shift) % self.n_blocks == other)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...]:
        size = -(-n // self.n_blocks)
        turn = (self.n_blocks - self.shift) * size
        found = []
        for first, stop, shift in ((0, turn, self.shift), (turn, self.n_blocks * size, self.shift - self.n_blocks)):
            if first < stop:
                lower, upper = Edge(size, shift * size), Edge(size, (shift + 1) * size)
                found.append(Piece(first, stop, (lower,), (upper,)))
        return tuple(found)


@dataclass(frozen=True, repr=False)
class Coarse(Pattern):
    """A pattern whose positions are blocks of `size`: query i sees key j as block ⌊i/size⌋ sees block ⌊j/size⌋ of ⌈n/size⌉.

    ``Coarse(Local(1, 1) | Global(first=1), 64)`` is a window of three blocks and a global block of 64.
    """

    pattern: Pattern
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, Pattern):
            raise OptionError(f"Coarse: pattern={self.pattern!r} must be a pattern")
        checks.whole("Coarse", "size", self.size, 1)

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.pattern.most

    def level(self, t: int) -> Pattern:
        return Coarse(self.pattern.level(t), self.size)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        own, other, n = i // self.size, j // self.size, -(-n // self.size)
        if own.ndim == 2 and own.shape[1] == 1 and other.ndim == 1 and other.size:  # a rectangle: blocks are looked at once
            a, row = np.unique(own[:, 0], return_inverse=True)
            b, column = np.unique(other, return_inverse=True)
            return np.broadcast_to(self.pattern._count(a[:, None], b, n), (len(a), len(b)))[row][:, column]
        return self.pattern._count(own, other, n)

    def resolved(self, n: int) -> Pattern:
        """Blocks of A | B are those of A | those of B."""
        match self.pattern.resolved(-(-n // self.size)):
            case _Joined(parts=parts) as joined:
                return replace(joined, parts=tuple(Coarse(p, self.size) for p in parts))
            case Complement(part=part):
                return Complement(Coarse(part, self.size))
            case inner:
                return Coarse(inner, self.size)

    def pieces(self, n: int, last: int) -> tuple[Piece, ...] | None:
        inner = self.pattern.pieces(-(-n // self.size), last // self.size)
        return None if inner is None else tuple(_enlarged(piece, self.size) for piece in inner)

    def together(self, leaves: tuple[Pattern, ...], n: int, m: int, offset: int) -> int | None:
        """The pairs that all `leaves` see, if they are patterns of the same blocks; else None.

        Block row a holds w_a queries, and every key block `size` keys but the last.
        """
        size = self.size
        inner = [p.pattern for p in leaves if isinstance(p, Coarse) and p.size == size]
        if len(inner) < len(leaves):
            return None
        from refattn.patterns.algebra import Intersection
        from refattn.patterns.columns import Global

        shared = Intersection(tuple(inner))
        blocks = -(-m // size)
        ends = shared & Global(at=(blocks - 1,), rows=False)
        lacking = blocks * size - m

        def keys(a: int, b: int) -> int:
            """The keys that block rows a … b − 1 see."""
            seen = size * shared.nnz(b - a, blocks, a)
            return seen - lacking * ends.nnz(b - a, blocks, a) if lacking else seen

        first, stop = offset // size, -(-(offset + n) // size)
        if stop - first == 1:
            return n * keys(first, stop)
        head, tail = (first + 1) * size - offset, offset + n - (stop - 1) * size
        return head * keys(first, first + 1) + size * keys(first + 1, stop - 1) + tail * keys(stop - 1, stop)

    def entries(self, n: int, m: int, offset: int = 0) -> Entries:
        """Every query's keys are its block's blocks, written out."""
        n, m, offset = checks.sizes(n, m, offset)
        if n == 0 or m == 0:
            return np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), None
        first, size = offset // self.size, self.size
        blocks = (offset + n - 1) // size - first + 1
        start, col, count = self.pattern.entries(blocks, -(-m // size), first)
        row = np.arange(offset, offset + n) // size - first
        length = np.diff(start)[row]
        stop = np.cumsum(length)
        at = np.arange(int(stop[-1])) + np.repeat(start[row] - stop + length, length)  # the block entries of each query
        wide = np.minimum(size, m - col[at] * size)
        place = np.arange(int(wide.sum())) - np.repeat(np.cumsum(wide) - wide, wide)
        keys = np.repeat(col[at] * size, wide) + place
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(wide)])
        begin = ends[np.concatenate([np.zeros(1, dtype=np.int64), stop])]
        return begin, keys, None if count is None else np.repeat(count[at], wide)


def _enlarged(piece: Piece, size: int) -> Piece:
    """The piece with blocks of `size` in place of positions."""

    def edge(e: Edge) -> Edge:
        return Edge(e.block * size, e.plus * size)

    def far(x: int) -> int:
        return x if abs(x) == FAR else x * size

    return Piece(
        far(piece.first),
        far(piece.stop),
        tuple(map(edge, piece.lower)),
        tuple(map(edge, piece.upper)),
        tuple(Class(c.modulus * size, edge(c.anchor), c.width * size) for c in piece.classes),
        None if piece.keys is None else tuple((a * size, b * size) for a, b in piece.keys),
    )
