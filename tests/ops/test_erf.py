"""The error function in every reading and library, and the numbers that a float can only come near."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laws.stand_in import computing_in
from refattn import load
from refattn.ops.erf import bounded, erf, pi, root
from refattn.ops.lookup import sum_rows
from refattn.precision import PRESETS

GRID = np.concatenate([np.linspace(-7.0, 7.0, 4001), [0.0, -0.0, 2.0, -2.0, 1e-300, 1e300, -np.inf, np.inf]])
TRUTH = np.array([math.erf(x) for x in GRID])


def ulps_of_one(got, want):
    return float(np.max(np.abs(got.astype(np.float64) - want)) / (np.finfo(got.dtype).eps / 2))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_generic_text_is_good_to_a_few_roundings_of_one(dtype):
    x = GRID.astype(dtype, copy=False) if dtype == np.float64 else np.clip(GRID, -1e30, 1e30).astype(dtype)
    got, want = erf.__wrapped__(x), np.array([math.erf(t) for t in x])
    assert got.dtype == dtype
    assert ulps_of_one(got, want) < 6.0  # the contract, Precision.tanh, is 8
    assert np.isnan(erf.__wrapped__(np.array([np.nan], dtype))).all()


def test_the_generic_text_keeps_digits_near_zero_and_is_odd():
    x = 10.0 ** np.linspace(-300, 0, 301)
    want = np.array([math.erf(t) for t in x])
    np.testing.assert_allclose(erf.__wrapped__(x), want, rtol=1e-15)
    np.testing.assert_array_equal(erf.__wrapped__(-x), -erf.__wrapped__(x))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_numpy_takes_scipy(dtype):
    x = GRID.astype(dtype) if dtype == "float64" else np.clip(GRID, -1e30, 1e30).astype(dtype)
    got = erf(x)
    assert got.dtype == dtype
    assert ulps_of_one(got, np.array([math.erf(t) for t in x])) < 3.0


def test_jax_takes_its_own_and_differentiates_it():
    jax = pytest.importorskip("jax")
    x = jax.numpy.linspace(-3.0, 3.0, 13)
    np.testing.assert_allclose(erf(x), [math.erf(t) for t in x.tolist()], atol=1e-6)
    slope = jax.vmap(jax.grad(erf))(x)
    np.testing.assert_allclose(slope, 2 / math.sqrt(math.pi) * np.exp(-np.asarray(x) ** 2), atol=1e-6)


def test_balls_hold_erf_and_its_numbers_to_many_digits():
    pytest.importorskip("flint")
    flint = pytest.importorskip("flint")
    reading = load("exact", bits=200)
    x = reading.lift(np.array([0.5, -3.0]))
    y = erf(x)
    assert (y.rad() < 1e-55).all()
    np.testing.assert_array_equal(y.mid(), [math.erf(0.5), math.erf(-3.0)])
    assert root(x, 2.0).rad() < 1e-55
    assert pi(x).entries[()].overlaps(flint.arb.pi())
    assert root(x, 2.0 / pi(x)).mid() == math.sqrt(2.0 / math.pi)
    far = reading.lift(np.array([1e200]))
    assert bounded(far, 100.0) is far
    assert bounded(np.array([1e200, -3.0]), 100.0).tolist() == [100.0, -3.0]


@pytest.mark.parametrize("preset", ["fp64", "fp32", "flash-bf16"])
def test_the_bound_of_erf_holds_and_is_reached(preset):
    """Arguments and results pushed to the limit of their errors."""
    reading, g = load("rounding", precision=PRESETS[preset]), np.random.default_rng(0)
    x = reading.lift(g.normal(size=400) * 2)
    x.error = np.abs(x.value) * 10.0 ** g.uniform(-9, -2, size=400)
    y, p = erf(x), PRESETS[preset]
    near = []
    for sign in (1.0, -1.0):
        held = np.array([math.erf(t) for t in x.value + sign * x.error]) + sign * p.tanh * p.u
        near.append(np.max(np.abs(held - y.value) / y.bound))
    assert 0.9 < max(near) <= 1.0


def test_counting_takes_one_exponential_as_the_text_does():
    reading = load("counting")
    x = reading.shaped((3, 5))
    with reading.counted() as rule:
        y = erf(x)
    with reading.counted() as text:
        z = erf.__wrapped__(x)
    assert y.shape == z.shape == (3, 5)
    assert (rule.macs, rule.exps, rule.live) == (text.macs, text.exps, text.live) == (0, 15, 15)


def test_sums_of_rows_in_another_order_are_within_their_bound():
    """One row after another, forwards and backwards: the text adds in pairs, and its own bound would be too narrow."""
    g = np.random.default_rng(2)
    x, at = g.uniform(0.5, 1.0, size=(3000, 2)).astype(np.float32), g.integers(0, 3, size=3000)
    reading = load("rounding", precision=PRESETS["fp32"])
    band = sum_rows(reading.lift(x.astype(np.float64)), reading.lift(at), 4)
    worst = []
    for order in (1, -1):
        out = np.zeros((4, 2), np.float32)
        for t in range(3000)[::order]:
            out[at[t]] += x[t]
        worst.append(np.max(np.abs(out - band.value)[:3] / band.bound[:3]))
        assert (np.abs(out - band.value) <= band.bound).all()
    assert max(worst) > 1e-3
    assert (band.bound[3] == 0.0).all()
    with computing_in(load("numpy")):
        assert (np.abs(sum_rows(x, at, 4) - band.value) <= band.bound).all()


def test_a_row_that_is_not_finite_stays_with_its_name():
    x = np.array([[1.0], [np.nan], [2.0], [np.inf], [4.0]])
    at = np.array([2, 0, 2, 4, 2])
    np.testing.assert_array_equal(sum_rows(x, at, 5)[:, 0], [np.nan, 0.0, 7.0, 0.0, np.inf])
    reading = load("rounding", precision=PRESETS["fp64"])
    rounded = sum_rows(reading.lift(x), reading.lift(at), 5)
    np.testing.assert_array_equal(rounded.value[:, 0], [np.nan, 0.0, 7.0, 0.0, np.inf])
    assert (rounded.bound[[0, 1, 3, 4]] == 0.0).all()
