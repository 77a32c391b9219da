"""What is special to softmax attention: decoding, chunks, known small answers, dtypes, layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from refattn import Dense, rng, tree
from refattn.testing.tolerance import storage

EYE = {"rtol": 1e-13, "atol": 1e-14}


def draw(b=2, h=4, g=2, n=6, m=6, d=5, e=3, seed=0):
    stream = rng.stream(seed, "test_dense")
    return [stream.normal(size=s) for s in ((b, h, n, d), (b, g, m, d), (b, g, m, e))]


def probe(scheme, n, m, **inputs):
    """The weights themselves: q = k = 0 and V = I."""
    return scheme(np.zeros((n, 2)), np.zeros((m, 2)), np.eye(m), **inputs)


# ---- decoding and chunks are the whole
def test_decoding_one_token_at_a_time_equals_the_whole():
    q, k, v = draw(n=6, m=6)
    whole, saved = Dense(causal=True).forward(q, k, v)
    for i in range(6):
        step = Dense(causal=True).forward(q[..., i : i + 1, :], k, v, q_positions=np.full((2, 1), i))
        np.testing.assert_allclose(step[0], whole[..., i : i + 1, :], **EYE)
        np.testing.assert_allclose(step[1].lse, saved.lse[..., i : i + 1], **EYE)


def test_decoding_with_a_length_for_each_item_equals_each_item_alone():
    q, k, v = draw(b=3, n=1, m=9)
    lengths = np.array([2, 9, 5])
    o = Dense(causal=True)(q, k, v, q_positions=lengths[:, None] - 1)
    for item, length in enumerate(lengths):
        alone = Dense()(q[item], k[item, :, :length], v[item, :, :length])
        np.testing.assert_allclose(o[item], alone, **EYE)


@pytest.mark.parametrize("chunk", [1, 4, 5])
def test_chunked_prefill_equals_the_whole(chunk):
    """Forward and backward: gradients of chunks add up to those of the whole."""
    q, k, v = draw(n=11, m=11)
    scheme = Dense(causal=True)
    whole, saved = scheme.forward(q, k, v)
    do = rng.stream(1, "do").normal(size=whole.shape)
    dq, dk, dv = scheme.vjp(saved, do)[:3]
    parts, dks, dvs = [], 0.0, 0.0
    for a in range(0, 11, chunk):
        rows, end = slice(a, a + chunk), min(a + chunk, 11)
        part, s = replace(scheme, align="bottom_right").forward(q[..., rows, :], k[..., :end, :], v[..., :end, :])
        np.testing.assert_allclose(part, whole[..., rows, :], **EYE)
        g = replace(scheme, align="bottom_right").vjp(s, do[..., rows, :])
        parts.append(g.q)
        pad = [(0, 0), (0, 0), (0, 11 - end), (0, 0)]
        dks, dvs = dks + np.pad(g.k, pad), dvs + np.pad(g.v, pad)
    np.testing.assert_allclose(np.concatenate(parts, axis=-2), dq, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dks, dk, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(dvs, dv, rtol=1e-11, atol=1e-13)


# ---- small answers known by hand
def test_causal_alignments_of_two_queries_and_five_keys():
    right = probe(Dense(causal=True, align="bottom_right"), 2, 5)
    np.testing.assert_allclose(right, [[0.25] * 4 + [0], [0.2] * 5], **EYE)
    left, saved = Dense(causal=True, align="top_left").forward(np.zeros((2, 2)), np.zeros((5, 2)), np.eye(5))
    np.testing.assert_allclose(left, [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]], **EYE)
    np.testing.assert_allclose(saved.lse, np.log([1, 2]), **EYE)


def test_five_queries_and_two_keys_leave_three_blind():
    o, saved = Dense(causal=True, align="bottom_right").forward(np.zeros((5, 2)), np.zeros((2, 2)), np.eye(2))
    np.testing.assert_allclose(o, [[0, 0], [0, 0], [0, 0], [1, 0], [0.5, 0.5]], **EYE)
    np.testing.assert_array_equal(saved.lse[:3], -np.inf)


def test_a_blind_query_gives_zero_and_minus_infinity_and_pulls_nothing():
    mask = np.array([[True, True], [False, False]])
    zeros, v = np.zeros((2, 1)), np.array([[1.0], [3.0]])
    o, saved = Dense().forward(zeros, zeros, v, mask=mask)
    np.testing.assert_allclose(o, [[2], [0]], **EYE)
    np.testing.assert_allclose(saved.lse, [np.log(2), -np.inf], **EYE)
    grads = Dense().vjp(saved, np.array([[1.0], [1e30]]))
    np.testing.assert_allclose(grads.v, [[0.5], [0.5]], **EYE)
    assert not grads.q[1].any()
    assert all(np.isfinite(g).all() for g in tree.leaves(grads))


def test_empty_mean_is_the_mean_of_all_values():
    v, nothing = np.array([[1.0], [3.0]]), np.zeros((1, 2), dtype=bool)
    o, saved = Dense(empty="mean").forward(np.zeros((1, 1)), np.zeros((2, 1)), v, mask=nothing)
    assert o.item() == 2
    assert saved.lse.item() == -np.inf


def test_empty_mean_of_no_values_at_all_is_zero_beside_a_sink_too():
    none, scheme = np.zeros((0, 1)), Dense(empty="mean")
    for sink in (None, np.zeros(())):
        o, saved = scheme.forward(np.ones((1, 1)), none, none, sink=sink)
        want, lse = scheme.definition(np.ones((1, 1)), none, none, sink=sink)
        assert o.item() == want.item() == 0
        assert saved.lse.item() == lse.item() == (-np.inf if sink is None else 0)


def test_grouped_and_tiled_heads():
    q, k = np.zeros((1, 6, 1, 2)), np.zeros((1, 2, 1, 2))
    v = np.arange(2.0).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(Dense()(q, k, v).ravel(), [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(Dense(heads="tiled")(q, k, v).ravel(), [0, 1, 0, 1, 0, 1])
    _, saved = Dense().forward(q, k, v)
    np.testing.assert_array_equal(Dense().vjp(saved, np.ones((1, 6, 1, 1))).v.ravel(), [3, 3])


def test_scale_is_that_of_the_key_width_and_can_be_given():
    q, k = np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 0.0]])
    p = 1 / (1 + np.exp(-2 / np.sqrt(2)))
    np.testing.assert_allclose(Dense()(q, k, np.eye(2))[0, 0], p, **EYE)
    np.testing.assert_allclose(Dense(scale=0.5)(q, k, np.eye(2))[0, 0], 1 / (1 + np.exp(-1)), **EYE)


def test_a_sink_takes_its_share_and_nothing_else():
    o, saved = Dense().forward(np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 3, 1)), np.ones((1, 1, 3, 1)), sink=np.zeros(1))
    assert o.item() == pytest.approx(0.75)
    assert saved.lse.item() == pytest.approx(np.log(4))


def test_padding_hides_keys_of_one_item_alone():
    valid = np.array([[True, True, False], [True, False, False]])
    o = Dense()(np.zeros((2, 1, 1, 1)), np.zeros((2, 1, 3, 1)), np.broadcast_to(np.eye(3), (2, 1, 3, 3)), key_valid=valid)
    np.testing.assert_allclose(o[:, 0, 0], [[0.5, 0.5, 0], [1, 0, 0]], **EYE)


def test_segments_are_sequences_alone():
    q, k, v = draw(b=1, n=7, m=7)
    ids = np.array([[0, 0, 0, 1, 1, 2, 2]])
    packed = Dense(causal=True)(q, k, v, segment_ids=ids)
    for part in (slice(0, 3), slice(3, 5), slice(5, 7)):
        alone = Dense(causal=True)(*(x[..., part, :] for x in (q, k, v)))
        np.testing.assert_allclose(packed[..., part, :], alone, **EYE)


def test_additive_minus_infinity_is_a_mask_too():
    q, k, v = draw(b=1, n=4, m=5)
    mask = rng.stream(3, "mask").random((4, 5)) < 0.6
    mask[2] = False
    bias = np.where(mask, 0.0, -np.inf)
    o, saved = Dense().forward(q, k, v, bias=bias)
    want, other = Dense().forward(q, k, v, mask=mask)
    np.testing.assert_allclose(o, want, **EYE)
    np.testing.assert_allclose(saved.lse, other.lse, **EYE)
    do = np.ones_like(o)
    for g, w in zip(Dense().vjp(saved, do)[:3], Dense().vjp(other, do)[:3], strict=True):
        np.testing.assert_allclose(g, w, **EYE)


def test_a_bias_shared_by_items_and_heads_gets_the_sum():
    q, k, v = draw(b=2, h=4, g=4)
    for shape in ((6, 6), (1, 6), (4, 1, 6), (4, 6, 1), (2, 1, 6, 6), (2, 4, 6, 6)):
        bias = rng.stream(4, "bias").normal(size=shape)
        _, saved = Dense().forward(q, k, v, bias=bias)
        got = Dense().vjp(saved, np.ones_like(saved.o), dlse=np.ones_like(saved.lse)).bias
        _, wide = Dense().forward(q, k, v, bias=np.broadcast_to(bias, (2, 4, 6, 6)))
        want = Dense().vjp(wide, np.ones_like(saved.o), dlse=np.ones_like(saved.lse)).bias
        lead = tuple(range(4 - len(shape)))
        want = want.sum(axis=lead)
        want = want.sum(axis=tuple(a for a, s in enumerate(shape) if s == 1), keepdims=True)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


# ---- axes, dtypes, layouts
def test_leading_axes_are_free():
    q, k, v = draw(b=4)
    want = Dense()(q, k, v)
    np.testing.assert_array_equal(Dense()(*(x.reshape(2, 2, *x.shape[1:]) for x in (q, k, v))).reshape(want.shape), want)
    np.testing.assert_allclose(Dense()(q[0], k[0], v[0]), want[0], **EYE)
    np.testing.assert_allclose(Dense()(q[0, 0], k[0, 0], v[0, 0]), want[0, 0], **EYE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_dtype_of_the_inputs_and_statistics_the_accumulators(dtype):
    inputs = [x.astype(storage(dtype)) for x in draw()]
    stream = rng.stream(5, "extras")
    bias, sink = (stream.normal(size=shape).astype(storage(dtype)) for shape in ((4, 1, 1), (4,)))
    scheme = Dense(softcap=3.0)
    o, saved = scheme.forward(*inputs, bias=bias, sink=sink)
    grads = scheme.vjp(saved, o)
    wide = np.float64 if dtype == "float64" else np.float32
    assert o.dtype == saved.o.dtype == storage(dtype)
    assert saved.lse.dtype == wide
    assert {g.dtype for g in tree.leaves(grads)} == {storage(dtype)}
    assert all(a is b for a, b in zip(saved.inputs[:3], inputs, strict=True))
    narrow = scheme.forward(*(x.astype(wide) for x in inputs), bias=bias.astype(wide), sink=sink.astype(wide))[0]
    np.testing.assert_array_equal(o, narrow.astype(storage(dtype)))  # widened, computed, rounded once


def views(x):
    """The same values with other strides: Fortran, transposed memory, negative, a slice, and zero where axes repeat."""
    padded = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan)
    padded[..., ::2] = x
    yield np.asfortranarray(x)
    yield np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    yield x[:, :, ::-1].copy()[:, :, ::-1]
    yield padded[..., ::2]


def test_strides_do_not_matter():
    q, k, v = draw(b=1)
    scheme = Dense(causal=True)
    want, saved = scheme.forward(q, k, v)
    do = rng.stream(6, "do").normal(size=want.shape)
    grads = scheme.vjp(saved, do)
    for qs, ks, vs, dos in zip(views(q), views(k), views(v), views(do), strict=True):
        assert not qs.flags.c_contiguous
        o, s = scheme.forward(qs, ks, vs)
        np.testing.assert_allclose(o, want, **EYE)
        for g, w in zip(scheme.vjp(s, dos)[:3], grads[:3], strict=True):
            np.testing.assert_allclose(g, w, **EYE)


def test_a_repeated_axis_of_stride_zero_gets_a_gradient_for_every_copy():
    q, k, v = draw(b=3, g=4)
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    _, saved = Dense().forward(q, k, v)
    got = Dense().vjp(saved, np.ones_like(saved.o))
    _, plain = Dense().forward(q, k.copy(), v.copy())
    want = Dense().vjp(plain, np.ones_like(saved.o))
    np.testing.assert_allclose(got.k, want.k, **EYE)
    assert got.k.shape == k.shape


def test_large_scores_stay_finite():
    q, k, v = draw(b=1)
    o, saved = Dense().forward(q * 1e3, k * 1e3, v)
    assert np.isfinite(o).all()
    assert np.isfinite(saved.lse).all()
    assert all(np.isfinite(g).all() for g in tree.leaves(Dense().vjp(saved, o)))


def test_half_precision_scores_beyond_its_range_are_right():
    """Ordinary float16 values whose products leave its range: the scores themselves are 8192 and 7936."""
    q = np.full((1, 64), 32, dtype=np.float16)
    k = np.array([[32.0] * 64, [31.0] * 64], dtype=np.float16)
    np.testing.assert_array_equal(Dense()(q, k, np.eye(2, dtype=np.float16)), [[1, 0]])


def test_nan_reaches_the_rows_that_see_it():
    q, k, v = draw(b=1, h=1, g=1)
    v[..., 3, 0] = np.nan
    o = Dense(causal=True).forward(q, k, v, block=1)[0]
    assert np.isnan(o[0, 0, 3:, 0]).all()
    assert np.isfinite(o[0, 0, :3]).all()


@pytest.mark.parametrize(("name", "n"), [("torch", 5), ("jax", 5), ("flash-attention", 8), ("onnx", 5)])
def test_conventions_are_configured_schemes(name, n):
    scheme = Dense.conventions[name]
    p = probe(scheme, n, 5)
    assert (p > 0).sum(axis=-1).tolist()[-1] == 5
    assert repr(scheme).startswith("Dense(causal=True")
