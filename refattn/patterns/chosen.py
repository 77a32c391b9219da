"""A pattern for each head, for each layer, or for short sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, and_, or_
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Pattern, check_parts

Array = Any


@dataclass(frozen=True, repr=False)
class Short(Pattern):
    """`then` for fewer than `below` keys, `otherwise` from there on: published code that falls back to full attention."""

    below: int
    then: Pattern
    otherwise: Pattern

    def __post_init__(self) -> None:
        checks.whole("Short", "below", self.below, 1)
        check_parts("Short", (self.then, self.otherwise))

    @property
    def most(self) -> int:  # type: ignore[override]
        return max(self.then.most, self.otherwise.most)

    def level(self, t: int) -> Pattern:
        return Short(self.below, self.then.level(t), self.otherwise.level(t))

    def _count(self, i: Array, j: Array, n: int) -> Array:
        return (self.then if n < self.below else self.otherwise)._count(i, j, n)

    def resolved(self, n: int) -> Pattern:
        return (self.then if n < self.below else self.otherwise).resolved(n)


class _Several:
    """What Heads and Alternate have in common: patterns, and operators that go to each of them."""

    patterns: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.patterns)

    def _each(self, other: Any, join: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
        if isinstance(other, type(self)):
            if len(other) != len(self):
                name = type(self).__name__
                raise OptionError(f"{name} of {len(self)} and {name} of {len(other)} patterns do not fit together")
            pairs = zip(self.patterns, other.patterns, strict=True)
        elif isinstance(other, Pattern) or (isinstance(self, Alternate) and isinstance(other, Heads)):
            pairs = ((p, other) for p in self.patterns)  # type: ignore[assignment]
        else:
            return NotImplemented
        return type(self)(tuple(join(b, a) if swapped else join(a, b) for a, b in pairs))  # type: ignore[call-arg]

    def __or__(self, other: Any) -> Any:
        return self._each(other, or_)

    def __ror__(self, other: Any) -> Any:
        return self._each(other, or_, swapped=True)

    def __and__(self, other: Any) -> Any:
        return self._each(other, and_)

    def __rand__(self, other: Any) -> Any:
        return self._each(other, and_, swapped=True)

    def __add__(self, other: Any) -> Any:
        return self._each(other, add)

    def __radd__(self, other: Any) -> Any:
        return self._each(other, add, swapped=True)

    def __invert__(self) -> Any:
        return type(self)(tuple(~p for p in self.patterns))  # type: ignore[call-arg]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.patterns!r})"


@dataclass(frozen=True, repr=False)
class Heads(_Several):
    """A pattern for each head, in order: as many heads as patterns. Operators go to each head."""

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        check_parts("Heads", self.patterns)

    def at(self, head: int) -> Pattern:
        """The pattern of one head."""
        checks.between("Heads.at", "head", head, 0, len(self) - 1, f"there are {len(self)} heads")
        return self.patterns[head]

    def count(self, i: Array, j: Array, n: int) -> Array:
        """The counts of all heads, on axis −3 (on a new first axis if i and j have fewer than two)."""
        found = np.stack([p.count(i, j, n) for p in self.patterns])
        return np.moveaxis(found, 0, -3) if found.ndim > 3 else found

    def dense(self, n: int, m: int, offset: int = 0) -> Array:
        """The counts (heads, n, m)."""
        return np.stack([p.dense(n, m, offset) for p in self.patterns])

    def nnz(self, n: int, m: int, offset: int = 0) -> int:
        """The pairs of all heads."""
        return sum(p.nnz(n, m, offset) for p in self.patterns)

    def weight(self, n: int, m: int, offset: int = 0) -> int:
        """The pairs of all heads with multiplicities."""
        return sum(p.weight(n, m, offset) for p in self.patterns)


@dataclass(frozen=True, repr=False)
class Alternate(_Several):
    """A pattern (or Heads) for each layer, again and again: layer r has number r mod len. Operators go to each layer."""

    patterns: tuple[Any, ...]

    def __post_init__(self) -> None:
        good = isinstance(self.patterns, tuple) and all(isinstance(p, Pattern | Heads) for p in self.patterns)
        if not good or not self.patterns:
            raise OptionError(f"Alternate: patterns={self.patterns!r} must be a tuple of at least one pattern or Heads")

    def at(self, layer: int) -> Any:
        """The pattern of layer 0, 1, …"""
        checks.whole("Alternate.at", "layer", layer, 0)
        return self.patterns[layer % len(self)]
