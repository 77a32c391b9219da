"""Softmax attention in stages that a mutant may override: a third implementation, beside the definition and the text.

    read → scores → bend → hide → gauge → weights → total → combine → statistic
    saved → recompute → delta → pull_weights → pull_scores → drop → pull_q, pull_k, pull_v, pull_bias, pull_sink → gather

Arrays are (B, H, n, ·) with keys repeated for their query heads. The stages use named array functions only, so that they
run on NumPy values and under the rounding reading alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.stages import Stages

Array = Any
EVERY = slice(None)


@dataclass
class Staged(Stages):
    """One run of configured softmax attention on its inputs."""

    def run(self, do: Array | None = None, dlse: Array | None = None) -> dict[str, Array]:
        """o and lse, and with `do` the gradients of ⟨do, o⟩ + ⟨dlse, lse⟩, as {"o": …, "dq": …}."""
        self.prepare()
        q, k, v = self.q, self.k, self.v
        s = self.do("hide", self.add_bias(self.do("bend", self.do("scores", q, k))))
        c = self.do("gauge", s)
        e = self.do("weights", s, c)
        z = self.do("total", e, c, s)
        o, lse = self.do("combine", e, z, v, c, s), self.do("statistic", z, c, s)
        o = self.fill(o, lse, v)
        self.o, self.lse = o, lse
        out = {"o": o, "lse": of(lse).xp.squeeze(lse, axis=-1)}
        # The backward reads o and lse as they were stored: what a reading allows for that is part of its gradients' bounds.
        return out if do is None else out | self.backward(of(o).narrow(o, o), of(lse).settle(lse), do, dlse)

    def resume(self, do: Array, dlse: Array | None) -> dict[str, Array]:
        return self.backward(self.o, self.lse, do, dlse)

    def backward(self, o: Array, lse: Array, do: Array, dlse: Array | None) -> dict[str, Array]:
        """The gradients from the forward's own o and lse (..., n, 1), as a kernel takes them."""
        q, k, v, xp = self.q, self.k, self.v, of(self.q).xp
        lse = self.do("saved", lse)
        p = self.do("recompute", q, k, lse)
        delta = self.do("delta", do, o, None if dlse is None else xp.expand_dims(dlse, axis=-1), lse)
        ds = p * (self.do("pull_weights", do, v) - delta)
        dqk = self.do("pull_scores", ds)
        grads = {
            "dq": self.do("pull_q", dqk, k),
            "dk": self.do("gather", self.do("pull_k", dqk, q)),
            "dv": self.do("gather", self.spread(self.do("pull_v", self.do("drop", p), do), do, lse)),
        }
        if self.given("bias") is not None:
            grads["dbias"] = self.do("pull_bias", ds)
        if self.given("sink") is not None:
            grads["dsink"] = self.do("pull_sink", delta, lse)
        return grads

    # ---- forward stages
    def prepare(self) -> None:
        """Repeat key heads, and write out who sees whom."""
        inputs, xp = self.inputs, of(self.inputs.q).xp
        self.heads, few = inputs.q.shape[1], inputs.k.shape[1]
        ratio = self.heads // few if few else 1
        self.source = [h % few if self.scheme.heads == "tiled" else h // ratio for h in range(self.heads)]
        reads = np.array(self.source, dtype=np.int64)
        self.few = few
        self.q = inputs.q
        self.k, self.v = (x if few == self.heads else xp.take(x, reads, axis=1) for x in (inputs.k, inputs.v))
        self.see = self.visible()

    def visible(self) -> Any:
        """see (B | 1, H | 1, n, m) as a NumPy boolean array."""
        return self.shown() & self.allowed()

    def shown(self) -> Any:
        """What the configuration lets be seen: all pairs, or by causal order."""
        n, m = self.inputs.q.shape[-2], self.inputs.k.shape[-2]
        if not self.option("causal"):
            return np.ones((1, 1, n, m), dtype=bool)
        own, others = self.given("q_positions"), self.given("k_positions")
        shift = m - n if self.option("align") == "bottom_right" else 0
        rows = np.arange(n) + shift if own is None else _plain(own)
        cols = np.arange(m) if others is None else _plain(others)
        found: Any = rows[..., None, :, None] >= cols[..., None, None, :]
        return found

    def allowed(self) -> Any:
        """What the inputs let be seen: by mask, segments and key validity."""
        see = np.ones((1, 1, 1, 1), dtype=bool)
        if (mask := self.given("mask")) is not None:
            see = see & _plain(mask)
        if (segments := self.given("segment_ids")) is not None:
            own = _plain(segments)
            other = own if self.given("kv_segment_ids") is None else _plain(self.given("kv_segment_ids"))
            see = see & (own[..., None, :, None] == other[..., None, None, :])
        valid = self.given("key_valid")
        return see if valid is None else see & _plain(valid)[..., None, None, :]

    @property
    def scale(self) -> float:
        return float(self.inputs.q.shape[-1] ** -0.5 if self.scheme.scale is None else self.scheme.scale)

    def scores(self, q: Array, k: Array) -> Array:
        xp = of(q, k).xp
        return xp.matmul(q, xp.matrix_transpose(k)) * self.scale

    def bend(self, s: Array) -> Array:
        cap = self.option("softcap")
        return s if cap is None else of(s).xp.tanh(s / cap) * cap

    def add_bias(self, s: Array) -> Array:
        return s if self.given("bias") is None else s + self.given("bias")

    def hide(self, s: Array) -> Array:
        return of(s).xp.where(self.see, s, -math.inf)

    def gauge(self, s: Array) -> Array:
        b = of(s)
        c = b.xp.max(s, axis=-1, keepdims=True)
        c = b.constant(c if self.given("sink") is None else b.xp.maximum(c, self.sinks()))
        return b.xp.where(c == -math.inf, 0.0, c)

    def sinks(self) -> Array:
        sink = self.given("sink")
        return of(sink).xp.reshape(sink, (1, *sink.shape, 1, 1))

    def weights(self, s: Array, c: Array, at: slice = EVERY) -> Array:
        """exp(s − c) of the keys `at`, each as often as it counts."""
        xp = of(s, c).xp
        there = s > -math.inf
        return self.counted(xp.where(there, xp.exp(xp.where(there, s - c, 0.0)), 0.0), at)

    def counted(self, e: Array, at: slice = EVERY) -> Array:
        """Weights of the keys `at`, each as often as it counts: once."""
        return e

    def total(self, e: Array, c: Array, s: Array) -> Array:
        xp = of(e).xp
        z = xp.sum(e, axis=-1, keepdims=True)
        return z if self.given("sink") is None else z + xp.exp(self.sinks() - c)

    def combine(self, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
        xp = of(e, v).xp
        z = xp.where(z == 0.0, 1.0, z)
        if self.given("keep") is None:
            return xp.matmul(e, v) / z
        return xp.matmul(xp.where(self.given("keep"), e, 0.0), v) / (z * self.option("keep_rate"))

    def statistic(self, z: Array, c: Array, s: Array) -> Array:
        xp = of(z).xp
        none = z == 0.0
        return xp.where(none, -math.inf, c + xp.log(xp.where(none, 1.0, z)))

    def fill(self, o: Array, lse: Array, v: Array) -> Array:
        """o with the mean of all values where a query sees nothing, if the scheme asks for that."""
        if self.option("empty") != "mean" or v.shape[-2] == 0:
            return o
        xp = of(o, v).xp
        return xp.where(lse == -math.inf, xp.sum(v, axis=-2, keepdims=True) / v.shape[-2], o)

    # ---- backward stages
    def spread(self, dv: Array, do: Array, lse: Array) -> Array:
        """dv with what ``fill`` hands down to all values."""
        if self.option("empty") != "mean" or dv.shape[-2] == 0:
            return dv
        xp = of(do).xp
        return dv + xp.sum(xp.where(lse == -math.inf, do, 0.0), axis=-2, keepdims=True) / dv.shape[-2]

    def saved(self, lse: Array) -> Array:
        """The statistic that the backward starts from."""
        return lse

    def recompute(self, q: Array, k: Array, lse: Array) -> Array:
        """P from the saved statistic."""
        s = self.do("hide", self.add_bias(self.do("bend", self.do("scores", q, k))))
        return self.weights(s, of(lse).xp.where(lse == -math.inf, 0.0, lse))

    def delta(self, do: Array, o: Array, dlse: Array | None, lse: Array) -> Array:
        xp = of(do, o).xp
        d = xp.sum(do * o, axis=-1, keepdims=True)
        return d if dlse is None else d - xp.where(lse == -math.inf, 0.0, dlse)

    def pull_weights(self, do: Array, v: Array) -> Array:
        xp = of(do, v).xp
        dp = xp.matmul(do, xp.matrix_transpose(v))
        return dp if self.given("keep") is None else xp.where(self.given("keep"), dp, 0.0) / self.option("keep_rate")

    def pull_scores(self, ds: Array) -> Array:
        """Cotangent of q·k from that of the scores."""
        if self.option("softcap") is not None:
            xp = of(ds).xp
            bent = xp.tanh(self.scores(self.q, self.k) / self.option("softcap"))
            ds = ds * (1.0 - bent * bent)
        return ds * self.scale

    def pull_q(self, dqk: Array, k: Array) -> Array:
        return of(dqk, k).xp.matmul(dqk, k)

    def pull_k(self, dqk: Array, q: Array) -> Array:
        xp = of(dqk, q).xp
        return xp.matmul(xp.matrix_transpose(dqk), q)

    def drop(self, p: Array) -> Array:
        return p if self.given("keep") is None else of(p).xp.where(self.given("keep"), p, 0.0) / self.option("keep_rate")

    def pull_v(self, p: Array, do: Array) -> Array:
        xp = of(p, do).xp
        return xp.matmul(xp.matrix_transpose(p), do)

    def pull_bias(self, ds: Array) -> Array:
        """Summed over every axis along which the bias was repeated."""
        shape = self.given("bias").shape
        lead = ds.ndim - len(shape)
        ds = of(ds).xp.sum(ds, axis=tuple(range(lead))) if lead else ds
        axes = tuple(a for a, size in enumerate(shape) if size == 1 and ds.shape[a] != 1)
        return of(ds).xp.sum(ds, axis=axes, keepdims=True) if axes else ds

    def pull_sink(self, delta: Array, lse: Array) -> Array:
        xp = of(delta).xp
        none = lse == -math.inf
        share = xp.where(none, 0.0, xp.exp(self.sinks() - xp.where(none, 0.0, lse)))
        return xp.sum(-1.0 * share * delta, axis=(0, 2, 3))

    def gather(self, dx: Array) -> Array:
        """The gradient of a key head: the sum over the query heads that read it."""
        if self.few == self.heads:
            return dx
        xp = of(dx).xp
        return xp.stack([sum_of([dx[:, h, ...] for h in self.readers(g)]) for g in range(self.few)], axis=1)

    def readers(self, g: int) -> list[int]:
        return [h for h, source in enumerate(self.source) if source == g]


def sum_of(parts: list[Array]) -> Array:
    """Their sum, without a leading zero that a reading would count."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _plain(x: Any) -> Any:
    """Booleans and integers as NumPy arrays, also inside a reading."""
    return np.asarray(of(x).host(x))
