"""Overrides of linear attention, as in ``laws.overrides``: right ones, pair by pair of tokens, and wrong ones."""

from __future__ import annotations

import functools

import numpy as np

from refattn.ops.visibility import offset


def _pairs(q, k, key_valid, scheme, own, alike):
    """(head of q, head of k, its φ(q), φ(k), who sees whom (n, m)); own=False gives all items the padding of the first,
    alike=False lets query heads read key heads in the order of the other map."""
    n, m, lead = q.shape[-2], k.shape[-2], q.shape[:-2]
    many, few = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    valid = np.broadcast_to(True if key_valid is None else key_valid, (*lead[:-1], m))
    near = np.tri(n, m, offset(True, scheme.align, n, m), dtype=bool) if scheme.causal else np.ones((n, m), bool)
    for at in np.ndindex(*lead):
        tiled = (scheme.heads == "tiled") == alike
        key = (*at[:-1], at[-1] % few if tiled else at[-1] // (many // few)) if at else ()
        see = near & valid[at[:-1] if own else (0,) * len(at[:-1])]
        seen, seeing = see.any(axis=0)[:, None], see.any(axis=1)[:, None]
        fq, fk = scheme.feature(np.where(seeing, q[at], 0.0)), scheme.feature(np.where(seen, k[key], 0.0))
        yield at, key, fq, fk, see, seen, seeing


def _scale(q, scheme):
    return scheme.scale if scheme.scale is not None else q.shape[-1] ** -0.5


def attend_features(q, k, v, key_valid, *, scheme, block, own=True, alike=True, eps=True):
    """Mistakes: own=False and alike=False as above, eps=False forgets ε."""
    o, z, scale = np.zeros((*q.shape[:-1], v.shape[-1])), np.zeros(q.shape[:-1]), _scale(q, scheme)
    for at, key, fq, fk, see, seen, _ in _pairs(q, k, key_valid, scheme, own, alike):
        w = np.where(see, np.einsum("ir,jr->ij", fq, fk), 0.0) * scale
        z[at] = w.sum(axis=-1) + eps * scheme.eps * (scale * fq.sum(axis=-1) if scheme.eps_at == "keys" else 1.0)
        some = z[at] != 0.0 if scheme.normalise else np.ones(len(w), bool)
        by = np.where(some, z[at], 1.0)[:, None] if scheme.normalise else 1.0
        o[at] = np.where(some[:, None], np.einsum("ij,je->ie", w, np.where(seen, v[key], 0.0)) / by, 0.0)
    return o, z if scheme.normalise else None


def attend_features_vjp(q, k, v, key_valid, o, z, do, *, scheme, block, own=True, added=True, normaliser=True):
    """Mistakes: own=False as above, added=False keeps of a key what its last reader brought, normaliser=False takes z for
    a constant."""
    (dq, dk, dv), scale = (np.zeros(x.shape) for x in (q, k, v)), _scale(q, scheme)
    for at, key, fq, fk, see, seen, seeing in _pairs(q, k, key_valid, scheme, own, True):
        some = seeing if z is None else seeing & (z[at] != 0.0)[:, None]
        pull, by = np.where(some, do[at], 0.0), 1.0 if z is None else np.where(some, z[at][:, None], 1.0)
        values, w = np.where(seen, v[key], 0.0), np.where(see, np.einsum("ir,jr->ij", fq, fk), 0.0) * scale
        dz = 0.0 if z is None or not normaliser else -np.sum(pull * o[at], axis=-1, keepdims=True) / by
        dw = np.where(see, np.einsum("ie,je->ij", pull, values) / by + dz, 0.0) * scale
        dfq = np.einsum("ij,jr->ir", dw, fk) + (dz * scheme.eps * scale if scheme.eps_at == "keys" else 0.0)
        dq[at] = np.where(seeing, scheme.feature.vjp(q[at], fq, dfq), 0.0)
        mine = np.where(seen, scheme.feature.vjp(k[key], fk, np.einsum("ij,ir->jr", dw, fq)), 0.0)
        dk[key] = mine + (dk[key] if added else 0.0)
        dv[key] = np.where(seen, np.einsum("ij,ie->je", w / by, pull), 0.0) + (dv[key] if added else 0.0)
    return dq, dk, dv


RIGHT = {"attend_features": attend_features, "attend_features_vjp": attend_features_vjp}
WRONG = {
    "every item is padded like the first": ("attend_features", functools.partial(attend_features, own=False)),
    "heads read keys by the other map": ("attend_features", functools.partial(attend_features, alike=False)),
    "linear attention without its epsilon": ("attend_features", functools.partial(attend_features, eps=False)),
    "gradients as if every item were padded like the first": (
        "attend_features_vjp", functools.partial(attend_features_vjp, own=False)),
    "keys get what their last reader pulls": ("attend_features_vjp", functools.partial(attend_features_vjp, added=False)),
    "the sum of weights is a constant": ("attend_features_vjp", functools.partial(attend_features_vjp, normaliser=False)),
}
