"""Linformer: where it is dense attention, what its options are in terms of one another, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, Linformer, OptionError, ShapeError, rng
from refattn.catalogue import row

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
B, N, M, D, S = 3, 7, 12, 5, 4
SEGMENTS = [
    Linformer(projection="mean", stride=3),
    Linformer(projection="max", stride=3),
    Linformer(projection="depthwise"),
    Linformer(projection="dense"),
]


def normal(name, *shape):
    return rng.stream(11, "linformer", name).normal(size=shape)


def drawn(m=M, e=D, few=2):
    """q (B, 4, n, d), k (B, few, m, d), v (B, few, m, e)."""
    return normal("q", B, 4, N, D), normal("k", B, few, m, D), normal("v", B, few, m, e)


def weights(scheme, c=3):
    """Weights that the projection takes, by name."""
    return {"depthwise": {"E": normal("E", c, D), "F": normal("F", 2, c, D)},
            "dense": {"E": normal("E", c, D, D), "F": normal("F", 2, c, D, D)}}.get(scheme.projection, {})  # fmt: skip


def results(scheme, *inputs, **named):
    """o, lse and the gradients that there are, by name, for cotangents that only shapes decide."""
    o, saved = scheme.forward(*inputs, **named)
    grads = scheme.vjp(saved, normal("do", *o.shape), dlse=normal("dlse", *saved.lse.shape))
    found = {f"d{name}": g for name, g in grads._asdict().items() if g is not None}
    return {"o": o, "lse": saved.lse, **found}


def same(got, want, *names):
    for name in names or want:
        np.testing.assert_allclose(got[name], want[name], err_msg=name, **CLOSE)


def replaced(scheme, **changed):
    return type(scheme)(**{**vars(scheme), **changed})


@pytest.mark.parametrize("order", [np.arange(M), normal("order", M).argsort()], ids=["identity", "permutation"])
def test_a_permutation_of_all_tokens_is_dense_attention(order):
    """E = F: the slots are the keys in another order; gradients come back in the first one."""
    inputs = drawn()
    same(results(Linformer(), *inputs, E=np.eye(M)[order]), results(Dense(), *inputs))
    same(results(Linformer(), *inputs, E=np.eye(M)[order], F=np.eye(M)[order]), results(Dense(), *inputs))


def test_keys_that_are_constant_on_segments_lose_nothing_in_the_mean():
    """On any values; each slot stands for c keys, so that lse is less by log c."""
    q, k, v = drawn()
    k = np.repeat(k[..., :S, :], 3, axis=-2)
    got, want = results(Linformer(projection="mean", stride=3), q, k, v), results(Dense(), q, k, v)
    same(got, want, "o", "dv")
    np.testing.assert_allclose(got["lse"], want["lse"] - np.log(3.0), **CLOSE)
    same(got, want, "dq")
    summed = [x["dk"].reshape(B, 2, S, 3, D).sum(axis=-2) for x in (got, want)]
    np.testing.assert_allclose(*summed, **CLOSE)


def test_a_shorter_sequence_is_one_padded_with_zeros():
    """Sliced, padded by hand, or padded with anything and told so: the columns of E beyond it have no gradient."""
    q, k, v = drawn(m=9)
    E, F = normal("E", S, M), normal("F", 2, S, M)
    got = results(Linformer(shorter="slice"), q, k, v, E=E, F=F)
    same(got, results(Linformer(), q, k, v, E=E[..., :9], F=F[..., :9]), "o", "lse", "dq", "dk", "dv")
    for filler, told in ((0.0, {}), (np.nan, {"key_valid": np.arange(M) < 9})):
        wide = [np.concatenate([x, np.full((B, 2, 3, D), filler)], axis=-2) for x in (k, v)]
        padded = results(Linformer(), q, *wide, E=E, F=F, **told)
        same(got, padded, "o", "lse", "dq", "dE", "dF")
        for name in ("dk", "dv"):
            np.testing.assert_allclose(got[name], padded[name][..., :9, :], **CLOSE)
            assert not told or not padded[name][..., 9:, :].any()
    assert not got["dE"][..., 9:].any()
    assert not got["dF"][..., 9:].any()
    assert got["dE"].shape == E.shape


@pytest.mark.parametrize("scheme", SEGMENTS, ids=lambda s: s.projection)
def test_a_tail_is_padding_or_nothing(scheme):
    q, k, v = drawn(m=11)
    named = weights(scheme)
    with pytest.raises(ShapeError, match=r"m=11 tokens are no whole number of segments of 3: give tail='drop' \(the last 2"):
        scheme(q, k, v, **named)
    padded, dropped = (results(replaced(scheme, tail=tail), q, k, v, **named) for tail in ("pad", "drop"))
    wide = [np.concatenate([x, np.full((B, 2, 1, D), np.nan)], axis=-2) for x in (k, v)]
    told = results(scheme, q, *wide, **named, key_valid=np.arange(12) < 11)
    short = results(scheme, q, k[..., :9, :], v[..., :9, :], **named)
    for got, want in ((padded, told), (short, dropped)):
        same(got, want, *(set(got) - {"dk", "dv"}))
        for name in ("dk", "dv"):
            length = min(got[name].shape[-2], want[name].shape[-2])
            np.testing.assert_allclose(got[name][..., :length, :], want[name][..., :length, :], **CLOSE)
    assert not dropped["dk"][..., 9:, :].any()
    assert not dropped["dv"][..., 9:, :].any()
    assert dropped["dk"].shape == k.shape


def test_means_and_convolutions_are_matrices():
    """I ⊗ wᵀ, with w = 1/c for the mean, one number for all channels of a depthwise, or w_i·I in a dense convolution."""
    inputs, w = drawn(), normal("w", 3)
    matrix = np.kron(np.eye(S), w)
    want = results(Linformer(), *inputs, E=matrix)
    taps = matrix_taps = np.repeat(w[:, None], D, axis=1)
    depthwise = results(Linformer(projection="depthwise"), *inputs, E=taps)
    dense = results(Linformer(projection="dense"), *inputs, E=matrix_taps[:, :, None] * np.eye(D))
    for got in (depthwise, dense):
        same(got, want, "o", "lse", "dq", "dk", "dv")
    each = np.array([np.sum(want["dE"] * np.kron(np.eye(S), np.eye(3)[i])) for i in range(3)])
    np.testing.assert_allclose(depthwise["dE"].sum(axis=-1), each, **CLOSE)
    np.testing.assert_allclose(np.trace(dense["dE"], axis1=-2, axis2=-1), each, **CLOSE)
    mean = results(Linformer(projection="mean", stride=3), *inputs)
    same(mean, results(Linformer(), *inputs, E=np.kron(np.eye(S), np.ones(3) / 3.0)), "o", "lse", "dq", "dk", "dv")


@pytest.mark.parametrize(("scheme", "shape"), [(Linformer(), (S, M)), (SEGMENTS[2], (3, D)), (SEGMENTS[3], (3, D, D))],
                         ids=["linear", "depthwise", "dense"])  # fmt: skip
def test_sharing_changes_where_gradients_add_up_and_nothing_else(scheme, shape):
    inputs, E = drawn(), normal("E", *shape)
    own = np.broadcast_to(E, (2, *shape))
    none, headwise = results(scheme, *inputs, E=own, F=own), results(scheme, *inputs, E=E, F=E)
    both, mixed = results(scheme, *inputs, E=E), results(scheme, *inputs, E=E, F=own)
    for got in (headwise, both, mixed, results(scheme, *inputs, E=own)):
        same(got, none, "o", "lse", "dq", "dk", "dv")
    same({"dE": none["dE"].sum(axis=0), "dF": none["dF"].sum(axis=0)}, headwise, "dE", "dF")
    same(mixed, {"dE": headwise["dE"], "dF": none["dF"]})
    same(both, {"dE": headwise["dE"] + headwise["dF"]})
    assert "dF" not in both


def test_heads_may_have_fewer_slots():
    """As if each head had an E of its own size; slots that it has not have no gradient, whatever is in them."""
    q, k, v = drawn()
    E, F, sizes = normal("E", 2, S, M), normal("F", 2, S, M), (3, 1)
    there = np.arange(S) < np.array(sizes)[:, None]
    whole = {"E": np.where(there[..., None], E, 9.0), "F": np.where(there[..., None], F, 9.0)}
    got = results(Linformer(), q, k, v, **whole, slot_valid=there)
    do, dlse = normal("do", *q.shape[:-1], D), normal("dlse", *q.shape[:-1])
    for g, size in enumerate(sizes):
        heads = slice(2 * g, 2 * g + 2)
        o, saved = Linformer().forward(q[:, heads], k[:, g : g + 1], v[:, g : g + 1], E=E[g, :size], F=F[g, :size])
        grads = Linformer().vjp(saved, do[:, heads], dlse=dlse[:, heads])
        np.testing.assert_allclose(got["o"][:, heads], o, **CLOSE)
        np.testing.assert_allclose(got["lse"][:, heads], saved.lse, **CLOSE)
        np.testing.assert_allclose(got["dE"][g, :size], grads.E, **CLOSE)
        np.testing.assert_allclose(got["dF"][g, :size], grads.F, **CLOSE)
        np.testing.assert_allclose(got["dk"][:, g : g + 1], grads.k, **CLOSE)
        assert not got["dE"][g, size:].any()
        assert not got["dF"][g, size:].any()


def test_a_head_without_slots_returns_zeros_and_pulls_nothing():
    q, k, v = drawn()
    there = np.array([[True] * S, [False] * S])
    got = results(Linformer(), q, k, v, E=normal("E", S, M), slot_valid=there)
    assert not got["o"][:, 2:].any()
    assert (got["lse"][:, 2:] == -np.inf).all()
    assert not got["dq"][:, 2:].any()
    assert not got["dk"][:, 1].any()
    assert all(np.isfinite(x).all() for name, x in got.items() if name != "lse")
    empty = results(Linformer(), q, k, v, E=normal("none", 0, M))
    assert not empty["o"].any()
    assert (empty["lse"] == -np.inf).all()
    assert not Linformer().definition(q, k, v, E=normal("none", 0, M))[0].any()


def test_a_bias_of_e_is_one_more_token():
    q, k, v = drawn()
    E, b = normal("E", S, M), normal("b", S)
    slots = [np.matmul(E, x) + b[:, None] for x in (k, v)]
    wide = [np.concatenate([x, np.ones((B, 2, 1, D))], axis=-2) for x in (k, v)]
    got = results(Linformer(), q, *wide, E=np.concatenate([E, b[:, None]], axis=1))
    same(got, results(Dense(), q, *slots), "o", "lse", "dq")


def test_a_projection_of_the_input_is_one_of_keys_without_bias():
    """(E x) W = E (x W); with a bias only if the rows of E sum to one."""
    x, w, b, E = normal("x", M, 6), normal("w", 6, D), normal("bias", D), np.abs(normal("E", S, M))
    q, v = normal("q", N, D), normal("v", M, D)
    before = np.matmul(np.matmul(E, x), w)
    same({"o": Linformer()(q, np.matmul(x, w), v, E=E)}, {"o": Dense()(q, before, np.matmul(E, v))})
    after = Linformer()(q, np.matmul(x, w) + b, v, E=E)
    assert np.max(np.abs(after - Dense()(q, before + b, np.matmul(E, v)))) > 0.01
    ones = E / E.sum(axis=1, keepdims=True)
    got = Linformer()(q, np.matmul(x, w) + b, v, E=ones)
    same({"o": got}, {"o": Dense()(q, np.matmul(np.matmul(ones, x), w) + b, np.matmul(ones, v))})


def test_the_weights_of_tokens_have_the_rank_of_the_slots():
    q, k, _ = drawn()
    F = normal("F", S, M)
    eye = np.broadcast_to(np.eye(M), (B, 2, M, M))
    P = Linformer()(q, k, eye, E=normal("E", S, M), F=F / F.sum(axis=1, keepdims=True))
    assert (np.linalg.svd(P, compute_uv=False)[..., S:] < 1e-12).all()
    np.testing.assert_allclose(P.sum(axis=-1), 1.0, rtol=1e-10)


def test_the_gradient_of_a_maximum_goes_to_the_first_of_the_largest():
    q, k, v = drawn(m=3)
    k, v = np.ones_like(k), np.stack([v[..., 0, :], v[..., 1, :], v[..., 1, :]], axis=-2)
    got = results(Linformer(projection="max", stride=3), q, k, v)
    assert not got["dk"][..., 1:, :].any()
    first = (v[..., :1, :] >= v[..., 1:2, :])[..., 0, :]
    np.testing.assert_array_equal(got["dv"][..., 0, :] != 0.0, first)
    np.testing.assert_array_equal(got["dv"][..., 1, :] != 0.0, ~first)
    assert not got["dv"][..., 2, :].any()


def test_poison_in_padding_changes_nothing():
    linformer = row("linformer")
    met = 0
    for variant in linformer.variants:
        if "key_valid" not in variant.given:
            continue
        inputs = linformer.draw(variant, 1)
        padding = ~inputs.key_valid[:, None, :, None]
        dirty = inputs._replace(k=np.where(padding, np.nan, inputs.k), v=np.where(padding, np.inf, inputs.v))
        want, got = results(variant.scheme, *inputs), results(variant.scheme, *dirty)
        for name, x in want.items():
            np.testing.assert_array_equal(got[name], x, err_msg=name)
        np.testing.assert_array_equal(*(variant.scheme.definition(*x)[0] for x in (inputs, dirty)))
        met += padding.any()
    assert met >= 3


def test_conventions_are_configurations():
    assert Linformer.conventions["fairseq"].shorter == "slice"
    assert Linformer.conventions["tatp22"].shorter == "error"
    q, k, v = drawn(m=9)
    E = normal("E", S, M)
    same({"o": Linformer.conventions["lra"](q, k, v, E=E)}, {"o": Linformer()(q, k, v, E=E[:, :9])})


FIELDS = [
    ({"causal": True}, "causal=True: Linformer has no causal form. Every slot mixes tokens of all positions"),
    ({"causal": "no"}, "causal='no'"),
    ({"projection": "conv"}, "projection='conv': choose one of 'linear', 'mean', 'max', 'depthwise', 'dense'"),
    ({"projection": "mean"}, "stride=None: projection='mean' needs its number of tokens, as stride=4"),
    ({"projection": "max", "stride": 0}, "stride=0"),
    ({"projection": "max", "stride": True}, "stride=True"),
    ({"stride": 2}, "stride=2 would be ignored: projection='linear' has segments of no length"),
    ({"projection": "dense", "stride": 2}, "stride=2 would be ignored: projection='dense' takes it from the length of E"),
    ({"tail": "cut"}, "tail='cut': choose one of 'error', 'drop', 'pad'"),
    ({"tail": "pad"}, "tail='pad' would be ignored: projection='linear' has no segments"),
    ({"shorter": "pad"}, "shorter='pad': choose one of 'error', 'slice'"),
    ({"shorter": "slice", "projection": "dense"}, "shorter='slice' would be ignored: projection='dense' fits any length"),
    ({"scale": float("inf")}, "scale=inf is not finite"),
    ({"heads": "repeat"}, "heads='repeat'.*grouped.*tiled"),
]


@pytest.mark.parametrize(("fields", "message"), FIELDS)
def test_fields_that_mean_nothing_are_refused(fields, message):
    with pytest.raises(OptionError, match=message):
        Linformer(**fields)


E = np.zeros((S, M))
CALLS = [
    (Linformer(), {}, OptionError, r"E is missing: projection='linear' needs its weights \(s, M\)"),
    (Linformer(), {"E": E[:, :9]}, ShapeError, r"E has shape \(4, 9\), but k has shape \(3, 2, 12, 5\).*M=m=12"),
    (Linformer(shorter="slice"), {"E": E[:, :9]}, ShapeError, r"E has M=9 columns for fewer tokens than the m=12 of k"),
    (Linformer(), {"E": np.zeros((S, 15))}, ShapeError, r"E has shape \(4, 15\).*shorter='slice'"),
    (Linformer(), {"E": np.zeros((3, S, M))}, ShapeError, r"E has shape \(3, 4, 12\).*each of the 2 heads"),
    (Linformer(), {"E": E[0]}, ShapeError, r"E has shape \(12,\)"),
    (Linformer(), {"E": E, "F": E[:3]}, ShapeError, r"E gives 4 slots and F 3"),
    (Linformer(), {"E": E, "key_valid": np.ones((3, 9), bool)}, ShapeError, "key_valid has shape.*must be 12"),
    (Linformer(), {"E": E, "key_valid": np.ones((4, 12), bool)}, ShapeError, "key_valid has shape"),
    (Linformer(), {"E": E, "slot_valid": np.ones(3, bool)}, ShapeError, r"slot_valid has shape \(3,\); there are 4 slots"),
    (SEGMENTS[0], {"E": E}, OptionError, "E is given, but projection='mean' has no weights and would ignore it"),
    (SEGMENTS[0], {"F": E}, OptionError, "F is given, but projection='mean'"),
    (SEGMENTS[2], {"E": np.zeros((3, 4))}, ShapeError, r"E has shape \(3, 4\).*axes \(c, d\).*d=5"),
    (SEGMENTS[2], {"E": np.zeros((0, D))}, ShapeError, "segments of c=0 tokens"),
    (SEGMENTS[3], {"E": np.zeros((3, D, 4))}, ShapeError, r"axes \(c, d, d\)"),
]


@pytest.mark.parametrize(("scheme", "named", "error", "message"), CALLS)
def test_inputs_that_do_not_fit_are_refused(scheme, named, error, message):
    with pytest.raises(error, match=message):
        scheme(*drawn(), **named)


def test_e_that_serves_values_of_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"E \(which serves v too: F is not given\) has shape \(3, 5\), but v has shape"):
        SEGMENTS[2](*drawn(e=4), E=np.zeros((3, D)))
