"""Softmax attention to some of the keys, with the scores of exact attention: what it can be off by.

    μ_i = Σ_{j not seen by i} p_ij          o_i − õ_i = μ_i (mean of the v_j not seen − õ_i), both means by weights p_ij
    ‖o_i − õ_i‖ ≤ μ_i·diam(V),              diam(V) = max_jl ‖v_j − v_l‖

since both õ_i and the mean are averages of values. Equality takes two values. It is ours: nothing but a mean is split.
"""

from __future__ import annotations

import math
from typing import Any

from scipy.spatial.distance import pdist
from scipy.special import softmax

Array = Any
SOURCE = "o − õ = μ·(mean of what is not seen − õ), both averages of values"


def weights(q: Array, k: Array, scale: float, hidden: Array | None = None) -> Array:
    """P (n, m) of exact attention; `hidden`: pairs (n, m) that nobody sees."""
    scores = q @ k.T * scale
    return softmax(scores if hidden is None else scores - 1e300 * hidden, axis=-1)


def missed(P: Array, seen: Array) -> Array:
    """μ (n,) for the pairs (n, m) that are seen."""
    return (P * ~seen).sum(axis=-1)


def diameter(v: Array) -> float:
    """diam(V)."""
    return float(pdist(v).max())


def rms(x: Array) -> float:
    """Root of the mean square of rows (n, e)."""
    return math.sqrt(float((x**2).sum()) / len(x))


def worst(error: Array, bound: Array) -> float:
    """The largest ‖error_i‖ over its bound (n,); rows whose bound is 0 may be off by rounding alone, 1e-12."""
    size = (error**2).sum(axis=-1) ** 0.5
    return float((size / (bound + 1e-12)).max())
