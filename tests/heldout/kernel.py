"""A right attention kernel in plain NumPy, in steps that a fault may replace. Its text is its own.

Arithmetic is float32 (float64 for float64 inputs); for half precision inputs P and dS are rounded to it before they are
multiplied, as tensor-core kernels do, and results are rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from refattn import Dense

Array = Any
CAUSAL = Dense(causal=True, align="bottom_right")


@dataclass
class Call:
    """What a call was given: q, k, v in the dtype of arithmetic, keys repeated for their query heads; and who sees whom."""

    q: Array
    k: Array
    v: Array
    see: Array
    given: dict[str, Array]
    dtype: np.dtype[Any]  # of inputs and results
    reads: list[int]  # the key head of each query head
    few: int  # how many key heads there are

    @property
    def work(self) -> Any:
        return np.float64 if self.dtype == np.float64 else np.float32

    @property
    def scale(self) -> Any:
        return self.work(self.q.shape[-1] ** -0.5)

    @property
    def sink(self) -> Array | None:
        x = self.given.get("sink")
        return None if x is None else x.astype(self.work)[None, :, None, None]

    def low(self, x: Array) -> Array:
        """A computed operand as tensor cores take it."""
        return x if self.dtype.itemsize > 2 else x.astype(self.dtype).astype(self.work)


class Attention:
    """The right kernel. title, source: the fault and where it was told of; families: cases that show it; near: ids of the
    dictionary that would be no wrong name for it."""

    title: ClassVar[str] = "no fault"
    source: ClassVar[str] = ""
    near: ClassVar[tuple[str, ...]] = ()
    families: ClassVar[tuple[str, ...]] = ("normal",)
    scheme: ClassVar[Dense] = CAUSAL
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32", "float16", "bfloat16")

    # ---- what is called
    def forward(self, q: Array, k: Array, v: Array, **given: Array) -> tuple[Array, Array]:
        x = self.read(q, k, v, given)
        s = self.hide(x, self.scores(x))
        o, lse = self.soften(x, s)
        return self.store(x, o), lse[..., 0]

    def vjp(self, q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array | None = None,
            **given: Array) -> dict[str, Array]:  # fmt: skip
        x = self.read(q, k, v, given)
        do, lse = do.astype(x.work), lse.astype(x.work)[..., None]
        p = self.recompute(x, lse)
        delta = self.delta(x, do, o.astype(x.work))
        if dlse is not None:
            delta = self.with_dlse(delta, np.where(np.isneginf(lse), 0, dlse[..., None].astype(x.work)))
        keep = self.kept_again(x)
        ds = p * ((do @ x.v.swapaxes(-1, -2)) * keep - delta)
        dq, dk = x.low(ds) @ x.k * x.scale, self.columns(x, x.low(ds)).swapaxes(-1, -2) @ x.q * x.scale
        dv = self.columns(x, x.low(p * keep)).swapaxes(-1, -2) @ do
        grads = {"dq": self.scaled_dq(x, dq), "dk": self.gather(x, dk), "dv": self.gather(x, dv)}
        if "bias" in given:
            grads["dbias"] = ds.sum(axis=0, keepdims=True) if given["bias"].shape[0] == 1 else ds
        if x.sink is not None:
            none = np.isneginf(lse)
            grads["dsink"] = -(np.where(none, 0, np.exp(x.sink - np.where(none, 0, lse))) * delta).sum(axis=(0, 2, 3))
        return {name: g.astype(x.dtype) for name, g in grads.items()}

    # ---- steps of the forward
    def read(self, q: Array, k: Array, v: Array, given: dict[str, Array]) -> Call:
        work = np.float64 if q.dtype == np.float64 else np.float32
        reads, see = self.key_heads(q.shape[1], k.shape[1]), self.visible(q.shape[-2], k.shape[-2], given)
        wide = (y.astype(work) for y in (self.queries(q), k[:, reads], v[:, reads]))
        return Call(*wide, see, given, q.dtype, reads, k.shape[1])

    def queries(self, q: Array) -> Array:
        return q

    def key_heads(self, h: int, few: int) -> list[int]:
        return [i * few // h for i in range(h)]

    def visible(self, n: int, m: int, given: dict[str, Array]) -> Array:
        see = self.joined(self.ordered(n, m, given), given.get("mask"))
        if "segment_ids" in given:
            keys = given.get("kv_segment_ids", given["segment_ids"])
            see = see & (given["segment_ids"][:, None, :, None] == keys[:, None, None, :])
        return see & given["key_valid"][:, None, None, :] if "key_valid" in given else see

    def ordered(self, n: int, m: int, given: dict[str, Array]) -> Array:
        if not self.scheme.causal:
            return np.ones((1, 1, n, m), bool)
        rows = np.atleast_2d(given["q_positions"] if "q_positions" in given else np.arange(n) + m - n)
        cols = np.atleast_2d(given.get("k_positions", np.arange(m)))
        return rows[:, None, :, None] >= cols[:, None, None, :]

    def joined(self, order: Array, mask: Array | None) -> Array:
        return order if mask is None else order & mask

    def scores(self, x: Call) -> Array:
        s = x.q @ x.k.swapaxes(-1, -2) * x.scale
        return s + self.bias(x) if "bias" in x.given else s

    def bias(self, x: Call) -> Array:
        return x.given["bias"].astype(x.work)

    def hide(self, x: Call, s: Array) -> Array:
        return np.where(x.see, s, -np.inf)

    def soften(self, x: Call, s: Array) -> tuple[Array, Array]:
        """o and lse (..., n, 1); a row that sees nothing gets 0 and −∞."""
        top = s.max(axis=-1, keepdims=True)
        top = top if x.sink is None else np.maximum(top, x.sink)
        top = np.where(np.isneginf(top), 0, top)
        e = np.exp(s - top)
        z = e.sum(axis=-1, keepdims=True)
        z = z if x.sink is None else z + np.exp(x.sink - top)
        some = np.where(z == 0, 1, z)
        return self.product(x, e) / some, np.where(z == 0, -np.inf, top + np.log(some))

    def product(self, x: Call, e: Array) -> Array:
        return x.low(e * self.kept(x)) @ x.v

    def kept(self, x: Call) -> Any:
        rate = self.scheme.keep_rate
        return x.work(1) if rate is None else x.given["keep"] * x.work(1 / rate)

    def store(self, x: Call, o: Array) -> Array:
        return o.astype(x.dtype)

    # ---- steps of the backward
    def recompute(self, x: Call, lse: Array) -> Array:
        return np.exp(self.hide(x, self.scores(x)) - np.where(np.isneginf(lse), 0, lse))

    def delta(self, x: Call, do: Array, o: Array) -> Array:
        return (do * o).sum(axis=-1, keepdims=True)

    def with_dlse(self, delta: Array, dlse: Array) -> Array:
        return delta - dlse

    def kept_again(self, x: Call) -> Any:
        return self.kept(x)

    def columns(self, x: Call, y: Array) -> Array:
        """The rows (queries) that dk and dv are summed over."""
        return y

    def scaled_dq(self, x: Call, dq: Array) -> Array:
        return dq

    def gather(self, x: Call, dx: Array) -> Array:
        out = np.zeros((dx.shape[0], x.few, *dx.shape[2:]), dx.dtype)
        for head, source in enumerate(x.reads):
            out[:, source] += dx[:, head]
        return out
