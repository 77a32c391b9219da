"""Overrides of kernels for the law that generic = override: right ones, in another order of sums, and wrong ones.

``attend`` streams over tiles of keys with a running maximum, as fused kernels do; ``attend_vjp`` goes key by key tile with
whole columns of queries; ``prefix_mix`` goes token by token. Each wrong one has one mistake that such kernels have had.
"""

from __future__ import annotations

import functools

import numpy as np

TILE = 4
EVERY = slice(None)


def _tiles(m):
    return [slice(a, min(a + TILE, m)) for a in range(0, m, TILE)]


def _keys(x, at):
    """Keys `at` of something (…, n | 1, m | 1)."""
    return x if x is None or x.shape[-1] == 1 else x[..., at]


def _scores(q, k, scores, at):
    """Scores of all queries with the keys `at`, and their slope."""
    s = np.matmul(q, np.swapaxes(k[..., at, :], -1, -2)) * scores.scale
    slope = 1.0
    if scores.softcap is not None:
        bent = np.tanh(s / scores.softcap)
        s, slope = bent * scores.softcap, 1.0 - bent * bent
    return (s if scores.bias is None else s + _keys(scores.bias, at)), slope


def _clean(see, *keys):
    """Keys and values that nobody sees as zeros."""
    seen = None if see is None else np.swapaxes(see.any(axis=-2, keepdims=True), -1, -2)
    return [x if see is None else np.where(seen, x, 0.0) for x in keys]


def attend(q, k, v, sink, keep, see, scores, *, keep_rate, block, rescale=True, last=True, sinks=True):
    """Online softmax. Mistakes: rescale=False does not rescale o, last=False drops a partial tile, sinks=False the sink."""
    visible = see.rows(EVERY)
    k, v = _clean(visible, k, v)
    q = q if visible is None else np.where(visible.any(axis=-1, keepdims=True), q, 0.0)
    shape = np.broadcast_shapes(q.shape[:-1], (*k.shape[:-2], 1))
    top, z, o = np.full((*shape, 1), -np.inf), np.zeros((*shape, 1)), np.zeros((*shape, v.shape[-1]))
    for at in _tiles(k.shape[-2]):
        if not last and at.stop - at.start < TILE:
            continue
        s, _ = _scores(q, k, scores, at)
        s = s if visible is None else np.where(_keys(visible, at), s, -np.inf)
        new = np.maximum(top, s.max(axis=-1, keepdims=True))
        gauge = np.where(new == -np.inf, 0.0, new)
        e = np.exp(s - gauge)
        shrink = np.exp(top - gauge)
        z = z * shrink + e.sum(axis=-1, keepdims=True)
        kept = e if keep is None else np.where(_keys(keep, at), e, 0.0)
        o = (o * shrink if rescale else o) + np.matmul(kept, v[..., at, :])
        top = new
    gauge = np.where(top == -np.inf, 0.0, top)
    if sink is not None and sinks:
        gauge = np.maximum(top, sink)
        z, o = z * np.exp(top - gauge) + np.exp(sink - gauge), o * np.exp(top - gauge)
    none = z == 0.0
    z = np.where(none, 1.0, z)
    return o / (z * (keep_rate or 1.0)), np.where(none, -np.inf, gauge + np.log(z))


def attend_vjp(q, k, v, sink, keep, see, scores, o, lse, do, dlse, *, keep_rate, block, normaliser=True, slopes=True):
    """One tile of keys after another. Mistakes: normaliser=False forgets D, slopes=False the slope of the softcap."""
    visible, none = see.rows(EVERY), lse == -np.inf
    k, v = _clean(visible, k, v)
    q, o, do = (np.where(none, 0.0, x) for x in (q, o, do))
    dlse = np.zeros_like(lse) if dlse is None else np.where(none, 0.0, dlse)
    safe, D = np.where(none, 0.0, lse), (do * o).sum(axis=-1, keepdims=True) - dlse
    dq, dks, dvs, dss = np.zeros_like(q), [], [], []
    for at in _tiles(k.shape[-2]):
        s, slope = _scores(q, k, scores, at)
        shown = np.broadcast_to(True, s.shape) if visible is None else _keys(visible, at)
        p = np.where(shown & ~none, np.exp(np.where(shown, s - safe, 0.0)), 0.0)
        factor = 1.0 if keep is None else _keys(keep, at) / keep_rate
        dp = np.matmul(do, np.swapaxes(v[..., at, :], -1, -2)) * factor
        ds = p * (dp - D if normaliser else dp)
        dvs.append(np.matmul(np.swapaxes(p * factor, -1, -2), do))
        dss.append(ds)
        ds = ds * (slope if slopes else 1.0) * scores.scale
        dq = dq + np.matmul(ds, k[..., at, :])
        dks.append(np.matmul(np.swapaxes(ds, -1, -2), q))
    dbias = None if scores.bias is None else _summed(np.concatenate(dss, axis=-1), scores.bias.shape)
    dsink = None if sink is None else np.where(none, 0.0, -np.exp(sink - safe) * D).sum(axis=-2, keepdims=True)
    return dq, np.concatenate(dks, axis=-2), np.concatenate(dvs, axis=-2), dbias, dsink


def _summed(x, shape):
    axes = tuple(a for a, size in enumerate((*(1,) * (x.ndim - len(shape)), *shape)) if size == 1 and x.shape[a] != 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


def prefix_mix(q, k, v, *, reverse=False, chunk=None, last=True, own=True, carried=True):
    """Token by token. Mistakes: own=False leaves out a token itself, carried=False empties the state after TILE tokens,
    last=False drops the tokens of a partial tile."""
    n = q.shape[-2]
    state, out = 0.0, np.zeros((*np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v))), n, v.shape[-1]))
    for step, i in enumerate(reversed(range(n)) if reverse else range(n)):
        if not last and step >= n - n % TILE:
            break
        state = state if carried or step % TILE else 0.0
        new = state + k[..., i, :, None] * v[..., i, None, :]
        out[..., i, :] = np.sum(q[..., i, :, None] * (new if own else state), axis=-2)
        state = new
    return out


def bucket_sort(buckets, ties=1):
    """Counted, one bucket after another. Mistake: ties=-1 puts later tokens of a bucket first."""
    order = np.lexsort((ties * np.arange(buckets.shape[-1]) + 0 * buckets, buckets), axis=-1)
    return order, np.argsort(order, axis=-1)


def angular_hash(x, rotations, factors, both=True):
    """Column by column. Mistake: both=False forgets the opposite directions."""
    start, stride, found = 0, 1, 0
    turned = np.einsum("...nd,...rdw->...rnw", x, rotations)
    for f in factors or (2 * rotations.shape[-1],):
        part = turned[..., start : start + f // 2]
        found = found + stride * np.argmax(np.concatenate([part, -part], axis=-1) if both else part, axis=-1)
        start, stride = start + f // 2, stride * f
    return found


RIGHT = {"attend": attend, "attend_vjp": attend_vjp, "prefix_mix": prefix_mix, "bucket_sort": bucket_sort,
         "angular_hash": angular_hash}
WRONG = {
    "o is not rescaled": ("attend", functools.partial(attend, rescale=False)),
    "a partial tile of keys is dropped": ("attend", functools.partial(attend, last=False)),
    "the sink is forgotten": ("attend", functools.partial(attend, sinks=False)),
    "no gradient through the normaliser": ("attend_vjp", functools.partial(attend_vjp, normaliser=False)),
    "ties are turned around": ("bucket_sort", functools.partial(bucket_sort, ties=-1)),
    "no opposite directions": ("angular_hash", functools.partial(angular_hash, both=False)),
    "no slope of the softcap": ("attend_vjp", functools.partial(attend_vjp, slopes=False)),
    "a token does not see itself": ("prefix_mix", functools.partial(prefix_mix, own=False)),
    "the state of earlier tiles is lost": ("prefix_mix", functools.partial(prefix_mix, carried=False)),
    "the tokens of a partial tile are dropped": ("prefix_mix", functools.partial(prefix_mix, last=False)),
    "suffix sums are prefix sums": ("prefix_mix", lambda *args, reverse=False, chunk=None: prefix_mix(*args)),
}
