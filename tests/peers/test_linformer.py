"""Linformer in other people's code with our weights copied in, forward and backward, through the convention that matches.

linformer (lucidrains), linformer-pytorch (tatp22) and fairseq's example, which is no part of what ``import fairseq`` gives:
its one file is loaded by its path, with a softmax that stays in float64. Long Range Arena's is written for flax.nn.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from refattn import Linformer, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward
from refattn.layers.linformer_sharing import LinformerSharing
from refattn.layers.project_input import ProjectInput
from refattn.layers.stack import Stack

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
D, H, M, S, N = 12, 3, 10, 4, 7
BLANK = Linformer.Inputs(None, None, None)


def x(name, *shape):
    return rng.stream(3, "peer", name).normal(size=shape)


def copied(weight):
    """A (rows, columns) weight of torch.nn.Linear as ours."""
    return weight.detach().numpy().T.copy()


def compared(layer, inputs, module, call, pairs):
    """y, dx and the gradients of parameters: `pairs` says which of ours is the gradient of which of theirs."""
    there = torch.tensor(inputs.x, requires_grad=True)
    want = call(there)
    dy = x("dy", *want.shape)
    (want * torch.tensor(dy)).sum().backward()
    y, saved = layer.forward(*inputs)
    grads = layer.vjp(saved, dy)
    found = dict(tree.items(grads.params))
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(grads.x, there.grad.numpy(), rtol=1e-9, atol=1e-11)
    assert set(found) == set(pairs)
    for name, (parameter, turn) in pairs.items():
        np.testing.assert_allclose(found[name], turn(parameter.grad.numpy()), rtol=1e-9, atol=1e-11, err_msg=name)


def turned(w):
    return w.T


def same(w):
    return w


# ---- lucidrains
def lucidrains(**options):
    peer = pytest.importorskip("linformer")
    torch.manual_seed(0)
    return peer.LinformerSelfAttention(D, M, k=S, heads=H, **options).double()


@pytest.mark.parametrize("n", [M, N])
@pytest.mark.parametrize("options", [{}, {"one_kv_head": True}, {"dim_head": 6}], ids=str)
def test_attention_of_lucidrains(options, n):
    module = lucidrains(**options)
    layer = Attention(Linformer.conventions["lucidrains"], H, 1 if "one_kv_head" in options else None)
    learned = BLANK._replace(E=copied(module.proj_k), F=copied(module.proj_v))
    linear = {"w_q": module.to_q, "w_k": module.to_k, "w_v": module.to_v, "w_o": module.to_out}
    params = Attention.Params(**{k: copied(m.weight) for k, m in linear.items()}, b_o=module.to_out.bias.detach().numpy(),
                              scheme=learned)
    pairs = {k: (m.weight, turned) for k, m in linear.items()} | {"b_o": (module.to_out.bias, same)}
    pairs |= {"scheme.E": (module.proj_k, turned), "scheme.F": (module.proj_v, turned)}
    compared(layer, layer.Inputs(x("x", 2, n, D), params), module, module, pairs)


def test_attention_of_lucidrains_whose_values_are_its_keys():
    """share_kv: one W and one E for both, whose gradients are then our two."""
    module = lucidrains(share_kv=True)
    layer, w = Attention(Linformer.conventions["lucidrains"], H), copied(module.to_k.weight)
    params = Attention.Params(copied(module.to_q.weight), w, w, copied(module.to_out.weight),
                              b_o=module.to_out.bias.detach().numpy(), scheme=BLANK._replace(E=copied(module.proj_k)))
    v, context = x("x", 2, N, D), x("context", 2, M, D)
    want = module(torch.tensor(v), context=torch.tensor(context))
    dy = x("dy", *want.shape)
    (want * torch.tensor(dy)).sum().backward()
    y, saved = layer.forward(v, params, context)
    grads = layer.vjp(saved, dy).params
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(grads.w_k + grads.w_v, module.to_k.weight.grad.numpy().T, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(grads.scheme.E, module.proj_k.grad.numpy().T, rtol=1e-9, atol=1e-11)


# ---- tatp22
def tatp22():
    pytest.importorskip("linformer_pytorch")
    return importlib.import_module("linformer_pytorch.linformer_pytorch")


def test_a_head_of_tatp22_with_bias_and_padding():
    """Its bias of E is the column of one more token of ones; padding is zeros, in q as well."""
    peer = tatp22()
    torch.manual_seed(1)
    E, F = (peer.get_EF(M, S).double() for _ in range(2))
    head = peer.LinearAttentionHead(D, 0.0, E, F, None)
    there = np.arange(M) < np.array([M, N])[:, None]
    q, k, v = (torch.tensor(x(name, 2, M, D), requires_grad=True) for name in "qkv")
    want = head(*(t * 1.0 for t in (q, k, v)), input_mask=torch.tensor(there), embeddings_mask=torch.tensor(there))
    dy = x("dy", 2, M, D)
    (want * torch.tensor(dy)).sum().backward()
    ones = np.ones((2, 1, D))
    keys, values = (np.concatenate([t.detach().numpy(), ones], axis=1)[:, None] for t in (k, v))
    weights = [np.concatenate([m.weight.detach().numpy(), m.bias.detach().numpy()[:, None]], axis=1) for m in (E, F)]
    mine = np.where(there[..., None], q.detach().numpy(), 0.0)[:, None]
    valid = np.concatenate([there, np.ones((2, 1), bool)], axis=1)
    scheme = Linformer.conventions["tatp22"]
    o, saved = scheme.forward(mine, keys, values, *weights, key_valid=valid)
    grads = scheme.vjp(saved, dy[:, None])
    np.testing.assert_allclose(o[:, 0], want.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(np.where(there[..., None], grads.q[:, 0], 0.0), q.grad.numpy(), rtol=1e-9, atol=1e-11)
    for g, t, w, m in ((grads.k, k, grads.E, E), (grads.v, v, grads.F, F)):
        np.testing.assert_allclose(g[:, 0, :M], t.grad.numpy(), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(w[:, :M], m.weight.grad.numpy(), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(w[:, M], m.bias.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_a_head_of_tatp22_with_convolutions():
    peer = tatp22()
    torch.manual_seed(2)
    E, F = (peer.get_EF(M, 5, "convolution", D).double() for _ in range(2))
    for m in (E, F):
        torch.nn.init.zeros_(m.bias)
    q, k, v = (torch.tensor(x(name, 2, M, D), requires_grad=True) for name in "qkv")
    want = peer.LinearAttentionHead(D, 0.0, E, F, None)(q, k, v)
    dy = x("dy", 2, M, D)
    (want * torch.tensor(dy)).sum().backward()
    weights = [m.weight.detach().numpy().transpose(2, 1, 0) for m in (E, F)]
    scheme = Linformer(projection="dense")
    o, saved = scheme.forward(*(t.detach().numpy()[:, None] for t in (q, k, v)), *weights)
    grads = scheme.vjp(saved, dy[:, None])
    np.testing.assert_allclose(o[:, 0], want.detach().numpy(), rtol=1e-11, atol=1e-12)
    for got, t in ((grads.q, q), (grads.k, k), (grads.v, v)):
        np.testing.assert_allclose(got[:, 0], t.grad.numpy(), rtol=1e-9, atol=1e-11)
    for got, m in ((grads.E, E), (grads.F, F)):
        np.testing.assert_allclose(got, m.weight.grad.numpy().transpose(2, 1, 0), rtol=1e-9, atol=1e-11)


def unbiased(module):
    """Biases of E and F at zero: a model has no place for one more token."""
    for name, parameter in module.named_parameters():
        if name.endswith(("E.bias", "F.bias")):
            torch.nn.init.zeros_(parameter)
    return module


NAMES = {"none": "none", "headwise": "headwise", "kv": "key-value", "layerwise": "layerwise"}


@pytest.mark.parametrize("theirs", NAMES)
def test_a_model_of_tatp22_by_how_it_shares(theirs):
    """Two post-norm layers, fewer slots in the second one unless all layers share: every gradient of E and F."""
    peer = tatp22()
    torch.manual_seed(3)
    reduced = 0 if theirs == "layerwise" else 1
    module = unbiased(peer.Linformer(M, D, S, dim_ff=20, dropout_ff=0.0, nhead=H, depth=2, dropout=0.0,
                                     parameter_sharing=theirs, k_reduce_by_layer=reduced).double())
    sharing = LinformerSharing(NAMES[theirs], M, S if not reduced else (S, S - 1), H)
    block = Block(Attention(Linformer.conventions["tatp22"], H), FeedForward("gelu"), order="post")
    stack = Stack((block, block), tied=sharing.tied)
    start = sharing.placed(stack.init({"d": D, "f": 20}, rng.Source(0)), rng.Source(1)).layers
    layers = [loaded(module.seq[2 * i], module.seq[2 * i + 1], p) for i, p in enumerate(start)]
    v = x("x", 2, M, D)
    there = torch.tensor(v, requires_grad=True)
    want = module(there)
    dy = x("dy", *want.shape)
    (want * torch.tensor(dy)).sum().backward()
    y, saved = stack.forward(v, stack.Params(tree.row(layers)))
    grads = stack.vjp(saved, dy)
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(grads.x, there.grad.numpy(), rtol=1e-8, atol=1e-10)
    for i, g in enumerate(grads.params.layers):
        heads = module.seq[2 * i].fn.heads
        found = g.attention.scheme
        if found is None:
            assert (theirs, i) == ("layerwise", 1)
            continue
        own = {"E": [h.E.weight.grad.numpy() for h in heads], "F": [h.F.weight.grad.numpy() for h in heads]}
        for name in ("E", "F"):
            if getattr(found, name) is not None:
                theirs_grad = np.stack(own[name]) if theirs == "none" else own[name][0]
                np.testing.assert_allclose(getattr(found, name), theirs_grad, rtol=1e-8, atol=1e-10, err_msg=f"{name} {i}")


def loaded(attention, feed, p):
    """Our block's parameters from the two residual layers of theirs."""
    a, f = attention.fn, feed.fn
    heads = {f"w_{n}": np.concatenate([copied(m.weight) for m in getattr(a, f"to_{n}")], axis=1) for n in "qkv"}
    scheme = p.attention.scheme
    if scheme is not None:
        there = [n for n in "EF" if getattr(scheme, n) is not None]
        one = {n: [getattr(h, n).weight.detach().numpy() for h in a.heads] for n in there}
        scheme = scheme._replace(**{n: np.stack(w) if getattr(scheme, n).ndim == 3 else w[0] for n, w in one.items()})
    made = Attention.Params(**heads, w_o=copied(a.w_o.weight), b_o=a.w_o.bias.detach().numpy(), scheme=scheme)
    norms = [type(p.norm_attention)(None, m.norm.weight.detach().numpy(), m.norm.bias.detach().numpy())
             for m in (attention, feed)]
    ff = p.feed_forward._replace(w1=copied(f.w_1.weight), w2=copied(f.w_2.weight), b1=f.w_1.bias.detach().numpy(),
                                 b2=f.w_2.bias.detach().numpy())  # fmt: skip
    return p._replace(attention=made, feed_forward=ff, norm_attention=norms[0], norm_feed_forward=norms[1])


# ---- fairseq
def fairseq(monkeypatch):
    """MultiheadLinearAttention of the example, loaded by its path: the package itself asks for much that is not there."""
    spec = importlib.util.find_spec("fairseq")
    if spec is None or spec.origin is None:
        pytest.skip("fairseq is not installed: pip install --no-deps fairseq")
    home = Path(spec.origin).parent
    file = home / "examples/linformer/linformer_src/modules/multihead_linear_attention.py"
    if not file.exists():
        pytest.skip(f"this fairseq has no {file.name}")
    made = {name: ModuleType(name) for name in ("fairseq", "fairseq.modules", "fairseq.utils")}
    made["fairseq"].__path__, made["fairseq.modules"].__path__ = [str(home)], [str(home / "modules")]
    made["fairseq.utils"].softmax = lambda s, dim, onnx_trace=False: torch.softmax(s, dim)
    made["fairseq"].utils = made["fairseq.utils"]
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("fairseq.incremental_decoding_utils", "fairseq.modules.quant_noise"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    loader = importlib.util.spec_from_file_location("peer_multihead_linear_attention", file)
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module.MultiheadLinearAttention


@pytest.mark.parametrize("n", [M, N])
@pytest.mark.parametrize("shared", [0, 1])
def test_attention_of_fairseq_projects_what_is_compressed(monkeypatch, shared, n):
    kind = fairseq(monkeypatch)
    torch.manual_seed(4)
    module = kind(D, H, self_attention=True, compressed=2, max_seq_len=M, shared_kv_compressed=shared).double()
    for m in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
        torch.nn.init.normal_(m.bias)
    layer = ProjectInput(Attention(Linformer.conventions["fairseq"], H))
    linear = {"q": module.q_proj, "k": module.k_proj, "v": module.v_proj, "o": module.out_proj}
    weights = {f"w_{a}": copied(m.weight) for a, m in linear.items()}
    biases = {f"b_{a}": m.bias.detach().numpy() for a, m in linear.items()}
    matrices = {"E": module.compress_k} if shared else {"E": module.compress_k, "F": module.compress_v}
    learned = BLANK._replace(**{a: m.weight.detach().numpy() for a, m in matrices.items()})
    pairs = {f"w_{a}": (m.weight, turned) for a, m in linear.items()}
    pairs |= {f"b_{a}": (m.bias, same) for a, m in linear.items()}
    pairs |= {f"scheme.{a}": (m.weight, same) for a, m in matrices.items()}
    inputs = layer.inner.Inputs(x("x", 2, n, D), Attention.Params(**weights, **biases, scheme=learned))

    def call(there):
        y = there.transpose(0, 1)
        return module(y, y, y, need_weights=False)[0].transpose(0, 1)

    compared(layer, inputs, module, call, pairs)
