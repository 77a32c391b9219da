"""Rounding rules of sums: matmul, sum, cumulative_sum, in any order, any tiling, with or without online rescaling.

    |Σ' x − Σ x| ≤ Σ e + γ Σ (|x| + e) + tiny_acc terms,      γ = s/(1 − s),   s = k·acc + slack·u + (exp + 2)·u·rescales

k counts the terms that are not exactly zero: adding an exact zero rounds nothing, which keeps sparse patterns sharp. An
online softmax rescales its accumulator when the running maximum grows; the errors of the exponents telescope, so each
rescale costs one exp and two products, and k scattered keys of m lie in at most min(k, ⌈m/tile⌉) tiles. Sums of what was
given have no maximum to follow and no rescales. A key whose value is zero rounds nothing, but it can raise the maximum:
rescales are counted on the weights, not on the products. Higham (2002), §3.1, §4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .rounding_array import U64, Rounded, Variance, finite_only, number, relabelled, step_variance, stored, total
from .rounding_elementwise import fits, whole

Array = Any
Axes = int | tuple[int, ...] | None


def gamma(p: Any, steps: Array, rescales: Array) -> Array:
    """γ for terms that meet at most so many roundings and rescales each (arrays or numbers), in any order."""
    if p.chain > 1:
        steps = np.minimum(steps, np.ceil(np.asarray(steps) / p.chain) + math.log2(p.chain))
    s = steps * (p.acc + U64) + p.slack * p.u + ((p.exp + 2.0) * p.u) * rescales
    return np.where(s < 1.0, s / np.maximum(1.0 - s, 1e-300), np.inf)


def tiles(r: Any, keys: Array, length: int) -> Array:
    """At most how many tiles hold so many keys of `length`, wherever they lie; or of the rows that ``r.met`` speaks of."""
    return np.minimum(keys, math.ceil(length / r.precision.tile) if r.met is None else r.met)


def operand(r: Any, x: Rounded, axis: int) -> Rounded:
    """x as it enters a product that contracts `axis`: computed arrays, and under `inputs` given ones, are rounded."""
    p = r.precision
    if p.operand == 0.0 or x.value.dtype.kind != "f" or (x.error is None and not p.inputs):
        return x
    reach = x.reach
    tiny = (p.tiny_operand * enlarged(reach, axis)) * (reach != 0.0)
    step = np.maximum(p.operand * reach, tiny)
    error = step if x.error is None else x.error + step
    variance = Variance(total(x.variance.alone, step_variance(x.magnitude, p.operand, p.tiny_operand)), *x.variance[1:])
    return Rounded(r, x.value, error, variance)


def enlarged(reach: Array, axis: int) -> Array:
    """What underflow grows by if an operand is divided by its sum before it is rounded: normalised first, not last."""
    return np.maximum(np.sum(reach, axis=axis, keepdims=True), 1.0)


def matmul(r: Any, a: Any, b: Any) -> Rounded:
    a, b = number(r.lift(a)), number(r.lift(b))
    if a.ndim < 2 or b.ndim < 2:
        raise TypeError(f"matmul of shapes {a.shape} and {b.shape}: give two axes or more, a vector as (n, 1) or (1, n)")
    computed = a.error is not None, b.error is not None
    value = np.matmul(a.value, b.value)
    if value.dtype.kind in "iub":
        return Rounded(r, value)
    a, b = operand(r, a, -1), operand(r, b, -2)
    reach = np.matmul(a.magnitude, b.magnitude)
    error = None if a.error is None else np.matmul(a.error, b.reach)
    if b.error is not None:
        error = total(error, np.matmul(a.magnitude, b.error))
    reach = reach if error is None else reach + error
    terms, rescales = _met(r, a, b, computed)
    # What is flushed to zero: each operand, each product, each partial sum.
    flushed = 3.0 * r.precision.tiny_acc * max(1.0, np.max(a.magnitude, initial=0.0), np.max(b.magnitude, initial=0.0))
    added = gamma(r.precision, terms, rescales) * reach + flushed * terms
    error = added if error is None else error + added
    variance = _product_variance(r.precision, a, b, value, terms)
    return _from_accumulator(r, Rounded(r, value, error, variance))


def _met(r: Any, a: Rounded, b: Rounded, computed: tuple[bool, bool]) -> tuple[Array, Array]:
    """At most how many terms of each entry of a·b are not exactly zero, and how often a computed side is rescaled."""
    length = a.shape[-1]
    rows, columns = _nonzero(a, -1), _nonzero(b, -2)
    rescales: Array = 0.0
    for keys, one in zip((rows, columns), computed, strict=True):
        if one:
            rescales = np.maximum(rescales, tiles(r, keys, length))
    return np.minimum(rows, columns), rescales


def _nonzero(x: Rounded, axis: int) -> Array:
    """Entries along an axis that are not exactly zero; one number where that is all of them everywhere."""
    count = np.count_nonzero(x.reach, axis=axis, keepdims=True)
    length = x.shape[axis]
    return np.float64(length) if np.min(count, initial=length) == length else count


def _from_accumulator(r: Any, x: Rounded) -> Rounded:
    """The accumulator's result in the format of elementwise arithmetic, where that is coarser."""
    p = r.precision
    return stored(x, p.u, p.tiny) if p.u > p.acc else x


def _product_variance(p: Any, a: Rounded, b: Rounded, value: Array, terms: Array) -> Variance:
    """Independent parts add in squares; what is common along the contracted axis adds in absolute values."""
    squares_a, squares_b = a.magnitude**2, b.magnitude**2
    alone = _accumulation(p, np.matmul(squares_a, squares_b), value, terms)
    row = column = None
    if a.variance.alone is not None:
        alone = alone + np.matmul(_full(a.variance.alone, a), squares_b)
    if b.variance.alone is not None:
        alone = alone + np.matmul(squares_a, _full(b.variance.alone, b))
    if a.variance.row is not None:
        row = np.matmul(np.sqrt(_full(a.variance.row, a)), b.magnitude) ** 2
    if b.variance.row is not None:
        row = total(row, np.matmul(squares_a, _full(b.variance.row, b)))
    if a.variance.column is not None:
        column = np.matmul(_full(a.variance.column, a), squares_b)
    if b.variance.column is not None:
        column = total(column, np.matmul(a.magnitude, np.sqrt(_full(b.variance.column, b))) ** 2)
    return Variance(alone, row, column)


def _accumulation(p: Any, squares: Array, value: Array, terms: Array) -> Array:
    """k roundings of partial sums, whose mean square is that of a walk with a drift: Σx²/2 + (Σx)²/3."""
    return ((p.acc**2 / 3.0) * terms) * (squares / 2.0 + value * value / 3.0)


def _full(part: Array, x: Rounded) -> Array:
    return np.broadcast_to(part, x.shape)


def sum_(r: Any, x: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Rounded:
    x = number(r.lift(x))
    axes = _axes(axis, x.ndim)
    value = np.sum(x.value, axis=axes, keepdims=keepdims)
    if x.error is None and (value.dtype.kind in "iu" or _exactly(r, x, axes)):
        return Rounded(r, value)
    length = math.prod(x.shape[a] for a in axes)
    terms = np.count_nonzero(x.reach, axis=axes, keepdims=keepdims)

    def add(part: Array) -> Array:
        return np.sum(part, axis=axes, keepdims=keepdims)

    variance = Variance(*(None if part is None else _full(part, x) for part in x.variance))
    lines = {-1: x.ndim - 1 in axes, -2: x.ndim - 2 in axes}
    alone = None if variance.alone is None else add(variance.alone)
    row = _along(variance.row, x.ndim - 1 if lines[-1] else None, axes, keepdims)
    column = _along(variance.column, x.ndim - 2 if lines[-2] else None, axes, keepdims)
    summed = Variance(alone, row, column)
    if not keepdims:
        summed = relabelled(summed, [a for a in range(x.ndim) if a not in axes], x.ndim)
    out = _summed(r, x, value, add, np.maximum(terms - 1, 0), terms, length)
    squares = _accumulation(r.precision, add(x.magnitude**2), value, terms)
    out.variance = Variance(total(summed.alone, squares), *summed[1:])
    return _from_accumulator(r, out)


def _axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _exactly(r: Any, x: Rounded, axes: tuple[int, ...]) -> bool:
    """True for given whole numbers whose partial sums, in any order, are short enough to be exact."""
    return whole(x) and fits(r, np.sum(x.magnitude, axis=axes))


def _along(part: Array | None, linear: int | None, axes: tuple[int, ...], keepdims: bool) -> Array | None:
    """A common part summed over axes: in absolute values along `linear`, in squares along the others."""
    if part is None:
        return None
    if linear is not None:
        part = np.sum(np.sqrt(part), axis=linear, keepdims=True) ** 2
    return np.sum(part, axis=axes, keepdims=keepdims)


def _summed(
    r: Any, x: Rounded, value: Array, add: Callable[[Array], Array], steps: Array, terms: Array, length: int
) -> Rounded:
    """value with the error of adding `terms` in `steps` roundings, x's own errors included."""
    error = add(x.error) if x.error is not None else np.zeros(())
    reach = add(x.magnitude) + error
    rescales = 0.0 if x.error is None else tiles(r, terms, length)
    error = error + gamma(r.precision, steps, rescales) * reach + (3.0 * r.precision.tiny_acc) * terms
    return Rounded(r, value, np.where(np.isfinite(value), error, 0.0))


def cumulative_sum(r: Any, x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Rounded:
    x = number(r.lift(x))
    if axis is None and x.ndim != 1:
        raise TypeError(f"cumulative_sum of shape {x.shape} needs an axis")
    line = (0 if axis is None else axis) % x.ndim

    def add(part: Array) -> Array:
        if include_initial:
            shape = list(x.shape)
            shape[line] = 1
            part = np.concatenate([np.zeros(shape, part.dtype), part], axis=line)
        return np.cumsum(part, axis=line)

    value = add(x.value.astype(np.int64) if x.value.dtype.kind == "b" else x.value)
    if x.error is None and (value.dtype.kind in "iu" or _exactly(r, x, (line,))):
        return Rounded(r, value)
    terms = add((x.reach != 0.0).astype(np.int64))
    out = _summed(r, x, value, add, np.maximum(terms - 1, 0), terms, x.shape[line])

    def common(part: Array | None, along: int) -> Array | None:
        if part is None:
            return None
        full = _full(part, x)
        return add(np.sqrt(full)) ** 2 if along == line else add(full)

    alone = _accumulation(r.precision, add(x.magnitude**2), value, terms)
    alone = alone if x.variance.alone is None else alone + add(_full(x.variance.alone, x))
    out.variance = Variance(alone, common(x.variance.row, x.ndim - 1), common(x.variance.column, x.ndim - 2))
    return _from_accumulator(r, out)


def sum_rows(x: Rounded, at: Rounded, size: int) -> Rounded:
    """Σ of the rows x_t with at_t = v, for every v < size: any order of the rows that meet."""
    r, p = x.reading, x.reading.precision

    def add(part: Array) -> Array:
        out = np.zeros((size, x.shape[-1]))
        np.add.at(out, at.value, part)
        return out

    value = add(x.value)
    steps = np.maximum(np.bincount(at.value, minlength=size)[:, None] - 1.0, 0.0)
    reach = add(x.reach)
    error = gamma(p, steps, 0.0) * reach + (3.0 * p.tiny_acc) * steps
    error = finite_only(value, error if x.error is None else error + add(x.error))
    parts = [None if part is None else _full(part, x) for part in x.variance]
    alone = _accumulation(p, add(x.magnitude**2), value, steps)
    alone = alone if parts[0] is None else alone + add(parts[0])
    row, column = None if parts[1] is None else add(parts[1]), None if parts[2] is None else add(np.sqrt(parts[2])) ** 2
    return _from_accumulator(r, Rounded(r, value, error, Variance(alone, row, column)))


KERNELS: dict[str, Callable[..., Any]] = {"sum_rows": sum_rows}
RULES: dict[str, Callable[..., Any]] = {"matmul": matmul, "sum": sum_, "cumulative_sum": cumulative_sum}
