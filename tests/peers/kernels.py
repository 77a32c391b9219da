"""torch's attention as candidates: scaled_dot_product_attention on either CPU backend, FlexAttention, plain torch code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from refattn import Dense

torch = pytest.importorskip("torch")
attention = pytest.importorskip("torch.nn.attention")
flexible = pytest.importorskip("torch.nn.attention.flex_attention")

Tensor = Any
Kernel = Callable[..., Any]


def additive(mask: Tensor | None, bias: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask and a bias as the one float mask that torch adds to the scores."""
    if mask is None:
        return bias
    return (like.new_zeros(()) if bias is None else bias).masked_fill(~mask, -torch.inf)


def sdpa_math(scheme: Dense) -> Kernel:
    """The math backend: torch operations one after the other. It takes a mask or is causal, not both."""

    def causal(q: Any, k: Any, v: Any) -> Any:
        return call(q, k, v, None)

    def full(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None) -> Any:
        return call(q, k, v, mask if bias is None else additive(mask, bias, q))

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=scheme.causal, scale=scheme.scale, enable_gqa=True)  # fmt: skip

    return causal if scheme.causal else full


def sdpa_flash(scheme: Dense) -> Kernel:
    """The flash backend with its lse, which only the operator below scaled_dot_product_attention returns."""

    def causal(q: Any, k: Any, v: Any) -> Any:
        return call(q, k, v, None)

    def full(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
        return call(q, k, v, None if mask is None else additive(mask, None, q))

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        if 0 in (q.shape[-2], k.shape[-2]):
            raise NotImplementedError("the operator itself divides by the length of an axis; callers keep such inputs away")
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return operator(q, k, v, 0.0, scheme.causal, attn_mask=mask, scale=scheme.scale)

    return causal if scheme.causal else full


def flex(scheme: Dense) -> Kernel:
    """FlexAttention without compilation: bias and softcap by score_mod, everything that hides by a block mask."""

    def kernel(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, segment_ids: Any = None,
               kv_segment_ids: Any = None, key_valid: Any = None) -> Any:  # fmt: skip
        n, m = q.shape[-2], k.shape[-2]
        if 0 in (n, m):
            raise NotImplementedError("block masks have no empty axes")
        offset = m - n if scheme.align == "bottom_right" else 0
        others = segment_ids if kv_segment_ids is None else kv_segment_ids

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            s = s if scheme.softcap is None else scheme.softcap * torch.tanh(s / scheme.softcap)
            return s if bias is None else s + pick(bias, b, h, i, j)

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            see = j <= i + offset if scheme.causal else j >= 0
            see = see if mask is None else see & pick(mask, b, h, i, j)
            see = see if segment_ids is None else see & (segment_ids[b, i] == others[b, j])
            return see if key_valid is None else see & key_valid[b, j]

        blocks = flexible.create_block_mask(mask_mod, q.shape[0], q.shape[1], n, m, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it runs without compilation is meant
            return flexible.flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scheme.scale,
                                           enable_gqa=q.shape[1] != k.shape[1], return_lse=True)  # fmt: skip

    return kernel


def pick(x: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
    """The element of an array that may have one item or one head for all."""
    return x[b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0, i, j]


def eager(scheme: Dense) -> Kernel:
    """Attention as one writes it in torch: every intermediate stored in the dtype of the inputs."""

    def kernel(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
        s = torch.matmul(q, k.transpose(-2, -1)) * (scheme.scale or q.shape[-1] ** -0.5)
        mask = torch.ones(s.shape, dtype=torch.bool).tril() if scheme.causal else mask
        if mask is not None:
            blind = ~mask.any(dim=-1, keepdim=True)
            s = s.masked_fill(~(mask | blind), -torch.inf)
        p = torch.softmax(s, dim=-1)
        return torch.matmul(p if mask is None else p.masked_fill(blind, 0.0), v)

    return kernel
