"""The pairs of a pattern as rectangles, for engines that work on tiles.

For each block of queries two sets of keys are kept as intervals: those that all of them surely see, and those that some may
see (three-valued logic: ~A surely where A may not). The sure ones are full tiles; between them and the others counts decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from refattn.patterns.algebra import Complement, Entries, Intersection, Pattern, Sum, Tile, Union
from refattn.patterns.blocks import Coarse
from refattn.patterns.pieces import Piece, Run

Array = Any
Sure = tuple[list[Run], list[Run]]
"""Keys that every query of the block surely sees, and those that some may see."""


def tiles(pattern: Pattern, n: int, m: int, offset: int, rows: int) -> Iterator[Tile]:
    """See `Pattern.tiles`."""
    for t in range(1, pattern.most + 1):
        level = pattern.level(t)
        for q0 in range(0, n if m else 0, rows):
            q1 = min(q0 + rows, n)
            for k0, k1, seen in _row_tiles(level, np.arange(offset + q0, offset + q1), m, rows):
                yield q0, q1, k0, k1, seen


def _row_tiles(pattern: Pattern, i: Array, m: int, width: int) -> Iterator[tuple[int, int, Array | None]]:
    """The tiles of one block of queries by rising keys; neighbouring full ones become one."""
    full: Run | None = None
    for k0, k1, seen in _decided(pattern, i, m, width):
        if full is not None and (seen is not None or full[1] < k0):
            yield *full, None
            full = None
        if seen is None:
            full = (k0 if full is None else full[0], k1)
        else:
            yield k0, k1, seen
    if full is not None:
        yield *full, None


def _decided(pattern: Pattern, i: Array, m: int, width: int) -> Iterator[tuple[int, int, Array | None]]:
    """Sure runs as they are; the others in pieces of at most `width` keys, without the unseen keys at their ends."""
    sure, maybe = _keys(pattern, i, m)
    marked = [(a, b, True) for a, b in sure]
    for a, b in _minus(maybe, sure):
        marked += [(x, min(x + width, b), False) for x in range(a, b, width)]
    for k0, k1, known in sorted(marked):
        if known:
            yield k0, k1, None
            continue
        seen = pattern.contains(i[:, None], np.arange(k0, k1), m)
        if len(used := np.flatnonzero(seen.any(axis=0))):
            a, b = int(used[0]), int(used[-1]) + 1
            yield k0 + a, k0 + b, None if seen[:, a:b].all() else seen[:, a:b]


def _keys(pattern: Pattern, i: Array, m: int) -> Sure:
    match pattern:
        case Union(parts=parts) | Sum(parts=parts):
            found = [_keys(p, i, m) for p in parts]
            return _or([s for s, _ in found]), _or([x for _, x in found])
        case Intersection(parts=parts):
            found = [_keys(p, i, m) for p in parts]
            return _and([s for s, _ in found], m), _and([x for _, x in found], m)
        case Complement(part=part):
            sure, maybe = _keys(part, i, m)
            return _minus([(0, m)], maybe), _minus([(0, m)], sure)
        case Coarse():
            return _blocks(pattern, i, m)
    if (written_out := pattern.resolved(m)) != pattern:
        return _keys(written_out, i, m)
    pieces = pattern.pieces(m, int(i[-1]))
    if pieces is None:
        return _drawn(pattern.entries(len(i), m, int(i[0])), m)
    both = [_piece(piece, i, m) for piece in pieces]
    return _or([s for s, _ in both]), _or([x for _, x in both])


def _piece(piece: Piece, i: Array, m: int) -> Sure:
    lo, hi = piece.interval(i, m)
    some = hi > lo
    if not some.any():
        return [], []
    maybe = [(int(lo[some].min()), int(hi[some].max()))]
    if piece.keys is not None:
        maybe = _and([maybe, list(piece.keys)], m)
    a, b = int(lo.max()), int(hi.min())
    sure = [(a, b)] if a < b and some.all() and not piece.classes else []
    return sure if piece.keys is None else _and([sure, list(piece.keys)], m), maybe


def _drawn(entries: Entries, m: int) -> Sure:
    """From a list of what the queries see."""
    start, col, _ = entries
    times = np.bincount(col, minlength=m)
    return _runs(times == len(start) - 1), _runs(times > 0)


def _blocks(pattern: Coarse, i: Array, m: int) -> Sure:
    """From a list of what the blocks of the queries see."""
    first, last, blocks = int(i[0]) // pattern.size, int(i[-1]) // pattern.size, -(-m // pattern.size)
    found = _drawn(pattern.pattern.entries(last - first + 1, blocks, first), blocks)
    sure, maybe = ([(a * pattern.size, min(b * pattern.size, m)) for a, b in runs] for runs in found)
    return sure, maybe


def _runs(flags: Array) -> list[Run]:
    turns = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return [(int(a), int(b)) for a, b in zip(turns[::2], turns[1::2], strict=True)]


def _or(sets: Iterable[Sequence[Run]]) -> list[Run]:
    found: list[Run] = []
    for a, b in sorted(run for runs in sets for run in runs):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return found


def _and(sets: Sequence[Sequence[Run]], m: int) -> list[Run]:
    found: list[Run] = [(0, m)]
    for runs in sets:
        met = ((max(a, c), min(b, d)) for a, b in found for c, d in runs)
        found = sorted(run for run in met if run[0] < run[1])
    return found


def _minus(one: Sequence[Run], other: Sequence[Run]) -> list[Run]:
    """Disjoint sorted runs without others."""
    found = list(one)
    for c, d in other:
        found = [run for a, b in found for run in ((a, min(b, c)), (max(a, d), b)) if run[0] < run[1]]
    return found
