"""Feature maps: values, slopes, and the same numbers in every reading."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import distance, ratio
from refattn import Elu, Identity, OptionError, Relu, load
from refattn.precision import PRESETS

G = np.random.default_rng(0)
MAPS = [Elu(), Relu(), Relu(0.125), Identity()]
X = G.normal(size=(2, 5, 6)) * 2.0
DPHI = G.normal(size=(2, 5, 6))


def both(phi, x, dphi):
    y = phi(x)
    return [y, phi.vjp(x, y, dphi)]


@pytest.fixture(params=MAPS, ids=str)
def phi(request):
    return request.param


def test_published_values():
    x = np.array([-30.0, -1.0, -0.0, 0.0, 0.5, 4.0])
    np.testing.assert_allclose(Elu()(x), np.where(x > 0, x + 1, np.exp(x)), rtol=1e-15)
    np.testing.assert_array_equal(Relu(1e-3)(x), np.maximum(x, 0) + 1e-3)
    np.testing.assert_array_equal(Identity()(x), x)
    assert np.isfinite(Elu()(np.array([-1e4, 1e4]))).all()


def test_the_vjp_is_the_slope(phi):
    h = 1e-6
    slope = (phi(X + h) - phi(X - h)) / (2 * h)
    np.testing.assert_allclose(both(phi, X, DPHI)[1], slope * DPHI, rtol=1e-8, atol=1e-8)


def test_positive_maps_are_positive(phi):
    assert phi.positive == bool((phi(X) >= 0.0).all())
    assert phi(X).shape[-1] == phi.width(6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_readings_agree_and_the_dtype_stays(phi, dtype):
    reading = load("rounding", precision=PRESETS["fp32" if dtype == "float32" else "fp64"])
    x, dphi = X.astype(dtype), DPHI.astype(dtype)
    for got, want in zip(both(phi, x, dphi), both(phi, *map(reading.lift, (x, dphi))), strict=True):
        assert got.dtype == dtype
        assert ratio(distance(got, want.value), want.bound) <= 1.0


def test_balls_hold_the_values(phi):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    reading, bounds = load("exact"), load("rounding", precision=PRESETS["fp64"])
    pairs = zip(*(both(phi, lift(X), lift(DPHI)) for lift in (reading.lift, bounds.lift)), strict=True)
    for truth, band in pairs:
        assert ratio(truth.distance(band.value), band.bound) <= 1.0


def test_exponentials_are_counted(phi):
    reading = load("counting")
    with reading.counted() as tally:
        both(phi, reading.lift(X), reading.lift(DPHI))
    assert tally.exps == phi.exps(6) * 10


def test_the_slope_of_torch(phi):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'refattn[peers]'")
    x = torch.tensor(X, requires_grad=True)
    phi(x).backward(torch.tensor(DPHI))
    np.testing.assert_allclose(x.grad.numpy(), both(phi, X, DPHI)[1], rtol=1e-14)
    np.testing.assert_allclose(Elu()(x).detach().numpy(), torch.nn.functional.elu(x).detach().numpy() + 1, rtol=1e-13)


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(OptionError, match=r"epsilon=-1.0"):
        Relu(-1.0)
    with pytest.raises(OptionError, match=r"epsilon='a' is a str, not a number"):
        Relu("a")
