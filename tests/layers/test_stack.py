"""What is special to stacks, the tied head and what saves memory: what they compute by hand, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, OptionError, ShapeError, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.checkpoint import Checkpoint
from refattn.layers.chunked_ff import ChunkedFF
from refattn.layers.embedding import Embedding
from refattn.layers.feed_forward import FeedForward
from refattn.layers.language_model import LanguageModel
from refattn.layers.micro_batches import MicroBatches
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm
from refattn.position.rope import Rope

D, F, V = 6, 8, 5
SIZES = {"d": D, "f": F, "v": V}
G = np.random.default_rng(0)
OPEN, CAUSAL = (Block(Attention(Dense(causal=causal), 2), FeedForward()) for causal in (False, True))
STACK = Stack((OPEN, CAUSAL), LayerNorm())


def x(*shape):
    return G.normal(size=shape)


def random(nest):
    return tree.map(lambda a: a + 0.3 * G.normal(size=np.shape(a)), nest)


def made(layer, **sizes):
    return random(layer.init(SIZES | sizes, rng.Source(0)))


def test_a_stack_is_its_layers_one_after_the_other():
    p, v, masks = made(STACK), x(2, 4, D), tree.row([None, Dense.Inputs(None, None, None, mask=np.ones((4, 4), bool))])
    middle, _ = OPEN.forward(v, p.layers.l0)
    last, _ = CAUSAL.forward(middle, p.layers.l1, others=masks.l1)
    want, _ = LayerNorm().forward(last, p.norm.g, p.norm.b)
    np.testing.assert_array_equal(STACK.forward(v, p, others=masks)[0], want)


def test_layers_that_share_read_one_nest_and_add_their_gradients():
    shared, apart = Stack((OPEN, CAUSAL, OPEN), share=(0, 0, 1)), Stack((OPEN, CAUSAL, OPEN))
    p, v = made(shared), x(2, 4, D)
    same = Stack.Params(tree.row([p.layers.l0, p.layers.l0, p.layers.l1]))
    (y, saved), (z, other) = shared.forward(v, p), apart.forward(v, same)
    np.testing.assert_array_equal(y, z)
    got, want = shared.vjp(saved, y).params.layers, apart.vjp(other, y).params.layers
    assert shared.parameters(SIZES) == 2 * OPEN.parameters(SIZES)
    for a, b, c in zip(tree.leaves(got.l0), tree.leaves(want.l0), tree.leaves(want.l1), strict=True):
        np.testing.assert_allclose(a, b + c, rtol=1e-12, atol=1e-12)


def test_positions_reach_the_attention_of_every_layer():
    block, at = Block(Attention(Dense(), 3, rotary=Rope("halves")), FeedForward()), np.array([3, 1, 4, 8])
    stack, v = Stack((block, block)), x(2, 4, D)
    p = made(stack)

    def branch(name, u, q, **more):
        normed, _ = LayerNorm().forward(u, **dict(tree.items(getattr(q, f"norm_{name}"))))
        return getattr(block, name).forward(normed, getattr(q, name), **more)[0]

    want, y1, y2 = v, v, v
    for q in p.layers:
        want = want + branch("attention", want, q, positions=at)
        want = want + branch("feed_forward", want, q)
        y1 = y1 + branch("attention", y2, q, positions=at)
        y2 = y2 + branch("feed_forward", y1, q)
    for layer, y in ((stack, want), (Checkpoint(stack, 1), want), (Reversible(stack), np.concatenate([y1, y2], -1))):
        np.testing.assert_allclose(layer.forward(v, p, positions=at)[0], y, rtol=1e-12)
        assert not np.allclose(layer.forward(v, p)[0], y)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_is_its_parts(tied):
    model = LanguageModel(Embedding(), STACK, tied, bias=True)
    p, ids = made(model), np.array([[0, 4, 2, 2]])
    y, _ = STACK.forward(p.embedding.table[ids], p.body)
    head = p.embedding.table.T if tied else p.w
    np.testing.assert_allclose(model.forward(ids, p)[0], y @ head + p.b, rtol=1e-12)
    assert model.parameters(SIZES) == V * D + STACK.parameters(SIZES) + V + (0 if tied else D * V)


def test_what_the_body_of_a_model_is_given_reaches_it():
    model = LanguageModel(Embedding(), STACK)
    p, ids = made(model), np.array([[0, 4, 2, 2]])
    bias = tree.row([Dense.Inputs(None, None, None, bias=x(4, 4)), None])
    y, saved = model.forward(ids, p, Stack.Inputs(None, None, others=bias))
    assert not np.allclose(y, model.forward(ids, p)[0])
    grads = model.vjp(saved, y)
    assert tree.names(grads.given) == ["others.l0.bias"]
    assert grads.given.others.l0.bias.shape == (4, 4)


@pytest.mark.parametrize("join", ["concat", "mean"])
def test_a_reversible_stack_joins_two_streams(join):
    layer = Reversible(Stack((OPEN,), LayerNorm()), join)
    p, v = made(layer), x(2, 4, D)
    part = p.layers.l0
    norm = lambda u, at: LayerNorm().forward(u, at.g, at.b)[0]  # noqa: E731
    y1 = v + OPEN.attention.forward(norm(v, part.norm_attention), part.attention)[0]
    y2 = v + OPEN.feed_forward.forward(norm(y1, part.norm_feed_forward), part.feed_forward)[0]
    joined = np.concatenate([y1, y2], -1) if join == "concat" else (y1 + y2) / 2
    np.testing.assert_allclose(layer.forward(v, p)[0], norm(joined, p.norm), rtol=1e-12)
    assert p.norm.g.shape == joined.shape[-1:]


def test_recovered_inputs_are_off_by_rounding_alone():
    layer = Reversible(Stack((OPEN,) * 24))
    p, v = made(layer), x(2, 4, D)
    y, saved = layer.forward(v, p)
    got = layer.vjp(saved, y)
    narrow, kept = layer.forward(v.astype("float32"), tree.map(lambda a: a.astype("float32"), p))
    rough = layer.vjp(kept, y.astype("float32"))
    assert narrow.dtype == np.float32
    assert np.max(np.abs(rough.x - got.x)) < 1e-2 * np.max(np.abs(got.x))


def test_gradients_of_half_precision_are_added_in_float32():
    layer = MicroBatches(STACK, 4)
    half = tree.map(lambda a: a.astype(np.float16), layer.Inputs(x(8, 4, D), made(STACK)))
    wide = tree.map(lambda a: a.astype(np.float32), half)
    got = layer.accumulate(half, lambda y, at: y)
    want = layer.accumulate(wide, lambda y, at: y.astype(np.float16).astype(np.float32))
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b.astype(np.float16), strict=True)


def test_the_context_that_a_model_is_given_is_cut_with_its_tokens():
    layer = MicroBatches(LanguageModel(Embedding(), Stack((OPEN,))), 2)
    p, ids, given = made(layer), np.array([[0, 1], [2, 0], [1, 1], [0, 2]]), Stack.Inputs(None, None, x(4, 3, D))
    (y, saved), (z, kept) = layer.forward(ids, p, given), layer.inner.forward(ids, p, given)
    np.testing.assert_allclose(y, z, rtol=1e-12)
    np.testing.assert_allclose(layer.vjp(saved, y).given.context, layer.inner.vjp(kept, z).given.context, rtol=1e-9)


def test_inputs_with_a_batch_of_their_own_are_named():
    layer = MicroBatches(Stack((OPEN,)), 2, batched=("x", "others.l0.bias"))
    p, v = made(layer), x(4, 3, D)
    row = tree.row([Dense.Inputs(None, None, None, bias=x(4, 2, 3, 3))])
    y, saved = layer.forward(v, p, others=row)
    z, kept = layer.inner.forward(v, p, others=row)
    np.testing.assert_allclose(y, z, rtol=1e-12)
    np.testing.assert_allclose(layer.vjp(saved, y).others.l0.bias, layer.inner.vjp(kept, z).others.l0.bias, rtol=1e-9)


P, V4 = made(STACK), x(2, 4, D)
POST = Block(OPEN.attention, OPEN.feed_forward, order="post")
MODEL = LanguageModel(Embedding(), STACK)
M = made(MODEL)


@pytest.mark.parametrize(("error", "call", "message"), [
    (OptionError, lambda: Stack(()), r"layers=\(\): give a tuple"),
    (OptionError, lambda: Stack([OPEN]), "give a tuple of layers"),
    (OptionError, lambda: Stack((OPEN, OPEN), share=(1, 0)), r"share=\(1, 0\) for 2 layers"),
    (OptionError, lambda: Stack((OPEN, OPEN), share=(0,)), r"share=\(0,\) for 2 layers"),
    (OptionError, lambda: STACK.forward(V4, P._replace(layers=tree.row([P.layers.l0]))), "has 1 nests; the stack has 2"),
    (OptionError, lambda: STACK.forward(V4, P.layers.l0), "params is a Block.Params: Stack takes Stack.Params, as its init"),
    (OptionError, lambda: (s := Stack((OPEN, OPEN.feed_forward), share=(0, 0))).forward(V4, made(s)),
     "params is a Block.Params: FeedForward takes FeedForward.Params"),
    (OptionError, lambda: MicroBatches(STACK, 2).accumulate(STACK.Inputs(V4, P.layers.l0), lambda y, at: y),
     "params is a Block.Params: MicroBatches takes Stack.Params"),
    (OptionError, lambda: STACK.vjp(STACK.layers[0].forward(V4, P.layers.l0)[1], V4),
     "Stack.vjp takes the Stack.Saved that forward returns, .* not a Block.Saved"),
    (ShapeError, lambda: STACK.init({"d": D}, rng.Source(0)), "FeedForward needs the size f, and sizes has d=6"),
    (ShapeError, lambda: MODEL.init({"d": D, "f": F}, rng.Source(0)), "LanguageModel needs the size v"),
    (OptionError, lambda: STACK.forward(V4, P._replace(norm=None)), "params.norm is missing"),
    (OptionError, lambda: STACK.forward(V4, P, others=tree.row([None])), "tree.row of 2 nests"),
    (OptionError, lambda: Stack((FeedForward(),)).forward(V4, made(Stack((FeedForward(),))), V4), "no layer reads it"),
    (ShapeError, lambda: Stack((FeedForward(),)).forward(V4, made(Stack((FeedForward(),)), e=3)),
     r"layer 0 makes \(2, 4, 3\) of x \(2, 4, 6\)"),
    (OptionError, lambda: Checkpoint(STACK, 0), "every=0"),
    (OptionError, lambda: Checkpoint(OPEN, 1), "is no Stack"),
    (OptionError, lambda: Reversible(STACK, "sum"), "join='sum'"),
    (OptionError, lambda: Reversible(Stack((OPEN, POST))), "layer 1 is .* two streams need"),
    (OptionError, lambda: Reversible(OPEN), "is no Stack: two streams need"),
    (OptionError, lambda: Reversible(OPEN.feed_forward), "is no Stack: two streams need"),
    (OptionError, lambda: ChunkedFF(FeedForward(), 0), "rows=0"),
    (OptionError, lambda: ChunkedFF(OPEN.attention, 2), "reads more than x and parameters"),
    (OptionError, lambda: MicroBatches(STACK, 0), "parts=0"),
    (ShapeError, lambda: MicroBatches(STACK, 3).forward(V4, P), r"can't be cut into 3 equal parts: x: \(2, 4, 6\)"),
    (ShapeError, lambda: MicroBatches(STACK, 2).forward(V4[0], P), r"there is no batch to cut: x: \(4, 6\)"),
    (ShapeError, lambda: MicroBatches(STACK, 2).forward(V4, P, V4[:1]), "can't be cut into 2 equal parts"),
    (ShapeError, lambda: MicroBatches(STACK, 2).accumulate(STACK.Inputs(V4, P), lambda y, at: y[:, :1]), "dy has shape"),
    (OptionError, lambda: MODEL.forward(np.array([[0]]), M._replace(w=x(D, V))), "tied=True, but params.w is given"),
    (OptionError, lambda: MODEL.forward(np.array([[0]]), M, P), "given is a Params: give an Inputs of Stack"),
    (OptionError, lambda: MODEL.forward(np.array([[0]]), M, Stack.Inputs(V4, None)), "given has x or params"),
])  # fmt: skip
def test_what_is_refused(error, call, message):
    with pytest.raises(error, match=message):
        call()
