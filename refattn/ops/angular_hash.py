"""Angular hash: which of the directions ±r_1 … ±r_w, drawn at random, is the one that a vector points to most.

    h(x) = argmax [xR; −xR]                                    one of 2w buckets, the first one among equals (zero vector: 0)
    h(x) = Σ_m h_m(x) f_0 ⋯ f_(m−1)                            factorised: h_m from the next f_m/2 columns of R, one of f_m

x: (..., n, d)   R: (..., r, d, w), one for each round   buckets: (..., r, n), whole numbers.   h(a·x) = h(x) for a > 0.
Andoni et al. (arXiv:1509.02897), §3, with Gaussian columns that are not made orthogonal, as in Kitaev et al.
(arXiv:2001.04451), §2; two vectors at angle θ meet in one of two buckets with probability 1 − θ/π. Factors as in trax.
"""

from __future__ import annotations

from typing import Any

from refattn.backend import of
from refattn.errors import OptionError
from refattn.kernels import kernel
from refattn.shapes import product

Array = Any


@kernel("angular_hash")
def angular_hash(x: Array, rotations: Array, factors: tuple[int, ...] | None) -> Array:
    """Buckets (..., r, n); None: one factor, 2w. A decision: it has no gradient."""
    xp = of(x, rotations).xp
    turned = xp.matmul(x[..., None, :, :], rotations)
    found, start, stride = None, 0, 1
    for f in widths(rotations.shape[-1], factors):
        part = turned[..., start : start + f // 2]
        digit = xp.argmax(xp.concat([part, -part], axis=-1), axis=-1)
        found = digit if found is None else found + digit * stride
        start, stride = start + f // 2, stride * f
    return found


def even(factors: Any) -> tuple[int, ...] | None:
    """The factors of a hash as a tuple; OptionError unless all are even whole numbers."""
    if factors is None:
        return None
    listed = isinstance(factors, tuple | list) and len(factors) > 0
    if not listed or any(isinstance(f, bool) or not isinstance(f, int) or f < 2 or f % 2 for f in factors):
        raise OptionError(f"factors={factors!r}: give even whole numbers; a column of rotations makes two buckets")
    return tuple(factors)


def widths(w: int, factors: tuple[int, ...] | None) -> tuple[int, ...]:
    """The factors of a hash whose rotations have w columns; OptionError if they need another number of columns."""
    factors = (2 * w,) if factors is None else factors
    if sum(factors) != 2 * w or w == 0:
        raise OptionError(f"factors={factors} need {sum(factors) // 2} columns of rotations, but there are {w}; "
                          f"{product(factors)} buckets are made of Σ f/2 columns")
    return factors
