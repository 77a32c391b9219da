"""Linformer in layers: the order of compression and projection, and matrices that heads, keys and values, layers share."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, Linformer, OptionError, ShapeError, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward
from refattn.layers.linformer_sharing import SHARING, LinformerSharing
from refattn.layers.micro_batches import MicroBatches
from refattn.layers.project_input import ProjectInput
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm

D, F, M, S, H, L = 6, 8, 7, 3, 2, 3
SIZES = {"d": D, "f": F}
BLANK = Linformer.Inputs(None, None, None)
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def x(name, *shape):
    return rng.stream(7, name).normal(size=shape)


def random(nest):
    names = iter(tree.names(nest))
    return tree.map(lambda a: a + 0.3 * x(next(names), *np.shape(a)), nest)


def attention(scheme, **matrices):
    layer = Attention(scheme, H)
    return layer, random(layer.init(SIZES, rng.Source(0)))._replace(scheme=BLANK._replace(**matrices))


def test_compressed_first_is_attention_to_a_compressed_context():
    """By hand: k = (E x) W + b, with padding at zero before E."""
    there = np.arange(M) < 5
    inner, p = attention(Linformer(), E=x("E", S, M), F=x("F", S, M))
    v = x("x", 2, M, D)
    others = BLANK._replace(key_valid=there)
    zeroed = np.where(there[:, None], v, 0.0)
    context, values = p.scheme.E @ zeroed, p.scheme.F @ zeroed
    want = Attention(Dense(), H).forward(v, p._replace(scheme=None), context, values=values)[0]
    got, saved = ProjectInput(inner).forward(v, p, others=others)
    np.testing.assert_allclose(got, want, **CLOSE)
    assert not ProjectInput(inner).vjp(saved, got).params.scheme.E[:, 5:].any()


def test_micro_batches_cut_values_too():
    inner, p = attention(Linformer(), E=x("E", S, M), F=x("F", S, M))
    layer = ProjectInput(inner)
    inputs = layer.inner.Inputs(x("x", 4, 5, D), p, x("context", 4, M, D), values=x("values", 4, M, D))
    dy = x("dy", 4, 5, D)
    (y, saved), (z, kept) = (f.forward(*inputs) for f in (layer, MicroBatches(layer, 2)))
    np.testing.assert_allclose(z, y, **CLOSE)
    got, want = MicroBatches(layer, 2).vjp(kept, dy), layer.vjp(saved, dy)
    for (name, a), (_, b) in zip(tree.items(got), tree.items(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=name)


def test_the_two_orders_differ_by_what_e_does_to_a_bias():
    v, E = x("x", 2, M, D), np.abs(x("E", S, M))
    for matrix, same in ((E, False), (E / E.sum(axis=1, keepdims=True), True)):
        inner, p = attention(Linformer(), E=matrix)
        one, other = inner.forward(v, p)[0], ProjectInput(inner).forward(v, p)[0]
        assert np.allclose(one, other, **CLOSE) is same
        free = p._replace(b_k=None, b_v=None)
        np.testing.assert_allclose(inner.forward(v, free)[0], ProjectInput(inner).forward(v, free)[0], **CLOSE)


def test_slots_that_there_are_not_are_hidden_before_the_projection_too():
    inner, p = attention(Linformer(), E=x("E", S, M), F=x("F", S, M))
    v, others = x("x", 2, M, D), BLANK._replace(slot_valid=np.array([True, False, True]))
    got, saved = ProjectInput(inner).forward(v, p, others=others)
    fewer = p._replace(scheme=BLANK._replace(E=p.scheme.E[::2], F=p.scheme.F[::2]))
    np.testing.assert_allclose(got, ProjectInput(inner).forward(v, fewer)[0], **CLOSE)
    assert not ProjectInput(inner).vjp(saved, got).params.scheme.E[1].any()


def test_means_of_pairs_commute_with_the_projection():
    inner, p = attention(Linformer(projection="mean", stride=2, tail="drop"))
    v, p = x("x", 2, M, D), p._replace(scheme=None)
    np.testing.assert_allclose(ProjectInput(inner).forward(v, p)[0], inner.forward(v, p)[0], **CLOSE)


def test_compressing_first_is_less_work_where_slots_are_few():
    n, d, s = 512, 64, 32
    inner = Attention(Linformer(), 8)
    p = Attention.Params((d, d), (d, d), (d, d), (d, d), scheme=BLANK._replace(E=(s, n), F=(s, n)))
    shapes = inner.Inputs((1, n, d), p)
    heads, before = inner.cost(shapes).forward.macs, ProjectInput(inner).cost(shapes).forward.macs
    assert heads == 4 * n * d * d + 4 * s * n * d
    assert before == 2 * n * d * d + 4 * s * n * d + 2 * s * d * d


def stack(sharing):
    block = Block(Attention(Linformer(), H), FeedForward())
    made = Stack((block,) * L, LayerNorm(), tied=sharing.tied)
    return made, sharing.placed(made.init(SIZES, rng.Source(0)), rng.Source(1))


def same_everywhere(params):
    """One matrix for every E and F."""
    E = x("E", S, M)
    return tree.map(lambda a: np.broadcast_to(E, a.shape) + 0.0 if a.shape[-2:] == E.shape else a, params)


def gradients(layer, params, v, dy):
    y, saved = layer.forward(v, params)
    return y, layer.vjp(saved, dy).params


def test_sharing_adds_up_gradients_and_changes_nothing_else():
    """Equal matrices give equal results; the gradient of what is shared is the sum of those of its copies."""
    v, dy, found = x("x", 2, M, D), x("dy", 2, M, D), {}
    for name in SHARING:
        layer, p = stack(LinformerSharing(name, M, S, H))
        found[name] = gradients(layer, same_everywhere(random(p)), v, dy)
    alone = [getattr(found["none"][1].layers, f"l{i}").attention.scheme for i in range(L)]
    for name in SHARING[1:]:
        np.testing.assert_allclose(found[name][0], found["none"][0], **CLOSE)
    for i, g in enumerate(alone):
        headwise, both = (getattr(found[name][1].layers, f"l{i}").attention.scheme for name in ("headwise", "key-value"))
        np.testing.assert_allclose(headwise.E, g.E.sum(axis=0), **CLOSE)
        np.testing.assert_allclose(headwise.F, g.F.sum(axis=0), **CLOSE)
        np.testing.assert_allclose(both.E, g.E.sum(axis=0) + g.F.sum(axis=0), **CLOSE)
        assert both.F is None
    tied = found["layerwise"][1].layers
    np.testing.assert_allclose(tied.l0.attention.scheme.E, sum(g.E.sum(axis=0) + g.F.sum(axis=0) for g in alone), **CLOSE)
    assert tied.l1.attention.scheme is tied.l2.attention.scheme is None


@pytest.mark.parametrize("name", SHARING)
def test_as_many_matrices_as_the_paper_counts_and_the_same_work(name):
    sharing = LinformerSharing(name, M, S, 12)
    block = Block(Attention(Linformer(), 12), FeedForward())
    made = Stack((block,) * 12, tied=sharing.tied)
    params = sharing.placed(made.init({"d": 12, "f": 4}, rng.Source(0)), rng.Source(1))
    found = [leaf for label, leaf in tree.items(params) if label.endswith((".E", ".F"))]
    assert sum(a.size for a in found) // (S * M) == sharing.matrices(12)
    assert sharing.matrices(12) == {"none": 288, "headwise": 24, "key-value": 12, "layerwise": 1}[name]
    plain = LinformerSharing("headwise", M, S)
    other = plain.placed(Stack((block,) * 12).init({"d": 12, "f": 4}, rng.Source(0)), rng.Source(1))
    costs = [layer.cost(layer.Inputs(x("x", 1, M, 12), p)) for layer, p in ((made, params), (Stack((block,) * 12), other))]
    assert costs[0].forward == costs[1].forward


def test_the_matrices_of_a_layer_are_drawn_apart_and_keep_lengths():
    sharing = LinformerSharing("headwise", 64, 32)
    block = Block(Attention(Linformer(), H), FeedForward())
    p = sharing.placed(Stack((block, block)).init(SIZES, rng.Source(0)), rng.Source(1)).layers
    drawn = [m for layer in p for m in (layer.attention.scheme.E, layer.attention.scheme.F)]
    assert len({float(m[0, 0]) for m in drawn}) == 4
    assert all(abs(32 * np.mean(m**2) - 1.0) < 0.15 for m in drawn)


def test_layers_may_have_slots_of_their_own_number():
    sharing = LinformerSharing("key-value", M, (4, 3, 1))
    layer, p = stack(sharing)
    assert [a.attention.scheme.E.shape for a in p.layers] == [(4, M), (3, M), (1, M)]
    y, grads = gradients(layer, random(p), x("x", 2, M, D), x("dy", 2, M, D))
    assert y.shape == (2, M, D)
    assert grads.layers.l2.attention.scheme.E.any()


def test_tied_leaves_and_shared_nests_go_together():
    blocks = (Block(Attention(Dense(), 2), FeedForward()), Block(Attention(Dense(causal=True), 3), FeedForward("gelu")))
    both = Stack((*blocks, blocks[0]), share=(0, 1, 0), tied=("attention.w_q",))
    p, v, dy = random(both.init(SIZES, rng.Source(0))), x("x", 2, M, D), x("dy", 2, M, D)
    assert p.layers.l1.attention.w_q is None
    assert sum(a.size for a in tree.leaves(p)) == both.parameters(SIZES)
    whole = p.layers.l1._replace(attention=p.layers.l1.attention._replace(w_q=p.layers.l0.attention.w_q))
    apart = Stack((*blocks, blocks[0]))
    y, got = gradients(both, p, v, dy)
    z, want = gradients(apart, apart.Params(tree.row([p.layers.l0, whole, p.layers.l0])), v, dy)
    np.testing.assert_array_equal(y, z)
    np.testing.assert_allclose(got.layers.l0.attention.w_q, sum(layer.attention.w_q for layer in want.layers), **CLOSE)
    np.testing.assert_allclose(got.layers.l1.attention.w_o, want.layers.l1.attention.w_o, **CLOSE)
    assert got.layers.l1.attention.w_q is None


def test_leaves_are_picked_by_name_and_branches_without_any_are_none():
    nest = tree.row([BLANK._replace(E=(2, 3)), None, BLANK._replace(q=(1,), F=(4,))])
    picked = tree.pick(nest, lambda name: name.endswith((".E", ".F")))
    assert dict(tree.items(picked)) == {"l0.E": (2, 3), "l2.F": (4,)}
    assert tree.pick(nest, lambda name: name == "l2.q").l0 is None
    assert tree.pick(nest, lambda name: False) is None
    assert tree.fits(nest, picked)
    assert tree.fits(nest.l0, None)
    assert not tree.fits(nest.l0, Dense.Inputs(None, None, None))


BLOCK = Block(Attention(Linformer(), H), FeedForward())
TIED = Stack((BLOCK, BLOCK), tied=("attention.scheme.E",))
PLAIN = TIED.init(SIZES, rng.Source(0))
ALL = LinformerSharing("key-value", M, S).placed(PLAIN, rng.Source(1))
MIXED = Stack((BLOCK, FeedForward()), tied=("attention.scheme.E",))
WITHOUT = FeedForward().init(SIZES, rng.Source(0))
BEFORE = ProjectInput(Attention(Linformer(), H))
P = BEFORE.init(SIZES, rng.Source(0))
V = x("x", 2, M, D)


@pytest.mark.parametrize(("error", "call", "message"), [
    (OptionError, lambda: LinformerSharing("all", M, S), "sharing='all': choose one of 'none', 'headwise'"),
    (OptionError, lambda: LinformerSharing("none", M, 0), "slots=0"),
    (OptionError, lambda: LinformerSharing("layerwise", M, (4, 2)), r"slots=\(4, 2\): with sharing='layerwise' one E"),
    (OptionError, lambda: LinformerSharing("none", M, (4, 2, 1)).placed(PLAIN, rng.Source(0)), "for 2 layers"),
    (OptionError, lambda: Stack((BLOCK,), tied="attention.w_q"), "tied='attention.w_q': give a tuple of names"),
    (OptionError, lambda: TIED.forward(V, PLAIN), r"params.layers.l0 has no attention.scheme.E; it has attention.w_q"),
    (OptionError, lambda: TIED.forward(V, ALL), r"attention.scheme.E in params.layers.l1: it is tied"),
    (OptionError, lambda: MIXED.forward(V, MIXED.Params(tree.row([ALL.layers.l0, WITHOUT]))),
     "params.layers.l1 has no place for it"),
    (OptionError, lambda: ProjectInput(Attention(Dense(), H)), r"is no Attention\(Linformer"),
    (ShapeError, lambda: BEFORE.forward(V, P._replace(scheme=BLANK._replace(E=x("E", H, S, M)))), "there are no heads"),
    (ShapeError, lambda: BEFORE.forward(V, P._replace(scheme=BLANK._replace(E=x("E", S, 5)))), r"E has shape \(3, 5\), but"),
    (OptionError, lambda: BEFORE.forward(V, P), "E is missing"),
    (ShapeError, lambda: Attention(Dense(), H).forward(V, P, values=x("v", 2, 4, D)), "there must be as many tokens"),
    (ShapeError, lambda: Attention(Dense(), H).forward(V, P, values=x("v", 3, M, D)), "leading axes must be the same"),
])  # fmt: skip
def test_what_is_refused(error, call, message):
    with pytest.raises(error, match=message):
        call()
