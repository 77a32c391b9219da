"""Rows shifted and their adjoint; who is seen and who sees nothing under either alignment; sums over keys by hand."""

from __future__ import annotations

import numpy as np
import pytest

from refattn.ops.key_sums import blind_queries, key_sums, normalised, normalised_vjp, order, valid_keys, with_ones
from refattn.ops.shift import shift_rows

G = np.random.default_rng(0)
ORDERS = [(causal, align, n, m) for n in (1, 3, 5) for m in (1, 3, 6)
          for causal, align in ((False, None), (True, "top_left"), (True, "bottom_right"))]  # fmt: skip


def visible(causal, align, n, m):
    offset = m - n if align == "bottom_right" else 0
    return np.array([[not causal or j <= i + offset for j in range(m)] for i in range(n)])


@pytest.mark.parametrize("by", range(-4, 6))
@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_rows_are_shifted_and_shifted_back(by, length):
    x, dy = G.normal(size=(2, 3, 4)), G.normal(size=(2, length, 4))
    y = shift_rows(x, by, length)
    want = np.zeros((2, length, 4))
    for t in range(length):
        if 0 <= t - by < 3:
            want[:, t] = x[:, t - by]
    np.testing.assert_array_equal(y, want)
    assert np.sum(dy * y) == pytest.approx(np.sum(x * shift_rows(dy, -by, 3)), rel=1e-12)


@pytest.mark.parametrize(("causal", "align", "n", "m"), ORDERS)
def test_sums_over_the_keys_that_are_seen(causal, align, n, m):
    fq, fk, v = G.normal(size=(2, n, 4)), G.normal(size=(2, m, 4)), G.normal(size=(2, m, 3))
    weights = np.where(visible(causal, align, n, m), fq @ np.swapaxes(fk, -1, -2), 0.0)
    for chunk in (None, 1, 2):
        got = key_sums(order(causal, align, n, m), fq, fk, v, chunk)
        np.testing.assert_allclose(got, weights @ v, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("causal", "align", "n", "m"), ORDERS)
def test_keys_that_nobody_sees_and_queries_that_see_nothing(causal, align, n, m, given):
    at, see = order(causal, align, n, m), visible(causal, align, n, m)
    for seed in range(4):
        valid = np.random.default_rng(seed).random(m) < 0.5 if given else None
        pairs = see if valid is None else see & valid
        found = blind_queries(at, valid, np.zeros((n, 2)))
        blind = np.zeros(n, bool) if found is None else found[:, 0]
        np.testing.assert_array_equal(blind, ~pairs.any(axis=1))
        found = valid_keys(at, valid, np.zeros((m, 2)))
        seen = np.ones(m, bool) if found is None else found[:, 0]
        assert (seen >= pairs.any(axis=0)).all()
        np.testing.assert_array_equal(seen, see.any(axis=0) & (True if valid is None else valid))


def test_the_normaliser_and_its_vjp():
    u, do = np.abs(G.normal(size=(4, 3))) + 0.5, G.normal(size=(4, 2))
    u[1] = 0.0
    o, z = normalised(u, None)
    np.testing.assert_allclose(o, u[:, :2] / np.where(z == 0, 1, z))
    assert not o[1].any()
    du, dz = normalised_vjp(o, z, do, None)
    h = 1e-6
    for i in (0, 2, 3):
        for c in range(3):
            up, down = u.copy(), u.copy()
            up[i, c] += h
            down[i, c] -= h
            slope = np.sum(do * (normalised(up, None)[0] - normalised(down, None)[0])) / (2 * h)
            assert du[i, c] == pytest.approx(slope, rel=1e-6, abs=1e-8)
    assert not du[1].any()
    np.testing.assert_array_equal(dz, du[:, 2:])
    np.testing.assert_array_equal(with_ones(do)[:, 2], np.ones(4))
