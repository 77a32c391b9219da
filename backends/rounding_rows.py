"""Rounding rules of the words of ``refattn.rows``: values and errors are those of the generic texts, but for two things.

A list of entries is no matrix, so what repeats is said here: an error that is common to the entries of a query (``row`` of
the variance), or to those of a key (``column``), stays so when entries become rectangles or are turned. And the keys of a
row lie in more tiles than their number shows: a row of k scattered keys may be rescaled as often as it meets a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refattn.kernels import text

from .rounding_array import Rounded, Variance, total

Array = Any


def _generic(name: str, *args: Any) -> Rounded:
    out: Rounded = text(name)(*args)
    return out


def spread(x: Rounded, rows: Any) -> Rounded:
    """An error of a query's number is common to all of its entries."""
    out = _generic("spread", x, rows)
    out.variance = Variance(row=total(out.variance.alone, out.variance.row))
    return out


def turn(x: Rounded, rows: Any) -> Rounded:
    """Queries and keys change places."""
    out = _generic("turn", x, rows)
    alone, row, column = out.variance
    out.variance = Variance(alone, column, row)
    return out


def rectangle(x: Rounded, rows: Any, at: slice, shape: tuple[int, int]) -> Rounded:
    """What is common to a query's entries is common to a row of the rectangle; in one row no key comes twice."""
    entries = rows.entry[at]

    def cut(part: Array | None) -> Array | None:
        if part is None:
            return None
        return np.take(np.broadcast_to(part, x.shape), entries, axis=-1).reshape(*x.shape[:-1], *shape)

    alone, row, column = map(cut, x.variance)
    return Rounded(x.reading, cut(x.value), cut(x.error), Variance(total(alone, column), row))


def _scattered(name: str) -> Callable[..., Rounded]:
    """A sum over rows: each is rescaled at most as often as the row that meets most tiles."""

    def rule(x: Rounded, *rest: Any) -> Rounded:
        r, rows = x.reading, rest[-1]
        r.met = rows.tiles(r.precision.tile)
        try:
            return _generic(name, x, *rest)
        finally:
            r.met = None

    return rule


KERNELS: dict[str, Callable[..., Any]] = {
    "spread": spread,
    "turn": turn,
    "rectangle": rectangle,
    "row_sum": _scattered("row_sum"),
    "row_sums": _scattered("row_sums"),
}
