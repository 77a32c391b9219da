"""Whole layers of Hugging Face's transformers with our parameters copied in: BERT, Longformer and Reformer, in float64.

Forward, and backward to x and to every parameter. Reformer runs in its own reversible encoder, with its own backward.
Configurations are made here, so that nothing is downloaded; dropout is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import LSH, Dense, Local, Sparse, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.chunked_ff import ChunkedFF
from refattn.layers.feed_forward import FeedForward
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
models = pytest.importorskip("transformers.models", reason="pip install transformers")
B, N, D, F, H = 2, 32, 24, 40, 3
CLOSE = 1e-9


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def random(nest: Any) -> Any:
    """Initial parameters with random biases and gains."""
    source = iter(range(10**6))
    return tree.map(lambda x: x + 0.3 * rng.stream(3, next(source)).normal(size=np.shape(x)), nest)


def linear(name: str, module: Any, w: str, b: str) -> dict[str, Any]:
    """A torch.nn.Linear under the names of our weights and bias."""
    found = {f"{name}.{w}": module.weight}
    return found if module.bias is None else found | {f"{name}.{b}": module.bias}


def norm(name: str, module: Any) -> dict[str, Any]:
    return {f"{name}.g": module.weight, f"{name}.b": module.bias}


def encoder(module: Any) -> dict[str, Any]:
    """The parameters of a layer of BERT or Longformer by our names."""
    found = {}
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
        found |= linear("attention", getattr(module.attention.self, part), f"w_{letter}", f"b_{letter}")
    found |= linear("attention", module.attention.output.dense, "w_o", "b_o")
    found |= linear("feed_forward", module.intermediate.dense, "w1", "b1")
    found |= linear("feed_forward", module.output.dense, "w2", "b2")
    found |= norm("norm_attention", module.attention.output.LayerNorm)
    return found | norm("norm_feed_forward", module.output.LayerNorm)


def reformer(module: Any) -> dict[str, Any]:
    found = norm("norm", module.layer_norm)
    for i, part in enumerate(module.layers):
        at, (attention, feed) = f"layers.l{i}.", (part.attention, part.feed_forward)
        found |= linear(f"{at}attention", attention.self_attention.query_key, "w_q", "b_q")
        found |= linear(f"{at}attention", attention.self_attention.value, "w_v", "b_v")
        found |= linear(f"{at}attention", attention.output.dense, "w_o", "b_o")
        found |= linear(f"{at}feed_forward", feed.dense.dense, "w1", "b1")
        found |= linear(f"{at}feed_forward", feed.output.dense, "w2", "b2")
        found |= norm(f"{at}norm_attention", attention.layer_norm) | norm(f"{at}norm_feed_forward", feed.layer_norm)
    return found


def copied(params: Any, theirs: Mapping[str, Any]) -> None:
    """Our numbers into their parameters; torch.nn.Linear holds the transpose."""
    ours = dict(tree.items(params))
    assert ours.keys() == theirs.keys()
    with torch.no_grad():
        for name, x in ours.items():
            theirs[name].copy_(torch.tensor(np.array(x.T)))


def agrees(got: Any, want: Any, name: str) -> None:
    want = want.detach().numpy()
    assert got.shape == want.shape, name
    assert np.max(np.abs(got - want)) <= CLOSE * max(1.0, np.max(np.abs(want))), name
    assert want.any(), name


def check(layer: Any, params: Any, module: Any, theirs: Mapping[str, Any], call: Any, rows: Any, **given: Any) -> None:
    """y where `rows`, and all gradients of a random cotangent that is 0 elsewhere."""
    copied(params, theirs)
    g = np.random.default_rng(5)
    x = g.normal(size=(B, N, D))
    dy = g.normal(size=(B, N, layer.result(layer.Inputs(x.shape, tree.map(np.shape, params)))[-1])) * rows
    there = torch.tensor(x, requires_grad=True)
    want = call(there)
    want.backward(torch.tensor(dy))
    y, saved = layer.forward(x, params, **given)
    grads = layer.vjp(saved, dy)
    agrees(y * rows, want * torch.tensor(rows), "y")
    agrees(grads.x, there.grad, "x")
    used = {id(p) for p in module.parameters() if p.grad is not None and bool(p.grad.any())}
    assert used <= {id(p) for p in theirs.values()}
    for name, mine in tree.items(grads.params):
        if name.endswith("attention.b_k"):  # a bias of all keys shifts the scores of a row alike
            assert np.max(np.abs(mine)) <= CLOSE
            assert float(theirs[name].grad.abs().max()) <= CLOSE
        else:
            agrees(mine.T, theirs[name].grad, name)


def valid(padded: bool) -> Any:
    found = np.ones((B, N), bool)
    found[1, 20:] = not padded
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_bert(activation: str, padded: bool) -> None:
    module = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = module.BertConfig(
        hidden_size=D, num_attention_heads=H, intermediate_size=F, hidden_act=activation, attn_implementation="eager",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12,
    )  # fmt: skip
    peer, there = module.BertLayer(config), valid(padded)
    block = Block(Attention(Dense(), H), FeedForward(activation), LayerNorm(1e-12), order="post")
    mask = torch.zeros(B, 1, 1, N).masked_fill(torch.tensor(~there)[:, None, None, :], -torch.inf)
    given = {"others": Dense.Inputs(None, None, None, key_valid=there)} if padded else {}
    check(block, random(block.init({"d": D, "f": F}, rng.Source(1))), peer, encoder(peer),
          lambda x: peer(x, attention_mask=mask if padded else None), there[:, :, None], **given)


@pytest.mark.parametrize("padded", [False, True])
def test_longformer_without_global_tokens(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    real = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: real(x, dim=dim))  # it asks for float32
    config = module.LongformerConfig(
        hidden_size=D, num_attention_heads=H, intermediate_size=F, attention_window=[8], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12,
    )  # fmt: skip
    peer, there = module.LongformerLayer(config), valid(padded)
    block = Block(Attention(Sparse(Local(4, 4)), H), FeedForward(), LayerNorm(1e-12), order="post")
    masked = torch.tensor(~there)
    given = {"others": Sparse.Inputs(None, None, None, key_valid=there)} if padded else {}
    check(block, random(block.init({"d": D, "f": F}, rng.Source(1))), peer, encoder(peer),
          lambda x: peer(x, attention_mask=masked * -10000.0, is_index_masked=masked, is_global_attn=False)[0],
          there[:, :, None], **given)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("buckets", [4, [2, 4]], ids=str)
@pytest.mark.parametrize("many", [1, 2])
def test_reformer(many: int, buckets: Any, causal: bool) -> None:
    module = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    config = module.ReformerConfig(
        attn_layers=["lsh"] * many, hidden_size=D, num_attention_heads=H, attention_head_size=10, feed_forward_size=F,
        hidden_act="relu", is_decoder=causal, num_hashes=2, num_buckets=buckets, lsh_attn_chunk_length=8, hash_seed=7,
        hidden_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0, chunk_size_feed_forward=8, layer_norm_eps=1e-12,
    )  # fmt: skip
    peer = module.ReformerEncoder(config).train()
    factors = tuple(buckets) if isinstance(buckets, list) else None
    scheme = replace(LSH.conventions["huggingface"], chunk=8, causal=causal, factors=factors)
    block = Block(Attention(scheme, H, bias=False), ChunkedFF(FeedForward("relu"), 8), LayerNorm(1e-12))
    layer = Reversible(Stack((block,) * many, LayerNorm(1e-12)), "concat")
    torch.manual_seed(7)  # hash_seed
    turns = torch.randn(H, 10, 2, sum(factors or (buckets,)) // 2)
    others = LSH.Inputs(None, None, rotations=np.ascontiguousarray(np.moveaxis(turns.numpy(), 2, 1)))
    params = random(layer.init({"d": D, "f": F, "k": 10}, rng.Source(1)))
    check(layer, params, peer, reformer(peer), lambda x: peer(x, num_hashes=2).hidden_states, np.ones((B, N, 1)),
          others=tree.row([others] * many))
