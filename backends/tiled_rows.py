"""Sparse attention by the tile engine, for patterns dense in blocks: a pair in a tile costs a quarter of one in a list.

A tile computes every pair of its rectangle and hides what the pattern has not; a list of entries computes nothing in vain
but works key by key. Which of them is cheaper is estimated from some blocks of queries before the rest is cut into tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backends import tile_lists
from refattn.backends.by_head import apart
from refattn.backends.tile_engine import Engine, Heads
from refattn.backends.tile_lists import Tiles
from refattn.kernels import compiling

Array = Any
ENGINE = Engine()


@dataclass(frozen=True)
class TiledRows:
    """The two overrides, with what may be tuned.

    short: lists of fewer entries are left to others; heights: queries of a tile to choose from. Costs in units of a pair
    that a tile computes, forward and backward together, as measured in float32: entry, of a pair in a list; tile, of setting
    up a tile.
    """

    engine: Engine = ENGINE
    short: int = 64 * 64
    heights: tuple[int, ...] = (32, 64, 128, 256)
    entry: float = 4.5
    tile: float = 2000.0

    def attend_rows(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, *, scale: Any) -> Any:
        """o (..., n, e) and lse (..., n, 1)."""
        tiles = self._tiles(q, k, v, ok, rows)
        return NotImplemented if tiles is None else self.engine.forward(Heads(q, k, v, None, tiles), scale)

    def attend_rows_vjp(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, lse: Array, do: Array, D: Array,
                        *, scale: Any) -> Any:
        """dq as q; dk and dv as k and v, query heads that share a key head being added up already."""
        tiles = self._tiles(q, k, v, ok, rows)
        if tiles is None:
            return NotImplemented
        return self.backward(tiles, q, k, v, lse, do, D, scale)

    def backward(self, tiles: Tiles, q: Array, k: Array, v: Array, lse: Array, do: Array, D: Array, scale: Any
                 ) -> tuple[Array, Array, Array]:
        """The same by tiles that are given."""
        if not np.isfinite(q).all():
            q = np.where(tiles.looking(q.shape[-2])[:, None], q, q.dtype.type(0))
        return self.engine.backward(Heads(q, k, v, None, tiles), scale, lse[..., 0], do, D[..., 0])

    def takes(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any) -> bool:
        """Whether the engine can take the call."""
        return (
            compiling()
            and ok is None
            and rows.rectangles is not None
            and rows.nnz >= self.short
            and q.dtype.name == k.dtype.name == v.dtype.name
            and q.dtype.name in ("float32", "float64")
            and apart(q, k, v, 0)
        )

    def _tiles(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any) -> Tiles | None:
        """The tiles of these rows; None if lists are cheaper, or if the engine can't take the call."""
        if not self.takes(q, k, v, ok, rows):
            return None
        if self not in rows.made:
            height = self.height(rows)
            rows.made[self] = None if height is None else tile_lists.tiles(rows.rectangles(0, rows.n, height))
        found: Tiles | None = rows.made[self]
        return found

    def height(self, rows: Any) -> int | None:
        """The height at which tiles cost least, None if they cost more than entries."""
        costs = {height: self.cost(rows, height) for height in self.heights}
        best = min(costs, key=lambda height: costs[height])
        return best if costs[best] <= self.entry * rows.nnz else None

    def cost(self, rows: Any, height: int) -> float:
        """Of all tiles of one height: of the first and the last block of queries, and of seven in between for the others."""
        starts = range(0, rows.n, height)
        ends, inner = [*{*starts[:1], *starts[-1:]}], starts[1:-1]
        chosen = inner[len(inner) // 14:: max(1, len(inner) // 7)]
        enough, between = 2.0 * self.entry * rows.nnz / max(len(inner), 1), 0.0
        for i in chosen:
            between += self._block(rows, i, height, enough) * (len(inner) / len(chosen))
        ends = [] if between == math.inf else ends
        return between + sum(self._block(rows, i, height, self.entry * rows.nnz) for i in ends)

    def _block(self, rows: Any, first: int, height: int, enough: float) -> float:
        """Of the tiles of one block; ∞ once they cost more than `enough`: scattered keys make too many to look at all."""
        cost = 0.0
        for q0, q1, k0, k1, _ in rows.rectangles(first, min(height, rows.n - first), height):
            cost += (q1 - q0) * (k1 - k0) + self.tile
            if cost > enough:
                return math.inf
        return cost
