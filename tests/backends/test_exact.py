"""The algebra of the exact reading: whatever numbers the operands hold, the result holds what is computed from them.

The right answers are Python's: fractions for arithmetic, decimals of 60 digits for functions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from refattn import BackendUnavailable, LibraryError, OptionError, load
from refattn.errors import DtypeError, Undecided
from refattn.precision import PRESETS

pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
from flint import arb, ctx

Array = Any
DIGITS = 60
TINY = Fraction(1, 10 ** (DIGITS - 5))


@pytest.fixture
def reading() -> Any:
    return load("exact")


def fraction(x: Any) -> Fraction:
    """A number without a radius as a fraction."""
    mantissa, exponent = x.man_exp()
    return int(mantissa) * Fraction(2) ** int(exponent)


def ball(reading: Any, mid: Array, rad: Array) -> Any:
    """Balls of these midpoints and radii."""
    return type(reading.lift(0.0))(reading, np.asarray(np.frompyfunc(arb, 2, 1)(mid, rad), dtype=object))


def member(x: Any, rng: np.random.Generator) -> Array:
    """A number that each ball holds: an end or one between, as fractions."""
    where = rng.choice([-1.0, 1.0, 0.0, 0.3], size=x.shape)
    held = np.frompyfunc(lambda b, t: fraction(b.mid()) + Fraction(t) * fraction(b.rad()), 2, 1)
    return np.asarray(held(x.entries, where), dtype=object)


def holds(x: Any, truth: Array) -> bool:
    """Whether every ball contains its truth, which is good to DIGITS digits."""
    assert x.shape == np.shape(truth)
    with ctx.workprec(1000):
        pairs = zip(x.entries.flat, np.asarray(truth, dtype=object).flat, strict=True)
        return all(abs(t - fraction(b.mid())) <= fraction(b.rad()) + TINY * abs(t) for b, t in pairs)


def decimals(function: Callable[[Decimal], Decimal]) -> Callable[[Array], Array]:
    def one(x: Fraction) -> Fraction:
        with localcontext(prec=DIGITS):
            return Fraction(function(Decimal(x.numerator) / Decimal(x.denominator)))

    return lambda x: np.asarray(np.frompyfunc(one, 1, 1)(x), dtype=object)


def tanh(x: Decimal) -> Decimal:
    return 1 - 2 / ((2 * x).exp() + 1)


def circular(start: int) -> Callable[[Decimal], Decimal]:
    """The series of cos (from x⁰ on) or sin (from x¹ on), which serves small numbers."""

    def series(x: Decimal) -> Decimal:
        term, out = x**start if start else Decimal(1), Decimal(0)
        for k in range(start, 2 * DIGITS, 2):
            out += term
            term *= -x * x / ((k + 1) * (k + 2))
        return out

    return series


def product(a: Array, b: Array) -> Array:
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def signed(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Array]]:
    return lambda rng: [rng.normal(size=s) for s in shapes]


def positive(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Array]]:
    return lambda rng: [np.exp(rng.normal(size=s)) for s in shapes]


RULES: dict[str, tuple[Any, Callable[..., Any], Callable[..., Array]]] = {
    "add": (signed((50,), (3, 50)), lambda xp, a, b: a + b, lambda a, b: a + b),
    "subtract": (signed((50,), (50,)), lambda xp, a, b: a - b, lambda a, b: a - b),
    "multiply": (signed((50,), (50,)), lambda xp, a, b: a * b, lambda a, b: a * b),
    "divide": (positive((50,), (50,)), lambda xp, a, b: a / b, lambda a, b: a / b),
    "a number from the left": (positive((50,)), lambda xp, a: 1 - 0.1 / a, lambda a: 1 - Fraction(0.1) / a),
    "negative": (signed((50,)), lambda xp, a: -a, lambda a: -a),
    "abs": (signed((50,)), lambda xp, a: abs(a), abs),
    "square": (signed((50,)), lambda xp, a: xp.square(a), lambda a: a * a),
    "exp": (signed((50,)), lambda xp, a: xp.exp(a), decimals(Decimal.exp)),
    "log": (positive((50,)), lambda xp, a: xp.log(a), decimals(Decimal.ln)),
    "log1p": (positive((50,)), lambda xp, a: xp.log1p(a), decimals(lambda x: (1 + x).ln())),
    "sqrt": (positive((50,)), lambda xp, a: xp.sqrt(a), decimals(Decimal.sqrt)),
    "tanh": (signed((50,)), lambda xp, a: xp.tanh(a), decimals(tanh)),
    "cos": (signed((50,)), lambda xp, a: xp.cos(a), decimals(circular(0))),
    "sin": (signed((50,)), lambda xp, a: xp.sin(a), decimals(circular(1))),
    "maximum": (signed((50,), (50,)), lambda xp, a, b: xp.maximum(a, b), np.maximum),
    "minimum": (signed((50,), (50,)), lambda xp, a, b: xp.minimum(a, b), np.minimum),
    "max": (signed((9, 7)), lambda xp, a: xp.max(a, axis=-1), lambda a: a.max(-1)),
    "max of all": (signed((9, 7)), lambda xp, a: xp.max(a), lambda a: a.max()),
    "min": (signed((9, 7)), lambda xp, a: xp.min(a, axis=0, keepdims=True), lambda a: a.min(0, keepdims=True)),
    "sort": (signed((9, 7)), lambda xp, a: xp.sort(a, axis=0), lambda a: np.sort(a, 0)),
    "sort down": (signed((9, 7)), lambda xp, a: xp.sort(a, descending=True), lambda a: np.flip(np.sort(a, -1), -1)),
    "sum": (signed((9, 7)), lambda xp, a: xp.sum(a, axis=(0, 1)), lambda a: a.sum()),
    "sum along an axis": (signed((9, 7)), lambda xp, a: xp.sum(a, axis=0, keepdims=True), lambda a: a.sum(0, keepdims=True)),
    "cumulative_sum": (signed((9, 7)), lambda xp, a: xp.cumulative_sum(a, axis=0), lambda a: np.cumsum(a, 0)),
    "matmul": (signed((6, 8), (8, 5)), lambda xp, a, b: xp.matmul(a, b), product),
    "matmul with shared axes": (signed((2, 1, 4, 3), (5, 3, 2)), lambda xp, a, b: a @ b, product),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("largest", [0.0, 1e-30, 1e-9, 1e-2])
def test_results_hold_what_their_operands_allow(name: str, largest: float) -> None:
    draw, call, truth = RULES[name]
    rng = np.random.default_rng(len(name))
    reading = load("exact", bits=100)
    operands = [ball(reading, x, largest * rng.random(x.shape) * np.abs(x)) for x in draw(rng)]
    result = call(reading.xp, *operands)
    assert all(holds(result, truth(*(member(x, rng) for x in operands))) for _ in range(4))
    assert np.max(result.rad()) <= 1e4 * max(largest, 2.0**-100)


def test_the_truth_itself_would_be_found_wrong(reading: Any) -> None:
    x = reading.lift(np.asarray([0.5, 2.0]))
    truth = decimals(lambda t: t.exp() * (1 + Decimal("1e-37")))(member(x, np.random.default_rng(0)))
    assert not holds(reading.xp.exp(x), truth)


X, N = np.arange(24.0).reshape(2, 3, 4) - 7.0, np.asarray([2, 0, 1])
MOVES: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "reshape": (lambda xp, x: xp.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
    "matrix_transpose": (lambda xp, x: xp.matrix_transpose(x) + x.mT, lambda x: 2 * np.swapaxes(x, 1, 2)),
    "permute_dims": (lambda xp, x: xp.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "moveaxis": (lambda xp, x: xp.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "expand_dims": (lambda xp, x: xp.expand_dims(x, axis=1), lambda x: x[:, None]),
    "squeeze": (lambda xp, x: xp.squeeze(x[:1, ...], axis=0), lambda x: x[0]),
    "getitem": (lambda xp, x: x[..., 1:, None, -1], lambda x: x[..., 1:, None, -1]),
    "one entry": (lambda xp, x: x[0, 1, 2], lambda x: x[0, 1, 2]),
    "broadcast_to": (lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4)), lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
    "broadcast_arrays": (lambda xp, x: xp.broadcast_arrays(x, x[0, :1, :])[1], lambda x: np.broadcast_to(x[0, :1], x.shape)),
    "flip": (lambda xp, x: xp.flip(x, axis=-1), lambda x: x[..., ::-1]),
    "roll": (lambda xp, x: xp.roll(x, 1, axis=1), lambda x: np.roll(x, 1, 1)),
    "tril": (lambda xp, x: xp.tril(x), np.tril),
    "triu": (lambda xp, x: xp.triu(x, k=1), lambda x: np.triu(x, 1)),
    "take": (lambda xp, x: xp.take(x, xp.asarray([2, 0, 1]), axis=1), lambda x: np.take(x, N, 1)),
    "take_along_axis": (
        lambda xp, x: xp.take_along_axis(x, xp.broadcast_to(xp.asarray([[1], [0], [3]]), (2, 3, 1)), axis=-1),
        lambda x: np.take_along_axis(x, np.broadcast_to([[1], [0], [3]], (2, 3, 1)), -1)),
    "repeat": (lambda xp, x: xp.repeat(x, 2, axis=0), lambda x: np.repeat(x, 2, 0)),
    "concat": (lambda xp, x: xp.concat([x, xp.ones((2, 1, 4), dtype=xp.int64)], axis=1),
               lambda x: np.concatenate([x, np.ones((2, 1, 4))], 1)),
    "stack": (lambda xp, x: xp.stack([x, x], axis=-1), lambda x: np.stack([x, x], -1)),
    "astype": (lambda xp, x: xp.astype(x > 0, xp.float64), lambda x: (x > 0).astype(float)),
    "where": (lambda xp, x: xp.where(x > 0, x, -1), lambda x: np.where(x > 0, x, -1.0)),
    "zeros_like": (lambda xp, x: xp.zeros_like(x), np.zeros_like),
    "ones_like": (lambda xp, x: xp.ones_like(x), np.ones_like),
    "full_like": (lambda xp, x: xp.full_like(x, -math.inf), lambda x: np.full_like(x, -np.inf)),
    "zeros": (lambda xp, x: xp.zeros((2, 3)), lambda x: np.zeros((2, 3))),
    "ones": (lambda xp, x: xp.ones(x.shape), lambda x: np.ones(x.shape)),
    "full": (lambda xp, x: xp.full((3,), 0.5), lambda x: np.full(3, 0.5)),
    "eye": (lambda xp, x: xp.eye(3), lambda x: np.eye(3)),
    "arange": (lambda xp, x: xp.arange(3), lambda x: np.arange(3)),
    "isfinite": (lambda xp, x: xp.isfinite(x / 4.0), lambda x: np.ones(x.shape, bool)),
    "argmax": (lambda xp, x: xp.argmax(-abs(x - 2), axis=-1), lambda x: np.argmax(-abs(x - 2), -1)),
    "argmin": (lambda xp, x: xp.argmin(abs(x), axis=1, keepdims=True), lambda x: np.argmin(abs(x), 1, keepdims=True)),
    "argsort": (lambda xp, x: xp.argsort(abs(x), axis=0), lambda x: np.argsort(abs(x), 0, kind="stable")),
    "argsort of equals": (lambda xp, x: xp.argsort(x * 0, axis=1), lambda x: np.argsort(x * 0, 1, kind="stable")),
    "cumulative_sum": (lambda xp, x: xp.cumulative_sum(x, axis=1, include_initial=True),
                       lambda x: np.concatenate([np.zeros((2, 1, 4)), np.cumsum(x, 1)], 1)),
    "counting": (lambda xp, x: xp.sum(x > 0, axis=0), lambda x: np.sum(x > 0, 0)),
    "any, all": (lambda xp, x: xp.any(x > 9, axis=-1) & ~xp.all(x < 0), lambda x: np.any(x > 9, -1)),
}


@pytest.mark.parametrize("name", MOVES)
def test_structure_is_that_of_numpy(name: str, reading: Any) -> None:
    ours, numpys = MOVES[name]
    got, want = ours(reading.xp, reading.lift(X)), numpys(X)
    assert (got.shape, got.ndim, got.size) == (want.shape, want.ndim, want.size)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(reading.host(got), want)
    assert not got.rad().any()


def test_the_names_are_those_of_the_rounding_reading(reading: Any) -> None:
    rounding = load("rounding", precision=PRESETS["fp64"])
    assert set(vars(reading.xp)) == set(vars(rounding.xp))
    with pytest.raises(AttributeError, match="no rule for 'einsum'"):
        reading.xp.einsum  # noqa: B018


COMPARED = ("<", "<=", ">", ">=", "==", "!=")


@pytest.mark.parametrize("sign", COMPARED)
def test_a_comparison_of_balls_is_certified_or_refused(sign: str, reading: Any) -> None:
    def compare(a: Any, b: Any) -> Any:
        return eval(f"a {sign} b", {"a": a, "b": b})

    third = reading.lift(1.0) / 3
    for number in (0.0, 0.5, -math.inf, math.inf):
        assert bool(compare(third, number).mid()) is compare(1 / 3, number)
        assert bool(compare(number, third).mid()) is compare(number, 1 / 3)
    for a, b in ((0.1, 0.1), (-math.inf, -math.inf), (1.0, 2.0), (2, 1.0)):
        assert bool(compare(reading.lift(a), b).mid()) is compare(a, b)
    with pytest.raises(Undecided, match=r"1 of 3 pairs overlap at 128 bits, as \[0\.3333"):
        compare(reading.xp.stack([third, reading.lift(0.0), reading.lift(5.0)]), 1 - 2 * third)
    with pytest.raises(Undecided):
        compare(reading.lift(math.nan), 0.0)


def test_positions_are_certified_or_refused(reading: Any) -> None:
    xp = reading.xp
    third = reading.lift(1.0) / 3
    near = xp.stack([third, 1 - 2 * third, reading.lift(0.25)])
    assert xp.argmin(near).mid() == 2
    assert holds(xp.sort(near), np.asarray([Fraction(1, 4), Fraction(1, 3), Fraction(1, 3)], dtype=object))
    for ask in (xp.argmax, xp.argsort, lambda x: xp.argsort(x, descending=True)):
        with pytest.raises(Undecided):
            ask(near)
    descending = xp.argsort(reading.lift(np.asarray([1.0, 3.0, 1.0, 2.0, 3.0])), descending=True)
    np.testing.assert_array_equal(descending.mid(), [1, 4, 3, 0, 2])
    with pytest.raises(Undecided, match="without bounds"):
        xp.isfinite(1 / (near[0] - near[1]))


def test_infinities_and_what_is_no_number(reading: Any) -> None:
    xp = reading.xp
    x = reading.lift(np.asarray([-math.inf, math.inf, math.nan, 1.0]))
    np.testing.assert_array_equal(xp.isinf(x).mid(), [True, True, False, False])
    np.testing.assert_array_equal(xp.isnan(x).mid(), [False, False, True, False])
    np.testing.assert_array_equal(xp.exp(x).mid()[:2], [0.0, math.inf])
    assert xp.log(reading.lift(0.0)).mid() == -math.inf
    assert xp.max(x[:1]).mid() == -math.inf
    np.testing.assert_array_equal(x.distance(np.asarray([-math.inf, 1.0, 0.0, 1.5])), [0.0, math.inf, math.inf, 0.5])
    np.testing.assert_array_equal(x[:2].golden(), [-math.inf, math.inf])
    with pytest.raises(Undecided, match=r"1 of 4 .*as nan at \[2\]"):
        x.golden()


def test_a_root_of_what_may_be_zero(reading: Any) -> None:
    xp = reading.xp
    nearly = xp.square(reading.lift(1.0) / 3) * 9 - 1.0
    root = xp.sqrt(nearly)
    assert nearly.rad() > 0.0
    assert holds(root, np.asarray(Fraction(0), dtype=object))
    assert root.mid() < 2.0**-60
    assert xp.sqrt(reading.lift(0.0)).golden() == 0.0


def test_a_gauge_has_no_radius(reading: Any) -> None:
    third = reading.lift(1.0) / 3
    gauge = reading.constant(third)
    assert third.rad() > 0.0
    assert gauge.rad() == 0.0
    assert gauge.distance(third.mid()) < 2.0**-53
    assert reading.constant(reading.lift(N)).dtype == np.int64


def test_each_reading_keeps_its_own_precision() -> None:
    before = ctx.prec
    coarse, fine = load("exact", bits=64), load("exact", bits=300)
    thirds = [r.lift(np.ones(1)) / 3 for r in (coarse, fine, coarse)]
    assert [2.0**-68 < x.rad() < 2.0**-62 for x in thirds] == [True, False, True]
    assert 0.0 < thirds[1].rad() < 2.0**-299
    assert ctx.prec == before
    with pytest.raises(LibraryError, match="two exact readings"):
        thirds[0] + thirds[1]


def test_what_is_refused(reading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = reading.lift(X)
    for wrong in (lambda: bool(x > 0), lambda: reading.xp.any(x), lambda: x & x, lambda: reading.xp.where(x, x, x),
                  lambda: reading.xp.matmul(x[0, 0, :], x), lambda: reading.xp.astype(x, np.int64), lambda: iter(x)):
        with pytest.raises(TypeError):
            wrong()
    for odd in (np.asarray([1j]), np.asarray(["a"]), np.asarray([Fraction(1)]), np.ones(2, np.longdouble), 2**80):
        with pytest.raises(DtypeError, match="the exact reading lifts"):
            reading.lift(odd)
    with pytest.raises(ValueError, match="contracted axes of 4 and 3"):
        reading.xp.matmul(x, x)
    for bits in (53, True, 128.0, "128"):
        with pytest.raises(OptionError, match="give a whole number, 64 or more"):
            load("exact", bits=bits)
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'refattn\[exact\]'"):
        load("exact")
