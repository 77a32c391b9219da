"""The array of the exact reading: every real number is a ball, midpoint ± radius, that certainly contains it.

Balls are python-flint's ``arb`` in NumPy arrays of objects; truth values and integers are plain NumPy arrays, since they
were given or decided. NumPy moves balls about, it never compares them: its comparisons of objects take "not certainly
greater" for "not greater". F. Johansson, *Arb: efficient arbitrary-precision midpoint-radius interval arithmetic*
(arXiv:1611.02831).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flint import arb, ctx

from refattn.errors import Undecided

from .shell import Shell

Array = Any
ZERO: Any = arb(0)


def each(function: Callable[..., Any], operands: int = 1) -> Callable[..., Array]:
    """`function` of balls, entry by entry, over NumPy's broadcasting; an array even where that has no axes."""
    entrywise = np.frompyfunc(function, operands, 1)

    def call(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(entrywise(*arrays), dtype=object)

    return call


@contextmanager
def at(bits: int) -> Iterator[None]:
    """Inside it flint computes at so many bits, and NumPy takes no notice of the processor flags that this raises."""
    with ctx.workprec(bits), np.errstate(all="ignore"):
        yield


def is_real(x: Array) -> bool:
    """True for an array of balls, False for one of truth values or integers."""
    return bool(x.dtype.kind == "O")


_lifted = each(arb)


def balls(x: Array) -> Array:
    """The entries as balls: floats, integers and truth values are exact."""
    if is_real(x):
        return x
    return _lifted(x.astype(np.int64) if x.dtype.kind in "iub" else x.astype(np.float64, copy=False))


class Ball(Shell):
    """An array of balls, or of integers or truth values, read at the precision of its reading."""

    __slots__ = ("entries", "reading")

    def __init__(self, reading: Any, entries: Array) -> None:
        self.reading = reading
        self.entries = entries

    @property
    def __refattn_backend__(self) -> Any:
        return self.reading

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.entries.shape)

    @property
    def dtype(self) -> Any:
        return np.dtype(np.float64) if is_real(self.entries) else self.entries.dtype

    def mid(self) -> Array:
        """The midpoints, rounded to the nearest float64; truth values and integers as they are."""
        return _floats(self.entries) if is_real(self.entries) else self.entries

    def rad(self) -> Array:
        """The radii, rounded up to float64: 0 only where the number is known exactly."""
        return _radii(self.entries) if is_real(self.entries) else np.zeros(self.shape)

    def distance(self, values: Array) -> Array:
        """|x − values|, rounded up to float64, of float64 `values`: certainly no less than the true distance.

        Equal infinities are 0 apart, everything else that is not finite inf.
        """
        with at(self.reading.bits):
            return _distances(balls(self.entries), balls(np.asarray(values))).astype(np.float64)

    def golden(self) -> Array:
        """The numbers correctly rounded to float64: both ends of every ball round to the same float.

        The sign of a number that is exactly 0 by cancellation is decided at no precision. A ball that contains 0 and has a
        radius below 2^(−0.75·bits) is therefore taken for 0; ``reading.log`` has ("zero", entries, entries so taken).
        Below 2^−1075 no such rule is needed, since everything there rounds to 0.

        Raises
        ------
        Undecided
            If an entry needs more bits, or is not a number at any precision.
        """
        values, zeros = self.settled()
        self.reading.log.append(("zero", self.size, zeros))
        return values

    def settled(self) -> tuple[Array, int]:
        """``golden``, and how many entries were taken for 0."""
        if not is_real(self.entries):
            return self.entries, 0
        with at(self.reading.bits):
            found = _rounded(self.entries).astype(np.float64)
            open_ = [tuple(where) for where in np.argwhere(np.isnan(found))]
            zeros = [where for where in open_ if self._vanishes(self.entries[where])]
            if len(zeros) < len(open_):
                self._refuse(next(where for where in open_ if where not in zeros), len(open_) - len(zeros))
            for where in zeros:
                found[where] = 0.0
        return found, len(zeros)

    def _vanishes(self, x: Any) -> bool:
        return bool(x.is_finite() and x.contains(0) and x.rad() < arb(2) ** (-3 * self.reading.bits // 4))

    def _refuse(self, where: tuple[int, ...], count: int) -> None:
        raise Undecided(
            f"{count} of {self.size} entries do not round to one float64 at {self.reading.bits} bits, as "
            f"{self.entries[where]} at [{', '.join(map(str, where))}]"
        )

    def __repr__(self) -> str:
        worst = f"radius ≤ {np.max(self.rad(), initial=0.0):.2g}" if is_real(self.entries) else "exact"
        return f"Ball({self.shape}, {self.dtype}, {worst}, {self.reading.bits} bits)"


def _up(x: Any) -> float:
    """An exact x ≥ 0 rounded up to a float."""
    near = float(x)
    return near if math.isnan(near) or not arb(near) < x else math.nextafter(near, math.inf)


def _distance(x: Any, y: Any) -> float:
    if x.is_finite() and y.is_finite():
        return _up(abs(x - y).upper())
    return 0.0 if x == y else math.inf


def _nearest(x: Any) -> float:
    """The float that both ends of x round to, or NaN."""
    low, high = float(x.lower()), float(x.upper())
    return low + 0.0 if low == high else math.nan  # + 0.0: no negative zero


def _floats(x: Array) -> Array:
    return each(float)(x).astype(np.float64)


def _radii(x: Array) -> Array:
    return each(lambda ball: _up(ball.rad()))(x).astype(np.float64)


_distances = each(_distance, 2)
_rounded = each(_nearest)
