"""The words of ``refattn.rows`` and the kernels of Sparse on NumPy arrays, by compiled loops over rows of entries.

A head is cut into queries (keys) with about equally many entries; each cut is a task. What the loops do not take (short
lists, dtypes other than float32 and float64) is left to the generic texts.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import threads
from refattn.backends.by_head import sharing, within
from refattn.kernels import compiling
from refattn.shapes import together

Array = Any
Index = tuple[int, ...]
Cut = tuple[int, int]
NAMES = ("forward", "by_query", "by_key", "scores", "sums")


@dataclass(frozen=True)
class RowsEngine:
    """The overrides, with what may be tuned: lists shorter than `short` are left to the generic texts; parts: tasks of a
    head, by default enough of them for the threads there are.
    """

    short: int = 64 * 64
    parts: int | None = None

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """The overrides, by the names of the generic texts."""
        return {
            "row_scores": self.row_scores,
            "row_sums": self.row_sums,
            "attend_rows": self.attend_rows,
            "attend_rows_vjp": self.attend_rows_vjp,
        }

    def row_scores(self, q: Array, k: Array, rows: Any) -> Any:
        if not self._takes(rows, q, k):
            return NotImplemented
        scores, (q, k) = _kernel("scores", q.dtype.name), map(whole, (q, k))
        s = np.empty((*together(q.shape[:-2], k.shape[:-2]), rows.nnz), q.dtype)
        threads.run(
            functools.partial(scores, at(q, i), at(k, i), rows.start, rows.col, *cut, s[i])
            for i in np.ndindex(*s.shape[:-1]) for cut in self._cuts(rows, s.shape[:-1])
        )  # fmt: skip
        return s

    def row_sums(self, p: Array, v: Array, rows: Any) -> Any:
        if not self._takes(rows, p, v):
            return NotImplemented
        sums, (p, v) = _kernel("sums", p.dtype.name), map(whole, (p, v))
        o = np.zeros((*together(p.shape[:-1], v.shape[:-2]), rows.n, v.shape[-1]), p.dtype)
        threads.run(
            functools.partial(sums, at(p, i, 1), at(v, i), rows.start, rows.col, *cut, o[i])
            for i in np.ndindex(*o.shape[:-2]) for cut in self._cuts(rows, o.shape[:-2])
        )  # fmt: skip
        return o

    def attend_rows(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, *, scale: Any) -> Any:
        """o (..., n, e) and lse (..., n, 1)."""
        if not self._takes(rows, q, k, v) or _lead(q, k, v) != q.shape[:-2]:
            return NotImplemented
        forward, real, (q, k, v) = _kernel("forward", q.dtype.name), q.dtype.type, map(whole, (q, k, v))
        ok, count = _hidden(ok), _count(rows, q.dtype)
        o, lse = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty(q.shape[:-1], q.dtype)
        threads.run(
            functools.partial(forward, real(scale), q[i], at(k, i), at(v, i), at(ok, i, 1), rows.start, rows.col, count,
                              *cut, o[i], lse[i])
            for i in np.ndindex(*q.shape[:-2]) for cut in self._cuts(rows, q.shape[:-2])
        )  # fmt: skip
        return o, lse[..., None]

    def attend_rows_vjp(self, q: Array, k: Array, v: Array, ok: Array | None, rows: Any, lse: Array, do: Array, D: Array,
                        *, scale: Any) -> Any:
        """dq as q; dk and dv as k and v, query heads that share a key head being added up already."""
        if not self._takes(rows, q, k, v) or _lead(q, k, v) != q.shape[:-2] or k.shape[:-2] != v.shape[:-2]:
            return NotImplemented
        by_query, by_key = (_kernel(name, q.dtype.name) for name in ("by_query", "by_key"))
        real, (q, k, v, do) = q.dtype.type, map(whole, (q, k, v, do))
        lse, D, ok, count = whole(lse[..., 0]), whole(D[..., 0]), _hidden(ok), _count(rows, q.dtype)
        pair = np.empty((*q.shape[:-2], rows.nnz, 2), q.dtype)  # p and ds, which are met together by key
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        threads.run(
            functools.partial(by_query, real(scale), q[i], at(k, i), at(v, i), at(ok, i, 1), rows.start, rows.col, count,
                              *cut, lse[i], do[i], D[i], pair[i], dq[i])
            for i in np.ndindex(*q.shape[:-2]) for cut in self._cuts(rows, q.shape[:-2])
        )  # fmt: skip
        keys, shared = rows.T, sharing(q, k)

        def task(key: Index, cut: Cut) -> Callable[[], None]:
            def work() -> None:
                for i in shared[key]:
                    by_key(q[i], keys.start, keys.col, rows.turn, *cut, do[i], pair[i], dk[key], dv[key])

            return work

        threads.run(task(key, cut) for key in shared for cut in self._cuts(keys, k.shape[:-2]))
        return dq, dk, dv

    def _takes(self, rows: Any, *arrays: Array) -> bool:
        dtypes = {x.dtype.name for x in arrays}
        return (
            compiling()
            and rows.nnz >= self.short
            and len(dtypes) == 1
            and dtypes <= {"float32", "float64"}
        )

    def _cuts(self, rows: Any, lead: Index) -> Iterator[Cut]:
        """Ranges of queries with about equally many entries, at most so many that each thread has four tasks."""
        parts = self.parts or max(1, 4 * threads.get_threads() // max(math.prod(lead), 1))
        ends = np.searchsorted(rows.start, np.linspace(0, rows.nnz, parts + 1)[1:-1])
        edges = [0, *ends.tolist(), rows.n]
        return (cut for cut in itertools.pairwise(edges) if cut[0] < cut[1])


def whole(x: Array) -> Array:
    """x itself if it lies in memory in order, else a copy."""
    plain = x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative
    return x if plain else np.array(x, x.dtype.newbyteorder("="), order="C")


def at(x: Array, index: Index, own: int = 2) -> Array:
    """One item of an array whose axes before its last `own` ones broadcast."""
    return x[within(index, x.shape[: x.ndim - own])]


def _lead(*arrays: Array) -> Index:
    return functools.reduce(together, (x.shape[:-2] for x in arrays))


def _hidden(ok: Array | None) -> Array:
    return np.zeros(0, np.uint8) if ok is None else whole(ok).view(np.uint8)


def _count(rows: Any, dtype: Any) -> Array:
    return rows.count.astype(dtype) if rows.multiple else np.zeros(0, dtype)


@functools.cache
def _kernel(which: str, dtype: str) -> Any:
    return importlib.import_module("refattn.backends.numba_rows").compiled(which, dtype)


def warmup() -> None:
    """Compile the loops, or read them from the cache."""
    for dtype in ("float32", "float64"):
        for which in NAMES:
            _kernel(which, dtype)
