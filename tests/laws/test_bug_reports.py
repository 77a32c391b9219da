"""Mistakes that attention code in use has had, as small exact cases that no law and no test of one scheme has already."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import outside
from refattn import Dense, rng, tree
from refattn.catalogue import ROWS
from refattn.testing.tolerance import storage

CLOSE = {"rtol": 4e-16, "atol": 0.0}


def zeros(*shape):
    return np.zeros(shape)


def merged(*parts):
    """One attention from those of separate keys: each (o, lse), weighted by exp(lse)."""
    top = np.max([lse for _, lse in parts], axis=0)
    gauge = np.where(np.isfinite(top), top, 0.0)
    shares = [np.exp(lse - gauge) for _, lse in parts]
    z = np.sum(shares, axis=0)
    none, z = z == 0.0, np.where(z == 0.0, 1.0, z)
    o = sum(share[..., None] * o for share, (o, _) in zip(shares, parts, strict=True)) / z[..., None]
    return o, np.where(none, -np.inf, gauge + np.log(z))


def attend(scheme, *inputs, **named):
    o, saved = scheme.forward(*inputs, **named)
    return o, saved.lse


def test_the_scale_is_taken_from_all_heads_together_or_from_the_values():
    q = np.broadcast_to([[1.0, 0.0]], (2, 1, 2))  # two heads of width 2; a single head, or e = d, would hide the mistake
    k = np.broadcast_to([[2.0, 0.0], [0.0, 0.0]], (2, 2, 2))
    o = Dense()(q, k, np.broadcast_to(np.eye(2, 5), (2, 2, 5)))
    np.testing.assert_allclose(o[..., 0], 1.0 / (1.0 + np.exp(-2.0 / np.sqrt(2.0))), **CLOSE)
    assert o[0, 0, 0] == pytest.approx(0.80443, abs=5e-6)  # 0.73106 with the width of both heads


def test_lse_to_base_two_merged_as_a_natural_logarithm():
    assert attend(Dense(), zeros(1, 1), zeros(2, 1), zeros(2, 1))[1].item() == np.log(2.0)
    three, one = (attend(Dense(), zeros(1, 1), zeros(m, 1), np.full((m, 1), x)) for m, x in ((3, 1.0), (1, 0.0)))
    np.testing.assert_allclose(merged(three, one)[0], [[0.75]], **CLOSE)  # 0.82991 for base 2


def test_merging_a_chunk_that_sees_nothing():
    hidden = {"key_valid": np.zeros(3, dtype=bool)}
    q, k, v = (rng.stream(1, "merge", x).normal(size=(3, 2)) for x in "qkv")
    full, none = attend(Dense(), q, k, v), attend(Dense(), q, k, v, **hidden)
    for parts in ((full, none), (none, full)):
        for got, want in zip(merged(*parts), full, strict=True):
            np.testing.assert_array_equal(got, want)
    for got, want in zip(merged(none, none), none, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("n", "block"), [(3, 2), *((n, "auto") for n in (1, 255, 256, 257, 513))])
def test_a_length_that_is_no_multiple_of_the_block(n, block):
    options = {} if block == "auto" else {"block": block}
    q, k, v, do = zeros(n, 1), zeros(n, 1), np.ones((n, 1)), np.ones((n, 1))
    o, saved = Dense().forward(q, k, v, **options)
    np.testing.assert_allclose(o, do, rtol=n * 2.0**-53)  # a phantom key of value 0 would give n / (n + 1)
    np.testing.assert_allclose(saved.lse, np.log(n), rtol=n * 2.0**-53)
    np.testing.assert_allclose(Dense().vjp(saved, do, **options).v, do, rtol=2 * n * 2.0**-53)


def test_sequences_of_length_zero_among_packed_ones():
    queries, keys, shapes = [0, 1, 0, 1], [0, 3, 0, 5], {"q": (9, 2, 64), "k": (3, 8, 64), "v": (3, 8, 64)}
    q, k, v = (rng.stream(2, "packed", x).normal(size=shape) for x, shape in shapes.items())
    ids = [np.repeat(np.arange(4), lengths) for lengths in (queries, keys)]
    o = Dense()(q, k, v, segment_ids=ids[0], kv_segment_ids=ids[1])
    assert o.shape == (9, 2, 64)
    for i, j, n, m in zip(np.cumsum(queries), np.cumsum(keys), queries, keys, strict=True):
        alone = make(Dense(), Dense.Inputs(q[:, i - n : i], k[:, j - m : j], v[:, j - m : j]))
        assert outside({"o": o[:, i - n : i]}, {"o": alone.bands["o"]}) == {}


def test_masks_of_several_kinds_joined_by_or():
    """Key 1 is padding, query 3 begins a segment, and the mask hides key 0 from query 2 and key 1 from query 3."""
    valid, ids, mask = np.array([True, False, True, True]), np.array([0, 0, 0, 1]), ~np.eye(4, k=-2, dtype=bool)
    o = Dense(causal=True)(zeros(4, 1), zeros(4, 1), np.eye(4), mask=mask, segment_ids=ids, key_valid=valid)
    np.testing.assert_array_equal(o, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def test_the_gradient_through_the_normaliser_is_lost():
    """One key: its weight is 1 whatever its score, so nothing pulls at q and k."""
    _, saved = Dense().forward(np.array([[1.0]]), np.array([[2.0]]), np.array([[3.0]]))
    grads = Dense().vjp(saved, np.array([[1.0]]))
    assert (grads.q.item(), grads.k.item(), grads.v.item()) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("scalar", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_numpy_scalar_in_the_configuration_widens_every_result(scalar, dtype):
    arrays = [rng.short(rng.stream(3, "scalar", x).normal(size=(2, 3))).astype(storage(dtype)) for x in "qkv"]
    plain, odd = (Dense(scale=kind(0.5), softcap=kind(2.0), keep_rate=kind(0.5)) for kind in (float, scalar))
    assert repr(plain) == repr(odd)
    found = []
    for scheme in (plain, odd):
        o, saved = scheme.forward(*arrays, keep=np.eye(2, dtype=bool))
        found.append([o, saved.lse, *tree.leaves(scheme.vjp(saved, o))])
    for x, y in zip(*found, strict=True):
        assert x.dtype == y.dtype == (np.float32 if x is found[0][1] else storage(dtype))
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_reduction_to_a_scalar_is_no_array(dtype):
    q, k, v = (np.full((2, 1), x, dtype=dtype) for x in (1.0, 2.0, 3.0))
    number, array = q.sum() * 0, np.zeros((), dtype=dtype)
    assert not isinstance(number, np.ndarray)
    outputs = [Dense().forward(q, k, v, sink=x, bias=None) for x in (number, array)]
    for got, want in zip(*([o, saved.lse, Dense().vjp(saved, o).sink] for o, saved in outputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("first", [2**31 - 2, 2**32 - 2, 2**53])
def test_positions_beyond_32_bits(first):
    places = first + np.arange(4)
    o = Dense(causal=True)(zeros(4, 1), zeros(4, 1), np.eye(4), q_positions=places, k_positions=places)
    np.testing.assert_array_equal(o, Dense(causal=True)(zeros(4, 1), zeros(4, 1), np.eye(4)))


@pytest.mark.parametrize("row_", ROWS, ids=lambda row: row.name)
def test_sizes_so_equal_that_a_wrong_axis_goes_unnoticed(row_):
    """One variant at least has as many different sizes as axes, none of them 1."""
    assert any(len({*v.sizes.values(), 1}) == len(v.sizes) + 1 for v in row_.variants)
