"""Overrides of attention over slots, as in ``laws.overrides``: right ones, dense, from counted meetings, and wrong ones."""

from __future__ import annotations

import functools

import numpy as np

from refattn.ops.meetings import meetings

TINY = 1e-9


def _dense(x, root, found, meeting, counted=True):
    """(s, w): all scores (items, n, n), and with which weight each counts; counted=False: each that is seen, once."""
    items, n, _ = x.shape
    inside = np.zeros((items, n + 1), dtype=bool)
    np.put_along_axis(inside, found.queries.reshape(items, -1), True, axis=1)
    valid, k = inside[:, :n], x if root is None else x / root
    s = np.matmul(x, np.swapaxes(k, -1, -2)) * meeting.scale
    if meeting.self_score is not None:
        s = np.where(np.eye(n, dtype=bool), meeting.self_score, s)
    met, once = meetings(meeting.buckets, valid, found.window, np.zeros_like(s))
    w = {"counted": met, "once": met > 0, "2020": met / (once + TINY)}[meeting.duplicates]
    w = w if counted else (met > 0) * 1.0
    if meeting.causal:
        at = np.broadcast_to(np.arange(n) if meeting.positions is None else meeting.positions, (items, n))
        w = np.where(at[:, :, None] >= at[:, None, :], w, 0.0)
    return s, w * 1.0


def attend_slots(x, root, v, found, meeting, *, block, counted=True):
    """Mistake: counted=False counts a token that is met in several rounds once, whatever the setting."""
    s, w = _dense(x, root, found, meeting, counted)
    top = np.max(np.where(w > 0, s, -np.inf), axis=-1)
    top = np.where(top == -np.inf, 0.0, top)
    e = w * np.exp(np.where(w > 0, s, top[..., None]) - top[..., None])
    z = e.sum(axis=-1)
    none = z == 0
    z = np.where(none, 1.0, z)
    return np.matmul(e, v) / z[..., None], np.where(none, -np.inf, top + np.log(z)), top, z


def attend_slots_vjp(x, root, v, found, meeting, results, do, dlse, *, block, length=True, apart=True, normaliser=True):
    """Mistakes: length=False takes the length of keys for a constant, apart=False gives self scores a slope,
    normaliser=False forgets D."""
    o, lse, top, z = results
    s, w = _dense(x, root, found, meeting)
    none, k = (lse == -np.inf)[..., None], x if root is None else x / root
    do, dlse = np.where(none, 0.0, do), np.zeros_like(z) if dlse is None else np.where(none[..., 0], 0.0, dlse)
    D = (do * o).sum(axis=-1) - dlse
    p = w * np.exp(np.where(w > 0, s, top[..., None]) - top[..., None]) / z[..., None]
    ds = p * (np.matmul(do, np.swapaxes(v, -1, -2)) - (D[..., None] if normaliser else 0.0)) * meeting.scale
    if meeting.self_score is not None and apart:
        ds = np.where(np.eye(x.shape[1], dtype=bool), 0.0, ds)
    dk = np.matmul(np.swapaxes(ds, -1, -2), x)
    if root is not None:
        dk = (dk - k * (k * dk).sum(axis=-1, keepdims=True) * length) / root
    return np.matmul(ds, k) + dk, np.matmul(np.swapaxes(p, -1, -2), do)


RIGHT = {"attend_slots": attend_slots, "attend_slots_vjp": attend_slots_vjp}
WRONG = {
    "a token met in several rounds counts once": ("attend_slots", functools.partial(attend_slots, counted=False)),
    "the length of keys is a constant": ("attend_slots_vjp", functools.partial(attend_slots_vjp, length=False)),
    "the score of a token with itself has a slope": ("attend_slots_vjp", functools.partial(attend_slots_vjp, apart=False)),
    "no gradient through the sum of rounds": ("attend_slots_vjp", functools.partial(attend_slots_vjp, normaliser=False)),
}
