"""Head maps and their adjoints, visibility in blocks, pairs in closed form, softmax statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refattn.ops.heads import head_map, unbroadcast
from refattn.ops.scores import Scores
from refattn.ops.softmax import row_max, weights
from refattn.ops.visibility import Visibility, pairs

G = np.random.default_rng(0)


@pytest.mark.parametrize("heads", ["grouped", "tiled"])
@pytest.mark.parametrize(("many", "few"), [(6, 3), (6, 1), (4, 4), (0, 0)])
def test_splitting_shares_the_right_key_head(heads, many, few):
    q, k = G.normal(size=(2, many, 3, 4)), G.normal(size=(2, few, 5, 4))
    at = head_map(q.shape, k.shape, heads)
    got = at.join(np.matmul(at.split(q), np.swapaxes(at.share(k), -1, -2)))
    reads = [h % few if heads == "tiled" else h // (many // few) for h in range(many)]
    np.testing.assert_array_equal(got, np.matmul(q, np.swapaxes(k[:, reads], -1, -2)))


@pytest.mark.parametrize("heads", ["grouped", "tiled"])
def test_collecting_is_the_adjoint_of_sharing(heads):
    k, dx = G.normal(size=(2, 3, 5, 4)), G.normal(size=(2, 6, 5, 4))
    at = head_map(dx.shape, k.shape, heads)
    shared = at.join(at.share(k) + 0 * at.split(dx))
    assert np.sum(shared * dx) == pytest.approx(np.sum(k * at.collect(at.split(dx))), rel=1e-12)


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (1, 4), (2, 3, 4), (2, 1, 1)])
def test_unbroadcast_is_the_adjoint_of_broadcasting(shape):
    x, dx = G.normal(size=shape), G.normal(size=(2, 3, 4))
    got = unbroadcast(dx, shape)
    assert got.shape == shape
    assert np.sum(np.broadcast_to(x, dx.shape) * dx) == pytest.approx(np.sum(x * got), rel=1e-12)


def test_pairs_count_what_a_causal_order_shows():
    for n in range(6):
        for m in range(6):
            for offset in range(-7, 8):
                want = sum(j <= i + offset for i in range(n) for j in range(m))
                assert pairs(n, m, offset) == want


def test_visibility_of_blocks_is_that_of_the_whole():
    see = Visibility(
        True,
        q_positions=np.arange(5)[:, None],
        k_positions=np.arange(7)[None, :],
        mask=G.random((3, 5, 7)) < 0.7,
        q_segments=np.arange(5)[:, None] // 2,
        k_segments=np.arange(7)[None, :] // 2,
        key_valid=np.arange(7)[None, :] < 6,
    )
    whole = see.rows(slice(0, 5))
    np.testing.assert_array_equal(np.concatenate([see.rows(slice(a, a + 2)) for a in (0, 2, 4)], axis=-2), whole)
    assert whole.any()
    assert not whole.all()
    assert Visibility(False).rows(slice(0, 5)) is None


def test_statistics_of_rows_that_see_nothing():
    s = np.array([[1.0, 3.0], [np.nan, -2.0], [-np.inf, -np.inf]])
    see = np.array([[True, True], [False, False], [True, True]])
    c = row_max(s, see)
    np.testing.assert_array_equal(c, [[3], [0], [0]])
    np.testing.assert_array_equal(weights(s, see, c), [[math.exp(-2), 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(row_max(s[:, :0], None), [[0], [0], [0]])
    np.testing.assert_array_equal(row_max(s[:, :0], None, np.array(2.0)), [[2], [2], [2]])


def test_the_slope_of_the_softcap_is_its_derivative():
    products, h = G.normal(size=(4, 5)) * 6, 1e-6
    scores = Scores(0.5, softcap=2.0, bias=G.normal(size=(1, 5)))
    s, bent = scores.rows(products, slice(0, 4))
    up, down = (scores.rows(products + a * h, slice(0, 4))[0] for a in (1, -1))
    np.testing.assert_allclose(scores.pull(np.ones_like(s), bent) * 0.5, (up - down) / (2 * h), rtol=1e-7)
