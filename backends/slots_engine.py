"""``attend_slots`` and its backward on NumPy arrays by the kernels of ``numba_slots``: one task for each head.

Every setting of ``LSH`` is taken. Half precision, few slots and positions beyond 32 bits are left to the generic texts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import threads
from refattn.backends.rows_engine import whole
from refattn.kernels import compiling

Array = Any
LAST = 2**31 - 1
TINY = 1e-9  # of the count of 2020
KEYS = 7  # where the arguments of a kernel have k


@dataclass(frozen=True)
class SlotsEngine:
    """The overrides, with what may be tuned.

    short: fewer pairs of slots than this in all are left to the generic texts; high: queries of a tile.
    """

    short: int = 64 * 64
    high: int = 128

    def kernels(self) -> dict[str, Callable[..., Any]]:
        """The overrides, by the names of the generic texts."""
        return {"attend_slots": self.attend_slots, "attend_slots_vjp": self.attend_slots_vjp}

    def attend_slots(self, x: Array, root: Array | None, v: Array, found: Any, meeting: Any, *, block: int | None) -> Any:
        """o, lse, top, z. How many slots the caller would take at once (`block`) does not matter here."""
        if not self._takes(x, v, found, meeting):
            return NotImplemented
        run, given = _kernel("forward", *_variant(x, meeting)), self._given(x, root, v, found, meeting)
        o, z = np.zeros(v.shape, x.dtype), np.zeros(x.shape[:-1], x.dtype)
        top, lse = np.full(z.shape, -np.inf, x.dtype), np.empty(z.shape, x.dtype)

        def task(i: int) -> None:
            run(*given(i), o[i], top[i], z[i])
            _finish(o[i], lse[i], top[i], z[i])

        threads.run(functools.partial(task, i) for i in range(len(x)))
        return o, lse, top, z

    def attend_slots_vjp(self, x: Array, root: Array | None, v: Array, found: Any, meeting: Any, results: tuple[Array, ...],
                         do: Array, dlse: Array | None, *, block: int | None) -> Any:
        """dx, dv."""
        if not self._takes(x, v, found, meeting):
            return NotImplemented
        run, given = _kernel("backward", *_variant(x, meeting)), self._given(x, root, v, found, meeting)
        o, lse, top, z = map(whole, results)
        do, D = _cotangents(whole(do), o, lse, dlse)
        dx, dv = np.zeros(x.shape, x.dtype), np.zeros(v.shape, x.dtype)

        def task(i: int) -> None:
            mine, dk = given(i), np.zeros(x.shape[1:], x.dtype)
            run(*mine, top[i], z[i], do[i], D[i], dx[i], dk, dv[i])
            dx[i] += dk if root is None else _through_keys(mine[KEYS], dk, root[i])

        threads.run(functools.partial(task, i) for i in range(len(x)))
        return dx, dv

    def _takes(self, x: Array, v: Array, found: Any, meeting: Any) -> bool:
        pairs = found.queries.size * found.keys.shape[-1]
        at = meeting.positions
        return (
            compiling()
            and x.dtype.name in ("float32", "float64")
            and x.dtype == v.dtype
            and min(x.size, v.size) > 0
            and pairs >= self.short
            and x.shape[1] < LAST
            and (at is None or (int(at.max()) < LAST and int(at.min()) > -LAST))
        )

    def _given(self, x: Array, root: Array | None, v: Array, found: Any, meeting: Any) -> Callable[[int], tuple[Any, ...]]:
        """The first arguments of the kernels, by item."""
        real, (items, n, _) = x.dtype.type, x.shape
        x, v, queries, keys = whole(x), whole(v), _int32(found.queries), _int32(found.keys)
        own, others = (_labels(b, items) for b in (found.query_buckets, found.key_buckets))
        seat = np.broadcast_to(_seat(meeting, n), (items, n))
        rules, aims, places, labels = _counts(found, meeting)
        apart, least = meeting.self_score is not None, TINY if meeting.duplicates == "2020" else 0.0
        start = (_gemm(x.dtype.name), real(meeting.scale), apart, real(meeting.self_score or 0.0), real(least), self.high)

        def given(i: int) -> tuple[Any, ...]:
            k = x[i] if root is None else x[i] / root[i]
            return (*start, x[i], k, v[i], seat[i], queries[i], keys[i], own[i], others[i], rules, aims, places[i],
                    labels[i])

        return given


def _finish(o: Array, lse: Array, top: Array, z: Array) -> None:
    """Sums to averages; of a token that saw nothing o = 0, lse = −∞, top 0, z 1."""
    blind = z == 0
    if blind.any():
        o[blind], top[blind], z[blind] = 0, 0, 1
    o /= z[:, None]
    np.log(z, out=lse)
    lse += top
    lse[blind] = -np.inf


def _cotangents(do: Array, o: Array, lse: Array, dlse: Array | None) -> tuple[Array, Array]:
    """do and D, 0 for tokens that saw nothing."""
    D = np.einsum("...d,...d->...", do, o)
    D = D if dlse is None else D - dlse
    blind = lse == -np.inf
    return (np.where(blind[..., None], 0, do), np.where(blind, 0, D)) if blind.any() else (do, D)


def _through_keys(k: Array, dk: Array, root: Array) -> Array:
    """dx of k = x / root(x), root the root of its squares and a constant: (dk − k (k·dk)) / root."""
    dk -= k * np.einsum("nd,nd->n", k, dk)[:, None]
    dk /= root
    return dk


def _variant(x: Array, meeting: Any) -> tuple[str, bool]:
    return x.dtype.name, meeting.duplicates != "counted"


def _int32(x: Array) -> Array:
    return np.ascontiguousarray(x, dtype=np.int32)


def _labels(buckets: Array | None, items: int) -> Array:
    return np.empty((items, 0, 0), np.int64) if buckets is None else np.ascontiguousarray(buckets, dtype=np.int64)


def _seat(meeting: Any, n: int) -> Array:
    """Positions in the causal order, 0 for all where there is none."""
    if not meeting.causal:
        return np.zeros(n, np.int32)
    return np.arange(n, dtype=np.int32) if meeting.positions is None else _int32(meeting.positions)


def _counts(found: Any, meeting: Any) -> tuple[Any, ...]:
    """What counts of duplicates are made of: rules, aims, and chunks and labels of each token; None and empty without."""
    items = len(found.place)
    labels = np.empty((items, 0, 0), np.int64)
    if meeting.duplicates == "counted":
        return None, np.empty((0, 0), np.int32), np.empty((items, 0, 0), np.int32), labels
    once = meeting.duplicates == "2020"
    meets = found.meets(once)
    offsets = sorted({o for o, _, _ in meets})
    rules = np.array([(offsets.index(o), r, a) for o, r, a in meets], np.int32)
    aims = _int32(np.stack([found.further(o, once) for o in offsets]))
    if found.window.within_bucket:
        labels = np.ascontiguousarray(np.swapaxes(meeting.buckets, 1, 2), dtype=np.int64)
    return rules, aims, _int32(np.swapaxes(found.place // found.window.chunk, 1, 2)), labels


@functools.cache
def _kernel(which: str, dtype: str, counts: bool) -> Any:
    return importlib.import_module("refattn.backends.numba_slots").compiled(which, dtype, counts)


@functools.cache
def _gemm(dtype: str) -> int:
    address: int = importlib.import_module("refattn.backends.numba_words").gemm_address(dtype)
    return address


def warmup() -> None:
    """Compile the kernels of all dtypes that count a token as often as it is met, or read them from the cache."""
    for dtype in ("float32", "float64"):
        for which in ("forward", "backward"):
            _kernel(which, dtype, False)
