"""Counting rules of the words of ``refattn.rows``: one line each, from n, m and nnz alone, so that no index is ever made.

Multiply-adds, exponentials and comparisons are those of the generic texts (a law). What these gather on the way stands in
the peak, LIMIT elements at a time; a single row that is longer than that is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refattn.rows import LIMIT
from refattn.shapes import product

from .counting_array import FLOAT, Counted, Shape, together


def _made(r: Any, count: str, shape: Shape, gathered: int, width: int, steps: int, moves: int = 4) -> Counted:
    """A result of `shape` after so many steps of one count.

    gathered: elements that are taken, written and read again, LIMIT · gathered / width of them at a time. moves: reads and
    writes of each element of the result, beyond its first, while it is put in order.
    """
    out: Counted = r.new(shape, FLOAT, reads=3 * gathered + moves * product(shape))
    r.add(count, steps)
    cut = gathered > 0 and width > LIMIT
    scratch = Counted(r, (max(-(-gathered * LIMIT // width), out.size) if cut else gathered,), FLOAT)
    del scratch
    return out


def row_scores(q: Counted, k: Counted, rows: Any) -> Counted:
    shape = (*together(q.shape[:-2], k.shape[:-2]), rows.nnz)
    both, d = product(q.shape[:-2]) + product(k.shape[:-2]), q.shape[-1]
    return _made(q.reading, "macs", shape, both * rows.nnz * d, product(shape) * d, product(shape) * d, 0)


def row_sums(p: Counted, v: Counted, rows: Any) -> Counted:
    lead, e = together(p.shape[:-1], v.shape[:-2]), v.shape[-1]
    terms, gathered = product(lead) * rows.nnz * e, product(v.shape[:-2]) * rows.nnz * e + p.size
    return _made(p.reading, "macs", (*lead, rows.n, e), gathered, terms, terms)


def pair_counts(like: Counted, patterns: Any, n: int, m: int, offset: int) -> Counted:
    return _moved(like, (len(patterns), n, m))


def _folded(count: str) -> Callable[[Counted, Any], Counted]:
    return lambda x, rows: _made(x.reading, count, (*x.shape[:-1], rows.n, 1), x.size, x.size, x.size)


def _moved(x: Counted, shape: Shape) -> Counted:
    out: Counted = x.reading.new(shape, x.dtype, reads=product(shape))
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "pair_counts": pair_counts,
    "row_scores": row_scores,
    "row_sums": row_sums,
    "row_sum": _folded("flops"),
    "row_max": _folded("compares"),
    "spread": lambda x, rows: _moved(x, (*x.shape[:-2], rows.nnz)),
    "turn": lambda x, rows: _moved(x, x.shape),
    "weigh": lambda x, rows: x * 1.0 if rows.multiple else x,
}
