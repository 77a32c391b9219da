"""Two mistakes of the dictionary in one kernel; `near` gives their ids there."""

from __future__ import annotations

from typing import Any

import numpy as np

from heldout.kernel import Attention, Call

Array = Any


class StrictBase2(Attention):
    title = "strictly causal, and lse in base 2"
    near = ("F20", "F46")
    families = ("normal", "more keys")

    def ordered(self, n: int, m: int, given: dict[str, Array]) -> Array:
        return super().ordered(n, m, given) & (np.arange(m) < np.arange(n)[:, None] + m - n)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        o, lse = super().soften(x, s)
        return o, lse / x.work(np.log(2.0))


class PaddedAndShort(Attention):
    title = "the last key is dropped, and a key of zeros is attended"
    near = ("F30l", "F29p")
    families = ("flat",)

    def hide(self, x: Call, s: Array) -> Array:
        return np.where(np.arange(s.shape[-1]) < s.shape[-1] - 1, super().hide(x, s), -np.inf)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        ghost = np.concatenate([s, np.zeros_like(s[..., :1])], axis=-1)
        v = np.concatenate([x.v, np.zeros_like(x.v[..., :1, :])], axis=-2)
        return super().soften(Call(x.q, x.k, v, x.see, x.given, x.dtype, x.reads, x.few), ghost)


class UnscaledMean(Attention):
    title = "dq without the scale, and dk and dv of a shared key head averaged"
    near = ("B1", "B9")
    families = ("normal", "shared heads")

    def scaled_dq(self, x: Call, dq: Array) -> Array:
        return dq / x.scale

    def gather(self, x: Call, dx: Array) -> Array:
        return super().gather(x, dx) * x.work(x.few / len(x.reads))


class UnmaskedNoDlse(Attention):
    title = "the backward ignores the mask, and dlse"
    near = ("B6-F23", "B13")
    families = ("normal", "mask")

    def recompute(self, x: Call, lse: Array) -> Array:
        given = {name: y for name, y in x.given.items() if name != "mask"}
        see = self.visible(x.q.shape[-2], x.k.shape[-2], given)
        return super().recompute(Call(x.q, x.k, x.v, see, given, x.dtype, x.reads, x.few), lse)

    def with_dlse(self, delta: Array, dlse: Array) -> Array:
        return delta


class TwoTailFaults(Attention):
    title = "keys behind the last full tile of 32 are dropped, and the sum is not rescaled between tiles"
    near = ("F28", "F12")
    families = ("rising",)

    def hide(self, x: Call, s: Array) -> Array:
        m = s.shape[-1]
        return np.where(np.arange(m) < max(m // 32 * 32, 32), super().hide(x, s), -np.inf)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        o, lse = super().soften(x, s)
        top, z, high = lse * 0, lse * 0, np.full_like(lse, -np.inf)
        for a in range(0, s.shape[-1], 32):
            high = np.maximum(high, s[..., a : a + 32].max(axis=-1, keepdims=True))
            top = np.where(np.isneginf(high), 0, high)
            z = z + np.exp(s[..., a : a + 32] - top).sum(axis=-1, keepdims=True)
        wrong = np.where(z == 0, -np.inf, top + np.log(np.where(z == 0, 1, z)))
        return o * np.exp(np.where(z == 0, 0, lse - wrong)), wrong


class TwoSmallErrors(Attention):
    title = "the scale is off by 1 %, and 0.001 is added to the sum of weights"
    near = ("F3", "F50")
    families = ("normal", "peaked")

    def scores(self, x: Call) -> Array:
        return super().scores(x) * x.work(1.01)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        o, lse = super().soften(x, s)
        top = s.max(axis=-1, keepdims=True)
        none = np.isneginf(lse)
        more = np.where(none, 0, np.log1p(1e-3 * np.exp(np.where(none, 0, top - lse))))
        return o * np.exp(-more), lse + more


class OtherConventions(Attention):
    title = "key heads are tiled, and the diagonal starts top left"
    near = ("F37", "F22")
    families = ("more keys", "shared heads")

    def key_heads(self, h: int, few: int) -> list[int]:
        return [i % few for i in range(h)]

    def ordered(self, n: int, m: int, given: dict[str, Array]) -> Array:
        return (np.arange(m) <= np.arange(n)[:, None])[None, None]


PAIRS: tuple[type[Attention], ...] = (
    StrictBase2, PaddedAndShort, UnscaledMean, UnmaskedNoDlse, TwoTailFaults, TwoSmallErrors, OtherConventions,
)  # fmt: skip
