"""How many pairs a pattern sees, without listing them.

The indicator of a pattern is a polynomial in those of its leaves ([A | B] = [A] + [B] − [A][B], [~A] = 1 − [A]), so that
its pairs are a signed sum over conjunctions of leaves, and those over `Piece`s. The keys that query i sees in a piece are
a quasi-polynomial of i: between the places where one edge overtakes another, counts one period apart grow by a constant.
Two periods are evaluated and the rest follows, so that n = 10¹² takes as long as a period does. What has no pieces
(`Random`) is drawn, in slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from refattn.patterns.algebra import All, Complement, Intersection, Pattern, Sum, Union
from refattn.patterns.pieces import Class, Edge, Piece, conjunction

Array = Any
Terms = dict[frozenset[Pattern], int]
SLICE = 1 << 18
"""Queries, or pairs, that are looked at together."""
SMALL = 4096
"""So few queries are looked at one by one."""
FEW = 64
"""A block or a period that fits into the queries no more often than this is taken apart into its occurrences."""


def nnz(pattern: Pattern, n: int, m: int, offset: int) -> int:
    """See `Pattern.nnz`."""
    if n == 0 or m == 0:
        return 0
    terms = _terms(pattern.resolved(m))
    return sum(sign * _together(tuple(leaves), n, m, offset) for leaves, sign in terms.items() if sign)


def weight(pattern: Pattern, n: int, m: int, offset: int) -> int:
    """See `Pattern.weight`."""
    if isinstance(pattern, Sum):
        return sum(weight(p, n, m, offset) for p in pattern.parts)
    return sum(nnz(pattern.level(t), n, m, offset) for t in range(1, pattern.most + 1))


def _terms(pattern: Pattern) -> Terms:
    """The indicator of count > 0 as Σ sign · Π leaves."""
    match pattern:
        case All():
            return {frozenset(): 1}
        case Union(parts=parts) | Sum(parts=parts):
            missed: Terms = {frozenset(): 1}
            for part in parts:
                missed = _times(missed, _not(_terms(part)))
            return _not(missed)
        case Intersection(parts=parts):
            found: Terms = {frozenset(): 1}
            for part in parts:
                found = _times(found, _terms(part))
            return found
        case Complement(part=part):
            return _not(_terms(part))
    return {frozenset({pattern}): 1}


def _not(terms: Terms) -> Terms:
    found = {leaves: -sign for leaves, sign in terms.items()}
    found[frozenset()] = found.get(frozenset(), 0) + 1
    return {leaves: sign for leaves, sign in found.items() if sign}


def _times(a: Terms, b: Terms) -> Terms:
    found: Terms = {}
    for x, s in a.items():
        for y, t in b.items():
            found[x | y] = found.get(x | y, 0) + s * t
    return {leaves: sign for leaves, sign in found.items() if sign}


def _together(leaves: tuple[Pattern, ...], n: int, m: int, offset: int) -> int:
    """The pairs that all these leaves see."""
    groups = {p: p.pieces(m, offset + n - 1) for p in leaves}
    shaped = [pieces for pieces in groups.values() if pieces is not None]
    drawn = sorted((p for p in leaves if groups[p] is None), key=repr)
    if not drawn:
        return sum(_piece(piece, n, m, offset) for piece in conjunction(shaped))
    closed = drawn[0].together(leaves, n, m, offset)  # type: ignore[attr-defined]  # what has no pieces has this
    if closed is not None:
        return int(closed)
    return _drawn(drawn, [p for p in leaves if groups[p] is not None], n, m, offset)


def _drawn(drawn: list[Pattern], shaped: list[Pattern], n: int, m: int, offset: int) -> int:
    """List one pattern slice by slice and keep what the others see."""
    least = min(drawn, key=lambda p: p.nnz(n, m, offset))
    rows = max(SLICE * n // max(least.nnz(n, m, offset), 1), 1)
    found = 0
    for a in range(0, n, rows):
        b = min(a + rows, n)
        start, col, _ = least.entries(b - a, m, offset + a)
        i = np.repeat(np.arange(offset + a, offset + b), np.diff(start))
        for other in (*shaped, *(p for p in drawn if p is not least)):
            keep = other.contains(i, col, m)
            i, col = i[keep], col[keep]
        found += len(col)
    return found


def _piece(piece: Piece, n: int, m: int, offset: int) -> int:
    """The pairs of a piece among queries at offset … offset + n − 1 and keys 0 … m − 1."""
    first, stop = max(piece.first, offset), min(piece.stop, offset + n)
    return sum(_rows(part, first, stop, m) for part in piece.parts()) if first < stop else 0


def _rows(part: Piece, first: int, stop: int, m: int) -> int:
    """Σ of the keys that queries first … stop − 1 see; large blocks and periods are taken apart first."""
    if first >= stop:
        return 0
    reach = stop - first
    if reach <= SMALL:
        return _direct(lambda i: part.counts(i, m), first, stop)
    block = max((e.block for e in _edges(part)), default=0)
    if block > 1 and reach <= FEW * block:
        return sum(
            _rows(_standing(part, block, a), max(first, a), min(stop, a + block), m)
            for a in range(first // block * block, stop, block)
        )
    for c in part.classes:
        if m + reach <= FEW * c.modulus:
            return sum(_rows(p, first, stop, m) for p in _occurrences(part, c, first, stop, m))
    period = math.lcm(1, *(e.block for e in _edges(part) if e.block), *(c.modulus for c in part.classes))
    return _quasi(lambda i: part.counts(i, m), _turns(part, first, stop, m), period)


def _edges(part: Piece) -> list[Edge]:
    return [*part.lower, *part.upper, *(c.anchor for c in part.classes)]


def _standing(part: Piece, block: int, a: int) -> Piece:
    """The piece for queries a … a + block − 1, where edges of this block stand still."""

    def still(e: Edge) -> Edge:
        return Edge(0, a + e.plus) if e.block == block else e

    lower, upper = (tuple(map(still, edges)) for edges in (part.lower, part.upper))
    classes = tuple(replace(c, anchor=still(c.anchor)) for c in part.classes)
    return replace(part, lower=lower, upper=upper, classes=classes)


def _occurrences(part: Piece, c: Class, first: int, stop: int, m: int) -> Iterable[Piece]:
    """Pieces with j − anchor(i) − k·modulus in 0 … width − 1 in place of the class c, for every k that matters."""
    ends = c.anchor.at(np.array([first, stop - 1]))
    low, high = int(ends.min()) - c.anchor.block, int(ends.max()) + c.anchor.block
    others = tuple(x for x in part.classes if x is not c)
    for k in range((-high - c.width) // c.modulus, (m - low) // c.modulus + 1):
        at = c.anchor.plus + k * c.modulus
        lower, upper = (*part.lower, Edge(c.anchor.block, at)), (*part.upper, Edge(c.anchor.block, at + c.width))
        yield replace(part, lower=lower, upper=upper, classes=others)


def _turns(part: Piece, first: int, stop: int, m: int) -> list[int]:
    """Where another edge may become the tightest one: between these places the comparisons only depend on i mod period."""
    still = {0, m, *(e.plus for e in (*part.lower, *part.upper) if e.block == 0)}
    cuts = {first, stop}
    for e in (*part.lower, *part.upper):
        if e.block:
            for c in still:  # the edge passes c while i goes from c − plus to c − plus + block
                cuts |= {c - e.plus - 1, c - e.plus + e.block + 1}
    return sorted(cut for cut in cuts if first <= cut <= stop)


def _quasi(counts: Callable[[Array], Array], cuts: list[int], period: int) -> int:
    """Σ counts(i) over cuts[0] ≤ i < cuts[-1]."""
    found = 0
    for a, b in pairwise(cuts):
        turns = (b - a) // period
        if turns < 4:
            found += _direct(counts, a, b)
            continue
        one, two = _direct(counts, a, a + period), _direct(counts, a + period, a + 2 * period)
        found += turns * one + (two - one) * (turns * (turns - 1) // 2) + _direct(counts, a + turns * period, b)
    return found


def _direct(counts: Callable[[Array], Array], a: int, b: int) -> int:
    return sum(int(counts(np.arange(x, min(x + SLICE, b))).sum()) for x in range(a, b, SLICE))
