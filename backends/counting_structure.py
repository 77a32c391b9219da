"""Counting rules of functions that look at arrays, move entries, or make new arrays: views are free, copies are moved."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from .counting_array import BOOL, FLOAT, INT, Counted, contiguous, kind_of, promoted, together

Array = Any


def _looking(look: Callable[..., Array]) -> Callable[..., Counted]:
    """A view, as NumPy makes it."""

    def rule(r: Any, x: Any, *args: Any, **named: Any) -> Counted:
        out: Counted = r.lift(x).view(lambda layout: look(layout, *args, **named))
        return out

    return rule


def reshape(r: Any, x: Any, shape: Any, copy: bool | None = None) -> Counted:
    """A view where strides allow one, else a copy; `copy` as in the standard."""
    x = r.lift(x)
    wanted = np.reshape(contiguous(x.shape), shape).shape
    if copy is not True:
        try:
            out: Counted = x.view(lambda layout: np.reshape(layout, wanted, copy=False))
            return out
        except ValueError:
            if copy is False:
                raise
    out = r.new(wanted, x.dtype, reads=x.size)
    return out


def getitem(r: Any, x: Counted, key: Any) -> Counted:
    """Integers, slices, None and one Ellipsis make a view; an integer array for each axis makes a copy."""
    keys = key if isinstance(key, tuple) else (key,)
    arrays = [k for k in keys if isinstance(k, Counted | np.ndarray | list)]
    if not arrays:
        return x.view(lambda layout: layout[key])
    if not all(isinstance(k, Counted | np.ndarray | list | int) for k in keys) or len(keys) != x.ndim:
        raise TypeError(f"{len(keys)} keys for {x.ndim} axes: use take, take_along_axis, or an integer array for each axis")
    lifted = [_indices(r, k) for k in keys]
    shape = together(*(k.shape for k in lifted))
    out: Counted = r.new(shape, x.dtype, reads=len(keys) * int(np.prod(shape, dtype=object)))
    return out


def _indices(r: Any, x: Any) -> Counted:
    """Integers that say which entries; truth values would make a shape depend on values."""
    out: Counted = r.lift(np.asarray(x) if isinstance(x, list | tuple) else x)
    if out.dtype != INT:
        raise TypeError(f"indices of dtype {out.dtype}, not integers: choose by where(condition, a, b), not by x[condition]")
    return out


def broadcast_arrays(r: Any, *arrays: Any) -> list[Counted]:
    lifted = [r.lift(x) for x in arrays]
    shape = together(*(x.shape for x in lifted))
    return [x.view(lambda layout: np.broadcast_to(layout, shape)) for x in lifted]


def roll(r: Any, x: Any, shift: Any, axis: Any = None) -> Counted:
    x = r.lift(x)
    if axis is not None:
        normalize_axis_tuple(axis, x.ndim, allow_duplicate=True)
    return _copied(r, x)


def triangle(r: Any, x: Any, k: int = 0) -> Counted:
    """tril, triu."""
    x = r.lift(x)
    if x.ndim < 2:
        raise ValueError(f"a triangle of an array of shape {x.shape}: it needs two axes or more")
    return _copied(r, x)


def _copied(r: Any, x: Counted) -> Counted:
    out: Counted = r.new(x.shape, x.dtype, reads=x.size)
    return out


def take(r: Any, x: Any, indices: Any, axis: int | None = None) -> Counted:
    """Entries along an axis; what is read is what is taken."""
    x, indices = r.lift(x), _indices(r, indices)
    if axis is None:
        return _taken(r, x, indices, indices.shape)
    at = normalize_axis_index(axis, x.ndim)
    return _taken(r, x, indices, x.shape[:at] + indices.shape + x.shape[at + 1 :])


def _taken(r: Any, x: Counted, indices: Counted, shape: tuple[int, ...]) -> Counted:
    if x.size == 0 and np.prod(shape, dtype=object):
        raise IndexError(f"{indices.size} entries of an array of shape {x.shape}: there are none")
    out: Counted = r.new(shape, x.dtype, reads=indices.size)
    r.running.moved += out.size
    return out


def take_along_axis(r: Any, x: Any, indices: Any, axis: int = -1) -> Counted:
    x, indices = r.lift(x), _indices(r, indices)
    at = normalize_axis_index(axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ValueError(f"indices of shape {indices.shape} for an array of shape {x.shape}: give as many axes")
    shape = list(together(*((*y.shape[:at], 1, *y.shape[at + 1 :]) for y in (x, indices))))
    shape[at] = indices.shape[at]
    return _taken(r, x, indices, tuple(shape))


def repeat(r: Any, x: Any, repeats: int, axis: int | None = None) -> Counted:
    """The same number of times for each entry: numbers of times in an array would make a shape depend on values."""
    x, times = r.lift(x), operator.index(repeats)
    if times < 0:
        raise ValueError(f"repeats={times} must not be negative")
    shape = [x.size] if axis is None else list(x.shape)
    shape[0 if axis is None else normalize_axis_index(axis, x.ndim)] *= times
    out: Counted = r.new(tuple(shape), x.dtype, reads=x.size)
    return out


def concat(r: Any, arrays: Sequence[Any], axis: int | None = 0) -> Counted:
    parts = [r.lift(x) for x in arrays]
    if not parts:
        raise ValueError("need at least one array to concatenate")
    shapes = [(x.size,) if axis is None else x.shape for x in parts]
    at = normalize_axis_index(0 if axis is None else axis, len(shapes[0]))
    rest = {(*shape[:at], *shape[at + 1 :]) for shape in shapes}
    if len(rest) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"concat of shapes {', '.join(map(str, shapes))}: they may differ along axis {at} only")
    shape = list(shapes[0])
    shape[at] = sum(s[at] for s in shapes)
    out: Counted = r.new(tuple(shape), promoted(*(x.dtype for x in parts)), reads=sum(x.size for x in parts))
    return out


def stack(r: Any, arrays: Sequence[Any], axis: int = 0) -> Counted:
    parts = [r.lift(x) for x in arrays]
    if not parts:
        raise ValueError("need at least one array to stack")
    if len({x.shape for x in parts}) > 1:
        raise ValueError(f"stack of shapes {', '.join(str(x.shape) for x in parts)}: they must be equal")
    at = normalize_axis_index(axis, parts[0].ndim + 1)
    shape = (*parts[0].shape[:at], len(parts), *parts[0].shape[at:])
    out: Counted = r.new(shape, promoted(*(x.dtype for x in parts)), reads=sum(x.size for x in parts))
    return out


def astype(r: Any, x: Any, dtype: Any, copy: bool = True) -> Counted:
    x, kind = r.lift(x), kind_of(dtype)
    out: Counted = x if kind == x.dtype and not copy else r.new(x.shape, kind, reads=x.size)
    return out


def asarray(r: Any, x: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Counted:
    lifted = r.lift(np.asarray(x) if isinstance(x, list | tuple) else x)
    kind = lifted.dtype if dtype is None else kind_of(dtype)
    return astype(r, lifted, kind, copy=copy is True or isinstance(x, list | tuple))


def _asked(r: Any, x: Any) -> Counted:
    """isfinite, isnan, isinf."""
    x = r.lift(x)
    r.running.compares += x.size
    out: Counted = r.new(x.shape, BOOL, reads=x.size)
    return out


def made(r: Any, shape: Any, dtype: Any = None, device: Any = None) -> Counted:
    """zeros, ones."""
    sizes = (shape,) if isinstance(shape, int) else tuple(operator.index(size) for size in shape)
    if min(sizes, default=0) < 0:
        raise ValueError(f"an array of shape {sizes}: negative dimensions are not allowed")
    out: Counted = r.new(sizes, FLOAT if dtype is None else kind_of(dtype))
    return out


def full(r: Any, shape: Any, value: Any, dtype: Any = None, device: Any = None) -> Counted:
    return made(r, shape, r.lift(value).dtype if dtype is None else dtype)


def arange(r: Any, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, device: Any = None) -> Counted:
    start, stop = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(number, int) for number in (start, stop, step))
    length = len(range(start, stop, step)) if whole else max(int(np.ceil((stop - start) / step)), 0)
    return made(r, length, (INT if whole else FLOAT) if dtype is None else dtype)


def eye(r: Any, n: int, m: int | None = None, k: int = 0, dtype: Any = None, device: Any = None) -> Counted:
    return made(r, (n, n if m is None else m), dtype)


def _like(r: Any, x: Any, *_: Any, dtype: Any = None, device: Any = None) -> Counted:
    """zeros_like, ones_like, full_like."""
    x = r.lift(x)
    return made(r, x.shape, x.dtype if dtype is None else dtype)


RULES: dict[str, Callable[..., Any]] = {
    "reshape": reshape,
    "matrix_transpose": _looking(lambda x: np.swapaxes(x, -1, -2)),
    "permute_dims": _looking(lambda x, axes: np.transpose(x, axes)),
    "moveaxis": _looking(np.moveaxis),
    "expand_dims": _looking(lambda x, axis=0: np.expand_dims(x, axis)),
    "squeeze": _looking(np.squeeze),
    "getitem": getitem,
    "broadcast_to": _looking(np.broadcast_to),
    "broadcast_arrays": broadcast_arrays,
    "flip": _looking(lambda x, axis=None: np.flip(x, axis)),
    "roll": roll,
    **dict.fromkeys(("tril", "triu"), triangle),
    "take": take,
    "take_along_axis": take_along_axis,
    "repeat": repeat,
    "concat": concat,
    "stack": stack,
    "astype": astype,
    "asarray": asarray,
    **dict.fromkeys(("isfinite", "isnan", "isinf"), _asked),
    **dict.fromkeys(("zeros", "ones"), made),
    "full": full,
    "arange": arange,
    "eye": eye,
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), _like),
}
