"""Rounding rules of functions that only move entries or make new ones: every component moves alike, nothing rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .rounding_array import EXACT, Rounded, Variance, relabelled, seen

Array = Any
Labels = list[int | None]


def _bare(x: Any) -> Any:
    """An index, axis or repeat count without its shell."""
    if isinstance(x, tuple):
        return tuple(_bare(part) for part in x)
    return x.value if isinstance(x, Rounded) else x


def _moving(function: Callable[..., Array], labels: Callable[..., Labels] | None = None) -> Callable[..., Rounded]:
    """The rule of a function of one array; `labels` says which old axis stands where, unless all stay."""

    def rule(r: Any, x: Any, *args: Any, **named: Any) -> Rounded:
        x, args, named = r.lift(x), _bare(args), {name: _bare(value) for name, value in named.items()}
        value = function(x.value, *args, **named)
        if x.error is None:
            return Rounded(r, value)
        error = function(x.error, *args, **named)
        parts = (None if p is None else function(np.broadcast_to(p, x.shape), *args, **named) for p in x.variance)
        variance = Variance(*parts)
        if labels is not None:
            variance = relabelled(variance, labels(x.shape, np.shape(value), *args, **named), x.ndim)
        return Rounded(r, value, error, variance)

    return rule


def _reshaped(old: Sequence[int], new: Sequence[int], *_: Any, **__: Any) -> Labels:
    """Axes of equal size matched from the right; axes of size 1 come and go."""
    labels: Labels = [None] * len(new)
    i, j = len(old) - 1, len(new) - 1
    while i >= 0 and j >= 0:
        if old[i] == new[j]:
            labels[j] = i
            i, j = i - 1, j - 1
        elif old[i] == 1:
            i -= 1
        elif new[j] == 1:
            j -= 1
        else:
            break
    return labels


def _turned(old: Sequence[int], new: Sequence[int]) -> Labels:
    axes: Labels = list(range(len(old)))
    axes[-2:] = [len(old) - 1, len(old) - 2]
    return axes


def _permuted(old: Sequence[int], new: Sequence[int], axes: Sequence[int]) -> Labels:
    return [axis % len(old) for axis in axes]


def _moved(old: Sequence[int], new: Sequence[int], source: Any, destination: Any) -> Labels:
    one = isinstance(source, int)
    sources = [s % len(old) for s in ([source] if one else source)]
    targets = [t % len(old) for t in ([destination] if one else destination)]
    order: Labels = [axis for axis in range(len(old)) if axis not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return order


def _expanded(old: Sequence[int], new: Sequence[int], axis: int = 0) -> Labels:
    labels: Labels = list(range(len(old)))
    labels.insert(axis % len(new), None)
    return labels


def _squeezed(old: Sequence[int], new: Sequence[int], axis: Any) -> Labels:
    gone = {a % len(old) for a in ((axis,) if isinstance(axis, int) else axis)}
    return [a for a in range(len(old)) if a not in gone]


def _indexed(old: Sequence[int], new: Sequence[int], key: Any) -> Labels:
    """Axes after x[key] for integers, slices, None and one Ellipsis; index arrays keep nothing."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, np.ndarray | list) and np.ndim(k) for k in keys):
        return [None] * len(new)
    used = sum(k is not None and k is not Ellipsis for k in keys)
    full = [slice(None)] * (len(old) - used)
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    labels: Labels = []
    axis = 0
    for k in (*keys[:at], *full, *keys[at + 1 :]):
        if k is None:
            labels.append(None)
            continue
        if isinstance(k, slice):
            labels.append(axis)
        axis += 1
    return labels


def getitem(r: Any, x: Any, key: Any) -> Rounded:
    return _GETITEM(r, x, key)


_GETITEM = _moving(lambda x, key: x[key], _indexed)


def broadcast_to(r: Any, x: Any, shape: tuple[int, ...]) -> Rounded:
    x = r.lift(x)
    error = None if x.error is None else np.broadcast_to(x.error, shape)
    return Rounded(r, np.broadcast_to(x.value, shape), error, EXACT if x.error is None else seen(x, tuple(shape)))


def broadcast_arrays(r: Any, *arrays: Any) -> list[Rounded]:
    lifted = [r.lift(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in lifted))
    return [broadcast_to(r, x, shape) for x in lifted]


def _joining(function: Callable[..., Array], labels: Callable[..., Labels] | None) -> Callable[..., Rounded]:
    """concat, stack: exact parts join with zero errors."""

    def rule(r: Any, arrays: Any, **named: Any) -> Rounded:
        parts = [r.lift(x) for x in arrays]
        value = function([x.value for x in parts], **named)
        if all(x.error is None for x in parts):
            return Rounded(r, value)

        def joined(components: list[Array | None]) -> Array | None:
            if all(c is None for c in components):
                return None
            pairs = zip(components, parts, strict=True)
            return function([np.broadcast_to(0.0 if c is None else c, x.shape) for c, x in pairs], **named)

        error = joined([x.error for x in parts])
        if value.dtype.kind == "b" and error is not None:
            error = error.astype(bool)
        variance = Variance(*(joined([x.variance[i] for x in parts]) for i in range(3)))
        if labels is not None:
            variance = relabelled(variance, labels(parts[0].shape, value.shape, **named), parts[0].ndim)
        return Rounded(r, value, error, variance)

    return rule


def astype(r: Any, x: Any, dtype: Any, copy: bool = True) -> Rounded:
    """Truth values and integers to numbers; numbers stay float64, since precision is the reading's affair."""
    x, kind = r.lift(x), np.dtype(dtype).kind
    if kind == "f":
        error = None if x.error is None else x.error.astype(np.float64)
        return Rounded(r, x.value.astype(np.float64), error, x.variance)
    if x.error is not None and kind != x.value.dtype.kind:
        raise TypeError(f"the rounding reading cannot make {np.dtype(dtype)} of rounded numbers: compare them instead")
    return Rounded(r, x.value.astype(np.int64 if kind in "iu" else bool), x.error)


def _maker(function: Callable[..., Array]) -> Callable[..., Rounded]:
    """zeros, ones, full, arange, eye: exact; float64 unless a dtype of integers or truth values is asked for."""

    def rule(r: Any, *args: Any, dtype: Any = None, device: Any = None, **named: Any) -> Rounded:
        made = function(*_bare(args), **named)
        out: Rounded = r.lift(made if dtype is None else made.astype(dtype))
        return out

    return rule


def _like(function: Callable[..., Array]) -> Callable[..., Rounded]:
    def rule(r: Any, x: Any, *args: Any, dtype: Any = None, device: Any = None) -> Rounded:
        out: Rounded = r.lift(function(r.lift(x).value, *_bare(args), dtype=dtype))
        return out

    return rule


def asarray(r: Any, x: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Rounded:
    out: Rounded = r.lift(np.asarray(x) if isinstance(x, list) else x)
    return out if dtype is None else astype(r, out, dtype)


def _asked(function: Callable[[Array], Array]) -> Callable[..., Rounded]:
    """isfinite, isnan, isinf: exact, non-finite values have no error."""
    return lambda r, x: Rounded(r, function(r.lift(x).value))


RULES: dict[str, Callable[..., Any]] = {
    "reshape": _moving(lambda x, shape, copy=None: np.reshape(x, shape), _reshaped),
    "matrix_transpose": _moving(lambda x: np.swapaxes(x, -1, -2), _turned),
    "permute_dims": _moving(lambda x, axes: np.transpose(x, axes), _permuted),
    "moveaxis": _moving(np.moveaxis, _moved),
    "expand_dims": _moving(lambda x, axis=0: np.expand_dims(x, axis), _expanded),
    "squeeze": _moving(np.squeeze, _squeezed),
    "getitem": getitem,
    "broadcast_to": broadcast_to,
    "broadcast_arrays": broadcast_arrays,
    "flip": _moving(lambda x, axis=None: np.flip(x, axis)),
    "roll": _moving(lambda x, shift, axis=None: np.roll(x, shift, axis)),
    "tril": _moving(lambda x, k=0: np.tril(x, k)),
    "triu": _moving(lambda x, k=0: np.triu(x, k)),
    "take": _moving(lambda x, indices, axis=None: np.take(x, indices, axis)),
    "take_along_axis": _moving(lambda x, indices, axis=-1: np.take_along_axis(x, indices, axis)),
    "repeat": _moving(lambda x, repeats, axis=None: np.repeat(x, repeats, axis)),
    "concat": _joining(lambda parts, axis=0: np.concatenate(parts, axis), None),
    "stack": _joining(lambda parts, axis=0: np.stack(parts, axis), _expanded),
    "astype": astype,
    "asarray": asarray,
    "isfinite": _asked(np.isfinite),
    "isnan": _asked(np.isnan),
    "isinf": _asked(np.isinf),
    **{name: _maker(getattr(np, name)) for name in ("zeros", "ones", "full", "arange", "eye")},
    **{name: _like(getattr(np, name)) for name in ("zeros_like", "ones_like", "full_like")},
}
