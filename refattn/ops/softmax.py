"""Softmax statistics of a row of scores, safe where a row sees nothing.

    c = max_j s_j  (0 for a row that sees nothing)      e_j = exp(s_j − c)      z = Σ_j e_j      lse = c + log z

c is a gauge: any value gives the same weights, so it passes through ``constant``.
"""

from __future__ import annotations

import math
from typing import Any

from refattn.backend import of

Array = Any


def row_max(s: Array, see: Array | None, sink: Array | None = None) -> Array:
    """A stabiliser (..., rows, 1): the largest visible score or sink, or 0 where there is none."""
    b = of(s)
    xp = b.xp
    if s.shape[-1] == 0:
        c = xp.sum(s, axis=-1, keepdims=True) - math.inf  # no key: nothing to take the maximum of
    else:
        c = xp.max(s if see is None else xp.where(see, s, -math.inf), axis=-1, keepdims=True)
    c = b.constant(c if sink is None else xp.maximum(c, sink))
    return xp.where(c == -math.inf, 0.0, c)


def weights(s: Array, see: Array | None, c: Array) -> Array:
    """e = exp(s − c) where visible, 0 elsewhere; selected before and after exp, so that nothing invisible leaks."""
    xp = of(s, c).xp
    if see is None:
        return xp.exp(s - c)
    return xp.where(see, xp.exp(xp.where(see, s - c, 0.0)), 0.0)
