"""Linear attention on NumPy arrays: ``prefix_mix`` by the kernel of ``numba_linear``, one task for each head, and everything
around it, which is products and maps of whole arrays, by the generic text of a few heads at a time.

All heads at once would hold their features, and the gradients of these, beside each other, and no cache would. What is too
short or too little for a loop over heads is left to the generic texts, and so are for the kernel half precision and axes of
length zero.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refattn import threads
from refattn.backends.by_head import part, within
from refattn.backends.tile_engine import strided
from refattn.kernels import compiling, text
from refattn.shapes import blocks

Array = Any
Index = tuple[int, ...]


class Run(NamedTuple):
    """Key heads of one item and the query heads that read them, as indices, and the item."""

    k: tuple[Any, ...]
    q: tuple[Any, ...]
    item: Index


@dataclass(frozen=True)
class Mixer:
    """The overrides, with what may be tuned.

    short: fewer tokens are left to the generic text; chunk: tokens of a triangle; elements: of the heads that are taken at
    a time.
    """

    short: int = 32
    chunk: int = 32
    elements: int = 2**17

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """The overrides, by the names of the generic texts."""
        return {"prefix_mix": self.prefix_mix, "attend_features": self.attend_features,
                "attend_features_vjp": self.attend_features_vjp}

    def attend_features(self, q: Array, k: Array, v: Array, key_valid: Array | None, *, scheme: Any, **options: Any) -> Any:
        """o (..., n, e) and z (..., n)."""
        runs, generic = self._runs(q, k, scheme), text("attend_features")
        if not runs:
            return NotImplemented
        o = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
        z = np.empty(q.shape[:-1], q.dtype) if scheme.normalise else None

        def work(at: Run) -> None:
            o[at.q], sums = generic(q[at.q], k[at.k], v[at.k], _valid(key_valid, at.item), scheme=scheme, **options)
            if z is not None:
                z[at.q] = sums

        threads.run(functools.partial(work, at) for at in runs)
        return o, z

    def attend_features_vjp(self, q: Array, k: Array, v: Array, key_valid: Array | None, o: Array, z: Array | None,
                            do: Array, *, scheme: Any, **options: Any) -> Any:
        """dq, dk and dv as q, k and v."""
        runs, generic = self._runs(q, k, scheme), text("attend_features_vjp")
        if not runs:
            return NotImplemented
        dq, dk, dv = (np.empty(x.shape, x.dtype) for x in (q, k, v))

        def work(at: Run) -> None:
            results = o[at.q], None if z is None else z[at.q], do[at.q]
            dq[at.q], dk[at.k], dv[at.k] = generic(q[at.q], k[at.k], v[at.k], _valid(key_valid, at.item), *results,
                                                   scheme=scheme, **options)

        threads.run(functools.partial(work, at) for at in runs)
        return dq, dk, dv

    def _runs(self, q: Array, k: Array, scheme: Any) -> list[Run]:
        """Whole key heads with all their readers; none where one run holds everything, or little, or nothing in between."""
        if not compiling() or scheme.bare or q.ndim < 3 or not k.size or q.size < 4 * self.elements:
            return []
        few, n, m = k.shape[-3], q.shape[-2], k.shape[-2]
        group = q.shape[-3] // few
        tiled, size = scheme.heads == "tiled" and group > 1, max(group * n, m) * q.shape[-1]
        step = 1 if tiled else min(max(self.elements // size, 1), few)  # the readers of neighbours are apart
        if 4 * step * size < self.elements:
            return []

        def readers(at: slice) -> slice:
            return slice(at.start, None, few) if tiled else slice(at.start * group, at.stop * group)

        runs = [Run((*item, at), (*item, readers(at)), item)
                for item in np.ndindex(*k.shape[:-3]) for at in blocks(few, step)]
        return runs if len(runs) > 1 else []

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
            compiling()
            and q.shape[-2] >= max(self.short, 1)
            and min(q.shape[-1], v.shape[-1]) > 0
            and q.dtype.name in ("float32", "float64")
            and q.dtype == k.dtype == v.dtype
        )


def _valid(key_valid: Array | None, item: Index) -> Array | None:
    """Which keys of one item are valid, (m,)."""
    return None if key_valid is None else key_valid[within(item, key_valid.shape[:-1])]


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
