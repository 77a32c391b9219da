"""What is special to single layers: what they compute in plain NumPy, refusals, sizes of known models."""

from __future__ import annotations

import math

import array_api_strict
import numpy as np
import pytest

from laws import plain
from refattn import LSH, Dense, DtypeError, LibraryError, OptionError, ShapeError, load, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.embedding import Embedding
from refattn.layers.feed_forward import FeedForward
from refattn.ops.activation import Activation
from refattn.ops.layer_norm import LayerNorm
from refattn.ops.rms_norm import RMSNorm
from refattn.ops.scale_norm import ScaleNorm
from refattn.position.rope import Rope
from refattn.position.sinusoid import Sinusoid

G = np.random.default_rng(0)
D, F = 6, 8


def x(*shape):
    return G.normal(size=shape)


def random(nest):
    return tree.map(lambda a: a + 0.3 * G.normal(size=np.shape(a)), nest)


def attention_by_hand(layer, v, p, context):
    """One query of one head at a time."""
    k, h, g = p.w_q.shape[1] // layer.heads, layer.heads, layer.groups
    e, y = p.w_v.shape[1] // g, np.zeros((*v.shape[:-1], p.w_o.shape[1]))
    for b in range(v.shape[0]):
        for i in range(v.shape[1]):
            heads = []
            for head in range(h):
                kv = head // (h // g)
                q = v[b, i] @ p.w_q[:, head * k : (head + 1) * k] + p.b_q[head * k : (head + 1) * k]
                keys = context[b] @ p.w_k[:, kv * k : (kv + 1) * k] + p.b_k[kv * k : (kv + 1) * k]
                values = context[b] @ p.w_v[:, kv * e : (kv + 1) * e] + p.b_v[kv * e : (kv + 1) * e]
                seen = i + 1 if layer.scheme.causal else len(keys)
                w = np.array([math.exp(q @ key / math.sqrt(k)) for key in keys[:seen]])
                heads.append(w / w.sum() @ values[:seen])
            y[b, i] = np.concatenate(heads) @ p.w_o + p.b_o
    return y


@pytest.mark.parametrize(("layer", "sizes", "m"), [
    (Attention(Dense(), 2), {"d": D}, None),
    (Attention(Dense(causal=True), 4, 2), {"d": D, "k": 3, "e": 2}, None),
    (Attention(Dense(), 3, 1), {"d": D, "k": 2, "c": 5, "o": 7}, 4),
])  # fmt: skip
def test_attention_is_heads_side_by_side(layer, sizes, m):
    p, v = random(layer.init(sizes, rng.Source(0))), x(2, 5, D)
    context = None if m is None else x(2, m, 5)
    y, _ = layer.forward(v, p, context)
    np.testing.assert_allclose(y, attention_by_hand(layer, v, p, v if m is None else context), rtol=1e-12)


def test_a_feed_forward_layer_is_its_equation():
    for kind in ("relu", "gelu", "silu"):
        f = lambda u, kind=kind: plain.activation(Activation(kind), u)  # noqa: E731
        for gated in (False, True):
            layer = FeedForward(kind, gated)
            p, v = random(layer.init({"d": D, "f": F, "e": 5}, rng.Source(0))), x(2, 3, D)
            hidden = (v @ p.w1 + p.b1) * f(v @ p.wg + p.bg) if gated else f(v @ p.w1 + p.b1)
            np.testing.assert_allclose(layer.forward(v, p)[0], hidden @ p.w2 + p.b2, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm(), ScaleNorm()], ids=lambda n: type(n).__name__)
def test_a_block_is_its_residual_equation(order, norm):
    attention, feed = Attention(Dense(), 2), FeedForward()
    block = Block(attention, feed, norm, order)
    p, v = random(block.init({"d": D, "f": F}, rng.Source(1))), x(2, 5, D)

    def n(u, at):
        return norm.forward(u, *(leaf for leaf in at[1:] if leaf is not None))[0]

    def a(u):
        return attention.forward(u, p.attention)[0]

    def f(u):
        return feed.forward(u, p.feed_forward)[0]

    if order == "pre":
        middle = v + a(n(v, p.norm_attention))
        want = middle + f(n(middle, p.norm_feed_forward))
    else:
        middle = n(v + a(v), p.norm_attention)
        want = n(middle + f(middle), p.norm_feed_forward)
    np.testing.assert_array_equal(block.forward(v, p)[0], want)


def test_an_embedding_is_rows_and_positions():
    layer, ids = Embedding("learned", scale=True), np.array([[3, 0, 3], [1, 1, 2]])
    p = layer.init({"v": 4, "d": D, "L": 5}, rng.Source(0))
    y, saved = layer.forward(ids, p)
    np.testing.assert_allclose(y, p.table[ids] * math.sqrt(D) + p.positions[:3], rtol=1e-15)
    dy = x(2, 3, D)
    grads = layer.vjp(saved, dy)
    table, positions = np.zeros((4, D)), np.zeros((5, D))
    np.add.at(table, ids, dy * math.sqrt(D))
    positions[:3] = dy.sum(0)
    np.testing.assert_allclose(grads.params.table, table, rtol=1e-13)
    np.testing.assert_allclose(grads.params.positions, positions, rtol=1e-13)
    assert grads.ids is None


def test_rotary_attention_depends_on_differences_of_positions_alone():
    layer = Attention(Dense(), 3, rotary=Rope("halves"))
    p, v, at = random(layer.init({"d": D}, rng.Source(0))), x(2, 5, D), np.array([3, 1, 4, 8, 2])
    y = layer.forward(v, p, positions=at)[0]
    np.testing.assert_allclose(layer.forward(v, p, positions=at + 1000)[0], y, rtol=1e-9)
    assert not np.allclose(layer.forward(v, p)[0], y)
    pairs = ((p.w_q, p.b_q), (p.w_k, p.b_k), (p.w_v, p.b_v))
    q, k, u = (np.moveaxis((v @ w + b).reshape(2, 5, 3, 2), 2, 1) for w, b in pairs)
    turn = Rope("halves")
    o = np.moveaxis(Dense()(turn(q, at), turn(k, at), u), 1, 2).reshape(2, 5, 6)
    np.testing.assert_allclose(o @ p.w_o + p.b_o, y, rtol=1e-12)


def test_sinusoids_are_added_and_scaled():
    ids = np.array([[3, 0, 3], [1, 1, 2]])
    for scaled in (False, True):
        layer = Embedding(Sinusoid("halves"), scaled)
        p = layer.init({"v": 4, "d": D}, rng.Source(0))
        e = np.array([[f(t * 10000.0 ** (-2 * i / D)) for f in (math.sin, math.cos) for i in range(3)] for t in range(3)])
        np.testing.assert_allclose(layer.forward(ids, p)[0], p.table[ids] + e * (D**-0.5 if scaled else 1.0), rtol=1e-13)


def test_rows_of_initial_layers_keep_their_size():
    """Variance 1 in, about variance 1 out of each projection."""
    p = FeedForward().init({"d": 400, "f": 300}, rng.Source(0))
    u = G.normal(size=(200, 400))
    assert 0.9 < float(np.var(u @ p.w1)) < 1.1
    q = Attention(Dense(), 4).init({"d": 400}, rng.Source(0))
    assert 0.9 < float(np.var(u @ q.w_q)) < 1.1
    table = Embedding(scale=True).init({"v": 300, "d": 64}, rng.Source(0)).table
    assert 0.9 < float(np.var(table * 8.0)) < 1.1


def test_sizes_of_bert_base():
    """Devlin et al.: 12 blocks of width 768 with 12 heads and a hidden width of 3072 hold 85,054,464 numbers."""
    block = Block(Attention(Dense(), 12), FeedForward(), order="post")
    sizes = {"d": 768, "f": 3072}
    assert 12 * block.parameters(sizes) == 85_054_464
    n = 512
    shapes = Block.Inputs((1, n, 768), tree.map(lambda a: a.shape, block.init(sizes, rng.Source(0))))
    cost = block.cost(shapes)
    assert cost.forward.macs == 12 * n * 768**2 + 2 * n * n * 768
    assert cost.backward.macs == 24 * n * 768**2 + 5 * n * n * 768  # the scores are formed once more
    assert cost.backward.saved == n * 768 + block.parameters(sizes)


def test_the_counting_reading_takes_a_million_tokens_at_once():
    block, reading = Block(Attention(Dense(causal=True), 8), FeedForward("silu", gated=True)), load("counting", block=None)
    params = tree.map(lambda a: a.shape, block.init({"d": 64, "f": 128}, rng.Source(0)))
    given = reading.shaped(Block.Inputs((1, 10**6, 64), params))
    with reading.counted() as forward:
        block.forward(*given)
    assert forward.macs == block.cost(given).forward.macs > 10**14


def learned(**leaves):
    return Dense.Inputs(**{"q": None, "k": None, "v": None, **leaves})


ATTENTION, FEED = Attention(Dense(), 2), FeedForward()
P = ATTENTION.init({"d": D}, rng.Source(0))
Q = FEED.init({"d": D, "f": F}, rng.Source(0))
BLOCK = Block(ATTENTION, FEED)
B = BLOCK.init({"d": D, "f": F}, rng.Source(0))
E = Embedding().init({"v": 4, "d": D}, rng.Source(0))
IDS = np.array([0, 3])
TURNED = Attention(Dense(), 2, rotary=Rope("halves"))


@pytest.mark.parametrize(("error", "call", "message"), [
    (OptionError, lambda: Attention("dense"), "is no scheme"),
    (OptionError, lambda: Attention(Dense(), 0), "heads=0"),
    (OptionError, lambda: Attention(Dense(), 2, True), "kv_heads=True"),
    (ShapeError, lambda: Attention(Dense(), 4).init({"d": D}, rng.Source(0)), "d=6 is no multiple of heads=4"),
    (ShapeError, lambda: ATTENTION.forward(x(2, 3, 5), P), r"x has d=5 but params.w_q has d=6"),
    (ShapeError, lambda: ATTENTION.forward(x(2, 3, D), P, x(2, 3, 5)), r"context has d=5 but params.w_k has d=6"),
    (ShapeError, lambda: ATTENTION.forward(x(2, 3, D), P, x(3, 3, D)), r"leading axes must be the same"),
    (ShapeError, lambda: ATTENTION.forward(x(2, 3, D), P._replace(b_v=x(5))), r"params.w_v has f=6 but params.b_v has f=5"),
    (ShapeError, lambda: ATTENTION.forward(x(2, 3, D), P._replace(w_o=x(5, D))), r"heads return has d=6 but params.w_o"),
    (ShapeError, lambda: Attention(Dense(), 4).forward(x(2, 3, D), P), r"params.w_q has 6 columns, no multiple of its 4"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P._replace(w_k=None)), r"params.w_k is missing, but Dense reads q"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P, others=learned(q=x(2, 3, D))), r"others has q, which the layer"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P, others=P), r"others is a Params: give an Inputs of Dense"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P._replace(scheme=learned(sink=x(2))), others=learned(sink=x(2))),
     r"sink in params.scheme and in others"),
    (OptionError, lambda: (c := Attention(LSH(), 2, bias=False)).forward(
        x(2, 3, D), c.init({"d": D}, rng.Source(0), LSH.Inputs(None, None, x(1, 3, 2)))), "rotations, which can't"),
    (DtypeError, lambda: ATTENTION.forward(x(2, 3, D), P, others=learned(mask=x(3, 3))), r"others.mask has dtype float64"),
    (DtypeError, lambda: ATTENTION.forward(x(2, 3, D).astype("float32"), P), r"mixed float dtypes .*params.w_q: float64"),
    (LibraryError, lambda: ATTENTION.forward([1.0], P), r"x is a list"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P, bias=1), r"no input called bias; the inputs are x, params"),
    (ShapeError, lambda: ATTENTION.vjp(ATTENTION.forward(x(2, 3, D), P)[1], x(2, 3, 5)), r"dy has shape \(2, 3, 5\), but y"),
    (DtypeError, lambda: ATTENTION.vjp(ATTENTION.forward(x(2, 3, D), P)[1], np.ones((2, 3, D), np.float32)), "float32"),
    (LibraryError, lambda: FEED.vjp(FEED.forward(x(2, D), Q)[1], 1.0), r"dy is a float"),
    (LibraryError, lambda: FEED.vjp(FEED.forward(x(2, D), Q)[1], array_api_strict.asarray(x(2, D))),
     "dy is of array_api_strict, but saved is of numpy"),
    (OptionError, lambda: FeedForward("swish"), "kind='swish'"),
    (OptionError, lambda: FEED.forward(x(2, D), Q._replace(wg=x(D, F))), "gated=False, but wg is given"),
    (OptionError, lambda: FeedForward(gated=True).forward(x(2, D), Q), "gated=True, but wg is missing"),
    (ShapeError, lambda: FEED.forward(x(2, D), Q._replace(w2=x(9, D))), r"params.w1 has f=8 but params.w2 has f=9"),
    (OptionError, lambda: Block(ATTENTION, FEED, order="sandwich"), "order='sandwich'"),
    (OptionError, lambda: Block(ATTENTION, FEED, norm=None), "norm=None: give an operation"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), Q), "params is a FeedForward.Params: Attention takes Attention.P"),
    (ShapeError, lambda: ATTENTION.init({}, rng.Source(0)), "Attention needs the size d, and sizes has none"),
    (ShapeError, lambda: BLOCK.parameters({"f": F}), "Block needs the size d, and sizes has f=8"),
    (ShapeError, lambda: Embedding("learned").init({"v": 4, "d": D}, rng.Source(0)), "Embedding needs the size L"),
    (OptionError, lambda: BLOCK.forward(x(2, 3, D), B._replace(cross=P)), "params.cross or params.norm_cross is given"),
    (OptionError, lambda: BLOCK.forward(x(2, 3, D), B, cross_others=learned(mask=np.ones((3, 3), bool))), "no cross-att"),
    (OptionError, lambda: (c := Block(ATTENTION, FEED, cross=ATTENTION)).forward(
        x(2, 3, D), c.init({"d": D, "f": F}, rng.Source(0))), "cross-attention has no context"),
    (ShapeError, lambda: (c := Block(ATTENTION, FEED)).forward(
        x(2, 3, D), c.init({"d": D, "f": F, "o": 4}, rng.Source(0))), r"attention makes \(2, 3, 4\) of x \(2, 3, 6\)"),
    (ShapeError, lambda: Embedding().forward(np.asarray(1), E), r"ids has shape \(\)"),
    (DtypeError, lambda: Embedding().forward(x(3), E), "ids has dtype float64"),
    (OptionError, lambda: Embedding("learned").forward(IDS, E), "params.positions is missing, with positions='learned'"),
    (ShapeError, lambda: Embedding("learned").forward(IDS, E._replace(positions=x(1, D))), "n=2 tokens, but only 1"),
    (OptionError, lambda: Embedding("sinusoid"), "positions='sinusoid': give None, 'learned', or a Sinusoid"),
    (OptionError, lambda: Embedding("learned", scaled=True), "scaled=True is for a Sinusoid"),
    (OptionError, lambda: Embedding().forward(IDS, E._replace(factor=np.asarray(1.0))), "params.factor is given"),
    (OptionError, lambda: Attention(Dense(), rotary=10000.0), "rotary=10000.0: give a Rope"),
    (OptionError, lambda: ATTENTION.forward(x(2, 3, D), P, positions=np.arange(3)), "rotary=None would ignore them"),
    (OptionError, lambda: TURNED.forward(x(2, 3, D), P, x(2, 3, D)), "cross-attention to a context has none"),
    (ShapeError, lambda: TURNED.forward(x(2, 3, D), P), "heads of 3 features can't be turned in pairs"),
    (ShapeError, lambda: Attention(Dense(), 3, rotary=Rope("halves")).forward(x(2, 3, D), P, positions=np.arange(4)),
     r"positions has shape \(4,\)"),
    (OptionError, lambda: Embedding().forward(np.array([0, 4]), E), r"ids from 0 to 4, but the table has rows 0 … 3"),
    (OptionError, lambda: Embedding().forward(np.array([-1, 2]), E), r"ids from -1 to 2"),
])  # fmt: skip
def test_what_is_refused(error, call, message):
    with pytest.raises(error, match=message):
        call()


def test_what_a_scheme_learns_and_is_given_gets_gradients_where_it_was():
    layer, v = Attention(Dense(), 2), x(2, 3, D)
    mask, bias = np.ones((3, 3), bool), x(2, 3, 3)
    p = P._replace(scheme=learned(sink=x(2)))
    _, saved = layer.forward(v, p, others=learned(mask=mask, bias=bias))
    grads = layer.vjp(saved, x(2, 3, D))
    assert tree.names(grads.params.scheme) == ["sink"]
    assert tree.names(grads.others) == ["bias"]
    assert grads.others.bias.shape == bias.shape
    assert grads.context is None


def test_the_names_of_leaves_are_those_of_a_nest():
    assert tree.names(B) == [
        *(f"attention.{n}" for n in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")),
        *(f"feed_forward.{n}" for n in ("w1", "w2", "b1", "b2")),
        *("norm_attention.g", "norm_attention.b", "norm_feed_forward.g", "norm_feed_forward.b"),
    ]
