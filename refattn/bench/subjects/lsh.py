"""Reformer's attention: buckets of 64 tokens, four rounds, queries that are keys, one chunk back, the hash included."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np  # problems are drawn on the host

from refattn.bench.subject import BOTH, FORWARD, NUMBA, OURS, Contender, Key, Pair, Problem, Subject, Target, on_torch
from refattn.schemes.lsh import LSH

LUCIDRAINS, HUGGING_FACE = "reformer-pytorch", "HF LSHSelfAttention"
CHUNK, ROUNDS = 64, 4


def problem(n: int, dtype: str, causal: bool = True, heads: int = 8, d: int = 64) -> Problem:
    """Normal inputs of one item, and as many buckets as chunks."""
    rng = np.random.default_rng(0)
    qk, v, do = (rng.standard_normal((1, heads, n, d)).astype(dtype) for _ in range(3))
    rotations = rng.standard_normal((ROUNDS, d, max(n // CHUNK // 2, 1))).astype(dtype)
    scheme = replace(LSH.conventions["lucidrains"], chunk=CHUNK, causal=causal)
    return Problem(scheme, LSH.Inputs(qk, v, rotations), do)


def lucidrains(p: Problem) -> Pair | None:
    """reformer_pytorch's LSHAttention, which draws rotations of its own; whole pairs of chunks only."""
    module, n = importlib.import_module("reformer_pytorch"), p.do.shape[-2]
    if n % (2 * CHUNK):
        return None
    kernel = module.LSHAttention(bucket_size=CHUNK, n_hashes=ROUNDS, causal=p.scheme.causal, dropout=0.0).eval()
    return on_torch(p, lambda qk, v: kernel(qk[0], v[0])[0][None], which=(0, 1))


def hugging_face(p: Problem) -> Pair | None:
    """transformers' LSHSelfAttention without its projections: queries, keys and values are its one input."""
    module, (_, heads, n, d) = importlib.import_module("transformers.models.reformer.modeling_reformer"), p.do.shape
    if n % (2 * CHUNK):
        return None
    torch = importlib.import_module("torch")
    config = module.ReformerConfig(
        attention_head_size=d, num_attention_heads=heads, hidden_size=heads * d, lsh_attn_chunk_length=CHUNK,
        num_buckets=n // CHUNK, num_hashes=ROUNDS, is_decoder=p.scheme.causal, lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    kernel = module.LSHSelfAttention(config).eval()
    kernel.query_key = kernel.value = torch.nn.Identity()
    flat = Problem(p.scheme, tuple(_flat(x) for x in p.inputs[:2]), _flat(p.do))
    return on_torch(flat, lambda x: kernel(x).hidden_states, which=(0,))


def _flat(x: Any) -> Any:
    """Heads beside each other: (1, H, n, d) as (1, n, H·d)."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(1, x.shape[2], -1)


def work(p: Problem, kind: str, who: str) -> float:
    """Products of every slot with every slot that it sees, and the hash."""
    cost = p.scheme.cost(p.inputs)
    return float(2 * (cost.forward.macs + (cost.backward.macs if kind == BOTH else 0)))


def both_ways(n: int, dtype: str, heads: int = 8, d: int = 64) -> Problem:
    """The same without the causal order."""
    return problem(n, dtype, False, heads, d)


BOTH_WAYS = {**OURS, LUCIDRAINS: Contender("reformer_pytorch", lucidrains)}
TARGETS = {
    Key(NUMBA, LUCIDRAINS, "float32", FORWARD, 2048): Target(0.25, 0.18),
    Key(NUMBA, LUCIDRAINS, "float32", BOTH, 2048): Target(0.35, 0.25),
}
SHAPE = f"b = 1, h = 8, d = 64, chunks of {CHUNK}, {ROUNDS} rounds"
SUBJECTS = (
    Subject("lsh", SHAPE, problem, {**BOTH_WAYS, HUGGING_FACE: Contender("transformers", hugging_face)}, work, (LUCIDRAINS,),
            lengths=(2048,), targets=TARGETS, peak={8192: Target(5.0, 4.0)}, family=True),
    Subject("lsh-both-ways", f"{SHAPE}, no causal order", both_ways, BOTH_WAYS, work, (LUCIDRAINS,), lengths=(2048,),
            targets=TARGETS),
)
