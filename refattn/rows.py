"""Rows: who looks at whom as flat lists of entries, and the words for them that the array API lacks.

    entries of query i: start_i ≤ t < start_(i+1);       entry t looks at key col_t, count_t times

    row_scores   s_t = q_row(t)·k_col(t)      (..., n, d), (..., m, d) → (..., nnz)       its adjoint is row_sums, twice
    row_sums     o_i = Σ_t p_t v_col(t)       (..., nnz), (..., m, e) → (..., n, e)       over rows, and over rows.T
    row_sum, row_max   Σ_t x_t, max_t x_t     (..., nnz) → (..., n, 1)                    over the entries t of each query
    spread       x_row(t)                     (..., n, 1) → (..., nnz)                    the adjoint of row_sum
    turn         entries in the order of rows.T                weigh   entries times their counts

Every word is a text over gathers, reshapes and products: equally long rows make one rectangle, so that nothing is padded
and nothing scattered, and a query without entries has nothing that would have to be masked. Indices are made on the host;
no shape depends on data. At most LIMIT elements are gathered at a time (a longer row is taken whole); a row's sum is never
cut. A table of kernels may replace any word.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np  # index arrays are made on the host

from refattn.backend import of
from refattn.errors import OptionError
from refattn.kernels import kernel
from refattn.shapes import product, together

Array = Any
Lists = tuple[Array, Array, Array | None]
LIMIT = 2**18
"""Elements that a generic text gathers at a time."""
KEPT = ("cupy", "torch")  # libraries that may compute on another device: indices stay there once they have been moved


@dataclass(frozen=True, eq=False)
class Rows:
    """Entries of n queries over m keys, int64 on the host, made when a value is first asked for.

    nnz, the number of entries, is known beforehand, so that shapes and costs need no entry. build() returns start (n + 1,),
    col (nnz,) and count (nnz,), which is None unless `multiple`: then some entry may count more than once.
    rectangles(first, size, height), if known, gives the pairs of the queries first … first + size − 1, counted from `first`,
    as (q0, q1, k0, k1, seen) with at most `height` queries, seen None if all are; a pair that counts c times lies in c.
    made: what a backend has made of the entries, kept as long as they are.
    """

    n: int
    m: int
    nnz: int
    build: Callable[[], Lists] = field(repr=False)
    multiple: bool = False
    rectangles: Callable[[int, int, int], Iterable[Any]] | None = field(default=None, repr=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    _moved: dict[tuple[str, str, str], Array] = field(default_factory=dict, init=False, repr=False)
    _met: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def lists(self) -> Lists:
        """start, col, count as they were built, in memory one after another.

        Raises
        ------
        OptionError
            If they are not what n, m, nnz and `multiple` announced.
        """
        start, col, *counts = (np.ascontiguousarray(x, dtype=np.int64) for x in self.build() if x is not None)
        sound = start.shape == (self.n + 1,) and start[-1] == self.nnz
        if not sound or any(x.shape != (self.nnz,) for x in (col, *counts)) or (counts and not self.multiple):
            raise OptionError(
                f"{self.nnz} entries of {self.n} queries over {self.m} keys were announced (multiple={self.multiple}), but "
                f"the lists have shapes {[x.shape for x in (start, col, *counts)]}, and start ends with {start[-1:]}"
            )
        return start, col, counts[0] if counts else None

    @property
    def start(self) -> Array:
        """(n + 1,): where the entries of each query begin."""
        return self.lists[0]

    @property
    def col(self) -> Array:
        """(nnz,): the key of each entry."""
        return self.lists[1]

    @cached_property
    def count(self) -> Array:
        """(nnz,): how often each entry counts."""
        return np.ones(self.nnz, dtype=np.int64) if self.lists[2] is None else self.lists[2]

    @cached_property
    def row(self) -> Array:
        """(nnz,): the query of each entry."""
        return np.repeat(np.arange(self.n), np.diff(self.start))

    @cached_property
    def turn(self) -> Array:
        """(nnz,): entries by key, then by query."""
        small = self.col.astype(np.uint16) if self.m <= 2**16 else self.col  # 16 bits are sorted by counting
        return np.argsort(small, kind="stable")

    @cached_property
    def T(self) -> Rows:
        """The same entries as rows of keys that look at queries, in the order of ``turn``."""

        def build() -> Lists:
            start = np.zeros(self.m + 1, dtype=np.int64)
            np.cumsum(np.bincount(self.col, minlength=self.m), out=start[1:])
            return start, self.row[self.turn], self.count[self.turn] if self.multiple else None

        return Rows(self.m, self.n, self.nnz, build, self.multiple)

    @cached_property
    def slabs(self) -> list[tuple[int, int, int]]:
        """(first, rows, length) of each rectangle of equally long rows; `first` is a place in ``entry`` and ``key``.

        Their lengths differ, so that there are at most √(2·nnz).
        """
        length = np.diff(self.start)[self._order]
        cuts = np.flatnonzero(np.diff(length, prepend=0)).tolist()
        begin = np.cumsum(length) - length
        ends = [*cuts, len(length)][1:]
        return [(int(begin[a]), b - a, int(length[a])) for a, b in zip(cuts, ends, strict=True)]

    @cached_property
    def _order(self) -> Array:
        """The queries that see something, by the number of their entries."""
        length = np.diff(self.start)
        order = np.argsort(length, kind="stable")
        return order[length[order] > 0]

    @cached_property
    def entry(self) -> Array:
        """(nnz,): entries by the length of their rows."""
        start, length = self.start[:-1][self._order], np.diff(self.start)[self._order]
        return np.repeat(start - (np.cumsum(length) - length), length) + np.arange(self.nnz)

    @cached_property
    def key(self) -> Array:
        """(nnz,): col in the order of ``entry``."""
        return self.col[self.entry]

    @cached_property
    def place(self) -> Array:
        """(n,): where each query's row stands in the slabs, one after another; what sees nothing comes last."""
        place = np.full(self.n, len(self._order))
        place[self._order] = np.arange(len(self._order))
        return place

    def tiles(self, width: int) -> int:
        """The most tiles that the keys of one query can lie in, if all but the outermost have `width` keys or more.

        Wherever tiles begin: the first ends after the query's first key, each of the others as soon as it may.
        """
        if width not in self._met:
            line = self.row * (self.m + 1) + self.col  # sorted, a stretch for each query
            at = self.start[:-1][np.diff(self.start) > 0]
            base, ends = self.row[at] * (self.m + 1), self.start[1:][self.row[at]]
            most, edge = 0, self.col[at] + 1
            while at.size:
                most += 1
                at = np.searchsorted(line, base + np.minimum(edge, self.m))
                on = at < ends
                at, base, ends, edge = at[on], base[on], ends[on], edge[on]
                edge = np.maximum(self.col[at] + 1, edge + width)
            self._met[width] = most
        return self._met[width]

    def index(self, name: str, like: Array, at: slice = slice(None)) -> Array:
        """One of the lists, where `like` lives."""
        b, host = of(like), getattr(self, name)
        if b.name not in KEPT:
            return b.lift(host[at], like)
        place = (name, b.name, str(like.device))
        if place not in self._moved:
            self._moved[place] = b.lift(host, like)
        return self._moved[place][at]


class _Made:
    """The rows that were asked for last, at most `rows`, as long as no more than `entries` have been listed together."""

    def __init__(self, entries: int, rows: int) -> None:
        self.entries, self.most, self.lock = entries, rows, threading.Lock()
        self.rows: dict[Any, Rows] = {}  # by age; looking through an OrderedDict would hash every pattern in it

    def get(self, pattern: Any, n: int, m: int, offset: int) -> Rows:
        key = pattern, n, m, offset
        with self.lock:
            found = self.rows.pop(key, None)
            if found is None:
                nnz, multiple = pattern.nnz(n, m, offset), pattern.most > 1
                found = Rows(n, m, nnz, lambda: pattern.entries(n, m, offset), multiple, _rectangles(*key))
            self.rows[key] = found  # the youngest
            kept = sum(_listed(r) for r in self.rows.values())
            while (kept > self.entries or len(self.rows) > self.most) and len(self.rows) > 1:
                kept -= _listed(self.rows.pop(next(iter(self.rows))))
        return found


def _listed(rows: Rows) -> int:
    """Entries that are held in memory: backends that work on rectangles never ask for any."""
    return rows.nnz if "lists" in vars(rows) else 0


def _rectangles(pattern: Any, n: int, m: int, offset: int) -> Callable[[int, int, int], Iterable[Any]] | None:
    """The rectangles of a pattern, if it has any, for some queries at a time."""
    cut = getattr(pattern, "tiles", None)
    return None if cut is None else lambda first, size, height: cut(size, m, offset + first, height)


_MADE = _Made(2**24, 256)


def rows_of(pattern: Any, n: int, m: int, offset: int = 0) -> Rows:
    """The entries of a pattern for n queries, the first of them at position `offset`, and m keys; made once and kept.

    A pattern has nnz(n, m, offset), how many pairs are seen; most, the largest count; entries(n, m, offset), the lists; and
    it may have tiles(n, m, offset, height), the pairs as rectangles.
    """
    return _MADE.get(pattern, n, m, offset)


def index(like: Array, a: Any) -> Array:
    """Host integers, where `like` lives."""
    return of(like).lift(np.asarray(a, dtype=np.int64), like)


def numbers(like: Array, a: Any) -> Array:
    """Host numbers, where `like` lives and in its dtype: integers times float32 would be float64 in some libraries."""
    b = of(like)
    return b.xp.astype(b.lift(np.asarray(a, dtype=np.float64), like), like.dtype, copy=False)


def filled(like: Array, shape: tuple[int, ...], value: float = 0.0) -> Array:
    """A new array of one value beside `like`, in its dtype."""
    return of(like).xp.full(shape, value, dtype=like.dtype, device=getattr(like, "device", None))  # a jax tracer has none


@kernel("row_scores")
def row_scores(q: Array, k: Array, rows: Rows) -> Array:
    """s_t = q_row(t)·k_col(t).   (..., n, d), (..., m, d) → (..., nnz)"""
    xp, lead = of(q, k).xp, together(q.shape[:-2], k.shape[:-2])

    def one(at: slice) -> Array:  # a function, so that what is gathered is gone before more is
        qt = xp.take(q, rows.index("row", q, at), axis=-2)
        kt = xp.take(k, rows.index("col", q, at), axis=-2)
        return xp.matmul(qt[..., None, :], kt[..., :, None])[..., 0, 0]

    parts = [one(at) for at in _cut(rows.nnz, q.shape[-1] * product(lead))]
    return parts[0] if len(parts) == 1 else xp.concat([*parts, filled(q, (*lead, 0))], axis=-1)


@kernel("row_sums")
def row_sums(p: Array, v: Array, rows: Rows) -> Array:
    """o_i = Σ_t p_t v_col(t) over the entries t of query i.   (..., nnz), (..., m, e) → (..., n, e)"""
    xp, width = of(p, v).xp, v.shape[-1]
    lead = together(p.shape[:-1], v.shape[:-2])

    def one(at: slice, shape: tuple[int, int]) -> Array:
        vt = xp.take(v, rows.index("key", v, at), axis=-2)
        vt = xp.reshape(vt, (*v.shape[:-2], *shape, width))
        return xp.matmul(rectangle(p, rows, at, shape)[..., None, :], vt)[..., 0, :]

    return _by_row(p, rows, one, filled(p, (*lead, 1, width)))


@kernel("row_sum")
def row_sum(x: Array, rows: Rows) -> Array:
    """Σ over the entries of each query.   (..., nnz) → (..., n, 1)"""
    xp = of(x).xp

    def one(at: slice, shape: tuple[int, int]) -> Array:
        return xp.sum(rectangle(x, rows, at, shape), axis=-1, keepdims=True)

    return _by_row(x, rows, one, filled(x, (*x.shape[:-1], 1, 1)))


@kernel("row_max")
def row_max(x: Array, rows: Rows) -> Array:
    """The largest entry of each query, −∞ where there is none.   (..., nnz) → (..., n, 1)"""
    xp = of(x).xp

    def one(at: slice, shape: tuple[int, int]) -> Array:
        return xp.max(rectangle(x, rows, at, shape), axis=-1, keepdims=True)

    return _by_row(x, rows, one, filled(x, (*x.shape[:-1], 1, 1), -math.inf))


@kernel("spread")
def spread(x: Array, rows: Rows) -> Array:
    """Each query's number to its entries.   (..., n, 1) → (..., nnz)"""
    return of(x).xp.take(x[..., 0], rows.index("row", x), axis=-1)


@kernel("turn")
def turn(x: Array, rows: Rows) -> Array:
    """Entries in the order of rows.T.   (..., nnz) → (..., nnz)"""
    return of(x).xp.take(x, rows.index("turn", x), axis=-1)


@kernel("weigh")
def weigh(x: Array, rows: Rows) -> Array:
    """Entries times their counts.   (..., nnz) → (..., nnz)"""
    return x * numbers(x, rows.count) if rows.multiple else x


@kernel("rectangle")
def rectangle(x: Array, rows: Rows, at: slice, shape: tuple[int, int]) -> Array:
    """Some rows of a slab, `at` in ``rows.entry``, as a rectangle.   (..., nnz) → (..., rows, length)"""
    xp = of(x).xp
    return xp.reshape(xp.take(x, rows.index("entry", x, at), axis=-1), (*x.shape[:-1], *shape))


def select(ok: Array | None, rows: Rows, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Queries that see nothing and keys that nobody sees are set to 0: 0·NaN must not reach the others. What has no entry
    is never read.
    """
    if ok is None:
        return q, k, v
    xp = of(q, k, v).xp
    some = xp.astype(ok, q.dtype)
    looks, seen = row_sum(some, rows) > 0.0, row_sum(turn(some, rows), rows.T) > 0.0
    return xp.where(looks, q, 0.0), xp.where(seen, k, 0.0), xp.where(seen, v, 0.0)


def _by_row(x: Array, rows: Rows, one: Callable[[slice, tuple[int, int]], Array], blank: Array) -> Array:
    """`one` of a few rows of one slab at a time, put into the order of queries; `blank` where a query has no entry."""
    lead = product(blank.shape[:-2])

    def ordered() -> Array:
        parts = []
        for first, many, length in rows.slabs:
            for cut in _cut(many, length * blank.shape[-1] * lead):
                at = slice(first + cut.start * length, first + cut.stop * length)
                parts.append(one(at, (cut.stop - cut.start, length)))
        return of(x).xp.concat([*parts, blank], axis=-2)

    return of(x).xp.take(ordered(), rows.index("place", x), axis=-2)


def _cut(many: int, size: int) -> list[slice]:
    """Slices of `many` things of so many elements each, at most LIMIT elements at a time, but one thing at least."""
    step = max(1, LIMIT // max(1, size))
    return [slice(a, min(a + step, many)) for a in range(0, many, step)]
