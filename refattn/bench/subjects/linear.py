"""Causal linear attention with elu + 1 and a normaliser, and its product alone; the yardstick is fast-transformers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np  # problems are drawn on the host

from refattn.bench.subject import BOTH, FORWARD, NUMBA, OURS, Contender, Key, Pair, Problem, Subject, Target, on_torch
from refattn.features.identity import Identity
from refattn.schemes.linear import Linear

FAST, LUCIDRAINS = "fast-transformers", "linear-attention-transformer"


def problem(n: int, dtype: str, product: bool = False, heads: int = 8, d: int = 64) -> Problem:
    """Normal inputs of one item."""
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((1, heads, n, d)).astype(dtype) for _ in range(4))
    scheme = Linear(causal=True, feature=Identity(), normalise=False) if product else Linear.conventions[FAST]
    return Problem(scheme, Linear.Inputs(q, k, v), do)


def product(n: int, dtype: str, heads: int = 8, d: int = 64) -> Problem:
    """Neither features nor a normaliser."""
    return problem(n, dtype, True, heads, d)


def fast_transformers(p: Problem) -> Pair:
    """Its causal product, or CausalLinearAttention around it on tokens first, as it takes them."""
    if not p.scheme.normalise:
        return on_torch(p, importlib.import_module("fast_transformers.causal_product").causal_dot_product)
    module = importlib.import_module("fast_transformers.attention.causal_linear_attention")
    masking, torch = importlib.import_module("fast_transformers.masking"), importlib.import_module("torch")
    n, d = p.inputs.q.shape[-2:]
    kernel, order = module.CausalLinearAttention(d), masking.TriangularCausalMask(n)
    lengths = masking.LengthMask(torch.tensor([n]), max_len=n)
    first = Problem(p.scheme, tuple(_tokens_first(x) for x in p.inputs[:3]), _tokens_first(p.do))
    return on_torch(first, lambda q, k, v: kernel(q, k, v, order, lengths, lengths))


def _tokens_first(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3))


def lucidrains(p: Problem) -> Pair | None:
    """linear_attention_transformer's causal form by buckets of 64 tokens, of which a query sees the earlier ones only."""
    module = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
    if p.do.shape[-2] % 64:
        return None
    return on_torch(p, lambda q, k, v: module.causal_linear_attn(q, k, v, bucket_size=64))


def work(p: Problem, kind: str, who: str) -> float:
    """The recurrence: two products of a token with the state forward, and five backward."""
    return 2.0 * float(p.scheme.cost(p.inputs).useful_macs) * (3.5 if kind == BOTH else 1.0)


TARGETS = {
    Key(NUMBA, FAST, "float32", FORWARD): Target(0.45, 0.30),
    Key(NUMBA, FAST, "float32", BOTH): Target(0.50, 0.35),
}
SHAPE = "b = 1, h = 8, d = 64"
CPP = Contender("fast_transformers", fast_transformers)
SUBJECTS = (
    Subject("linear", f"{SHAPE}, causal, elu + 1", problem,
            {**OURS, FAST: CPP, LUCIDRAINS: Contender("linear_attention_transformer", lucidrains)}, work, (FAST,),
            lengths=(2048,), targets=TARGETS, peak={8192: Target(6.0, 5.0)}, family=True),
    Subject("linear-product", f"{SHAPE}, causal, no map", product, {**OURS, FAST: CPP}, work, (FAST,), lengths=(2048,),
            targets=TARGETS),
)
