"""The pairs of a pattern, listed: work and memory near the length of the list, never n·m unless that many are seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.patterns.algebra import Complement, Entries, Intersection, Pattern, Sum, Union
from refattn.patterns.pieces import Piece, conjunction, listed

Array = Any
Flat = tuple[Array, Array | None]
"""Pairs as row·m + col in rising order, and their counts; None for 1 each."""
SLICE = 1 << 20


def entries(pattern: Pattern, n: int, m: int, offset: int) -> Entries:
    """See `Pattern.entries`; the list is made slice by slice, in slices that a cache holds."""
    pattern = pattern.resolved(m)
    rows = n if n * m <= SLICE else max(SLICE * n // max(pattern.nnz(n, m, offset), 1), 1)
    starts, cols, counts = [np.zeros(1, dtype=np.int64)], [], []
    for a in range(0, n, rows or 1):
        flat, count = pairs(pattern, min(rows, n - a), m, offset + a)
        start, _, col = _places(flat, min(rows, n - a), m)
        starts.append(start[1:] + starts[-1][-1])
        cols.append(col)
        counts.append(count)
    col = np.concatenate([np.zeros(0, dtype=np.int64), *cols])
    if all(count is None for count in counts):
        return np.concatenate(starts), col, None
    given = zip(counts, cols, strict=True)
    return np.concatenate(starts), col, np.concatenate([np.ones_like(x) if c is None else c for c, x in given])


def _places(flat: Array, n: int, m: int) -> tuple[Array, Array, Array]:
    """start (n + 1,), and row and col of every pair."""
    start = np.searchsorted(flat, np.arange(n + 1) * m)
    row = np.repeat(np.arange(n), np.diff(start))
    return start, row, flat - row * m


def pairs(pattern: Pattern, n: int, m: int, offset: int) -> Flat:
    """The pairs of a resolved pattern."""
    if n == 0 or m == 0 or (isinstance(pattern, Union) and not pattern.parts):
        return np.zeros(0, dtype=np.int64), None
    match pattern:
        case Union(parts=parts):
            return _merged([pairs(p, n, m, offset) for p in parts], np.maximum)
        case Sum(parts=parts):
            return _merged([pairs(p, n, m, offset) for p in parts], np.add)
        case Intersection(parts=parts):
            return _shared(parts, n, m, offset)
        case Complement(part=part):
            return _others(pairs(part, n, m, offset)[0], n * m), None
    pieces = pattern.pieces(m, offset + n - 1)
    if pieces is not None:
        return of_pieces(pieces, n, m, offset), None
    start, col, count = pattern.entries(n, m, offset)
    return np.repeat(np.arange(n), np.diff(start)) * m + col, count


def of_pieces(pieces: tuple[Piece, ...], n: int, m: int, offset: int) -> Array:
    """The pairs of disjoint pieces."""
    found = []
    for piece in pieces:
        a, b = max(piece.first - offset, 0), min(piece.stop - offset, n)
        if a < b:
            row, col = listed(piece, np.arange(offset + a, offset + b), m)
            found.append((row + a) * m + col)
    flat = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    return flat if np.all(flat[1:] > flat[:-1]) else np.sort(flat, kind="stable")


def _merged(parts: list[Flat], join: Any) -> Flat:
    """The pairs of any part, their counts joined by `join`."""
    flat = np.concatenate([f for f, _ in parts])
    if all(count is None for _, count in parts) and join is np.maximum:
        return _distinct(np.sort(flat, kind="stable")), None
    count = np.concatenate([np.ones(len(f), dtype=np.int64) if c is None else c for f, c in parts])
    order = np.argsort(flat, kind="stable")
    flat, count = flat[order], count[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(len(flat), 1), dtype=bool), flat[1:] != flat[:-1]]))
    return flat[first], _plain(join.reduceat(count, first) if len(first) else count)


def _distinct(flat: Array) -> Array:
    return flat[np.concatenate([np.ones(min(len(flat), 1), dtype=bool), flat[1:] != flat[:-1]])]


def _plain(count: Array) -> Array | None:
    return None if np.all(count == 1) else count


def _others(flat: Array, size: int) -> Array:
    unseen = np.ones(size, dtype=bool)
    unseen[flat] = False
    return np.flatnonzero(unseen)


def _shared(parts: tuple[Pattern, ...], n: int, m: int, offset: int) -> Flat:
    """List what has the fewest pairs, leaves together being one choice, and keep what the other parts see too."""
    shaped = tuple(p for p in parts if p.pieces(m, offset + n - 1) is not None)
    others = [p for p in parts if p not in shaped]
    choices: list[Pattern] = [*others, Intersection(shaped)] if shaped else others
    least = min(choices, key=lambda p: p.nnz(n, m, offset)) if len(choices) > 1 else choices[0]
    if shaped and least is choices[-1]:
        groups = [p.pieces(m, offset + n - 1) for p in shaped]
        flat, count = of_pieces(conjunction(groups), n, m, offset), None
    elif isinstance(least, Union):
        rest = (*shaped, *(p for p in others if p is not least))
        return pairs(Union(tuple(Intersection((p, *rest)) for p in least.parts)), n, m, offset)
    else:
        flat, count = pairs(least, n, m, offset)
    _, i, j = _places(flat, n, m)
    for part in (p for p in choices if p is not least):
        met = part.count(i + offset, j, m)
        count = np.minimum(met, 1 if count is None else count)
        keep = count > 0
        flat, i, j, count = flat[keep], i[keep], j[keep], count[keep]
    return flat, None if count is None else _plain(count)
