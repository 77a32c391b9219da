"""Exact rules of functions that only move entries or make new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refattn.errors import Undecided

from .exact_array import ZERO, Ball, balls, each, is_real

Array = Any


def _bare(x: Any) -> Any:
    """An index, axis or repeat count without its shell."""
    if isinstance(x, tuple):
        return tuple(_bare(part) for part in x)
    return x.entries if isinstance(x, Ball) else x


def _moving(function: Callable[..., Array]) -> Callable[..., Ball]:
    """The rule of a function of one array."""

    def rule(r: Any, x: Any, *args: Any, **named: Any) -> Ball:
        named = {name: _bare(value) for name, value in named.items()}
        v = r.lift(x).entries
        return Ball(r, np.asarray(function(v, *_bare(args), **named), dtype=v.dtype))

    return rule


def _joining(function: Callable[..., Array]) -> Callable[..., Ball]:
    """concat, stack."""

    def rule(r: Any, arrays: Any, **named: Any) -> Ball:
        parts = [r.lift(x).entries for x in arrays]
        parts = [balls(v) for v in parts] if any(is_real(v) for v in parts) else parts
        return Ball(r, function(parts, **named))

    return rule


def _triangle(keep: Callable[..., Array]) -> Callable[[Array, int], Array]:
    """tril, triu: zeros are balls too."""

    def cut(x: Array, k: int = 0) -> Array:
        return np.where(keep(np.ones(x.shape[-2:], dtype=bool), k), x, ZERO if is_real(x) else x.dtype.type(0))

    return cut


def broadcast_arrays(r: Any, *arrays: Any) -> list[Ball]:
    lifted = [r.lift(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in lifted))
    return [Ball(r, np.broadcast_to(x.entries, shape)) for x in lifted]


def astype(r: Any, x: Any, dtype: Any, copy: bool = True) -> Ball:
    """Truth values and integers to numbers; numbers stay balls, since precision is the reading's affair."""
    v, kind = r.lift(x).entries, np.dtype(dtype).kind
    if kind == "f":
        return Ball(r, balls(v))
    if is_real(v):
        raise TypeError(f"the exact reading cannot make {np.dtype(dtype)} of real numbers: compare them instead")
    return Ball(r, v.astype(np.int64 if kind in "iu" else bool))


def _maker(function: Callable[..., Array]) -> Callable[..., Ball]:
    """zeros, ones, full, arange, eye: balls unless a dtype of integers or truth values is asked for."""

    def rule(r: Any, *args: Any, dtype: Any = None, device: Any = None, **named: Any) -> Ball:
        made = function(*_bare(args), **named)
        out: Ball = r.lift(made if dtype is None else made.astype(dtype))
        return out

    return rule


def _like(value: float) -> Callable[..., Ball]:
    """zeros_like, ones_like."""
    whole = int(value)

    def rule(r: Any, x: Any, dtype: Any = None, device: Any = None) -> Ball:
        return full_like(r, x, value if is_real(r.lift(x).entries) else whole, dtype)

    return rule


def full_like(r: Any, x: Any, value: Any, dtype: Any = None, device: Any = None) -> Ball:
    x, value = r.lift(x), r.lift(value).entries
    filled = np.broadcast_to(balls(value) if is_real(x.entries) else value.astype(x.dtype), x.shape)
    return Ball(r, filled) if dtype is None else astype(r, Ball(r, filled), dtype)


def asarray(r: Any, x: Any, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Ball:
    out: Ball = r.lift(np.asarray(x) if isinstance(x, list) else x)
    return out if dtype is None else astype(r, out, dtype)


def _asked(of_ball: Callable[[Any], bool], of_rest: bool) -> Callable[..., Ball]:
    """isfinite, isnan, isinf: of integers and truth values the answer is known.

    Raises
    ------
    Undecided
        For a ball without bounds, which holds finite numbers and others.
    """

    def ask(x: Any) -> bool:
        if not (x.is_finite() or x.is_exact()):
            raise Undecided(f"a ball without bounds, {x}, may hold anything")
        return of_ball(x)

    entrywise = each(ask)

    def rule(r: Any, x: Any) -> Ball:
        v = r.lift(x).entries
        return Ball(r, entrywise(v).astype(bool) if is_real(v) else np.full(v.shape, of_rest))

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "reshape": _moving(lambda x, shape, copy=None: np.reshape(x, shape)),
    "matrix_transpose": _moving(lambda x: np.swapaxes(x, -1, -2)),
    "permute_dims": _moving(lambda x, axes: np.transpose(x, axes)),
    "moveaxis": _moving(np.moveaxis),
    "expand_dims": _moving(lambda x, axis=0: np.expand_dims(x, axis)),
    "squeeze": _moving(np.squeeze),
    "getitem": _moving(lambda x, key: x[key]),
    "broadcast_to": _moving(np.broadcast_to),
    "broadcast_arrays": broadcast_arrays,
    "flip": _moving(lambda x, axis=None: np.flip(x, axis)),
    "roll": _moving(lambda x, shift, axis=None: np.roll(x, shift, axis)),
    "tril": _moving(_triangle(np.tril)),
    "triu": _moving(_triangle(np.triu)),
    "take": _moving(lambda x, indices, axis=None: np.take(x, indices, axis)),
    "take_along_axis": _moving(lambda x, indices, axis=-1: np.take_along_axis(x, indices, axis)),
    "repeat": _moving(lambda x, repeats, axis=None: np.repeat(x, repeats, axis)),
    "concat": _joining(lambda parts, axis=0: np.concatenate(parts, axis)),
    "stack": _joining(lambda parts, axis=0: np.stack(parts, axis)),
    "astype": astype,
    "asarray": asarray,
    "isfinite": _asked(lambda x: bool(x.is_finite()), True),
    "isnan": _asked(lambda x: bool(x.is_nan()), False),
    "isinf": _asked(lambda x: not x.is_finite() and not x.is_nan(), False),
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "full_like": full_like,
    **{name: _maker(getattr(np, name)) for name in ("zeros", "ones", "full", "arange", "eye")},
}
