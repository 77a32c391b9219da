"""Someone's LSH attention in plain NumPy, chunks of 4, causal: sort, gather, softmax of each round, merge by logsumexp.

One head after another, in the dtype that comes in. It is no part of refattn and shares nothing with it.
"""

import numpy as np

CHUNK = 4
TINY = np.float32(1e-30)


def hashed(x, rotations):
    """Buckets (H, r, n)."""
    p = np.einsum("hnd,hrdw->hrnw", x, rotations)
    return np.argmax(np.concatenate([p, -p], axis=-1), axis=-1)


def planned(buckets):
    """Slots (r, K, CHUNK), and what the slots of a chunk see (r, K, 2·CHUNK); −1 for none."""
    n = buckets.shape[-1]
    order = np.argsort(buckets.astype(np.int64) * n + np.arange(n), axis=-1)
    rest = np.full((len(order), -n % CHUNK), -1, np.int64)
    slots = np.concatenate([order, rest], axis=-1).reshape(len(order), -1, CHUNK)
    before = np.concatenate([np.full_like(slots[:, :1], -1), slots[:, :-1]], axis=1)
    return slots, np.concatenate([before, slots], axis=-1)


def attention(qk, v, rotations=None, buckets=None):
    found = np.stack([hashed(x, rotations) for x in qk]) if buckets is None else buckets
    o, lse = np.zeros_like(v), np.zeros(qk.shape[:-1], qk.dtype)
    for at in np.ndindex(qk.shape[:2]) if v.size else ():
        o[at], lse[at] = one_head(qk[at], v[at], found[at])
    return {"o": o, "lse": lse, "buckets": found}


def one_head(x, v, buckets):
    k = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), TINY)
    o, lse = np.zeros((len(buckets), *v.shape), v.dtype), np.zeros((len(buckets), len(x)), x.dtype)
    for r, chunks in enumerate(zip(*planned(buckets), strict=True)):
        for q, w in zip(*chunks, strict=True):
            q = q[q >= 0]
            s = np.where(q[:, None] == w, np.float32(-1e5), x[q] @ k[w].T)
            s = np.where((w < 0) | (w > q[:, None]), -np.inf, s).astype(x.dtype)
            top = s.max(axis=-1, keepdims=True)
            e = np.exp(s - top)
            z = e.sum(axis=-1, keepdims=True)
            o[r, q], lse[r, q] = e / z @ v[w], (top + np.log(z))[:, 0]
    top = lse.max(axis=0)
    z = np.exp(lse - top).sum(axis=0)
    return (np.exp(lse - top)[..., None] / z[:, None] * o).sum(axis=0), top + np.log(z)


def attention_vjp(qk, v, do, o, lse, buckets, dlse=None):
    """From lse alone, but for tokens that see only themselves: there its digits end."""
    dqk, dv = np.zeros_like(qk), np.zeros_like(v)
    for at in np.ndindex(qk.shape[:2]) if v.size else ():
        delta = (do[at] * o[at]).sum(axis=-1) - (0 if dlse is None else dlse[at])
        dqk[at], dv[at] = one_head_vjp(qk[at], v[at], do[at], delta, lse[at], buckets[at])
    return {"dqk": dqk, "dv": dv}


def one_head_vjp(x, v, do, delta, lse, buckets):
    norm = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), TINY)
    k, dq, dk, dv, alone = x / norm, np.zeros_like(x), np.zeros_like(x), np.zeros_like(v), lse < -5e4
    for chunks in zip(*planned(buckets), strict=True):
        for q, w in zip(*chunks, strict=True):
            q = q[q >= 0]
            own, there = q[:, None] == w, w >= 0
            s = np.where((w < 0) | (w > q[:, None]), -np.inf, x[q] @ k[w].T)
            p = np.where(own, 0, np.exp(np.minimum(s - lse[q][:, None], 80)))
            p = np.where(alone[q][:, None], own * np.float32(1 / len(buckets)), p).astype(x.dtype)
            ds = np.where(own, 0, p * (do[q] @ v[w].T - delta[q][:, None])).astype(x.dtype)
            dq[q] += ds @ k[w]
            np.add.at(dk, w[there], (ds.T @ x[q])[there])
            np.add.at(dv, w[there], (p.T @ do[q])[there])
    return dq + (dk - k * (k * dk).sum(axis=-1, keepdims=True)) / norm, dv


def from_lse(qk, v, buckets):
    """As in published code: weights are exp(s − lse), whose digits end at 0.0078 for tokens that see only themselves."""
    out = attention(qk, v, buckets=buckets)
    alone = out["lse"] < -5e4
    shares = buckets.shape[2] * np.exp(np.float32(-1e5) - out["lse"])
    return {**out, "o": np.where(alone[..., None], out["o"] * shares[..., None], out["o"]).astype(v.dtype)}
