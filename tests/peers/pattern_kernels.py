"""Other people's attention over patterns as candidates of the kit, which runs them in a process of their own."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import torch

Tensor = Any
WINDOW, BLOCK, RANDOM = 8, 4, 1


def local_exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """local-attention with an exact causal window."""
    return _local(q, k, v, True)


def local_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """local-attention by blocks: a query's block and the one before."""
    return _local(q, k, v, False)


def _local(q: Tensor, k: Tensor, v: Tensor, exact: bool) -> Tensor:
    make = import_module("local_attention").LocalAttention
    kernel = make(window_size=WINDOW, causal=True, look_backward=1, autopad=True, exact_windowsize=exact,
                  use_rotary_pos_emb=False)
    return kernel(q, k, v, mask=torch.ones(q.shape[0], q.shape[-2], dtype=torch.bool))


def big_bird(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The block-sparse attention of Hugging Face's BigBird, in evaluation: blocks that are drawn twice count twice."""
    module = import_module("transformers.models.big_bird.modeling_big_bird")
    b, h, n, d = q.shape
    if n % BLOCK or n // BLOCK <= 5 + 2 * RANDOM:
        raise NotImplementedError(f"{n} tokens are too few blocks of {BLOCK}, or none at all")
    config = module.BigBirdConfig(hidden_size=h * d, num_attention_heads=h, block_size=BLOCK, num_random_blocks=RANDOM,
                                  max_position_embeddings=n)
    kernel = module.BigBirdBlockSparseAttention(config).eval()
    masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(b, n, dtype=q.dtype), BLOCK)
    blocked, band, rows, columns = masks
    sizes = h, RANDOM, d, BLOCK, BLOCK, b, n, n
    o, _ = kernel.bigbird_block_sparse_attention(q, k, v, band, rows, columns, blocked, blocked, *sizes, seed=0,
                                                 plan_from_length=None, plan_num_rand_blocks=None)
    return o.transpose(1, 2) if o.shape[1] == n else o


def longformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sliding window of Hugging Face's Longformer, its projections being q, k and v themselves."""
    module = import_module("transformers.models.longformer.modeling_longformer")
    b, h, n, d = q.shape
    if n % WINDOW or n < 2 * WINDOW or v.shape[-1] != d:
        raise NotImplementedError(f"{n} tokens of width {v.shape[-1]}: whole windows of {WINDOW}, widths alike")
    config = module.LongformerConfig(hidden_size=h * d, num_attention_heads=h, attention_window=[WINDOW],
                                     attention_probs_dropout_prob=0.0)
    kernel = module.LongformerSelfAttention(config, 0).eval()
    flat = [x.transpose(1, 2).reshape(b, n, h * d) for x in (q, k, v)]
    kernel.query, kernel.key, kernel.value = (_Given(x.transpose(0, 1)) for x in flat)
    mask = torch.zeros(b, n, dtype=q.dtype)
    o = kernel(flat[0], attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0,
               is_global_attn=False)[0]
    return o.reshape(b, n, h, d).transpose(1, 2)


class _Given(torch.nn.Module):
    """A projection whose result is given."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self, _: Tensor) -> Tensor:
        return self.x.clone()


def flex_window(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention under a window of its own, with lse; attention-gym would generate the same mask."""
    flex = import_module("torch.nn.attention.flex_attention")
    n = q.shape[-2]
    if n == 0:
        raise NotImplementedError("block masks have no empty axes")
    blocks = flex.create_block_mask(lambda b, h, i, j: abs(i - j) <= WINDOW // 2, None, None, n, n, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without compilation is meant
        found: tuple[Tensor, Tensor] = flex.flex_attention(q, k, v, block_mask=blocks, return_lse=True)
    return found
