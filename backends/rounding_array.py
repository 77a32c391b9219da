"""The array of the rounding reading: a value, a rigorous error, and a predicted variance in three parts.

``error`` bounds, entry by entry, how far a correct kernel may be from ``value``; None means exact, NaN or inf unbounded.
Of a boolean array it is a mask: True where the kernel may find the other truth value. Entries whose value is not finite
have error 0: they are judged by their class, not by distance.

The variance of a correct kernel's error is kept apart by what repeats: errors that are independent from entry to entry,
errors common to a whole row (along axis −1: that of a row's lse, or of a query's D), and errors common to a whole column
(along axis −2). A sum adds the first in squares and the matching one of the others in absolute values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .shell import Shell

Array = Any
U64 = 2.0**-53
INFLATION = 1.0 + 1e-10  # the bounds are computed in float64 without directed rounding
_EXPONENT = np.int64(0x7FF0000000000000)


class Variance(NamedTuple):
    """Each part broadcasts to the shape of its array; None is zero."""

    alone: Array | None = None
    row: Array | None = None
    column: Array | None = None


EXACT = Variance()


class Rounded(Shell):
    """value (float64, int64 or bool), ``bound`` and ``sigma`` of one array under the precision of its reading."""

    __slots__ = ("_magnitude", "error", "reading", "value", "variance")

    def __init__(self, reading: Any, value: Array, error: Array | None = None, variance: Variance = EXACT) -> None:
        self.reading = reading
        self.value = np.asarray(value)
        self.error = error
        self.variance = variance
        self._magnitude: Array | None = None

    @property
    def __refattn_backend__(self) -> Any:
        return self.reading

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def magnitude(self) -> Array:
        """|value|, and 0 where the value is not finite."""
        if self._magnitude is None:
            self._magnitude = magnitude(self.value)
        return self._magnitude

    @property
    def reach(self) -> Array:
        """The largest magnitude that a correct kernel may hold."""
        return self.magnitude if self.error is None else self.magnitude + self.error

    @property
    def bound(self) -> Array:
        """Rigorous elementwise bound on |kernel − value|; inf where there is none, 0/1 for decided/undecided booleans."""
        if self.error is None:
            return np.zeros(self.shape)
        if self.error.dtype.kind == "b":
            return self.error.astype(np.float64)
        return np.where(np.isnan(self.error), np.inf, self.error * INFLATION)

    @property
    def sigma(self) -> Array:
        """Predicted standard deviation of a correct kernel's error."""
        parts = [part for part in self.variance if part is not None]
        return np.sqrt(sum(parts)) * np.ones(self.shape) if parts else np.zeros(self.shape)

    def __repr__(self) -> str:
        worst = "exact" if self.error is None else f"bound ≤ {np.max(self.bound, initial=0.0):.2g}"
        return f"Rounded({self.shape}, {self.dtype}, {worst}, {self.reading.precision.name})"


def magnitude(value: Array) -> Array:
    """|value| as float64, 0 where it is not finite."""
    size = np.abs(value) if value.dtype.kind == "f" else value.astype(np.float64)
    if value.dtype.kind == "i":
        size = np.abs(size)
    if size.size and not size.max() < np.inf:
        size = np.where(np.isfinite(value), size, 0.0)
    return size


def total(a: Array | None, b: Array | None) -> Array | None:
    """a + b, where None is zero."""
    if a is None:
        return b
    return a if b is None else a + b


def plus(x: Variance, y: Variance) -> Variance:
    """The variance of a sum of two independent errors."""
    return Variance(total(x.alone, y.alone), total(x.row, y.row), total(x.column, y.column))


def scaled(x: Variance, factor: Array) -> Variance:
    """The variance of errors that are multiplied by √factor."""
    return Variance(*(None if part is None else part * factor for part in x))


def seen(x: Rounded, shape: tuple[int, ...]) -> Variance:
    """The variance of x as it is met in a result of `shape`: what broadcasting repeats is common to a row or a column."""
    alone, row, column = x.variance
    own = (1,) * (len(shape) - x.ndim) + x.shape
    if own[-1:] == (1,) and shape[-1] != 1:
        alone, row = None, total(alone, row)
    if own[-2:-1] == (1,) and shape[-2] != 1:
        alone, column = None, total(alone, column)
    return Variance(alone, row, column)


def relabelled(x: Variance, labels: list[int | None], ndim: int) -> Variance:
    """The variance after axes have moved: labels[a] is the old axis (of `ndim`) that now stands at axis a, None for new."""
    out: dict[str, Array | None] = {"alone": x.alone, "row": None, "column": None}
    now = {"row": labels[-1] if labels else None, "column": labels[-2] if len(labels) > 1 else None}
    for part, axis in ((x.row, ndim - 1), (x.column, ndim - 2)):
        home = next((name for name, label in now.items() if label == axis), "alone")
        out[home] = total(out[home], part)
    return Variance(**out)


def step_variance(size: Array, u: float, tiny: float = 0.0) -> Array:
    """Variance of one rounding of values of this size to unit roundoff u: spacing²/12, binade by binade; 0 of zero."""
    step = u * (size.view(np.int64) & _EXPONENT).view(np.float64)
    if tiny > 2.0**-100:  # float32's is far below anything that a prediction is compared with
        step = np.maximum(step, tiny * (size > 0.0))
    return step * step / 3.0


def finite_only(value: Array, error: Array) -> Array:
    """The error, with 0 where the value is not finite."""
    finite = np.isfinite(value)
    return error if finite.all() else np.where(finite, error, 0.0)


def number(x: Rounded) -> Rounded:
    """x ready for arithmetic: an undecided truth value may be off by 1."""
    if x.value.dtype.kind == "b" and x.error is not None:
        return Rounded(x.reading, x.value, x.error.astype(np.float64))
    return x


def repeated(u: float, times: float) -> float:
    """γ = s/(1 − s) ≥ (1 + u)^times − 1: that many relative errors of u; one alone is u itself."""
    s = times * u
    return s if times <= 1.0 else s / (1.0 - s) if s < 1.0 else np.inf


def stored(x: Rounded, u: float, tiny: float, times: float = 1.0) -> Rounded:
    """x after so many roundings to u, |fl(x) − x| ≤ max(u·|x|, tiny) each; exact zeros stay exact."""
    reach = x.reach
    step = np.maximum(repeated(u, times) * reach, (times * tiny) * (reach != 0.0)) + U64 * x.magnitude
    error = step if x.error is None else x.error + step
    variance = Variance(total(x.variance.alone, step_variance(x.magnitude, u, tiny)), *x.variance[1:])
    return Rounded(x.reading, x.value, finite_only(x.value, error), variance)
