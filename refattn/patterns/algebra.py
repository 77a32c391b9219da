"""A pattern says how often query i sees key j; patterns are values, joined by | & + ~.

    count(i, j, n)      of the query at position i and the key at position j among n keys
    (A | B) = max       (A & B) = min       (A + B) = sum, a multiset       (~A) = 1 where A is 0, else 0

Query number t of n stands at position t + offset: offset is m − n for align="bottom_right" and 0 for "top_left". `count` is
the meaning. `entries`, `nnz`, `weight` and `tiles` say the same faster, and are held equal to it by law.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks

Array = Any
Entries = tuple[Array, Array, Array | None]
Tile = tuple[int, int, int, int, Array | None]


class Pattern:
    """The base of every pattern; see the module's docstring. A leaf defines `_count`, and `pieces` or `entries`."""

    most: int = 1
    """No count is larger."""
    binds = 4
    """How tightly the written form holds together: | 0, & 1, + 2, ~ 3, a constructor 4, as in Python."""

    def _count(self, i: Array, j: Array, n: int) -> Array:
        raise NotImplementedError

    def count(self, i: Array, j: Array, n: int) -> Array:
        """How often the query at position i sees key j of n, for broadcasting whole numbers; 0 where there is no key j.

        Raises
        ------
        DtypeError
            For positions that are no whole numbers.
        """
        n = checks.sizes(0, n, 0)[1]
        i, j = checks.positions("i", i), checks.positions("j", j)
        found = np.asarray(self._count(i, j, n)).astype(np.int64)
        return np.where((j >= 0) & (j < n), found, 0)

    def contains(self, i: Array, j: Array, n: int) -> Array:
        """Whether the query at position i sees key j of n."""
        n = checks.sizes(0, n, 0)[1]
        i, j = checks.positions("i", i), checks.positions("j", j)
        return (np.asarray(self._count(i, j, n)) > 0) & (j >= 0) & (j < n)

    def dense(self, n: int, m: int, offset: int = 0) -> Array:
        """The counts (n, m) of n queries, the first of them at position `offset`, and m keys."""
        n, m, offset = checks.sizes(n, m, offset)
        return self.count(np.arange(offset, offset + n)[:, None], np.arange(m), m)

    def entries(self, n: int, m: int, offset: int = 0) -> Entries:
        """start (n + 1,), col (nnz,) and count (nnz,), all int64: query t sees the keys col[start[t]:start[t + 1]],
        in rising order, count times each; None for once.
        """
        from refattn.patterns import listing

        return listing.entries(self, *checks.sizes(n, m, offset))

    def nnz(self, n: int, m: int, offset: int = 0) -> int:
        """How many pairs are seen, each counted once: the length of `entries`, in closed form where there is one."""
        from refattn.patterns import counting

        return counting.nnz(self, *checks.sizes(n, m, offset))

    def weight(self, n: int, m: int, offset: int = 0) -> int:
        """The sum of all counts: nnz with multiplicities."""
        from refattn.patterns import counting

        return counting.weight(self, *checks.sizes(n, m, offset))

    def tiles(self, n: int, m: int, offset: int, rows: int) -> Iterator[Tile]:
        """(q0, q1, k0, k1, seen) by blocks of `rows` queries: queries q0 … q1 − 1 see keys k0 … k1 − 1 where `seen`
        (q1 − q0, k1 − k0) says so, all of them for None. A pair of count c lies in exactly c of the tiles.
        """
        from refattn.patterns import tiling

        checks.whole("tiles", "rows", rows, 1)
        return tiling.tiles(self, *checks.sizes(n, m, offset), rows)

    def level(self, t: int) -> Pattern:
        """The pairs of count ≥ t as a pattern without multiplicities."""
        return self if t == 1 else Union(()) if t > 1 else All()

    def resolved(self, n: int) -> Pattern:
        """The same for n keys, written with | & + ~ and leaves only; a leaf is itself."""
        return self

    def pieces(self, n: int, last: int) -> Any:
        """A leaf of count ≤ 1 as disjoint `Piece`s for n keys and queries up to position `last`; None if it can't be."""
        return None

    def __or__(self, other: Pattern) -> Pattern:
        return Union((*_parts(self, Union), *_parts(other, Union))) if isinstance(other, Pattern) else NotImplemented

    def __and__(self, other: Pattern) -> Pattern:
        if not isinstance(other, Pattern):
            return NotImplemented
        return Intersection((*_parts(self, Intersection), *_parts(other, Intersection)))

    def __add__(self, other: Pattern) -> Pattern:
        return Sum((*_parts(self, Sum), *_parts(other, Sum))) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> Complement:
        return Complement(self)

    def __repr__(self) -> str:
        """The expression that makes this pattern: a constructor with the fields that differ from their defaults."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every pattern is a dataclass
        changed = [(f.name, getattr(self, f.name)) for f in fields if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed)})"


def _parts(pattern: Pattern, kind: type) -> tuple[Pattern, ...]:
    """A | B | C is one union of three."""
    return pattern.parts if isinstance(pattern, kind) else (pattern,)  # type: ignore[attr-defined]


@dataclass(frozen=True, repr=False)
class All(Pattern):
    """Every query sees every key: full softmax."""

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return np.ones(np.broadcast_shapes(i.shape, j.shape), dtype=np.int64)

    def pieces(self, n: int, last: int) -> Any:
        from refattn.patterns.pieces import Piece

        return (Piece(),)


@dataclass(frozen=True, repr=False)
class _Joined(Pattern):
    """What | & + have in common: parts, written with a sign between them."""

    parts: tuple[Pattern, ...]
    sign = ""

    def __repr__(self) -> str:
        if not self.parts:
            return "~All()"
        return f" {self.sign} ".join(_written(p, self.binds) for p in self.parts)

    def resolved(self, n: int) -> Pattern:
        return dataclasses.replace(self, parts=tuple(p.resolved(n) for p in self.parts))


@dataclass(frozen=True, repr=False)
class Union(_Joined):
    """A | B: the larger count; written with |. Without parts nothing is seen."""

    sign = "|"
    binds = 0

    @property
    def most(self) -> int:  # type: ignore[override]
        return max((p.most for p in self.parts), default=0)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        found = np.zeros(np.broadcast_shapes(i.shape, j.shape), dtype=np.int64)
        for part in self.parts:
            found = np.maximum(found, part._count(i, j, n))
        return found

    def level(self, t: int) -> Pattern:
        return Union(tuple(p.level(t) for p in self.parts)) if t > 0 else All()


@dataclass(frozen=True, repr=False)
class Intersection(_Joined):
    """A & B: the smaller count; written with &."""

    sign = "&"
    binds = 1

    @property
    def most(self) -> int:  # type: ignore[override]
        return min(p.most for p in self.parts)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        first, *others = self.parts
        found = first._count(i, j, n)
        for part in others:
            found = np.minimum(found, part._count(i, j, n))
        return found

    def level(self, t: int) -> Pattern:
        return Intersection(tuple(p.level(t) for p in self.parts))


@dataclass(frozen=True, repr=False)
class Sum(_Joined):
    """A + B: the counts added, a multiset of keys; written with +."""

    sign = "+"
    binds = 2

    @property
    def most(self) -> int:  # type: ignore[override]
        return sum(p.most for p in self.parts)

    def _count(self, i: Array, j: Array, n: int) -> Array:
        first, *others = self.parts
        found = np.asarray(first._count(i, j, n)).astype(np.int64)
        for part in others:
            found = found + part._count(i, j, n)
        return found

    def level(self, t: int) -> Pattern:
        """a + b ≥ t where a ≥ s and b ≥ t − s for some s."""
        if t <= 0:
            return All()
        if t == 1 or len(self.parts) == 1:
            return Union(tuple(p.level(t) for p in self.parts))
        first, rest = self.parts[0], Sum(self.parts[1:])
        ways = [(s, t - s) for s in range(t + 1) if s <= first.most and t - s <= rest.most]
        return Union(tuple(Intersection((first.level(s), rest.level(u))) for s, u in ways))


@dataclass(frozen=True, repr=False)
class Complement(Pattern):
    """~A: the pairs that A does not see; written with ~."""

    part: Pattern
    binds = 3

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return np.asarray(self.part._count(i, j, n)) == 0

    def resolved(self, n: int) -> Pattern:
        return Complement(self.part.resolved(n))

    def __repr__(self) -> str:
        return f"~{_written(self.part, self.binds)}"


def _written(part: Pattern, binds: int) -> str:
    loose = part.binds < binds or (isinstance(part, Union) and not part.parts and binds > 3)
    return f"({part!r})" if loose else repr(part)


def check_parts(owner: str, parts: Any) -> None:
    """Refuse what is no tuple of patterns."""
    if not isinstance(parts, tuple) or not parts or not all(isinstance(p, Pattern) for p in parts):
        raise OptionError(f"{owner}: patterns={parts!r} must be a tuple of at least one pattern, as (Causal(), All())")
