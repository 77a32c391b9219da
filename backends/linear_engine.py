"""``prefix_mix`` on NumPy arrays by the kernel of ``numba_linear``: one task for each head, none shares memory with another.

Half precision, axes of length zero and short sequences are left to the generic text.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import threads
from refattn.backends.by_head import part
from refattn.backends.tile_engine import strided

Array = Any
Index = tuple[int, ...]


@dataclass(frozen=True)
class Mixer:
    """The override, with what may be tuned.

    short: fewer tokens are left to the generic text; chunk: tokens of a triangle.
    """

    short: int = 32
    chunk: int = 32

    def prefix_mix(self, q: Array, k: Array, v: Array, *, reverse: bool = False, chunk: int | None = None) -> Any:
        """(..., n, e). How many tokens the caller would take at once (`chunk`) does not matter here."""
        if not self._takes(q, k, v):
            return NotImplemented
        mix, gemm = _kernel(q.dtype.name), _gemm(q.dtype.name)
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
        out = np.empty((*lead, q.shape[-2], v.shape[-1]), q.dtype)
        given = [strided(x) for x in (q, k, v)]

        def task(at: Index) -> Callable[[], None]:
            return lambda: mix(gemm, self.chunk, reverse, *(part(x, at) for x in given), out[at])

        threads.run(task(at) for at in np.ndindex(*lead))
        return out

    def _takes(self, q: Array, k: Array, v: Array) -> bool:
        return (
            os.environ.get("REFATTN_NUMBA", "1").strip() != "0"
            and q.shape[-2] >= max(self.short, 1)
            and min(q.shape[-1], v.shape[-1]) > 0
            and q.dtype.name in ("float32", "float64")
            and q.dtype == k.dtype == v.dtype
        )


@functools.cache
def _kernel(dtype: str) -> Any:
    return importlib.import_module("refattn.backends.numba_linear").compiled(dtype)


@functools.cache
def _gemm(dtype: str) -> int:
    address: int = importlib.import_module("refattn.backends.numba_words").gemm_address(dtype)
    return address


def warmup() -> None:
    """Compile the kernel, or read it from the cache."""
    for dtype in ("float32", "float64"):
        _kernel(dtype)
