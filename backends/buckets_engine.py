"""Bucket sort and angular hash on NumPy arrays by compiled loops; rows, or tokens of a head and round, are tasks.

What the loops do not take (few tokens, buckets far apart, other dtypes than float32 and float64) is left to the generic
texts. The sort gives the same permutation bit for bit; a hash is that of a correct kernel, whose products may round
differently.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import threads
from refattn.backends.rows_engine import at, whole
from refattn.kernels import compiling
from refattn.shapes import blocks, together

Array = Any


@dataclass(frozen=True)
class BucketsEngine:
    """The overrides, with what may be tuned: fewer tokens than `short` in all are left to the generic texts; spread: at
    most so many buckets for each token, or 2¹⁶ of them; tile: tokens whose products are formed at once; part: of a task.
    """

    short: int = 4096
    spread: int = 4
    tile: int = 64
    part: int = 4096

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """The overrides, by the names of the generic texts."""
        return {"bucket_sort": self.bucket_sort, "angular_hash": self.angular_hash}

    def bucket_sort(self, buckets: Array) -> Any:
        if not self._takes(buckets.size):
            return NotImplemented
        n, low = buckets.shape[-1], int(buckets.min())
        size = int(buckets.max()) - low + 1
        if size > max(self.spread * n, 2**16) or low + size > 2**62:
            return NotImplemented
        rows = whole(buckets.astype(np.int64, copy=False)).reshape(-1, n)
        order, place = np.empty(rows.shape, np.int64), np.empty(rows.shape, np.int64)
        sort, step = _kernel("sort", ""), max(self.part // n, 1)
        threads.run(functools.partial(sort, rows, low, size, cut.start, cut.stop, order, place)
                    for cut in blocks(len(rows), step))
        return order.reshape(buckets.shape), place.reshape(buckets.shape)

    def angular_hash(self, x: Array, rotations: Array, factors: tuple[int, ...] | None) -> Any:
        rounds, d, w = rotations.shape[-3:]
        lead, n = together(x.shape[:-2], rotations.shape[:-3]), x.shape[-2]
        kinds = {x.dtype.name, rotations.dtype.name}
        if not (self._takes(math.prod(lead) * rounds * n) and d and len(kinds) == 1 and kinds <= {"float32", "float64"}):
            return NotImplemented
        if n < min(self.short, 64):  # a task for a few tokens takes longer to hand out than to do
            return NotImplemented
        gemm, loop = _gemm(x.dtype.name), _kernel("hashed", x.dtype.name)
        digits = np.array((2 * w,) if factors is None else factors, np.int64)
        x, rotations, out = whole(x), whole(rotations), np.empty((*lead, rounds, n), np.int64)
        threads.run(
            functools.partial(loop, gemm, at(x, i), at(rotations, i, 3)[r], digits, cut.start, cut.stop, self.tile,
                              out[i][r])
            for i in np.ndindex(*lead) for r in range(rounds) for cut in blocks(n, self.part)
        )  # fmt: skip
        return out

    def _takes(self, size: int) -> bool:
        return size >= max(self.short, 1) and compiling()


@functools.cache
def _kernel(which: str, dtype: str) -> Any:
    return importlib.import_module("refattn.backends.numba_buckets").compiled(which, dtype)


@functools.cache
def _gemm(dtype: str) -> int:
    address: int = importlib.import_module("refattn.backends.numba_words").gemm_address(dtype)
    return address


def warmup() -> None:
    """Compile the loops, or read them from the cache."""
    _kernel("sort", "")
    for dtype in ("float32", "float64"):
        _kernel("hashed", dtype)
