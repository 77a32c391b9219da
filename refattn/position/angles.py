"""Angles of positions: position · θ_f with θ_f = base^(−f / half), taken in float64, handed out as cosines and sines.

A float32 angle at position 10⁵ is off by 4·10⁻³; its cosine is then wrong in the third digit. Vaswani et al.
(arXiv:1706.03762), §3.5, for the geometric frequencies.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from refattn.backend import check_array, of
from refattn.errors import DtypeError, OptionError, ShapeError
from refattn.shapes import Shape, broadcasts, shape_of

Array = Any
PAIRS = ("halves", "neighbours")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def frequencies(half: int, base: float, like: Array) -> Array:
    """θ_f = base^(−f / half) for f = 0 … half − 1, float64, on the device of `like`."""
    b = of(like)
    xp = b.xp
    f = xp.astype(b.lift(range(half), like), xp.float64)
    return xp.exp(-(f * xp.log(b.lift(float(base), like))) / float(max(half, 1)))


def turns(positions: Array, half: int, base: float, like: Array) -> tuple[Array, Array]:
    """cos and sin of position · θ_f, (..., n) → (..., n, half), in the dtype of `like`."""
    xp = of(like).xp
    angle = xp.astype(positions, xp.float64)[..., None] * frequencies(half, base, like)
    return xp.astype(xp.cos(angle), like.dtype), xp.astype(xp.sin(angle), like.dtype)


def places(given: Array | None, n: int, offset: int, like: Array) -> Array:
    """The positions that were given, else offset … offset + n − 1; in a dtype that has their differences."""
    b = of(like)
    if given is None:
        return b.lift(range(offset, offset + n), like)
    return b.xp.astype(given, b.xp.int64) if _dtype(given) in ("int8", "int16", *UNSIGNED) else given


def over_heads(x: Array, axes: int) -> Array:
    """Something of positions per item, with an axis of length one for the heads before its last `axes` axes."""
    return x if x.ndim <= axes else of(x).xp.expand_dims(x, axis=-axes - 1)


def check_positions(name: str, given: Any, n: int, lead: Shape, offset: int, *, whole: bool = False) -> None:
    """Refuse positions (..., n) that are no numbers, that do not belong to items with these leading axes, or that an offset
    contradicts; whole: fractions are refused too."""
    if given is None:
        return
    check_array(name, given)
    dtype, kinds = _dtype(given), ("int", "uint") if whole else ("int", "uint", "float", "bfloat")
    if not dtype.startswith(kinds):
        raise DtypeError(f"{name} has dtype {dtype}; positions are {'whole ' if whole else ''}numbers, give an integer "
                         f"dtype{'' if whole else ' (or a float dtype for fractions)'}")
    shape = shape_of(given)
    if not shape or shape[-1] != n:
        raise ShapeError(f"{name} has shape {shape}; its last axis must be {n}, one position for each token")
    broadcasts(name, shape[:-1], lead, "leading axes before the head axis")
    if offset:
        raise OptionError(f"offset={offset} and {name} contradict: give one of the two")


def check_pairs(pairs: str) -> None:
    """Refuse a pairing that does not exist."""
    if pairs not in PAIRS:
        raise OptionError(f"pairs={pairs!r}: choose 'halves' (f with f + width/2) or 'neighbours' (2f with 2f + 1)")


def check_whole(name: str, value: Any) -> None:
    """Refuse what is no whole number where tokens or features are counted."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{name}={value!r}: give a whole number")


def check_sizes(**sizes: Any) -> None:
    """Refuse numbers of tokens or features that are no whole numbers, or negative."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            told = ", ".join(f"{other}={x!r}" for other, x in sizes.items())
            raise OptionError(f"{name}={value!r}: give a whole number, 0 or more ({told})")


def check_base(base: float) -> None:
    """Refuse a base without a logarithm."""
    if isinstance(base, bool) or not isinstance(base, Real) or not 0.0 < base < math.inf:
        raise OptionError(f"base={base!r} must be positive and finite")


def check_float(name: str, x: Array) -> None:
    """Refuse integers and truth values where numbers are rotated, added or multiplied."""
    if not _dtype(x).startswith(("float", "bfloat")):
        raise DtypeError(f"{name} has dtype {_dtype(x)}; it must be a float dtype")


def _dtype(x: Array) -> str:
    """The dtype's plain name in any library."""
    return str(x.dtype).rpartition(".")[2]
