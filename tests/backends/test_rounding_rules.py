"""The algebra of the rounding reading: perturb operands within their bounds, round as often and as far as the precision
allows, and the result must stay within the result's bound; pushed to the corner, it must come close to it.

False alarms on simulated kernels do not prove the constants (real roundings rarely align); this does. Candidates are
computed in long double, rounded by hand with every error at its limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from refattn.backend import load
from refattn.precision import PRESETS, Precision

Array = Any
Wide = np.longdouble
if np.finfo(Wide).eps > 1e-18:
    PRECISIONS = [name for name in PRESETS if name != "fp64"]  # there is nothing wider than float64 to check it in
else:
    PRECISIONS = list(PRESETS)


class Corner:
    """Roundings at the limit of a precision: all up, all down, or at random."""

    def __init__(self, p: Precision, sign: float, rng: np.random.Generator) -> None:
        self.p, self.sign, self.rng = p, sign, rng

    def push(self, shape: tuple[int, ...]) -> Array:
        if self.sign:
            return np.full(shape, Wide(self.sign))
        return self.rng.choice([-1.0, 1.0], size=shape).astype(Wide)

    def fl(self, x: Array, u: float, times: float = 1.0) -> Array:
        """x after so many relative errors of u."""
        return x * (1 + self.push(np.shape(x)) * Wide(u)) ** Wide(times)

    def near(self, x: Any) -> Array:
        """A number that a correct kernel may hold where the reading holds x."""
        value = x.value.astype(Wide)
        return value if x.error is None else value + self.push(x.shape) * x.error.astype(Wide)


@dataclass(frozen=True)
class Rule:
    """draw: operands (value, relative error); read: what the namespace computes; worst: a kernel's result in wide
    arithmetic from operands that it holds; near: how close to the bound that has to come."""

    draw: Callable[[np.random.Generator], list[tuple[Array, Array]]]
    read: Callable[..., Any]
    worst: Callable[..., Array]
    close: float = 0.5


def signed(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[tuple[Array, Array]]]:
    return lambda rng: [(rng.normal(size=s), 10.0 ** rng.uniform(-9, -2, size=s)) for s in shapes]


def positive(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[tuple[Array, Array]]]:
    return lambda rng: [(np.exp(rng.normal(size=s)), 10.0 ** rng.uniform(-9, -2, size=s)) for s in shapes]


def given(draw: Callable[[np.random.Generator], list[tuple[Array, Array]]]) -> Any:
    """The same operands without errors of their own: the rule's own rounding alone."""
    return lambda rng: [(value, np.zeros_like(value)) for value, _ in draw(rng)]


def _added(c: Corner, a: Array, b: Array, sign: int) -> Array:
    a, b = c.fl(a, c.p.u, c.p.slack), c.fl(b, c.p.u, c.p.slack)
    return c.fl(a + sign * b, c.p.u)


def _exp(c: Corner, x: Array) -> Array:
    return c.fl(np.exp(x + c.push(x.shape) * np.abs(x) * Wide(c.p.argument * c.p.u)), c.p.exp * c.p.u)


def _log(c: Corner, x: Array, function: Callable[[Array], Array] = np.log) -> Array:
    out = function(x)
    return out + c.push(x.shape) * Wide(c.p.log * c.p.u) * np.maximum(np.abs(out), 1)


def _operand(c: Corner, x: Array) -> Array:
    return c.fl(x, c.p.operand)


def _summed(c: Corner, terms: Array, computed: bool, products: bool, axis: int) -> Array:
    """Every term meets every rounding: k additions, folded constants, a rescale for every tile."""
    k = terms.shape[axis]
    steps = k if products else max(k - 1, 0)
    rescales = -(-k // c.p.tile) if computed else 0
    terms = c.fl(c.fl(terms, c.p.acc, steps), c.p.u, c.p.slack + (c.p.exp + 2) * rescales)
    out = terms.sum(axis)
    return c.fl(out, c.p.u) if c.p.u > c.p.acc else out


def _product(c: Corner, a: Array, b: Array, computed: bool = True) -> Array:
    if computed or c.p.inputs:
        a, b = _operand(c, a), _operand(c, b)
    return _summed(c, a[..., :, :, None] * b[..., None, :, :], computed, True, -2)


ELEMENTWISE = {
    "add": Rule(signed((300,), (300,)), lambda xp, a, b: a + b, lambda c, a, b: _added(c, a, b, 1)),
    "subtract": Rule(signed((300,), (300,)), lambda xp, a, b: a - b, lambda c, a, b: _added(c, a, b, -1)),
    "multiply": Rule(signed((300,), (300,)), lambda xp, a, b: a * b, lambda c, a, b: c.fl(a * b, c.p.u)),
    "square": Rule(signed((300,)), lambda xp, a: xp.square(a), lambda c, a: c.fl(a * a, c.p.u)),
    "divide": Rule(signed((300,), (300,)), lambda xp, a, b: a / b, lambda c, a, b: c.fl(a / b, c.p.u, c.p.divide)),
    "exp": Rule(signed((300,)), lambda xp, x: xp.exp(x), _exp),
    "exp of large arguments": Rule(
        lambda rng: [(rng.uniform(-300, 30, size=300), 10.0 ** rng.uniform(-9, -4, size=300))],
        lambda xp, x: xp.exp(x), _exp),
    "log": Rule(positive((300,)), lambda xp, x: xp.log(x), _log),
    "log1p": Rule(positive((300,)), lambda xp, x: xp.log1p(x), lambda c, x: _log(c, x, np.log1p)),
    "tanh": Rule(
        signed((300,)), lambda xp, x: xp.tanh(x), lambda c, x: np.tanh(x) + c.push(x.shape) * Wide(c.p.tanh * c.p.u)),
    "cos": Rule(signed((300,)), lambda xp, x: xp.cos(x), lambda c, x: np.cos(x) + c.push(x.shape) * Wide(c.p.tanh * c.p.u)),
    "sin": Rule(signed((300,)), lambda xp, x: xp.sin(x), lambda c, x: np.sin(x) + c.push(x.shape) * Wide(c.p.tanh * c.p.u)),
    "sqrt": Rule(positive((300,)), lambda xp, x: xp.sqrt(x), lambda c, x: c.fl(np.sqrt(np.maximum(x, 0)), c.p.u)),
    "negative": Rule(signed((300,)), lambda xp, x: -x, lambda c, x: -x),
    "abs": Rule(signed((300,)), lambda xp, x: abs(x), lambda c, x: np.abs(x)),
    "times a constant": Rule(signed((300,)), lambda xp, x: x * 0.3, lambda c, x: c.fl(x * Wide(0.3), c.p.u, 2)),
    "times a power of two": Rule(signed((300,)), lambda xp, x: x * -0.125, lambda c, x: x * Wide(-0.125)),
    "maximum": Rule(signed((300,), (300,)), lambda xp, a, b: xp.maximum(a, b), lambda c, a, b: np.maximum(a, b)),
    "minimum": Rule(signed((300,), (300,)), lambda xp, a, b: xp.minimum(a, b), lambda c, a, b: np.minimum(a, b)),
    "where": Rule(signed((300,), (300,)), lambda xp, a, b: xp.where(a > b, a, b), lambda c, a, b: np.where(a > b, a, b)),
    "max": Rule(signed((40, 9)), lambda xp, x: xp.max(x, axis=-1), lambda c, x: x.max(-1)),
    "min": Rule(signed((40, 9)), lambda xp, x: xp.min(x, axis=0), lambda c, x: x.min(0)),
    "sort": Rule(signed((40, 9)), lambda xp, x: xp.sort(x, axis=-1), lambda c, x: np.sort(x, -1)),
}
CONTRACTIONS = {
    "matmul": Rule(signed((6, 50), (50, 7)), lambda xp, a, b: xp.matmul(a, b), _product, 0.1),
    "matmul, one-signed": Rule(positive((6, 50), (50, 7)), lambda xp, a, b: xp.matmul(a, b), _product, 0.5),
    "matmul of what was given": Rule(
        given(positive((6, 50), (50, 7))), lambda xp, a, b: xp.matmul(a, b),
        lambda c, a, b: _product(c, a, b, computed=False)),
    "matmul with leading axes": Rule(
        signed((2, 1, 4, 20), (3, 20, 5)), lambda xp, a, b: xp.matmul(a, b), _product, 0.1),
    "sum": Rule(positive((40, 50)), lambda xp, x: xp.sum(x, axis=-1), lambda c, x: _summed(c, x, True, False, -1)),
    "sum of what was given": Rule(
        given(positive((40, 50))), lambda xp, x: xp.sum(x, axis=0), lambda c, x: _summed(c, x, False, False, 0)),
    "cumulative_sum": Rule(
        positive((50,)), lambda xp, x: xp.cumulative_sum(x),
        lambda c, x: np.stack([_summed(c, x[: t + 1], True, False, 0) for t in range(50)])),
}
RULES = {**ELEMENTWISE, **CONTRACTIONS}


def lifted(b: Any, draws: list[tuple[Array, Array]]) -> list[Any]:
    out = []
    for value, relative in draws:
        x = b.lift(value)
        x.error = np.abs(value) * relative if relative.any() else None
        out.append(x)
    return out


def worst_ratio(rule: Rule, precision: Precision, sign: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    b = load("rounding", precision=precision)
    operands = lifted(b, rule.draw(rng))
    result = rule.read(b.xp, *operands)
    corner = Corner(precision, sign, rng)
    held = rule.worst(corner, *(corner.near(x) for x in operands))
    error = np.abs(held - result.value.astype(Wide))
    assert result.bound.shape == result.shape == held.shape
    bound = result.bound.astype(Wide)
    assert np.all(np.isfinite(bound))
    return float(np.max(np.where(error > 0, error / np.where(bound > 0, bound, Wide(1e-300)), 0)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", RULES)
def test_results_stay_within_their_bound_and_reach_it(name: str, precision: str) -> None:
    p = dataclasses.replace(PRESETS[precision], tile=7)
    ratios = [worst_ratio(RULES[name], p, sign, seed) for sign in (1.0, -1.0, 0.0) for seed in range(3)]
    assert RULES[name].close < max(ratios) <= 1.0


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("store", ["narrow", "settle"])
def test_stored_results_stay_within_their_bound_and_reach_it(store: str, precision: str) -> None:
    p = PRESETS[precision]
    units, u = (1.0, p.out) if store == "narrow" else (p.settle + 1.0, p.u)

    def read(xp: Any, x: Any) -> Any:
        b = x.__refattn_backend__
        return b.narrow(x, x) if store == "narrow" else b.settle(x)

    rule = Rule(signed((300,)), read, lambda c, x: c.fl(x, u, units))
    assert 0.9 < max(worst_ratio(rule, p, sign, 0) for sign in (1.0, -1.0, 0.0)) <= 1.0
