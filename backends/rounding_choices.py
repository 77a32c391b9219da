"""Rounding rules of choices: comparisons, selections, extrema and order.

A comparison whose operands lie within their errors of each other is *undecided*: the result carries a mask of such entries
and ``where`` takes the hull of both branches there. What becomes an index (argmax, argsort) can carry no hull, so it is
logged: ``reading.log`` holds (function, items, undecided items) for every decision made on numbers that have errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .rounding_array import EXACT, U64, Rounded, Variance, number, seen, total

Array = Any
Axes = int | tuple[int, ...] | None


def _comparison(name: str) -> Callable[[Any, Any, Any], Rounded]:
    function = getattr(np, name)

    def rule(r: Any, a: Any, b: Any) -> Rounded:
        a, b = number(r.lift(a)), number(r.lift(b))
        value = function(a.value, b.value)
        error = total(a.error, b.error)
        if error is None:
            return Rounded(r, value)
        apart = np.where(a.value == b.value, 0.0, np.abs(a.value * 1.0 - b.value))
        # Written so that an unbounded (NaN) error is undecided, and 0 > 0 without error decided.
        undecided = ~(apart > error) & (error != 0.0)
        return _decided(r, name, value, undecided)

    return rule


def _decided(r: Any, name: str, value: Array, undecided: Array) -> Rounded:
    count = int(np.count_nonzero(undecided))
    r.log.append((name, int(np.size(undecided)), count))
    return Rounded(r, value, undecided if count else None)


def _both(absorbing: bool) -> Callable[[Any, Any, Any], Rounded]:
    """and (False absorbs), or (True absorbs); bitwise on integers."""

    def rule(r: Any, a: Any, b: Any) -> Rounded:
        a, b = r.lift(a), r.lift(b)
        value = a.value | b.value if absorbing else a.value & b.value
        if a.error is None and b.error is None:
            return Rounded(r, value)
        settled = _settled(a, absorbing) | _settled(b, absorbing)
        doubtful = False if a.error is None else a.error
        doubtful = doubtful | (False if b.error is None else b.error)
        return Rounded(r, value, doubtful & ~settled)

    return rule


def _settled(x: Rounded, truth: bool) -> Array:
    """Where x is decidedly this truth value."""
    agrees = x.value == truth
    return agrees if x.error is None else agrees & ~x.error


def logical_not(r: Any, x: Any) -> Rounded:
    x = r.lift(x)
    return Rounded(r, ~x.value, x.error)


def _some(absorbing: bool) -> Callable[..., Rounded]:
    """any (True absorbs), all (False absorbs)."""
    reduce = np.any if absorbing else np.all

    def rule(r: Any, x: Any, axis: Axes = None, keepdims: bool = False) -> Rounded:
        x = r.lift(x)
        value = reduce(x.value, axis=axis, keepdims=keepdims)
        if x.error is None:
            return Rounded(r, value)
        settled = np.any(_settled(x, absorbing), axis=axis, keepdims=keepdims)
        return Rounded(r, value, np.any(x.error, axis=axis, keepdims=keepdims) & ~settled)

    return rule


def where(r: Any, condition: Any, a: Any, b: Any) -> Rounded:
    c, a, b = r.lift(condition), r.lift(a), r.lift(b)
    value = np.where(c.value, a.value, b.value)
    if c.error is None and a.error is None and b.error is None:
        return Rounded(r, value)
    if value.dtype.kind != "f":
        return _where_exact(r, c, a, b, value)
    zero = np.zeros(())
    error_a, error_b = (zero if x.error is None else x.error for x in (a, b))
    error = np.where(c.value, error_a, error_b)
    if c.error is not None:
        apart = np.where(a.value == b.value, 0.0, np.abs(a.value * 1.0 - b.value))
        error = np.where(c.error, np.maximum(error_a, error_b) + apart, error)
    return Rounded(r, value, np.broadcast_to(error, value.shape), _select(c.value, a, b, value.shape))


def _where_exact(r: Any, c: Rounded, a: Rounded, b: Rounded, value: Array) -> Rounded:
    """Selection of truth values; an integer that hangs on an undecided condition is logged, it has no hull."""
    differ = a.value != b.value
    doubtful = differ & (False if c.error is None else c.error)
    if value.dtype.kind == "b":
        of_a, of_b = (False if x.error is None else x.error for x in (a, b))
        return Rounded(r, value, np.where(c.value, of_a, of_b) | doubtful)
    r.log.append(("where", int(value.size), int(np.count_nonzero(doubtful))))
    return Rounded(r, value)


def _select(choice: Array, a: Rounded, b: Rounded, shape: tuple[int, ...]) -> Variance:
    of_a = EXACT if a.error is None else seen(a, shape)
    of_b = EXACT if b.error is None else seen(b, shape)
    pairs = zip(of_a, of_b, strict=True)
    return Variance(*(None if x is y is None else np.where(choice, _zero(x), _zero(y)) for x, y in pairs))


def _zero(part: Array | None) -> Array:
    return 0.0 if part is None else part


def _extremum(name: str) -> Callable[[Any, Any, Any], Rounded]:
    """maximum, minimum: the hull, never more than the larger of the two errors."""
    function = getattr(np, name)

    def rule(r: Any, a: Any, b: Any) -> Rounded:
        a, b = r.lift(a), r.lift(b)
        value = function(a.value, b.value)
        if a.error is None and b.error is None:
            return Rounded(r, value)
        error_a, error_b = (np.zeros(()) if x.error is None else x.error for x in (a, b))
        high = function(a.value + error_a, b.value + error_b) - value
        low = value - function(a.value - error_a, b.value - error_b)
        largest = np.maximum(error_a, error_b)
        error = np.minimum(np.maximum(high, low) + 2 * U64 * np.abs(value), largest)
        error = np.where(np.isfinite(value), error, 0.0)
        return Rounded(r, value, error, _select(value == a.value, a, b, value.shape))

    return rule


def _reduced_extremum(name: str) -> Callable[..., Rounded]:
    """max, min along axes: the hull; the predicted variance is the largest along them."""
    function = getattr(np, name)

    def rule(r: Any, x: Any, axis: Axes = None, keepdims: bool = False) -> Rounded:
        x = r.lift(x)
        value = function(x.value, axis=axis, keepdims=keepdims)
        if x.error is None:
            return Rounded(r, value)
        high = function(x.value + x.error, axis=axis, keepdims=keepdims) - value
        low = value - function(x.value - x.error, axis=axis, keepdims=keepdims)
        error = np.maximum(high, low) + 2 * U64 * np.abs(value)
        error = np.where(np.isfinite(value), error, 0.0)
        whole = sum(part for part in x.variance if part is not None) * np.ones(x.shape)
        return Rounded(r, value, error, Variance(np.max(whole, axis=axis, keepdims=keepdims)))

    return rule


def sort(r: Any, x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Rounded:
    """Sorting moves no entry by more than the largest error met: its hull is the sorted upper and lower ends."""
    x = r.lift(x)
    value = _sorted(x.value, axis, descending)
    if x.error is None:
        return Rounded(r, value)
    high = _sorted(x.value + x.error, axis, descending) - value
    low = value - _sorted(x.value - x.error, axis, descending)
    order = _order(x.value, axis, descending)
    parts = (None if p is None else np.take_along_axis(np.broadcast_to(p, x.shape), order, axis) for p in x.variance)
    return Rounded(r, value, np.maximum(high, low) + 2 * U64 * np.abs(value), Variance(*parts))


def _sorted(x: Array, axis: int, descending: bool) -> Array:
    ordered = np.sort(x, axis=axis)
    return np.flip(ordered, axis=axis) if descending else ordered


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Stable positions in order; descending keeps equal entries in their order too."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    turned = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, kind="stable"), axis=axis)
    return x.shape[axis] - 1 - turned


def argsort(r: Any, x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Rounded:
    """Undecided: neighbours in order whose errors overlap."""
    x = r.lift(x)
    order = _order(x.value, axis, descending)
    if x.error is not None:
        near, error = (np.take_along_axis(part, order, axis) for part in (x.value, x.error))
        gap = np.abs(np.diff(near, axis=axis))
        reach = np.take(error, range(1, error.shape[axis]), axis) + np.take(error, range(error.shape[axis] - 1), axis)
        r.log.append(("argsort", int(order.size), int(np.count_nonzero(~(gap > reach) & (reach != 0.0)))))
    return Rounded(r, order)


def searchsorted(r: Any, x1: Any, x2: Any, side: str = "left", sorter: Any = None) -> Rounded:
    """Places among sorted numbers, both given: what has an error has no certain place."""
    x1, x2 = r.lift(x1), r.lift(x2)
    if x1.error is not None or x2.error is not None:
        raise TypeError("the rounding reading searches given numbers alone: compare computed ones instead")
    places: Any = np.searchsorted
    return Rounded(r, places(x1.value, x2.value, side=side))


def _position(name: str, sign: float) -> Callable[..., Rounded]:
    """argmax, argmin along one axis; undecided where another entry may come first."""
    function = getattr(np, name)

    def rule(r: Any, x: Any, axis: int = -1, keepdims: bool = False) -> Rounded:
        x = r.lift(x)
        at = function(x.value, axis=axis, keepdims=True)
        if x.error is not None:
            value = sign * x.value
            best, error = (np.take_along_axis(part, at, axis) for part in (value, x.error))
            rival = ~(best - value > error + x.error) & (error + x.error != 0.0)
            np.put_along_axis(rival, at, False, axis)
            undecided = np.any(rival, axis=axis)
            r.log.append((name, int(undecided.size), int(np.count_nonzero(undecided))))
        return Rounded(r, at if keepdims else np.squeeze(at, axis))

    return rule


RULES: dict[str, Callable[..., Any]] = {
    **{n: _comparison(n) for n in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")},
    **dict.fromkeys(("logical_and", "bitwise_and"), _both(absorbing=False)),
    **dict.fromkeys(("logical_or", "bitwise_or"), _both(absorbing=True)),
    **dict.fromkeys(("logical_not", "bitwise_invert"), logical_not),
    "any": _some(absorbing=True),
    "all": _some(absorbing=False),
    "where": where,
    "maximum": _extremum("maximum"),
    "minimum": _extremum("minimum"),
    "max": _reduced_extremum("max"),
    "min": _reduced_extremum("min"),
    "sort": sort,
    "argsort": argsort,
    "searchsorted": searchsorted,
    "argmax": _position("argmax", 1.0),
    "argmin": _position("argmin", -1.0),
}
