"""Causal attention in tiles with an online softmax, as a GPU kernel would do it, in NumPy: forward and backward.

Query i of n sees the first i + 1 + m - n of the m keys (bottom-right alignment). Shapes: q (B, H, n, d), k (B, G, m, d),
v (B, G, m, e), with H a multiple of G: query head h reads key head h // (H / G).
"""

import numpy as np

TILE = 16


def visible(rows, keys, n, m):
    """Which of `keys` each of `rows` may look at."""
    count = rows[:, None] + 1 + m - n
    return keys[None, :] < count


def attention(q, k, v):
    """o (B, H, n, e) and the logarithm of each row's softmax denominator, lse (B, H, n)."""
    q, k, v, dtype = wide(q), per_query_head(wide(k), q), per_query_head(wide(v), q), q.dtype
    n, m = q.shape[-2], k.shape[-2]
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], -np.inf, q.dtype)
    for rows in tiles(n):
        top = np.full((*q.shape[:-2], len(rows), 1), -np.inf, q.dtype)
        total, sums = np.zeros_like(top), np.zeros((*top.shape[:-1], v.shape[-1]), q.dtype)
        for keys in tiles(m):
            s = q[..., rows, :] @ k[..., keys, :].swapaxes(-1, -2) * scale(q)
            s = np.where(visible(rows, keys, n, m), s, -np.inf)
            new = np.maximum(top, s.max(axis=-1, keepdims=True))
            gauge = np.where(new == -np.inf, 0, new)
            p, shrink = np.exp(s - gauge), np.exp(top - gauge)
            total = total * shrink + p.sum(axis=-1, keepdims=True)
            sums = sums * shrink + p @ v[..., keys, :]
            top = new
        some = total > 0
        safe = np.where(some, total, 1)
        o[..., rows, :] = sums / safe
        lse[..., rows] = np.where(some, top + np.log(safe), -np.inf)[..., 0]
    return o.astype(dtype), lse


def attention_vjp(q, k, v, o, lse, do, dlse=None):
    """dq, dk and dv for cotangents do of o and dlse of lse."""
    heads, dtype = k.shape[1], q.dtype
    q, k, v, o, do = wide(q), per_query_head(wide(k), q), per_query_head(wide(v), q), wide(o), wide(do)
    n, m = q.shape[-2], k.shape[-2]
    delta = (do * o).sum(axis=-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    gauge = np.where(lse == -np.inf, 0, lse)[..., None]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows in tiles(n):
        for keys in tiles(m):
            s = q[..., rows, :] @ k[..., keys, :].swapaxes(-1, -2) * scale(q)
            p = np.exp(np.where(visible(rows, keys, n, m), s, -np.inf) - gauge[..., rows, :])
            ds = p * (do[..., rows, :] @ v[..., keys, :].swapaxes(-1, -2) - delta[..., rows, :]) * scale(q)
            dq[..., rows, :] += ds @ k[..., keys, :]
            dk[..., keys, :] += ds.swapaxes(-1, -2) @ q[..., rows, :]
            dv[..., keys, :] += p.swapaxes(-1, -2) @ do[..., rows, :]
    dk, dv = per_key_head(dk, heads), per_key_head(dv, heads)
    return {"dq": dq.astype(dtype), "dk": dk.astype(dtype), "dv": dv.astype(dtype)}


def tiles(size):
    """The indices 0 ... size - 1, TILE at a time."""
    return [np.arange(first, min(first + TILE, size)) for first in range(0, size, TILE)]


def scale(q):
    """1/sqrt(d), as a number of q's precision."""
    return q.dtype.type(q.shape[-1] ** -0.5)


def wide(x):
    """Half precision is computed in float32."""
    return x.astype(np.result_type(x.dtype, np.float32))


def per_query_head(x, q):
    """Keys or values repeated for the query heads that share them."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def per_key_head(x, heads):
    """The gradients of repeated heads summed."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads, *x.shape[2:]).sum(axis=2)
