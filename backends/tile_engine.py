"""``attend`` and ``attend_vjp`` on NumPy arrays by the tile engine: one head after another, over lists of tiles.

What the engine does not take (biases, softcap, sinks, dropout, segments, given positions, short sequences) is left to the
generic text. Arrays whose rows BLAS can stride over are not copied.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import threads
from refattn.backends import tile_lists
from refattn.backends.by_head import apart, sharing, within
from refattn.backends.tile_lists import Tiles
from refattn.kernels import compiling

Array = Any
Index = tuple[int, ...]


@dataclass(frozen=True)
class Engine:
    """The two overrides, with what may be tuned.

    short: fewer pairs than this in a head are left to the generic text, which has less to set up; rows: queries of a tile;
    keys, back: keys of a full tile that are taken at once, forward and backward; corner: queries of a tile on the diagonal;
    tiles: these instead of all pairs or the causal order.
    """

    short: int = 64 * 64
    rows: int = 256
    keys: int = 512
    back: int = 256
    corner: int = 64
    tiles: Tiles | None = None

    def attend(self, q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Any, scores: Any, *,
               keep_rate: float | None, block: int | None) -> Any:
        """o (..., n, e) and lse (..., n, 1)."""
        if not self._takes(q, k, v, sink, keep, see, scores):
            return NotImplemented
        tiles = self._tiles(see, q.shape[-2], k.shape[-2], min(block or self.rows, self.rows))
        return self.forward(Heads(q, k, v, _mask(see, (*q.shape[:-1], k.shape[-2])), tiles), scores.scale)

    def forward(self, heads: Heads, scale: Any) -> tuple[Array, Array]:
        """o (..., n, e) and lse (..., n, 1) of heads over their tiles."""
        q, v, tiles, groups, dtype = heads.q, heads.v, heads.tiles, len(heads.tiles.groups), heads.q.dtype.type
        run, gemm = _kernel("forward", q.dtype.name), _gemm(q.dtype.name)
        o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), dtype), np.full(q.shape[:-1], -np.inf, dtype)
        step = max(1, len(heads.all) * groups // (4 * threads.get_threads()))

        def task(at: Index, first: int) -> Callable[[], None]:
            def work() -> None:
                part = self.keys, first, min(first + step, groups)
                run(gemm, dtype(scale), *heads.head(at), *tiles, *part, o[at], lse[at])

            return work

        threads.run(task(at, first) for at in heads.all for first in range(0, groups, step))
        return o, lse[..., None]

    def attend_vjp(self, q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Any, scores: Any,
                   o: Array, lse: Array, do: Array, dlse: Array | None, *, keep_rate: float | None, block: int | None
                   ) -> Any:
        """dq as q; dk and dv as k and v, query heads that share a key head being added up already."""
        if not self._takes(q, k, v, sink, keep, see, scores):
            return NotImplemented
        none, D = lse[..., 0] == -np.inf, np.einsum("...d,...d->...", o, do)
        D = D if dlse is None else D - dlse[..., 0]
        lse = lse[..., 0]
        if none.any():
            q, do = (np.where(none[..., None], x.dtype.type(0), x) for x in (q, do))
            lse, D = (np.where(none, x.dtype.type(0), x) for x in (lse, D))
        tiles = self._tiles(see, q.shape[-2], k.shape[-2], min(block or self.rows, self.rows))
        heads = Heads(q, k, v, _mask(see, (*q.shape[:-1], k.shape[-2])), tiles)
        return *self.backward(heads, scores.scale, lse, do, D), None, None

    def backward(self, heads: Heads, scale: Any, lse: Array, do: Array, D: Array) -> tuple[Array, Array, Array]:
        """dq, dk, dv; lse (..., n), do and D (..., n) of a query that sees nothing must be 0, and its q finite."""
        q, k, v, tiles, dtype, do = heads.q, heads.k, heads.v, heads.tiles, heads.q.dtype.type, strided(do)
        run, gemm = _kernel("backward", q.dtype.name), _gemm(q.dtype.name)
        parts = tiles.parts(k.shape[-2], min(4, -(-8 // max(len(heads.shared), 1))))
        dqs = np.zeros((len(parts), *q.shape), dtype)
        dk, dv = np.zeros(k.shape, dtype), np.zeros(v.shape, dtype)

        def task(key: Index, dq: Array, part: tuple[int, int]) -> Callable[[], None]:
            def work() -> None:
                for at in heads.shared[key]:
                    run(gemm, dtype(scale), *heads.head(at), *tiles, self.back, *part, lse[at], do[at],
                        D[at], dq[at], dk[key], dv[key])

            return work

        threads.run(task(key, dq, part) for key in heads.shared for dq, part in zip(dqs, parts, strict=True))
        for dq in dqs[1:]:
            dqs[0] += dq
        return dqs[0], dk, dv

    def _takes(self, q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Any, scores: Any) -> bool:
        return (
            compiling()
            and apart(q, k, v, self.short)
            and q.dtype.name in ("float32", "float64")
            and all(x is None for x in (sink, keep, scores.softcap, scores.bias, see.q_segments))
            and (see.diagonal is not None or not see.causal)
        )

    def _tiles(self, see: Any, n: int, m: int, rows: int) -> Tiles:
        if self.tiles is not None:
            return self.tiles
        if see.causal:
            return tile_lists.causal(n, m, see.diagonal, rows, self.corner)
        return tile_lists.dense(n, m, rows)


class Heads:
    """The heads of a call: which share keys, and the arrays of each."""

    def __init__(self, q: Array, k: Array, v: Array, see: Array | None, tiles: Tiles) -> None:
        self.tiles, self.all_seen = tiles, bool(tiles.seen(k.shape[-2], NONE).all())
        self.q, self.k, self.v, self.see = strided(q), strided(k), strided(v), see
        self.all, self.shared = list(np.ndindex(*q.shape[:-2])), sharing(q, k)

    def head(self, at: Index) -> tuple[Array, ...]:
        """q, k, v and the further mask of one query head; keys and values that nobody sees are 0 if they are not finite."""
        key = within(at, self.k.shape[:-2])
        q, k, v = self.q[at], self.k[key], self.v[key]
        see = NONE if self.see is None else self.see[at]
        if (see is not NONE or not self.all_seen) and not (np.isfinite(k).all() and np.isfinite(v).all()):
            seen = self.tiles.seen(len(k), see)[:, None]
            k, v = np.where(seen, k, k.dtype.type(0)), np.where(seen, v, v.dtype.type(0))
        return q, k, v, see


NONE = np.zeros((0, 0), np.uint8)


def _mask(see: Any, shape: Index) -> Array | None:
    """mask ∧ key_valid (..., n, m) as bytes, one row where all queries have the same."""
    given = [x for x in (see.mask, see.key_valid) if x is not None]
    if not given:
        return None
    both = given[0] if len(given) == 1 else given[0] & given[1]
    both = both if both.strides[-1] == 1 and both.shape[-1] == shape[-1] else _whole(both, shape[-1])
    return np.broadcast_to(both, shape).view(np.uint8)


def _whole(x: Array, m: int) -> Array:
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:-1], m)))


def strided(x: Array) -> Array:
    """x itself if BLAS can step from row to row of its last two axes, else a contiguous copy."""
    step, width = x.itemsize, x.shape[-1]
    unit = x.strides[-1] == step or width <= 1
    rows = x.shape[-2] <= 1 or (x.strides[-2] % step == 0 and max(width, 1) * step <= x.strides[-2] < step * 2**31)
    return x if unit and rows and x.flags.aligned and x.dtype.isnative else np.array(x, x.dtype.newbyteorder("="), order="C")


@functools.cache
def _kernel(which: str, dtype: str) -> Any:
    return importlib.import_module("refattn.backends.numba_tiles").compiled(which, dtype)


@functools.cache
def _gemm(dtype: str) -> int:
    address: int = importlib.import_module("refattn.backends.numba_words").gemm_address(dtype)
    return address


def warmup() -> None:
    """Compile the engine, or read it from the cache."""
    for dtype in ("float32", "float64"):
        for which in ("forward", "backward"):
            _kernel(which, dtype)
