"""Sparse attention of members that differ from item to item, on NumPy arrays: what an item's members are can be read here,
so that each item is a call over the entries of its own pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from refattn.backends.by_head import within
from refattn.kernels import GENERIC
from refattn.rows import Rows, select

Array = Any
Index = tuple[int, ...]


class Part(NamedTuple):
    """Heads of one item that see the same pairs: where they are, the pairs, and what hides some of them."""

    at: Index
    rows: Rows
    ok: Array | None


def attend_counts(q: Array, k: Array, v: Array, pairs: Any, *, scale: Any, block: int | None) -> tuple[Array, Array]:
    """o (..., n, e) and lse (..., n, 1); `block` is not used."""
    o, lse = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty((*q.shape[:-1], 1), q.dtype)
    for at, rows, ok in _parts(q, pairs):
        mine = q[at], *(_at(x, at, q.ndim - len(at)) for x in (k, v))
        o[at], lse[at] = GENERIC["attend_rows"](*select(ok, rows, *mine), ok, rows, scale=scale)
    return o, lse


def attend_counts_vjp(q: Array, k: Array, v: Array, pairs: Any, lse: Array, do: Array, D: Array, *, scale: Any,
                      block: int | None) -> tuple[Array, Array, Array]:
    """dq as q; dk and dv as k and v, query heads that share a key head being added up already."""
    dq, dk, dv = np.empty_like(q), np.zeros(k.shape, k.dtype), np.zeros(v.shape, v.dtype)
    for at, rows, ok in _parts(q, pairs):
        mine = q[at], *(_at(x, at, q.ndim - len(at)) for x in (k, v))
        grads = GENERIC["attend_rows_vjp"](*select(ok, rows, *mine), ok, rows, lse[at], do[at], D[at], scale=scale)
        dq[at] = grads[0]
        for total, part in zip((dk, dv), grads[1:], strict=True):
            there = within(at, total.shape[:len(at)])
            total[there] += _summed(part, total[there].shape)
    return dq, dk, dv


def _parts(q: Array, pairs: Any) -> Iterator[Part]:
    """All heads of an item where they have one pattern, else head by head."""
    lead = q.shape[:-2] if pairs.heads.kv is None else q.shape[:-4]
    for at in np.ndindex(*lead):
        own = q.ndim - len(at)
        members = np.flatnonzero(_at(pairs.members[1], at, own))
        each = pairs.lists(tuple(members.tolist()))
        if len(each) == 1:
            yield Part(at, each[0], _shown(pairs.see, at, each[0], own))
            continue
        for head, rows in zip(np.ndindex(*q.shape[-4:-2]), each, strict=True):
            yield Part((*at, *head), rows, _shown(pairs.see, (*at, *head), rows, 2))


def _at(x: Array, at: Index, own: int) -> Array:
    """One item, or one head of it, with its last `own` axes; axes before them may have length 1, or be missing."""
    return x[within(at, x.shape[: max(x.ndim - own, 0)])]


def _shown(see: Any, at: Index, rows: Rows, own: int) -> Array | None:
    """Which entries are not hidden, (..., nnz) bool; None if nothing hides any."""
    found = []
    if see.mask is not None:
        found.append(_entries(_at(see.mask, at, own), rows))
    if see.q_segments is not None:
        found.append(_entries(_at(see.q_segments, at, own), rows) == _entries(_at(see.k_segments, at, own), rows))
    if see.key_valid is not None:
        found.append(_entries(_at(see.key_valid, at, own), rows))
    return np.logical_and.reduce(np.broadcast_arrays(*found)) if found else None


def _entries(x: Array, rows: Rows) -> Array:
    """(..., n | 1, m | 1) at each entry."""
    n, m = x.shape[-2:]
    return x[..., rows.row if n > 1 else 0 * rows.row, rows.col if m > 1 else 0 * rows.col]


def _summed(x: Array, shape: Index) -> Array:
    """x summed over the axes on which `shape` has 1."""
    axes = tuple(i for i, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if b == 1 and a != 1)
    return x.sum(axis=axes, keepdims=True) if axes else x
