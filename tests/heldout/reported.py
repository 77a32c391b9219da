"""Faults from public reports, as changes of one step of the right kernel; each with what happens and where it was told."""

from __future__ import annotations

from typing import Any

import numpy as np

from heldout.kernel import Attention, Call
from refattn import Dense

Array = Any
DROPPED = Dense(keep_rate=0.8)


class WindowLeftOn(Attention):
    title = "keys more than 32 positions back are hidden, though no window is asked for"
    source = "huggingface/transformers #39408"
    families = ("tail",)

    def ordered(self, n: int, m: int, given: dict[str, Array]) -> Array:
        return super().ordered(n, m, given) & (np.arange(m) > np.arange(n)[:, None] + m - n - 32)


class EmptyParts(Attention):
    title = "two halves of the keys merged by exp(lse − max) without a guard where neither sees anything"
    source = "flashinfer-ai/flashinfer #4051"
    near = ("F33n",)
    families = ("blind rows",)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        half = s.shape[-1] // 2
        parts = []
        for at in (slice(0, half), slice(half, None)):
            part = Call(x.q, x.k[..., at, :], x.v[..., at, :], x.see, {}, x.dtype, x.reads, x.few)
            parts.append(super().soften(part, s[..., at]))
        (o1, l1), (o2, l2) = parts
        top = np.maximum(l1, l2)
        with np.errstate(invalid="ignore"):
            w1, w2 = np.exp(l1 - top), np.exp(l2 - top)
        return (w1 * o1 + w2 * o2) / (w1 + w2), top + np.log(w1 + w2)


class EmptyFirstTile(Attention):
    title = "online softmax: exp(−∞ − (−∞)) where the first tile of 8 keys is hidden from a query"
    source = "pytorch/pytorch #103963"
    families = ("segments",)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        o, lse = super().soften(x, s)
        nothing = np.isneginf(s[..., :8]).all(axis=-1, keepdims=True)
        return np.where(nothing, np.nan, o), np.where(nothing, np.nan, lse)


class MaskAdded(Attention):
    title = "a boolean mask is added to the scores as 1 and 0"
    source = "NVIDIA/TransformerEngine #614"
    families = ("mask",)

    def joined(self, order: Array, mask: Array | None) -> Array:
        return order

    def scores(self, x: Call) -> Array:
        s = super().scores(x)
        return s + x.given["mask"] if "mask" in x.given else s


class EitherMask(Attention):
    title = "a pair is visible where the causal order or the mask allows it, not where both do"
    source = "lucidrains/local-attention #5"
    families = ("mask",)

    def joined(self, order: Array, mask: Array | None) -> Array:
        return order if mask is None else order | mask


class ScaledWeights(Attention):
    title = "the scale multiplies the weights after the softmax, not the scores"
    source = "karpathy/ng-video-lecture PR #6"

    def scores(self, x: Call) -> Array:
        return super().scores(x) / x.scale

    def product(self, x: Call, e: Array) -> Array:
        return super().product(x, e) * x.scale


class WrappedOffset(Attention):
    title = "D is read at an offset that wraps: row r of all rows gets D of row r mod 64"
    source = "SHI-Labs/NATTEN #347"
    families = ("tail",)

    def delta(self, x: Call, do: Array, o: Array) -> Array:
        right = super().delta(x, do, o)
        return right.reshape(-1)[np.arange(right.size) % 64].reshape(right.shape)


class TransposedMask(Attention):
    title = "the backward hides by the transposed mask; the forward is right"
    source = "Dao-AILab/flash-attention #2623"
    families = ("mask",)

    def recompute(self, x: Call, lse: Array) -> Array:
        mask = x.given.get("mask")
        if mask is None or mask.shape[-1] != mask.shape[-2]:
            return super().recompute(x, lse)
        given = {**x.given, "mask": mask.swapaxes(-1, -2)}
        other = Call(x.q, x.k, x.v, self.visible(*mask.shape[-2:], given), given, x.dtype, x.reads, x.few)
        return super().recompute(other, lse)


class BlindGradient(Attention):
    title = "the backward spreads do of a query that sees nothing evenly over all values"
    source = "pytorch/pytorch #160064"
    families = ("blind rows",)

    def recompute(self, x: Call, lse: Array) -> Array:
        return np.where(np.isneginf(lse), x.work(1 / x.k.shape[-2]), super().recompute(x, lse))


class SharedItem(Attention):
    title = "D of the first item is used for every item"
    source = "gokceneraslan/SparseMax.torch PR #3"
    families = ("normal", "shared heads")

    def delta(self, x: Call, do: Array, o: Array) -> Array:
        return np.broadcast_to(super().delta(x, do, o)[:1], (*do.shape[:-1], 1))


class LostUpdates(Attention):
    title = "two workers add to dk and dv at once: one query in thirty leaves no trace there"
    source = "numba/numba #3681"
    families = ("tail",)

    def columns(self, x: Call, y: Array) -> Array:
        kept = np.random.default_rng(7).random(y.shape[-2]) > 1 / 30
        return y * kept[:, None]


class OtherDropout(Attention):
    title = "the backward drops other weights than the forward did"
    source = "RobinBruegger/RevTorch #3"
    families, scheme = ("dropout",), DROPPED

    def kept_again(self, x: Call) -> Any:
        return np.roll(self.kept(x), 1, axis=-1)


class QueryStrides(Attention):
    title = "q is taken for contiguous"
    source = "ROCm/pytorch #3230"
    families = ("strided",)

    def queries(self, q: Array) -> Array:
        size = q.itemsize
        steps = [size * int(np.prod(q.shape[a + 1 :])) for a in range(q.ndim)]
        return np.lib.stride_tricks.as_strided(q, q.shape, steps)


class OtherDtype(Attention):
    title = "o comes back in a wider dtype than its inputs have"
    source = "cupy/cupy #7630"
    dtypes = ("float32", "float16", "bfloat16")

    def store(self, x: Call, o: Array) -> Array:
        return o.astype(np.float64 if x.dtype == np.float32 else np.float32)


class SlippedAxis(Attention):
    title = "the bias is read with queries and keys exchanged"
    source = "fla-org/flash-linear-attention #850"
    families = ("bias",)

    def bias(self, x: Call) -> Array:
        right = super().bias(x)
        return right.swapaxes(-1, -2) if right.shape[-1] == right.shape[-2] else right


class ReusedBuffer(Attention):
    title = "the accumulator of a head starts from what the head before it left"
    source = "cupy/cupy #5069"
    families = ("normal", "shared heads")

    def product(self, x: Call, e: Array) -> Array:
        return np.cumsum(super().product(x, e), axis=1)


class ClippedHeads(Attention):
    title = "query head h reads key head min(h, H_kv − 1)"
    source = "onnx/onnx PR #7274"
    families = ("shared heads",)

    def key_heads(self, h: int, few: int) -> list[int]:
        return [min(i, few - 1) for i in range(h)]


REPORTED: tuple[type[Attention], ...] = (
    WindowLeftOn, EmptyParts, EmptyFirstTile, MaskAdded, EitherMask, ScaledWeights, WrappedOffset, TransposedMask,
    BlindGradient, SharedItem, LostUpdates, OtherDropout, QueryStrides, OtherDtype, SlippedAxis, ReusedBuffer, ClippedHeads,
)  # fmt: skip
