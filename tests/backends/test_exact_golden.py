"""Correct rounding to float64: to nearest, ties to even, zeros by rule or by proof, more bits where they are needed, and
attention worked out by hand in decimals of 60 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from refattn import Dense, load, rng, using
from refattn.errors import Undecided

flint = pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")

Array = Any


@pytest.fixture
def reading() -> Any:
    return load("exact")


def quotient(reading: Any, x: Fraction) -> Any:
    """A fraction as a ball."""
    return reading.ball(flint.arb(flint.fmpz(x.numerator))) / reading.ball(flint.arb(flint.fmpz(x.denominator)))


NUMBERS = {
    "a third": Fraction(1, 3),
    "negative": Fraction(-2, 7),
    "a tie, down to even": 1 + Fraction(1, 2**53),
    "a tie, up to even": 1 + Fraction(3, 2**53),
    "a little more than a tie": 1 + Fraction(1, 2**53) + Fraction(1, 2**90),
    "subnormal": Fraction(7, 3 * 2**1074),
    "half the smallest": Fraction(1, 2**1075),
    "below the smallest": Fraction(-1, 10**400),
    "a whole number that float64 cannot hold": Fraction(2**60 + 1),
    "zero": Fraction(0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_golden_is_the_nearest_float64(name: str, reading: Any) -> None:
    x = NUMBERS[name]
    got = quotient(reading, x).golden()
    assert got == float(x)
    assert not (got == 0.0 and np.signbit(got))
    assert reading.log == [("zero", 1, 0)]


def test_what_is_no_real_number_stays_as_it_is(reading: Any) -> None:
    np.testing.assert_array_equal(reading.lift(np.asarray([-math.inf, math.inf])).golden(), [-math.inf, math.inf])
    assert reading.lift(np.asarray([3, 4])).golden().dtype == np.int64
    with pytest.raises(Undecided, match=r"1 of 2 .*as nan at \[1\]"):
        reading.lift(np.asarray([1.0, math.nan])).golden()


def test_radii_and_distances_are_rounded_up(reading: Any) -> None:
    third = quotient(reading, Fraction(1, 3))
    smallest = quotient(reading, Fraction(1, 3 * 10**400))
    assert 0.0 < third.rad() < 2.0**-125
    assert smallest.mid() == 0.0
    assert smallest.rad() == math.ulp(0.0)
    away = third.distance(1 / 3)
    assert Fraction(float(away)) >= abs(Fraction(1, 3) - Fraction(1 / 3)) > Fraction(math.nextafter(float(away), 0))


def cancelled(reading: Any) -> Any:
    """(1/3 + 2/3 − 1) is 0, and no precision shows it."""
    return quotient(reading, Fraction(1, 3)) + quotient(reading, Fraction(2, 3)) - 1


def left_over(exponent: float) -> Callable[[Any], Any]:
    """(1 + exp(exponent) − 1), which looks like 0 until there are enough bits."""
    return lambda reading: 1 + reading.xp.exp(reading.lift(exponent)) - 1


def settled(make: Callable[[Any], Any], **options: Any) -> tuple[float, int, int]:
    """(value, bits, zeros by rule) of a golden number."""

    def read() -> dict[str, Any]:
        from refattn.backend import active

        return {"x": make(active())}

    out = load("exact").golden(read, **options)
    return float(out.values["x"]), out.bits, out.zeros["x"]


def test_a_zero_by_cancellation_is_taken_for_one_and_counted(reading: Any) -> None:
    assert cancelled(reading).rad() > 0.0
    assert cancelled(reading).golden() == 0.0
    assert reading.log == [("zero", 1, 1)]
    assert settled(cancelled) == (0.0, 128, 1)


def test_a_proved_zero_is_below_half_the_smallest_float64() -> None:
    assert settled(cancelled, prove=True) == (0.0, 2048, 0)
    assert settled(left_over(-200.0), prove=True) == (math.exp(-200.0), 512, 0)
    assert settled(left_over(-200.0)) == (0.0, 128, 1)  # what the rule alone gets wrong, and counts
    with pytest.raises(Undecided, match=r"1 entries are 0 by rule, not by proof; 1024 bits were not enough, and most=1024"):
        settled(cancelled, prove=True, most=1024)


def test_more_bits_are_taken_where_they_are_needed() -> None:
    assert settled(left_over(-10.0)) == (float(Decimal(-10).exp()), 128, 0)
    assert settled(left_over(-60.0)) == (float(Decimal(-60).exp()), 256, 0)
    with pytest.raises(Undecided, match=r"1 of 1 entries do not round .* 128 bits .* most=200"):
        settled(left_over(-60.0), most=200)

    def compare(reading: Any) -> Any:
        return reading.xp.where(left_over(-120.0)(reading) > 0.0, 2.0, 3.0)

    assert settled(compare) == (2.0, 256, 0)
    with pytest.raises(Undecided, match=r"greater: 1 of 1 pairs overlap at 512 bits"):
        settled(lambda reading: cancelled(reading) > 0.0, most=512)


def by_hand(q: Array, k: Array, v: Array, do: Array) -> dict[str, Array]:
    """o, lse and the gradients of causal softmax attention at scale 1/√d, entry by entry in decimals of 60 digits."""
    n, d = q.shape
    with localcontext(prec=60):
        q, k, v, do = (np.frompyfunc(Decimal, 1, 1)(x) for x in (q, k, v, do))
        scale = 1 / Decimal(d).sqrt()
        p = np.full((n, n), Decimal(0))
        lse, dq, dk = [], 0 * q, 0 * k
        for i in range(n):
            e = [(scale * q[i].dot(k[j])).exp() for j in range(i + 1)]
            p[i, : i + 1] = [x / sum(e) for x in e]
            lse.append(sum(e).ln())
        o = p.dot(v)
        for i in range(n):
            for j in range(i + 1):
                ds = scale * p[i, j] * (do[i].dot(v[j]) - do[i].dot(o[i]))
                dq[i], dk[j] = dq[i] + ds * k[j], dk[j] + ds * q[i]
        out = {"o": o, "lse": np.asarray(lse), "dq": dq, "dk": dk, "dv": p.T.dot(do)}
        dq[0] = 0  # one key: the decimals cancel to 1e-60
        return {name: x.astype(np.float64) for name, x in out.items()}


def dense(q: Array, k: Array, v: Array, do: Array, **fields: Any) -> dict[str, Any]:
    scheme = Dense(causal=True, **fields)
    o, saved = scheme.forward(q, k, v)
    grads = scheme.vjp(saved, do)
    return {"o": o, "lse": saved.lse, "dq": grads.q, "dk": grads.k, "dv": grads.v}


@pytest.mark.parametrize("seed", range(4))
def test_golden_attention_is_what_decimals_of_60_digits_round_to(seed: int) -> None:
    """Every bit: o, lse and gradients at d = 3, whose scale no float64 holds."""
    draw = rng.stream(seed, "golden")
    q, k, v, do = (draw.normal(size=(5, 3)) for _ in range(4))
    golden = load("exact").golden(lambda: dense(q, k, v, do))
    for name, want in by_hand(q, k, v, do).items():
        np.testing.assert_array_equal(golden.values[name], want, err_msg=name)
    assert golden.bits == 128
    assert golden.zeros == {"o": 0, "lse": 0, "dq": 3, "dk": 0, "dv": 0}


def test_a_causal_row_with_one_key_has_no_gradient_by_the_rule_and_by_proof() -> None:
    draw = rng.stream(5, "golden")
    inputs = [draw.normal(size=(6, width)) for width in (3, 3, 5, 5)]  # at d = 4 all of row 0 would be exact
    golden = load("exact").golden(lambda: dense(*inputs))
    proved = load("exact").golden(lambda: dense(*inputs), prove=True)
    assert golden.zeros == {"o": 0, "lse": 0, "dq": 3, "dk": 0, "dv": 0}
    assert not golden.values["dq"][0].any()
    assert golden.values["dq"][1:].all()
    assert proved.bits == 2048
    assert not any(proved.zeros.values())
    for name, x in golden.values.items():
        np.testing.assert_array_equal(proved.values[name], x)


def test_the_default_scale_is_the_root_and_a_given_one_is_its_float64() -> None:
    """One key: lse = scale·7, so (lse/7)²·3 is 1 for 1/√3 and not for the float64 nearest to it."""
    q, k, v = np.asarray([[7.0, 0.0, 0.0]]), np.asarray([[1.0, 5.0, 2.0]]), np.ones((1, 1))
    for scale, is_root in ((None, True), (3**-0.5, False)):
        with using(load("exact")) as reading:
            lse = Dense(scale=scale).forward(q, k, v)[1].lse
            definition = Dense(scale=scale).definition(q, k, v)[1]
        for x in (lse, definition):
            off = reading.xp.square(x / 7) * 3 - 1
            assert off.rad() < 1e-30
            assert bool(off.golden() == 0.0) is is_root
            assert abs(off.mid()) < 2.0**-50
