"""Exact rules of arithmetic, sums and products: each result is a ball that contains every value its operands allow.

matmul is one ``arb_mat`` product for each batch index, which is some thirty times as fast as NumPy's loop over objects.
Integers and truth values among themselves stay with NumPy, until they are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, arb_mat

from .exact_array import ZERO, Ball, balls, each, is_real

Array = Any
Axes = int | tuple[int, ...] | None
_add: Any = np.add.reduce
NOTHING = arb("-inf")  # the logarithm of exactly 0


def _arithmetic(name: str) -> Callable[[Any, Any, Any], Ball]:
    function = getattr(np, name)

    def rule(r: Any, a: Any, b: Any) -> Ball:
        a, b = r.lift(a).entries, r.lift(b).entries
        if is_real(a) or is_real(b) or name == "divide":
            return Ball(r, np.asarray(function(balls(a), balls(b)), dtype=object))
        return Ball(r, np.asarray(function(a, b)))

    return rule


def _function(entry: Callable[[Any], Any]) -> Callable[[Any, Any], Ball]:
    """The rule of a real function that is given ball by ball."""
    entrywise = each(entry)
    return lambda r, x: Ball(r, entrywise(balls(r.lift(x).entries)))


def _kept(function: Callable[[Array], Array]) -> Callable[[Any, Any], Ball]:
    """The rule of a function that leaves integers integers."""
    return lambda r, x: Ball(r, np.asarray(function(r.lift(x).entries), dtype=r.lift(x).entries.dtype))


def _log(x: Any) -> Any:
    return NOTHING if x.is_zero() else x.log()


def _sqrt(x: Any) -> Any:
    """√x; a ball that reaches below 0 stands for a number that does not, or the text would not take its root."""
    return ZERO.union(x.upper().sqrt()) if not x.is_exact() and x.contains(0) else x.sqrt()


def matmul(r: Any, a: Any, b: Any) -> Ball:
    a, b = r.lift(a).entries, r.lift(b).entries
    if a.ndim < 2 or b.ndim < 2:
        raise TypeError(f"matmul of shapes {a.shape} and {b.shape}: give two axes or more, a vector as (n, 1) or (1, n)")
    if not is_real(a) and not is_real(b):
        return Ball(r, np.matmul(a, b))
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul of shapes {a.shape} and {b.shape}: contracted axes of {a.shape[-1]} and {b.shape[-2]}")
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = _matrices(balls(a), lead), _matrices(balls(b), lead)
    out = np.empty((*lead, a.shape[-2], b.shape[-1]), dtype=object)
    for at in np.ndindex(*lead):
        out[at] = np.asarray((left(at) * right(at)).entries(), dtype=object).reshape(out.shape[-2:])
    return Ball(r, out)


def _matrices(x: Array, lead: tuple[int, ...]) -> Callable[[tuple[int, ...]], Any]:
    """The matrix at a broadcast batch index; one that several indices share is made once."""
    own = (1,) * (len(lead) + 2 - x.ndim) + x.shape
    full, made = x.reshape(own), {}

    def matrix(at: tuple[int, ...]) -> Any:
        here = tuple(i if size != 1 else 0 for i, size in zip(at, own, strict=False))
        if here not in made:
            made[here] = arb_mat(own[-2], own[-1], full[here].ravel().tolist())
        return made[here]

    return matrix


def sum_(r: Any, x: Any, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Ball:
    v = r.lift(x).entries
    if not is_real(v):
        return Ball(r, np.asarray(np.sum(v, axis=axis, keepdims=keepdims)))
    axes = tuple(range(v.ndim)) if axis is None else axis
    return Ball(r, np.asarray(_add(v, axis=axes, keepdims=keepdims, initial=ZERO), dtype=object))


def cumulative_sum(r: Any, x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Ball:
    v = r.lift(x).entries
    if axis is None and v.ndim != 1:
        raise TypeError(f"cumulative_sum of shape {v.shape} needs an axis")
    line = (0 if axis is None else axis) % v.ndim
    v = v if v.dtype.kind != "b" else v.astype(np.int64)
    if include_initial:
        start = np.full((*v.shape[:line], 1, *v.shape[line + 1 :]), ZERO if is_real(v) else 0, dtype=v.dtype)
        v = np.concatenate([start, v], axis=line)
    return Ball(r, np.add.accumulate(v, axis=line))


RULES: dict[str, Callable[..., Any]] = {
    **{name: _arithmetic(name) for name in ("add", "subtract", "multiply", "divide")},
    "exp": _function(arb.exp),
    "log": _function(_log),
    "log1p": _function(lambda x: NOTHING if x == -1 else x.log1p()),
    "tanh": _function(arb.tanh),
    "cos": _function(arb.cos),
    "sin": _function(arb.sin),
    "sqrt": _function(_sqrt),
    "square": _kept(lambda x: x * x),
    "negative": _kept(np.negative),
    "abs": _kept(np.abs),
    "matmul": matmul,
    "sum": sum_,
    "cumulative_sum": cumulative_sum,
}
