"""Which tiles of the n × m scores are computed, and what is visible in each: the input of the tile engine.

A tile is (q0, q1, k0, k1, seen): queries q0 … q1 − 1 against keys k0 … k1 − 1, where ``seen`` is None if all of them see all
of those, or a boolean array (q1 − q0, k1 − k0). A full tile may have any number of keys, which the engine takes in steps.
Pairs that no tile holds are invisible; a pair must not lie in two tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Array = Any
Tile = tuple[int, int, int, int, Any]
FULL = -1


class Tiles(NamedTuple):
    """Tiles in groups, whose queries no other group has, and masks, equal ones kept once.

    at (t, 5) int64      q0 q1 k0 k1 and the number of the mask, or FULL, sorted by group and key
    groups (g, 4) int64  first and last query, first and last tile (last: one beyond)
    masks (u, 2) int64   where the mask's spans and bits start; −1 instead of bits if every row's span is all visible
    spans (·, 2) int32   for each row of a mask, the first visible key in the tile, and one beyond the last
    bits (·,) uint8      rows of ⌈(k1 − k0) / 8⌉ bytes, the first key in the lowest bit
    """

    at: Array
    groups: Array
    masks: Array
    spans: Array
    bits: Array

    def mask(self, tile: int) -> Array | None:
        """The mask (q1 − q0, k1 − k0) of a tile, None if it is full."""
        q0, q1, k0, k1, number = (int(x) for x in self.at[tile])
        if number == FULL:
            return None
        first, bits = (int(x) for x in self.masks[number])
        span, keys = self.spans[first:first + q1 - q0], np.arange(k1 - k0)
        seen = (keys >= span[:, :1]) & (keys < span[:, 1:])
        if bits != FULL:
            wide = -(-(k1 - k0) // 8)
            rows = self.bits[bits:bits + (q1 - q0) * wide].reshape(q1 - q0, wide)
            seen &= np.unpackbits(rows, axis=-1, count=k1 - k0, bitorder="little") == 1
        return seen

    def seen(self, m: int, see: Array) -> Array:
        """(m,) True for the keys that some query sees, also through the further mask `see` (n, m) if that has rows."""
        if not len(see):
            return self._shown(m)
        out = np.zeros(m, dtype=bool)
        for tile, (q0, q1, k0, k1, _) in enumerate(self.at):
            mask, further = self.mask(tile), see[q0:q1, k0:k1] != 0
            out[k0:k1] |= (further if mask is None else mask & further).any(axis=0)
        return out

    def _shown(self, m: int) -> Array:
        """The same without a further mask: equal masks are looked at once."""
        full = self.at[self.at[:, 4] == FULL]
        turns = np.bincount(full[:, 2], minlength=m + 1) - np.bincount(full[:, 3], minlength=m + 1)
        out, masks = np.cumsum(turns)[:m] > 0, dict[int, Array]()
        for tile in np.flatnonzero(self.at[:, 4] != FULL).tolist():
            k0, k1, number = self.at[tile, 2:].tolist()
            if number not in masks:
                masks[number] = np.any(self.mask(tile), axis=0)
            out[k0:k1] |= masks[number]
        return out

    def looking(self, n: int) -> Array:
        """(n,) True for the queries that see some key."""
        out = np.zeros(n, dtype=bool)
        for tile, (q0, q1, *_) in enumerate(self.at):
            mask = self.mask(tile)
            out[q0:q1] |= True if mask is None else mask.any(axis=1)
        return out

    def parts(self, m: int, most: int) -> list[tuple[int, int]]:
        """The keys 0 … m − 1 in at most `most` ranges that split no mask."""
        masked = self.at[self.at[:, 4] != FULL]
        cuts = [m * i // most for i in range(1, most)]
        free = [c for c in cuts if not ((masked[:, 2] < c) & (c < masked[:, 3])).any()]
        edges = [0, *sorted(set(free) - {0, m}), m]
        return list(pairwise(edges))


def tiles(them: Iterable[Tile]) -> Tiles:
    """The tiles of any iterator, packed. A tile that shows nothing is left out.

    Raises
    ------
    ValueError
        If a tile is empty or its mask has another shape.
    """
    masks: dict[tuple[tuple[int, int], bytes], int] = {}
    rows: list[tuple[int, ...]] = []
    for q0, q1, k0, k1, seen in them:
        if not (0 <= q0 < q1 and 0 <= k0 < k1):
            raise ValueError(f"tile ({q0}, {q1}, {k0}, {k1}) is empty: q0 < q1 and k0 < k1")
        if seen is not None and seen.shape != (q1 - q0, k1 - k0):
            raise ValueError(f"tile ({q0}, {q1}, {k0}, {k1}) has a mask of shape {seen.shape}")
        if seen is None or seen.all():
            rows.append((q0, q1, k0, k1, FULL))
        elif seen.any():
            key = (seen.shape, np.packbits(seen, axis=-1, bitorder="little").tobytes())
            rows.append((q0, q1, k0, k1, masks.setdefault(key, len(masks))))
    rows.sort(key=lambda tile: tile[0])
    at, groups = _grouped(rows)
    return Tiles(at, groups, *_masks(list(masks)))


def _grouped(rows: list[tuple[int, ...]]) -> tuple[Array, Array]:
    """Tiles whose queries overlap come into one group, in the order of their keys."""
    groups: list[list[int]] = []
    for i, (q0, q1, *_) in enumerate(rows):
        if groups and q0 < groups[-1][1]:
            groups[-1][1], groups[-1][3] = max(groups[-1][1], q1), i + 1
        else:
            groups.append([q0, q1, i, i + 1])
    for _, _, first, last in groups:
        rows[first:last] = sorted(rows[first:last], key=lambda tile: (tile[2], tile[0]))
    return np.array(rows, np.int64).reshape(-1, 5), np.array(groups, np.int64).reshape(-1, 4)


def _masks(kept: list[tuple[tuple[int, int], bytes]]) -> tuple[Array, Array, Array]:
    starts, spans, bits = [], [np.zeros((0, 2), np.int32)], [np.zeros(0, np.uint8)]
    for (n, m), packed in kept:
        seen = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(n, -1), axis=-1, count=m, bitorder="little") == 1
        first = np.where(seen.any(axis=-1), seen.argmax(axis=-1), 0)
        last = np.where(seen.any(axis=-1), m - seen[:, ::-1].argmax(axis=-1), 0)
        whole = bool((seen.sum(axis=-1) == last - first).all())
        starts.append((sum(map(len, spans)), FULL if whole else sum(map(len, bits))))
        spans.append(np.stack([first, last], axis=-1).astype(np.int32))
        bits += [] if whole else [np.frombuffer(packed, np.uint8)]
    return np.array(starts, np.int64).reshape(-1, 2), np.concatenate(spans), np.concatenate(bits)


@lru_cache(64)
def dense(n: int, m: int, rows: int) -> Tiles:
    """All pairs; `rows` queries with all keys."""
    return tiles((i, min(i + rows, n), 0, m, None) for i in range(0, n if m else 0, rows))


@lru_cache(64)
def causal(n: int, m: int, offset: int, rows: int, corner: int) -> Tiles:
    """Pairs with j ≤ i + offset; on the diagonal tiles of `corner` queries, so that little is computed in vain."""
    return tiles(_causal(n, m, offset, rows, corner))


def _causal(n: int, m: int, offset: int, rows: int, corner: int) -> Iterator[Tile]:
    for i in range(0, n, rows):
        last = min(i + rows, n)
        common = min(max(i + offset + 1, 0), m)  # keys that all of these queries see
        if common:
            yield i, last, 0, common, None
        for a in range(i, last, corner):
            b = min(a + corner, last)
            edge, end = (min(max(x + offset, common), m) for x in (a + 1, b))
            if edge > common:
                yield a, b, common, edge, None
            if end > edge:
                yield a, b, edge, end, np.arange(edge, end) <= np.arange(a, b)[:, None] + offset
