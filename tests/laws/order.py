"""Where queries and keys stand in causal order, and which slots of an input come after a moment."""

from __future__ import annotations

import numpy as np


def ordered(scheme, inputs):
    """The letters of the axes whose order means something: positions that are given travel with their tokens."""
    if getattr(scheme, "projection", "linear") != "linear":  # neighbours are summed up
        return {"m"}
    if not getattr(scheme, "causal", False):
        return set()
    given = {"n": getattr(inputs, "q_positions", None), "m": getattr(inputs, "k_positions", None)}
    return {letter for letter, x in given.items() if x is None}


def needs_align(scheme):
    """True if it matters where queries stand (a causal order, a pattern), so that n ≠ m needs `align` or positions."""
    return getattr(scheme, "causal", hasattr(scheme, "pattern"))


def positions(scheme, inputs):
    """{"n": of the queries, "m": of the keys}, (b, n) or (n,): a query sees no key of a larger position."""
    n, m = inputs.q.shape[-2], inputs.k.shape[-2]
    offset = m - n if scheme.align == "bottom_right" else 0
    given = [getattr(inputs, f"{x}_positions", None) for x in "qk"]
    usual = np.arange(n) + offset, np.arange(m)
    return {letter: u if g is None else g for letter, g, u in zip("nm", given, usual, strict=True)}


def after(places, moment):
    """{"n": …, "m": …}: which queries and keys stand at `moment` or later."""
    return {letter: x >= moment for letter, x in places.items()}


def slots(axes, late):
    """bool, broadcasts to an array with these axes: the slots that a late query or a late key takes part in."""
    out = np.zeros((1,) * len(axes), dtype=bool)
    for letter, x in late.items():
        if letter in axes:
            x = x if x.ndim == 1 or "b" in axes else x.all(axis=0)  # shared by all items: late in every one of them
            shape = [1] * len(axes)
            shape[axes.index(letter)] = x.shape[-1]
            if x.ndim > 1:
                shape[axes.index("b")] = x.shape[0]
            out = out | x.reshape(shape)
    return out
