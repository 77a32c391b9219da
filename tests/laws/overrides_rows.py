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


RIGHT = {"attend_rows": attend_rows, "attend_rows_vjp": attend_rows_vjp}
WRONG = {
    "counts are forgotten": ("attend_rows", functools.partial(attend_rows, counted=False)),
    "the last entry of a query is dropped": ("attend_rows", functools.partial(attend_rows, last=False)),
    "gradients of a key are not added up": ("attend_rows_vjp", functools.partial(attend_rows_vjp, added=False)),
    "counts are forgotten in the backward": ("attend_rows_vjp", functools.partial(attend_rows_vjp, counted=False)),
}
