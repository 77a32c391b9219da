"""Reformer attention of reformer-pytorch and of Hugging Face against LSH's conventions, forward and backward, float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.bounds import Band, outside, results, rounded
from refattn import LSH

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
N, D, CHUNK, ROUNDS = 64, 16, 8, 3
FLAGS = [{}, {"attend_across_buckets": False}, {"allow_duplicate_attention": False},
         {"attend_across_buckets": False, "allow_duplicate_attention": False}]  # fmt: skip


def bands(scheme: LSH, inputs: Any, do: Any) -> Any:
    """o and gradients under the rounding reading of float64; twice the bound, for two runs in float64."""
    found = rounded("fp64", scheme, inputs, {"o": do, "lse": np.zeros(do.shape[:-1])})
    return {name: Band(x.value, 2.0 * x.bound) for name, x in found.items()}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    """torch makes floats of counts in its default dtype: the logarithm of a count would be one of float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_reformer_pytorch(flags: dict[str, bool], causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("reformer_pytorch.reformer_pytorch", reason="pip install reformer-pytorch==1.4.4")
    torch.manual_seed(0)
    kernel = module.LSHAttention(bucket_size=CHUNK, n_hashes=ROUNDS, causal=causal, dropout=0.0, **flags).eval()
    qk, v, do = drawn(2, N, D), drawn(2, N, D), drawn(2, N, D).detach()
    turns = torch.randn(1, D, ROUNDS, N // CHUNK // 2, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: turns.reshape(shape))
    o, _, buckets = kernel(qk, v)
    dqk, dv = torch.autograd.grad(o, (qk, v), do)
    within, counts = not flags.get("attend_across_buckets", True), flags.get("allow_duplicate_attention", True)
    scheme = replace(LSH.conventions["lucidrains"], chunk=CHUNK, causal=causal, within_bucket=within,
                     duplicates="counted" if counts else "2020")
    turn = np.ascontiguousarray(np.moveaxis(turns.numpy(), 2, 1))
    inputs = LSH.Inputs(qk.detach().numpy(), v.detach().numpy(), rotations=turn)
    _, saved = scheme.forward(*inputs)
    offset = N // CHUNK * np.arange(ROUNDS)[:, None]
    np.testing.assert_array_equal(saved.buckets + offset, buckets.numpy().reshape(2, ROUNDS, N))
    got = {"o": o.detach().numpy(), "dqk": dqk.numpy(), "dv": dv.numpy()}
    check(scheme, inputs._replace(rotations=None, buckets=saved.buckets), do.numpy(), got)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("buckets", [8, [4, 4]], ids=str)
@pytest.mark.parametrize(("causal", "before", "after", "rounds"), [(True, 1, 0, ROUNDS), (False, 1, 0, 3), (False, 2, 1, 1)])
def test_hugging_face(causal: bool, before: int, after: int, rounds: int, buckets: Any, padded: bool) -> None:
    module = pytest.importorskip("transformers.models.reformer.modeling_reformer", reason="pip install transformers==4.57.1")
    torch.manual_seed(0)
    config = module.ReformerConfig(
        attention_head_size=D, num_attention_heads=2, hidden_size=2 * D, lsh_attn_chunk_length=CHUNK, num_buckets=buckets,
        num_hashes=rounds, is_decoder=causal, lsh_attention_probs_dropout_prob=0.0, hash_seed=7,
        lsh_num_chunks_before=before, lsh_num_chunks_after=after,
    )  # fmt: skip
    kernel = module.LSHSelfAttention(config).eval()
    kernel.query_key = kernel.value = torch.nn.Identity()
    x, do = drawn(2, N, 2 * D), drawn(2, N, 2 * D).detach()
    mask = torch.ones(2, N, dtype=torch.long)
    mask[1, 50:] = 0
    do[1, 50:] *= 1 - int(padded)
    out = kernel(x, attention_mask=mask if padded else None, num_hashes=rounds)
    (dx,) = torch.autograd.grad(out.hidden_states, x, do)

    def heads(y: Any) -> Any:
        return np.ascontiguousarray(y.detach().numpy().reshape(2, N, 2, D).swapaxes(1, 2))

    valid = mask.numpy().astype(bool) if padded else None
    inputs = LSH.Inputs(heads(x), heads(x), buckets=out.buckets.numpy().reshape(2, 2, rounds, N), key_valid=valid)
    scheme = replace(LSH.conventions["huggingface"], chunk=CHUNK, causal=causal, before=before, after=after)
    seen = 1.0 if valid is None else valid[:, None, :, None]  # what padding returns is nobody's
    check(scheme, inputs, heads(do), {"o": heads(out.hidden_states) * seen, "dqk + dv": heads(dx)})


def check(scheme: LSH, inputs: Any, do: Any, got: dict[str, Any]) -> None:
    """Every result within the bounds of two float64 runs."""
    want = bands(scheme, inputs, do)
    whole = {"o": want["o"], "dqk": want["dqk"], "dv": want["dv"]}
    if "dqk + dv" in got:
        a, b = want["dqk"], want["dv"]
        whole["dqk + dv"] = Band(a.value + b.value, a.bound + b.bound)
    assert outside(got, {name: whole[name] for name in got}) == {}
    assert outside(results(scheme, inputs, {"o": do, "lse": np.zeros(do.shape[:-1])}), want) == {}
