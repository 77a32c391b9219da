"""Exact rules of choices: comparisons, selections, extrema and order.

A comparison has three answers. Where the balls of its operands overlap it has none, and raises ``Undecided``: a text that
goes on has every one of its comparisons certified. Extrema and sorted values need no decision, their balls enclose all
orders; positions (argmax, argsort) do. Exactly equal numbers are in the order in which they stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb

from refattn.errors import Undecided

from .exact_array import Ball, balls, each, is_real

Array = Any
Axes = int | tuple[int, ...] | None

_CERTAIN: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]] = {
    "greater": (lambda a, b: a > b, lambda a, b: a <= b),
    "greater_equal": (lambda a, b: a >= b, lambda a, b: a < b),
    "less": (lambda a, b: a < b, lambda a, b: a >= b),
    "less_equal": (lambda a, b: a <= b, lambda a, b: a > b),
    "equal": (lambda a, b: a == b, lambda a, b: a != b),
    "not_equal": (lambda a, b: a != b, lambda a, b: a == b),
    "ascends": (lambda a, b: a < b or a == b, lambda a, b: False),  # a may stand before b in a stable order
    "descends": (lambda a, b: a > b or a == b, lambda a, b: False),
}
"""When the answer is certainly yes, and when it is certainly no: arb's comparisons are true only if they hold for every
number in the balls, so that == means two equal numbers without a radius."""
_COMPARISONS = tuple(_CERTAIN)[:6]


def decide(r: Any, name: str, a: Array, b: Array) -> Array:
    """The truth values of a comparison of two arrays of balls.

    Raises
    ------
    Undecided
        If any pair overlaps.
    """
    yes, no = (each(answer, 2) for answer in _CERTAIN[name])
    certain, refuted = yes(a, b).astype(bool), no(a, b).astype(bool)
    open_ = ~(certain | refuted)
    if open_.any():
        a, b = (np.broadcast_to(x, open_.shape) for x in (a, b))
        at = tuple(np.argwhere(open_)[0])
        raise Undecided(
            f"{name}: {np.count_nonzero(open_)} of {open_.size} pairs overlap at {r.bits} bits, as {a[at]} and {b[at]}"
        )
    return certain


def _comparison(name: str) -> Callable[[Any, Any, Any], Ball]:
    function = getattr(np, name)

    def rule(r: Any, a: Any, b: Any) -> Ball:
        a, b = r.lift(a).entries, r.lift(b).entries
        if is_real(a) or is_real(b):
            return Ball(r, decide(r, name, balls(a), balls(b)))
        return Ball(r, np.asarray(function(a, b)))

    return rule


def _logical(function: Callable[..., Array]) -> Callable[..., Ball]:
    """and, or, not of truth values; bitwise on integers."""

    def rule(r: Any, *operands: Any) -> Ball:
        return Ball(r, np.asarray(function(*(_discrete(r, x) for x in operands))))

    return rule


def _discrete(r: Any, x: Any) -> Array:
    v = r.lift(x).entries
    if is_real(v):
        raise TypeError("real numbers have no truth value: compare them with 0")
    return v


def _some(function: Callable[..., Array]) -> Callable[..., Ball]:
    """any, all."""

    def rule(r: Any, x: Any, axis: Axes = None, keepdims: bool = False) -> Ball:
        return Ball(r, np.asarray(function(_discrete(r, x), axis=axis, keepdims=keepdims)))

    return rule


def where(r: Any, condition: Any, a: Any, b: Any) -> Ball:
    a, b = r.lift(a).entries, r.lift(b).entries
    if is_real(a) or is_real(b):
        a, b = balls(a), balls(b)
    return Ball(r, np.where(_discrete(r, condition), a, b))


def _extremum(name: str, entry: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Ball]:
    """maximum, minimum."""
    function, entrywise = getattr(np, name), each(entry, 2)

    def rule(r: Any, a: Any, b: Any) -> Ball:
        a, b = r.lift(a).entries, r.lift(b).entries
        if is_real(a) or is_real(b):
            return Ball(r, entrywise(balls(a), balls(b)))
        return Ball(r, np.asarray(function(a, b)))

    return rule


def _reduced(name: str, entry: Callable[[Any, Any], Any]) -> Callable[..., Ball]:
    """max, min along axes."""
    function, reduce = getattr(np, name), np.frompyfunc(entry, 2, 1, identity=None).reduce

    def rule(r: Any, x: Any, axis: Axes = None, keepdims: bool = False) -> Ball:
        v = r.lift(x).entries
        if not is_real(v):
            return Ball(r, np.asarray(function(v, axis=axis, keepdims=keepdims)))
        axes = tuple(range(v.ndim)) if axis is None else axis
        return Ball(r, np.asarray(reduce(v, axis=axes, keepdims=keepdims), dtype=object))

    return rule


_lower, _upper, _mid = each(arb.lower), each(arb.upper), each(arb.mid)
_union = each(arb.union, 2)


def _order(v: Array, axis: int, descending: bool) -> Array:
    """Stable positions in the order of exact entries."""

    def line(values: Array) -> Array:
        # Python's sort stays stable when it is reversed; it asks for < alone, which exact balls decide.
        return np.asarray(sorted(range(len(values)), key=values.__getitem__, reverse=descending), dtype=np.int64)

    return np.apply_along_axis(line, axis, v) if v.size else np.zeros(v.shape, np.int64)


def _sorted(v: Array, axis: int, descending: bool) -> Array:
    return np.take_along_axis(v, _order(v, axis, descending), axis)


def sort(r: Any, x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Ball:
    """The k-th number lies between the k-th lower end and the k-th upper end, whatever the order is."""
    v = balls(r.lift(x).entries)
    return Ball(r, _union(_sorted(_lower(v), axis, descending), _sorted(_upper(v), axis, descending)))


def argsort(r: Any, x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Ball:
    v = balls(r.lift(x).entries)
    order = _order(_mid(v), axis, descending)
    lines = np.moveaxis(np.take_along_axis(v, order, axis), axis, -1)
    decide(r, "descends" if descending else "ascends", lines[..., :-1], lines[..., 1:])
    return Ball(r, order)


def searchsorted(r: Any, x1: Any, x2: Any, side: str = "left", sorter: Any = None) -> Ball:
    """Places of integers among sorted integers."""
    places: Any = np.searchsorted
    return Ball(r, places(_discrete(r, x1), _discrete(r, x2), side=side))


def _position(descending: bool) -> Callable[..., Ball]:
    """argmax, argmin along one axis."""
    beats = "descends" if descending else "ascends"
    last: Any = arb(-math.inf if descending else math.inf)

    def rule(r: Any, x: Any, axis: int = -1, keepdims: bool = False) -> Ball:
        v = balls(r.lift(x).entries)
        at = np.take(_order(_mid(v), axis, descending), [0], axis)
        best, others = np.take_along_axis(v, at, axis), v.copy()
        np.put_along_axis(others, at, last, axis)
        decide(r, beats, best, others)
        return Ball(r, at if keepdims else np.squeeze(at, axis))

    return rule


RULES: dict[str, Callable[..., Any]] = {
    **{name: _comparison(name) for name in _COMPARISONS},
    **dict.fromkeys(("logical_and", "bitwise_and"), _logical(np.bitwise_and)),
    **dict.fromkeys(("logical_or", "bitwise_or"), _logical(np.bitwise_or)),
    **dict.fromkeys(("logical_not", "bitwise_invert"), _logical(np.bitwise_invert)),
    "any": _some(np.any),
    "all": _some(np.all),
    "where": where,
    "maximum": _extremum("maximum", arb.max),
    "minimum": _extremum("minimum", arb.min),
    "max": _reduced("max", arb.max),
    "min": _reduced("min", arb.min),
    "sort": sort,
    "argsort": argsort,
    "searchsorted": searchsorted,
    "argmax": _position(descending=True),
    "argmin": _position(descending=False),
}
