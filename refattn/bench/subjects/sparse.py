"""Patterns: a window beside Longformer's and FlexAttention, BigBird's blocks beside its code, strides beside a mask."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np  # problems are drawn on the host

from refattn.bench.subject import (
    BOTH,
    FORWARD,
    GENERIC,
    NUMBA,
    OURS,
    Contender,
    Key,
    Pair,
    Problem,
    Subject,
    Target,
    on_torch,
)
from refattn.patterns import Heads, Random
from refattn.patterns.named import BigBird, Longformer, SparseTransformer
from refattn.schemes.sparse import Sparse

LONGFORMER, FLEX, BIG_BIRD, MASKED = "HF Longformer", "FlexAttention", "HF BigBird", "torch SDPA + mask"
HEADS, DRAWN = 8, 3


def _problem(pattern: Any, n: int, dtype: str) -> Problem:
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((1, HEADS, n, 64)).astype(dtype) for _ in range(4))
    return Problem(Sparse(pattern), Sparse.Inputs(q, k, v), do)


def window(n: int, dtype: str) -> Problem:
    """256 keys on each side, fewer where the sequence is short."""
    return _problem(Longformer.sliding(min(256, n // 4)), n, dtype)


def big_bird(n: int, dtype: str) -> Problem:
    """Blocks of 64, in short sequences of 8; three random ones for each row of blocks, others in every head."""
    block = 64 if n >= 2048 else 8
    return _problem(Heads(tuple(BigBird.itc(block, DRAWN, "multiset", seed=h) for h in range(HEADS))), n, dtype)


def strided(n: int, dtype: str) -> Problem:
    """The authors' strides of 128, about 131 keys a query at n = 2048; shorter ones where the sequence is short."""
    return _problem(SparseTransformer.strided(min(128, n // 8), "openai"), n, dtype)


def longformer(p: Problem) -> Pair | None:
    """The sliding chunks of Hugging Face's Longformer without its projections; n must be a multiple of its chunks."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.models.longformer.modeling_longformer")
    w = p.scheme.pattern.left
    if p.do.shape[-2] % (2 * w):
        return None
    config = module.LongformerConfig(hidden_size=HEADS * 64, num_attention_heads=HEADS, attention_window=[2 * w])
    kernel = module.LongformerSelfAttention(config, 0).eval()

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q / 8.0, k, v))
        s = torch.softmax(kernel._sliding_chunks_query_key_matmul(q, k, w), dim=-1, dtype=torch.float32)
        return kernel._sliding_chunks_matmul_attn_probs_value(s.to(v.dtype), v, w).transpose(1, 2)

    return on_torch(p, attention)


def local_attention(p: Problem) -> Pair | None:
    """The package local-attention, exact: own and neighbouring blocks, of which it hides what is further away."""
    w = p.scheme.pattern.left
    if p.do.shape[-2] % w:
        return None
    module = importlib.import_module("local_attention")
    kernel = module.LocalAttention(window_size=w, causal=False, exact_windowsize=True, use_rotary_pos_emb=False)
    return on_torch(p, kernel)


def flex(p: Problem) -> Pair | None:
    """torch's FlexAttention, compiled, under the window's block mask; it has no backward on processors, and no float64."""
    torch, module = importlib.import_module("torch"), importlib.import_module("torch.nn.attention.flex_attention")
    if p.dtype != "float32":
        return None
    n, w = p.do.shape[-2], p.scheme.pattern.left
    mask = module.create_block_mask(lambda b, h, i, j: (i - j).abs() <= w, None, None, n, n, device="cpu")
    attention = torch.compile(module.flex_attention)
    return on_torch(p, lambda q, k, v: attention(q, k, v, block_mask=mask), backward=False)


def hugging_face_big_bird(p: Problem) -> Pair | None:
    """The block-sparse attention of Hugging Face's BigBird without its projections, and without the time of its draws."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("transformers.models.big_bird.modeling_big_bird")
    n, size = p.do.shape[-2], p.scheme.pattern.patterns[0].size
    blocks = n // size
    if n % size or blocks <= 5 + 2 * DRAWN:
        return None
    config = module.BigBirdConfig(hidden_size=HEADS * 64, num_attention_heads=HEADS, block_size=size,
                                  num_random_blocks=DRAWN, max_position_embeddings=n)
    kernel = module.BigBirdBlockSparseAttention(config).train()
    each = [Random(DRAWN, h).entries(blocks, blocks)[1].reshape(blocks, DRAWN)[1:-1] for h in range(HEADS)]
    in_turn = itertools.cycle(each)  # some lengths are asked for head by head
    kernel._bigbird_block_rand_mask = lambda *_, **__: next(in_turn)
    kernel._bigbird_block_rand_mask_with_head = lambda **_: each
    blocked, band, rows, columns = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, n), size)

    def attention(q: Any, k: Any, v: Any) -> Any:
        o, _ = kernel.bigbird_block_sparse_attention(
            q, k, v, band, rows, columns, blocked, blocked, HEADS, DRAWN, 64, size, size, 1, n, n, seed=0,
            plan_from_length=None, plan_num_rand_blocks=None)
        return o.transpose(1, 2)

    return on_torch(p, attention)


def generic(p: Problem) -> Pair | None:
    """The text alone, where it does not take minutes to be timed."""
    return OURS[GENERIC].make(p) if p.do.shape[-2] <= 2048 else None


def masked(p: Problem) -> Pair:
    """torch.nn.functional.scaled_dot_product_attention under the pattern as a boolean mask: all pairs are computed."""
    torch, n = importlib.import_module("torch"), p.do.shape[-2]
    mask = torch.tensor(p.scheme.pattern.dense(n, n) > 0)
    attention = torch.nn.functional.scaled_dot_product_attention
    return on_torch(p, lambda q, k, v: attention(q, k, v, attn_mask=mask))


def work(p: Problem, kind: str, who: str) -> float:
    """Two products forward and five backward over the pairs of the pattern, with multiplicities as blocks compute them."""
    _, heads, n, d = p.inputs.q.shape
    pattern = p.scheme.pattern
    pairs = pattern.weight(n, n) * (1 if isinstance(pattern, Heads) else heads)
    return float(4 * pairs * d) * (3.5 if kind == BOTH else 1.0)


SHAPE = "b = 1, h = 8, d = 64"
SUBJECTS = (
    Subject(
        "window", f"256 keys on each side, {SHAPE}", window,
        {**OURS, LONGFORMER: Contender("transformers", longformer), FLEX: Contender("torch", flex),
         "local-attention": Contender("local_attention", local_attention)},
        work, (LONGFORMER, FLEX), lengths=(2048,),
        targets={
            Key(NUMBA, LONGFORMER, "float32", FORWARD, 2048): Target(0.20, 0.15),
            Key(NUMBA, LONGFORMER, "float32", BOTH, 2048): Target(0.20, 0.15),
            Key(NUMBA, FLEX, "float32", FORWARD, 2048): Target(0.80, 0.65),
        },
        peak={4096: Target(5.0, 3.0)},
        family=True,
    ),
    Subject(
        "bigbird", f"blocks of 64: window of 3, 2 global, 3 random, {SHAPE}", big_bird,
        {**OURS, GENERIC: Contender("numpy", generic), BIG_BIRD: Contender("transformers", hugging_face_big_bird)},
        work, (BIG_BIRD,), lengths=(8192,),
        targets={
            Key(NUMBA, BIG_BIRD, "float32", FORWARD, 8192): Target(0.15, 0.10),
            Key(NUMBA, BIG_BIRD, "float32", BOTH, 8192): Target(0.25, 0.17),
        },
    ),
    Subject(
        "strided", f"strides of 128, {SHAPE}", strided, {**OURS, MASKED: Contender("torch", masked)}, work, (MASKED,),
        lengths=(2048,),
        targets={
            Key(NUMBA, MASKED, "float32", FORWARD, 2048): Target(0.20, 0.15),
            Key(NUMBA, MASKED, "float32", BOTH, 2048): Target(0.25, 0.15),
        },
        family=True,
    ),
)  # fmt: skip
