"""Counting rules of arithmetic: elementwise functions, choices, sums and products, each adding to one count of the tally."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .counting_array import BOOL, FLOAT, INT, Counted, Shape, kind_of, promoted, together

Axes = int | tuple[int, ...] | None


def _elementwise(count: str, result: Any = None, whole: bool = False) -> Callable[..., Counted]:
    """One step for each element of the result; `result`: its dtype, if not that of the operands. `whole`: no floats."""

    def rule(r: Any, *operands: Any) -> Counted:
        arrays = [r.lift(x) for x in operands]
        dtype = promoted(*(x.dtype for x in arrays))
        if whole and dtype == FLOAT:
            raise TypeError(f"bits of floats ({', '.join(map(str, arrays))}): give booleans or integers")
        shape = together(*(x.shape for x in arrays))
        out: Counted = r.new(shape, dtype if result is None else result, reads=_read(operands, arrays))
        r.add(count, out.size)
        return out

    return rule


def _read(operands: Sequence[Any], arrays: Sequence[Counted]) -> int:
    """Elements that are fetched; a number in the text is none."""
    return sum(x.size for x, given in zip(arrays, operands, strict=True) if not isinstance(given, bool | int | float))


def where(r: Any, condition: Any, a: Any, b: Any) -> Counted:
    c, x, y = r.lift(condition), r.lift(a), r.lift(b)
    shape = together(c.shape, x.shape, y.shape)
    out: Counted = r.new(shape, promoted(x.dtype, y.dtype), reads=_read((condition, a, b), (c, x, y)))
    r.add("compares", out.size)
    return out


def matmul(r: Any, a: Any, b: Any) -> Counted:
    """(..., n, k) · (..., k, m): n·k·m multiply-adds for each item."""
    a, b = r.lift(a), r.lift(b)
    if a.ndim < 2 or b.ndim < 2:
        raise TypeError(f"matmul of shapes {a.shape} and {b.shape}: give two axes or more, a vector as (n, 1) or (1, n)")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul of shapes {a.shape} and {b.shape}: {a.shape[-1]} ≠ {b.shape[-2]} on the contracted axis")
    shape = (*together(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    out: Counted = r.new(shape, promoted(a.dtype, b.dtype), reads=a.size + b.size)
    r.add("macs", out.size * a.shape[-1])
    return out


def _axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    axes: tuple[int, ...] = normalize_axis_tuple(range(ndim) if axis is None else axis, ndim)
    return axes


def _without(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduction(count: str, result: Any = None, empty: bool = True) -> Callable[..., Counted]:
    """One step for each element that is given; `empty`: there is a result for no element."""

    def rule(r: Any, x: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Counted:
        x = r.lift(x)
        shape = _without(x.shape, _axes(axis, x.ndim), keepdims)
        if not empty and x.size == 0 and math.prod(shape):
            raise ValueError(f"the extremum of no elements (shape {x.shape}, axis {axis}) does not exist")
        if dtype is None:
            kind = x.dtype if result is None else result
        else:
            kind = kind_of(dtype)
        out: Counted = r.new(shape, kind, reads=x.size)
        r.add(count, x.size)
        return out

    return rule


def sum_(r: Any, x: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Counted:
    """Truth values add up to integers."""
    kind = INT if dtype is None and r.lift(x).dtype == BOOL else dtype
    return _SUM(r, x, axis, kind, keepdims)


_SUM = _reduction("flops")


def cumulative_sum(r: Any, x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Counted:
    x = r.lift(x)
    if axis is None and x.ndim != 1:
        raise TypeError(f"cumulative_sum of shape {x.shape} needs an axis")
    line = normalize_axis_index(0 if axis is None else axis, x.ndim)
    shape = tuple(size + (include_initial and at == line) for at, size in enumerate(x.shape))
    kind = kind_of(dtype) if dtype is not None else promoted(x.dtype, INT)
    out: Counted = r.new(shape, kind, reads=x.size)
    r.add("flops", x.size)
    return out


def _position(r: Any, x: Any, axis: int | None = None, keepdims: bool = False) -> Counted:
    """argmax, argmin: one axis, or all."""
    if axis is not None:
        normalize_axis_index(axis, r.lift(x).ndim)
    return _POSITION(r, x, axis, keepdims=keepdims)


_POSITION = _reduction("compares", INT, empty=False)


def searchsorted(r: Any, x1: Any, x2: Any, side: str = "left", sorter: Any = None) -> Counted:
    """⌈log₂(n + 1)⌉ comparisons for each place that is looked for among n."""
    x, wanted = r.lift(x1), r.lift(x2)
    if x.ndim != 1:
        raise ValueError(f"searchsorted in an array of shape {x.shape}: give one axis")
    out: Counted = r.new(wanted.shape, INT, reads=wanted.size)
    r.add("compares", wanted.size * x.size.bit_length())
    return out


def _order(result: Any) -> Callable[..., Counted]:
    """sort, argsort: n⌈log₂ n⌉ comparisons for each line of n."""

    def rule(r: Any, x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Counted:
        x = r.lift(x)
        length = x.shape[normalize_axis_index(axis, x.ndim)]
        out: Counted = r.new(x.shape, x.dtype if result is None else result, reads=x.size)
        r.add("compares", x.size * (max(length, 1) - 1).bit_length())
        return out

    return rule


def erf(x: Counted) -> Counted:
    """One exponential for each element, as in the generic text."""
    out: Counted = _ERF(x.reading, x)
    return out


_ERF = _elementwise("exps", FLOAT)
KERNELS: dict[str, Callable[..., Any]] = {"erf": erf}
_COMPARISONS = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or")
RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "subtract", "multiply", "negative", "abs", "square"), _elementwise("flops")),
    **dict.fromkeys(("divide", "log", "log1p", "tanh", "sqrt", "cos", "sin"), _elementwise("flops", FLOAT)),
    "exp": _elementwise("exps", FLOAT),
    **dict.fromkeys((*_COMPARISONS, "logical_not"), _elementwise("compares", BOOL)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_invert"), _elementwise("compares", whole=True)),
    **dict.fromkeys(("maximum", "minimum"), _elementwise("compares")),
    "where": where,
    "matmul": matmul,
    "sum": sum_,
    "cumulative_sum": cumulative_sum,
    **dict.fromkeys(("max", "min"), _reduction("compares", empty=False)),
    **dict.fromkeys(("any", "all"), _reduction("compares", BOOL)),
    **dict.fromkeys(("argmax", "argmin"), _position),
    **{"sort": _order(None), "argsort": _order(INT)},
    "searchsorted": searchsorted,
}
