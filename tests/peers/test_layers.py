"""Layers in torch: multi-head attention and encoder and decoder layers of torch.nn with our weights copied in, and the tape
over our own forward for two blocks of every variant of every scheme."""

from __future__ import annotations

import numpy as np
import pytest

from laws.operations import too_far
from laws.stacks import DEEP, HASHED, SINGLE, STACKS, TWICE
from refattn import Dense, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
D, F, H = 12, 20, 4


@pytest.mark.parametrize("case_", [*SINGLE, *DEEP, *STACKS, *HASHED, *TWICE], ids=str)
def test_every_gradient_is_that_of_torchs_tape(case_):
    inputs = case_.draw(2)
    dy = torch.tensor(case_.cotangent(inputs))
    moved = tree.map(lambda x: torch.tensor(np.array(x), requires_grad=x.dtype.kind == "f"), inputs)
    for name, x in tree.items(moved):
        x.requires_grad_(x.is_floating_point() and not name.endswith("rotations"))  # a hash is a decision
    y, saved = case_.layer.forward(*moved)
    (y * dy).sum().backward()
    with torch.no_grad():
        own = dict(tree.items(case_.layer.vjp(saved, dy)))
    tape = {name: x.grad for name, x in tree.items(moved) if x.requires_grad}
    assert own.keys() == tape.keys()
    for name, want in tape.items():
        size = max(1.0, float(want.abs().max()))
        assert float((own[name] - want).abs().max()) <= 1e-9 * size, name


def random(nest, seed):
    """Initial parameters with random biases and gains."""
    source = iter(range(10**6))
    return tree.map(lambda x: x + 0.3 * rng.stream(seed, next(source)).normal(size=np.shape(x)), nest)


def leaf(x):
    return torch.nn.Parameter(torch.tensor(np.array(x)))


def fused(p):
    """in_proj of torch.nn.MultiheadAttention: rows of Wᵀ, q then k then v."""
    return leaf(np.concatenate([p.w_q, p.w_k, p.w_v], axis=1).T), leaf(np.concatenate([p.b_q, p.b_k, p.b_v]))


def load_attention(module, p):
    module.in_proj_weight, module.in_proj_bias = fused(p)
    module.out_proj.weight, module.out_proj.bias = leaf(p.w_o.T), leaf(p.b_o)


def attention_grads(module):
    w, b = module.in_proj_weight.grad.T, module.in_proj_bias.grad
    names = ("q", "k", "v")
    parts = {f"w_{a}": w[:, i * D : (i + 1) * D] for i, a in enumerate(names)}
    parts |= {f"b_{a}": b[i * D : (i + 1) * D] for i, a in enumerate(names)}
    return parts | {"w_o": module.out_proj.weight.grad.T, "b_o": module.out_proj.bias.grad}


def block_grads(module, order, crossed):
    found = {f"attention.{n}": g for n, g in attention_grads(module.self_attn).items()}
    if crossed:
        found |= {f"cross.{n}": g for n, g in attention_grads(module.multihead_attn).items()}
    found |= {"feed_forward.w1": module.linear1.weight.grad.T, "feed_forward.b1": module.linear1.bias.grad,
              "feed_forward.w2": module.linear2.weight.grad.T, "feed_forward.b2": module.linear2.bias.grad}
    norms = ("attention", "cross", "feed_forward") if crossed else ("attention", "feed_forward")
    for i, name in enumerate(norms, 1):
        norm = getattr(module, f"norm{i}")
        found |= {f"norm_{name}.g": norm.weight.grad, f"norm_{name}.b": norm.bias.grad}
    return found


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_is_the_encoder_or_decoder_layer_of_torch(order, crossed, activation):
    attention = Attention(Dense(causal=crossed), H)
    cross = Attention(Dense(), H) if crossed else None
    block = Block(attention, FeedForward(activation), order=order, cross=cross)
    params = random(block.init({"d": D, "f": F}, rng.Source(1)), 2)
    g = np.random.default_rng(3)
    x, context, dy = g.normal(size=(2, 7, D)), g.normal(size=(2, 5, D)), g.normal(size=(2, 7, D))
    kind = torch.nn.TransformerDecoderLayer if crossed else torch.nn.TransformerEncoderLayer
    module = kind(D, H, F, 0.0, activation, batch_first=True, norm_first=order == "pre", dtype=torch.float64)
    load_attention(module.self_attn, params.attention)
    if crossed:
        load_attention(module.multihead_attn, params.cross)
    module.linear1.weight, module.linear1.bias = leaf(params.feed_forward.w1.T), leaf(params.feed_forward.b1)
    module.linear2.weight, module.linear2.bias = leaf(params.feed_forward.w2.T), leaf(params.feed_forward.b2)
    for i, name in enumerate(("attention", "cross", "feed_forward") if crossed else ("attention", "feed_forward"), 1):
        norm, at = getattr(module, f"norm{i}"), getattr(params, f"norm_{name}")
        norm.weight, norm.bias = leaf(at.g), leaf(at.b)
    there, memory = (torch.tensor(z, requires_grad=True) for z in (x, context))
    if crossed:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
        want = module(there, memory, tgt_mask=mask)
        y, saved = block.forward(x, params, context=context)
    else:
        want = module(there)
        y, saved = block.forward(x, params)
    want.backward(torch.tensor(dy))
    grads = block.vjp(saved, dy)
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(grads.x, there.grad.numpy(), rtol=1e-9, atol=1e-11)
    if crossed:
        np.testing.assert_allclose(grads.context, memory.grad.numpy(), rtol=1e-9, atol=1e-11)
    own, theirs = dict(tree.items(grads.params)), block_grads(module, order, crossed)
    assert own.keys() == theirs.keys()
    for name, g in theirs.items():
        np.testing.assert_allclose(own[name], g.numpy(), rtol=1e-9, atol=1e-10, err_msg=name)


def test_attention_is_torchs_with_other_widths_of_keys_and_values():
    layer = Attention(Dense(), H)
    params = random(layer.init({"d": D, "c": 10}, rng.Source(4)), 5)
    g = np.random.default_rng(6)
    x, context = g.normal(size=(3, 6, D)), g.normal(size=(3, 8, 10))
    module = torch.nn.MultiheadAttention(D, H, kdim=10, vdim=10, batch_first=True, dtype=torch.float64)
    module.q_proj_weight, module.k_proj_weight, module.v_proj_weight = (leaf(w.T) for w in params[:3])
    module.in_proj_bias = leaf(np.concatenate([params.b_q, params.b_k, params.b_v]))
    module.out_proj.weight, module.out_proj.bias = leaf(params.w_o.T), leaf(params.b_o)
    there = torch.tensor(context)
    want, _ = module(torch.tensor(x), there, there)
    np.testing.assert_allclose(layer.forward(x, params, context)[0], want.detach().numpy(), rtol=1e-11, atol=1e-12)
    values = torch.tensor(g.normal(size=context.shape), requires_grad=True)
    want, _ = module(torch.tensor(x), there, values)
    y, saved = layer.forward(x, params, context, values=values.detach().numpy())
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-11, atol=1e-12)
    want.sum().backward()
    np.testing.assert_allclose(layer.vjp(saved, np.ones_like(y)).values, values.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_a_value_on_torch_is_that_on_numpy():
    for case_ in SINGLE:
        inputs = case_.draw(3)
        dy = case_.cotangent(inputs)
        got = case_.results(tree.map(lambda x: torch.tensor(np.array(x)), inputs), torch.tensor(dy))
        assert too_far({n: x.numpy() for n, x in got.items()}, case_.bands("fp64", inputs, dy)) == {}
