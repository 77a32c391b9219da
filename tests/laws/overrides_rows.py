"""Overrides of the kernels over rows of entries, as in ``laws.overrides``: right ones, query by query, and wrong ones."""

from __future__ import annotations

import functools

import numpy as np


def _entries(rows, last=True):
    """(query, its entries) of every query that has some; last=False drops the last entry of each."""
    for i, (a, b) in enumerate(zip(rows.start[:-1].tolist(), rows.start[1:].tolist(), strict=True)):
        if a < (b if last else b - 1):
            yield i, slice(a, b if last else b - 1)


def _weights(q, k, ok, rows, i, at, scale, gauge, counted):
    """count·exp(s − gauge) of the entries of one query; gauge=None: their maximum, handed out too."""
    s = np.einsum("...d,...jd->...j", q[..., i, :], k[..., rows.col[at], :]) * scale
    s = s if ok is None else np.where(ok[..., at], s, -np.inf)
    top = s.max(axis=-1, keepdims=True) if gauge is None else gauge
    top = np.where(top == -np.inf, 0.0, top)
    return np.exp(s - top) * (rows.count[at] if counted else 1), top


def attend_rows(q, k, v, ok, rows, *, scale, counted=True, last=True):
    """Mistakes: counted=False takes every count for 1, last=False drops the last entry of every query."""
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1])), np.full((*q.shape[:-1], 1), -np.inf)
    for i, at in _entries(rows, last):
        e, top = _weights(q, k, ok, rows, i, at, scale, None, counted)
        z = e.sum(axis=-1, keepdims=True)
        none = z == 0.0
        z = np.where(none, 1.0, z)
        o[..., i, :] = np.einsum("...j,...je->...e", e, v[..., rows.col[at], :]) / z
        lse[..., i, :] = np.where(none, -np.inf, top + np.log(z))
    return o, lse


def attend_rows_vjp(q, k, v, ok, rows, lse, do, D, *, scale, added=True, counted=True):
    """dk and dv for every head of q. Mistakes: added=False keeps of a key what the last query brought, counted as above."""
    dq, dk, dv = (np.zeros((*q.shape[:-2], *x.shape[-2:])) for x in (q, k, v))
    for i, at in _entries(rows):
        j = rows.col[at]
        p, _ = _weights(q, k, ok, rows, i, at, scale, lse[..., i, :], counted)
        ds = p * (np.einsum("...e,...je->...j", do[..., i, :], v[..., j, :]) - D[..., i, :]) * scale
        dq[..., i, :] = np.einsum("...j,...jd->...d", ds, k[..., j, :])
        dk[..., j, :] = ds[..., None] * q[..., i, None, :] + (dk[..., j, :] if added else 0.0)
        dv[..., j, :] = p[..., None] * do[..., i, None, :] + (dv[..., j, :] if added else 0.0)
    return dq, dk, dv


def _heads(q, k, v, pairs, own, hidden):
    """(head, its keys and values, its counts (n, m)), for every head; own=False gives all items the members of the first."""
    n, m, lead = q.shape[-2], k.shape[-2], q.shape[:-2]
    members = np.broadcast_to(pairs.members[1], (*lead, 1, m))
    see = pairs.see.rows(slice(0, n)) if hidden else None
    see = np.broadcast_to(True if see is None else see, (*lead, n, m))
    k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (k, v))
    for at in np.ndindex(*lead):
        each = pairs.lists(tuple(np.flatnonzero(members[at if own else (0,) * len(at)]).tolist()))
        rows = each[np.ravel_multi_index(at[-2:], lead[-2:]) if len(each) > 1 else 0]
        count = np.zeros((n, m))
        count[rows.row, rows.col] = rows.count
        count *= see[at]
        seen = count.any(axis=0)[:, None]
        yield at, np.where(count.any(axis=1)[:, None], q[at], 0.0), *(np.where(seen, x[at], 0.0) for x in (k, v)), count


def attend_counts(q, k, v, pairs, *, scale, block, own=True, hidden=True):
    """Mistakes: own=False as above, hidden=False shows members what padding and masks hide."""
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1])), np.full((*q.shape[:-1], 1), -np.inf)
    for at, a, b, c, count in _heads(q, k, v, pairs, own, hidden):
        s = np.where(count > 0, a @ b.T * scale, -np.inf)
        top = np.max(s, axis=-1, keepdims=True, initial=-1e300)
        e = count * np.exp(s - top)
        z = e.sum(axis=-1, keepdims=True)
        some = z[:, 0] > 0
        o[at][some], lse[at][some] = (e @ c)[some] / z[some], (top + np.log(np.where(z > 0, z, 1)))[some]
    return o, lse


def attend_counts_vjp(q, k, v, pairs, lse, do, D, *, scale, block, own=True, hidden=True):
    """dk and dv for every head of q; mistakes as above."""
    dq, dk, dv = (np.zeros((*q.shape[:-2], *x.shape[-2:])) for x in (q, k, v))
    for at, a, b, c, count in _heads(q, k, v, pairs, own, hidden):
        p = count * np.exp(np.where(count > 0, a @ b.T * scale - lse[at], -np.inf))
        ds = p * (do[at] @ c.T - D[at]) * scale
        dq[at], dk[at], dv[at] = ds @ b, ds.T @ a, p.T @ do[at]
    return dq, dk, dv


RIGHT = {"attend_rows": attend_rows, "attend_rows_vjp": attend_rows_vjp, "attend_counts": attend_counts,
         "attend_counts_vjp": attend_counts_vjp}
WRONG = {
    "counts are forgotten": ("attend_rows", functools.partial(attend_rows, counted=False)),
    "the last entry of a query is dropped": ("attend_rows", functools.partial(attend_rows, last=False)),
    "gradients of a key are not added up": ("attend_rows_vjp", functools.partial(attend_rows_vjp, added=False)),
    "counts are forgotten in the backward": ("attend_rows_vjp", functools.partial(attend_rows_vjp, counted=False)),
    "every item has the members of the first": ("attend_counts", functools.partial(attend_counts, own=False)),
    "members see what is hidden": ("attend_counts", functools.partial(attend_counts, hidden=False)),
    "every item has the members of the first, backward": (
        "attend_counts_vjp", functools.partial(attend_counts_vjp, own=False)),
}
