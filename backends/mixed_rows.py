"""Sparse attention by tiles and a list at once, for patterns that are dense here and scattered there: window and strides.

    lse = log Σ exp lse_part      o = Σ exp(lse_part − lse) o_part      gradients add up, since p = exp(s − lse) in each

A tile whose entries cost less goes to the list. What the tiles and the list of a pattern are is found once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backends import tile_lists
from refattn.backends.rows_engine import RowsEngine
from refattn.backends.tile_engine import Heads
from refattn.backends.tile_lists import Tile, Tiles
from refattn.backends.tiled_rows import TiledRows
from refattn.rows import Rows

Array = Any


@dataclass(frozen=True)
class MixedRows:
    """The two overrides. tiled: costs and the engine of tiles; rows: of lists. gain: the largest share of the cost of either
    alone; each: so many entries for each tile, or there are too many tiles to look at; heights: of tiles to choose from.
    """

    tiled: TiledRows
    rows: RowsEngine
    gain: float = 0.8
    each: int = 300
    heights: tuple[int, ...] = (64, 128)

    def attend_rows(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, *, scale: Any) -> Any:
        """o (..., n, e) and lse (..., n, 1)."""
        parts = self._parts(q, k, v, ok, rows)
        if parts is None:
            return NotImplemented
        o, lse = self.tiled.engine.forward(Heads(q, k, v, None, parts[0]), scale)
        other, log = self.rows.attend_rows(q, k, v, None, parts[1], scale=scale)
        top = np.maximum(lse, log)
        top = np.where(top == -np.inf, top.dtype.type(0), top)
        one, two = np.exp(lse - top), np.exp(log - top)
        z = one + two
        none = z == 0.0
        z = np.where(none, z.dtype.type(1), z)
        o *= one / z
        other *= two / z
        o += other
        return o, np.where(none, z.dtype.type(-np.inf), top + np.log(z))

    def attend_rows_vjp(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, lse: Array, do: Array, D: Array,
                        *, scale: Any) -> Any:
        """dq as q; dk and dv as k and v, query heads that share a key head being added up already."""
        parts = self._parts(q, k, v, ok, rows)
        if parts is None:
            return NotImplemented
        found = self.tiled.backward(parts[0], q, k, v, lse, do, D, scale)
        others = self.rows.attend_rows_vjp(q, k, v, None, parts[1], lse, do, D, scale=scale)
        for total, more in zip(found, others, strict=True):
            total += more
        return found

    def _parts(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any) -> tuple[Tiles, Rows] | None:
        """The tiles and the list of these rows; None if one of the two alone is better, or can't take the call."""
        if not self.tiled.takes(q, k, v, ok, rows):
            return None
        if self not in rows.made:
            height = self.height(rows)
            rows.made[self] = None if height is None else self._split(rows, height)
        found: tuple[Tiles, Rows] | None = rows.made[self]
        return found

    def height(self, rows: Any) -> int | None:
        """The height at which both together cost least, None if they do not cost less than either."""
        costs = {height: self._cost(rows, height) for height in self.heights}
        best = min(costs, key=lambda height: costs[height])
        if costs[best] > self.gain * self.tiled.entry * rows.nnz:
            return None
        tiles = min(self.tiled.cost(rows, height) for height in self.tiled.heights)
        return best if costs[best] <= self.gain * tiles else None

    def _cost(self, rows: Any, height: int) -> float:
        """Of both, from nine blocks of queries; ∞ if there are too many tiles to look at."""
        starts = range(0, rows.n, height)
        chosen, cost, looked = starts[:: max(1, len(starts) // 9)], 0.0, 0
        for first in chosen:
            for tile in rows.rectangles(first, min(height, rows.n - first), height):
                cost += min(self._tile(tile), self._entries(tile))
                looked += 1
                if looked * self.each * len(starts) > rows.nnz * len(chosen):
                    return math.inf
        return cost * len(starts) / max(len(chosen), 1)

    def _tile(self, tile: Tile) -> float:
        q0, q1, k0, k1, _ = tile
        return (q1 - q0) * (k1 - k0) + self.tiled.tile

    def _entries(self, tile: Tile) -> float:
        q0, q1, k0, k1, seen = tile
        return self.tiled.entry * ((q1 - q0) * (k1 - k0) if seen is None else int(np.count_nonzero(seen)))

    def _split(self, rows: Any, height: int) -> tuple[Tiles, Rows] | None:
        listed: list[Array] = []

        def kept() -> Iterator[Tile]:
            for tile in rows.rectangles(0, rows.n, height):
                if self._tile(tile) <= self._entries(tile):
                    yield tile
                else:
                    q0, q1, k0, k1, seen = tile
                    i, j = np.nonzero(np.ones((q1 - q0, k1 - k0), bool) if seen is None else seen)
                    listed.append((q0 + i) * rows.m + k0 + j)

        tiles = tile_lists.tiles(kept())
        rest = _listed(np.concatenate([np.zeros(0, np.int64), *listed]), rows.n, rows.m)
        return (tiles, rest) if rest.nnz >= self.rows.short and len(tiles.at) else None


def _listed(pairs: Array, n: int, m: int) -> Rows:
    """Pairs as query·m + key, as often as they count."""
    flat, count = np.unique(pairs, return_counts=True)
    start = np.searchsorted(flat, np.arange(n + 1) * m)
    col, multiple = flat % max(m, 1), bool((count > 1).any())
    return Rows(n, m, len(flat), lambda: (start, col, count if multiple else None), multiple)
