"""Patterns taken apart: their nodes, one node replaced by another, and how long a sequence is on which they show."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from refattn.patterns import (
    Axial,
    Blocks,
    Coarse,
    Cross,
    Fixed,
    Global,
    Heads,
    Local,
    LogSparse,
    Pattern,
    Random,
    Short,
    Split,
    Strided,
)
from refattn.patterns.algebra import Complement

Array = Any
Node = Any  # a Pattern or Heads


def children(node: Node) -> tuple[Node, ...]:
    """The patterns that a pattern is made of."""
    match node:
        case Heads(patterns=parts):
            return tuple(parts)
        case Complement(part=part):
            return (part,)
        case Coarse(pattern=pattern):
            return (pattern,)
        case Short(then=then, otherwise=otherwise):
            return (then, otherwise)
    return tuple(getattr(node, "parts", ()))


def nodes(pattern: Node) -> list[Pattern]:
    """Every different pattern in it, in the order in which it is written; Heads themselves are none."""
    found: dict[Pattern, None] = {}

    def visit(node: Node) -> None:
        if isinstance(node, Pattern):
            found.setdefault(node)
        for child in children(node):
            visit(child)

    visit(pattern)
    return list(found)


def replaced(pattern: Node, old: Pattern, new: Pattern) -> Node:
    """The pattern with `new` wherever `old` stands in it."""
    if pattern == old:
        return new
    parts = tuple(replaced(child, old, new) for child in children(pattern))
    if not parts or parts == children(pattern):
        return pattern
    match pattern:
        case Heads():
            return Heads(parts)
        case Complement():
            return Complement(parts[0])
        case Coarse(size=size):
            return Coarse(parts[0], size)
        case Short(below=below):
            return Short(below, *parts)
    return dataclasses.replace(pattern, parts=parts)


def each(pattern: Node) -> tuple[Pattern, ...]:
    """The pattern of each head, or the one of them all."""
    return pattern.patterns if isinstance(pattern, Heads) else (pattern,)


def start(align: str | None, n: int, m: int) -> int:
    """The position of query 0."""
    return m - n if align == "bottom_right" else 0


@functools.lru_cache(maxsize=256)
def counts(pattern: Node, n: int, m: int, offset: int) -> Array:
    """The counts (1, n, m), or (heads, n, m)."""
    found = np.stack([p.dense(n, m, offset) for p in each(pattern)]).astype(np.int16)
    found.flags.writeable = False
    return found


def inside(pattern: Node, within: Pattern | None, n: int, m: int, offset: int) -> Array:
    """The counts of the pairs that there can be at all."""
    found = counts(pattern, n, m, offset)
    return found if within is None else np.where(counts(within, n, m, offset) > 0, found, 0)


def same(one: Node, other: Node, within: Pattern | None, n: int, m: int, offset: int) -> bool:
    """True if both mean the same for these sizes."""
    a, b = (inside(pattern, within, n, m, offset) for pattern in (one, other))
    return a.shape[1:] == b.shape[1:] and bool((a == b).all())


def blocks(pattern: Node) -> set[int]:
    """The lengths of its blocks, and of what recurs in it."""
    found = set()
    for node in nodes(pattern):
        match node:
            case Blocks(size=size) | Coarse(size=size) | Strided(period=size) | Fixed(l=size) | Local(dilation=size):
                found.add(size)
            case Axial(shape=shape) | Cross(shape=shape):
                found |= {shape[-1], math.prod(shape)}
            case Split(n_blocks=size):
                found.add(size)
    return {size for size in found if size > 1}


def reach(pattern: Node) -> int:
    """A length from which on all that it is made of shows."""
    match pattern:
        case Local(left=left, right=right, dilation=dilation):
            return int((left + right) * dilation) + 1
        case Strided(period=period):
            return 2 * int(period) + 1
        case Fixed(l=l):
            return 2 * int(l) + 1
        case Blocks(size=size, shift=shift, back=back, ahead=ahead, margin=margin):
            return int(size) * (back + ahead + abs(shift) + 2) + 2 * int(margin)
        case Split(n_blocks=count):
            return 4 * int(count)
        case Coarse(pattern=inner, size=size):
            return int(size) * reach(inner)
        case Global(first=first, last=last, at=at):
            return first + last + max((*at, 0)) + 3
        case Axial(shape=shape) | Cross(shape=shape):
            return math.prod(shape)
        case Random(keys=keys):
            return 3 * int(keys) + 4
        case LogSparse():
            return 20
        case Short(below=below, then=then, otherwise=otherwise):
            return max(int(below) + 1, reach(then), reach(otherwise))
    return max((reach(child) for child in children(pattern)), default=2)


def edges(pattern: Node, most: int, least: int = 45) -> int:
    """A length, odd and no multiple of any block, on which the pattern shows; at most about `most`."""
    wanted = reach(pattern)
    n = min(max(wanted + max(wanted // 4, 11), least), most) | 1
    while any(n % size == 0 for size in blocks(pattern) if size < n):
        n += 2
    return n


def numbers(pattern: Node) -> Iterator[int]:
    """Every whole number in its fields."""
    for node in nodes(pattern):
        for field in dataclasses.fields(node):  # type: ignore[arg-type]  # every pattern is a dataclass
            value = getattr(node, field.name)
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, int) and not isinstance(x, bool):
                    yield x
