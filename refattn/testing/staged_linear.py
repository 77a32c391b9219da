"""Linear attention in stages that a mutant may override: all pairs in the open, where the text sums keys up first.

    read → phi → pairs → hide → mix, total → combine
    delta → pull_weights → pull_q, pull_k, pull_v → slope → gather

Arrays are (B, H, n, ·) with keys repeated for their query heads; w are the weights φ(q_i)·φ(k_j) · scale of all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.features.identity import Identity
from refattn.features.relu import Relu
from refattn.testing.staged import sum_of
from refattn.testing.stages import Stages

Array = Any


@dataclass
class LinearStaged(Stages):
    """One run of a configured Linear on its inputs."""

    def run(self, do: Array | None = None, dlse: Array | None = None) -> dict[str, Array]:
        """o, and with `do` the gradients of ⟨do, o⟩."""
        self.prepare()
        self.fq, self.fk = self.do("phi", self.q, "q"), self.do("phi", self.k, "k")
        w = self.do("hide", self.do("pairs", self.fq, self.fk))
        self.z = self.do("total", w)
        self.o = self.do("combine", self.do("mix", w, self.v), self.z)
        return {"o": self.o} if do is None else {"o": self.o} | self.resume(do, dlse)

    def resume(self, do: Array, dlse: Array | None) -> dict[str, Array]:
        """The gradients, from o as it was stored and z as it was kept."""
        b = of(self.o)
        o, z, xp = b.narrow(self.o, self.o), None if self.z is None else b.settle(self.z), b.xp
        w = self.do("hide", self.do("pairs", self.fq, self.fk))
        du = self.do("divide", do, z)
        dz = None if z is None else self.do("delta", do, o, z)
        self.cotangent, self.pulled = do, (du, self.v, dz)
        dw = self.do("hide", self.do("pull_weights", du, self.v, dz)) * self.scale
        dfq = self.do("through_eps", self.do("pull_q", dw, self.fk), dz)
        dfk, dv = self.do("pull_k", dw, self.fq), self.do("pull_v", w, du)
        dq, dk = self.do("slope", self.q, self.fq, dfq, "q"), self.do("slope", self.k, self.fk, dfk, "k")
        if not self.see.all():
            seeing, seen = self.see.any(axis=-1)[..., None], self.see.any(axis=-2)[..., None]
            dq, dk, dv = xp.where(seeing, dq, 0.0), xp.where(seen, dk, 0.0), xp.where(seen, dv, 0.0)
        return {"dq": dq, "dk": self.do("gather", dk), "dv": self.do("gather", dv)}

    # ---- forward stages
    def prepare(self) -> None:
        """Repeat key heads, write out who sees whom, and select what nobody sees, or what sees nothing, to 0."""
        i, xp = self.inputs, of(self.inputs.q).xp
        self.heads, self.few = i.q.shape[1], i.k.shape[1]
        ratio = self.heads // self.few if self.few else 1
        self.source = [h % self.few if self.scheme.heads == "tiled" else h // ratio for h in range(self.heads)]
        reads = np.array(self.source, dtype=np.int64)
        k, v = (x if self.few == self.heads else xp.take(x, reads, axis=1) for x in (i.k, i.v))
        self.see = self.visible()
        seeing, seen = self.see.any(axis=-1)[..., None], self.see.any(axis=-2)[..., None]
        self.q = i.q if seeing.all() else xp.where(seeing, i.q, 0.0)
        self.k, self.v = (x if seen.all() else xp.where(seen, x, 0.0) for x in (k, v))

    def visible(self) -> Any:
        """see (B | 1, 1, n, m), a NumPy boolean array."""
        n, m = self.inputs.q.shape[-2], self.inputs.k.shape[-2]
        self.offset = m - n if self.scheme.align == "bottom_right" else 0
        see = np.ones((1, 1, n, m), dtype=bool)
        if self.scheme.causal:
            see = see & (np.arange(n)[:, None] + self.offset >= np.arange(m)[None, :])
        valid = self.given("key_valid")
        return see if valid is None else see & np.asarray(of(valid).host(valid))[..., None, None, :]

    @property
    def scale(self) -> float:
        return float(self.inputs.q.shape[-1] ** -0.5 if self.scheme.scale is None else self.scheme.scale)

    def phi(self, x: Array, which: str) -> Array:
        return self.scheme.feature(x)

    def pairs(self, fq: Array, fk: Array) -> Array:
        xp = of(fq, fk).xp
        return xp.matmul(fq, xp.matrix_transpose(fk)) * self.scale

    def hide(self, w: Array) -> Array:
        return of(w).xp.where(self.see, w, 0.0)

    def mix(self, w: Array, v: Array) -> Array:
        return of(w, v).xp.matmul(w, v)

    def total(self, w: Array) -> Array | None:
        """z (B, H, n, 1) with its ε, or None."""
        if not self.scheme.normalise:
            return None
        xp = of(w).xp
        z = xp.sum(w, axis=-1, keepdims=True)
        if not self.scheme.eps:
            return z
        if self.scheme.eps_at == "sum":
            return z + self.scheme.eps
        return z + xp.sum(self.fq, axis=-1, keepdims=True) * (self.scheme.eps * self.scale)

    def combine(self, u: Array, z: Array | None) -> Array:
        return u if z is None else of(u).xp.where(z == 0.0, 0.0, u / of(z).xp.where(z == 0.0, 1.0, z))

    # ---- backward stages
    def divide(self, do: Array, z: Array | None) -> Array:
        """The cotangent of the sums that were divided by z."""
        return self.combine(do, z)

    def delta(self, do: Array, o: Array, z: Array) -> Array:
        """The cotangent of z, −do·o / z."""
        xp = of(do, o).xp
        return xp.where(z == 0.0, 0.0, -1.0 * xp.sum(do * o, axis=-1, keepdims=True) / xp.where(z == 0.0, 1.0, z))

    def pull_weights(self, du: Array, v: Array, dz: Array | None) -> Array:
        xp = of(du, v).xp
        dw = xp.matmul(du, xp.matrix_transpose(v))
        return dw if dz is None else dw + dz

    def through_eps(self, dfq: Array, dz: Array | None) -> Array:
        """With what ε times the features of a query adds to z."""
        if dz is None or not self.scheme.eps or self.scheme.eps_at != "keys":
            return dfq
        return dfq + dz * (self.scheme.eps * self.scale)

    def pull_q(self, dw: Array, fk: Array) -> Array:
        return of(dw, fk).xp.matmul(dw, fk)

    def pull_k(self, dw: Array, fq: Array) -> Array:
        xp = of(dw, fq).xp
        return xp.matmul(xp.matrix_transpose(dw), fq)

    def pull_v(self, w: Array, du: Array) -> Array:
        xp = of(w, du).xp
        return xp.matmul(xp.matrix_transpose(w), du)

    def slope(self, x: Array, fx: Array, dfx: Array, which: str) -> Array:
        """dx = φ'(x) dφ."""
        xp, feature = of(x).xp, self.scheme.feature
        if isinstance(feature, Identity):
            return dfx
        return dfx * xp.where(x > 0.0, 1.0, 0.0 if isinstance(feature, Relu) else fx)

    def gather(self, dx: Array) -> Array:
        """The gradient of a key head: the sum over the query heads that read it."""
        if self.few == self.heads:
            return dx
        return of(dx).xp.stack([sum_of([dx[:, h, ...] for h in self.readers(g)]) for g in range(self.few)], axis=1)

    def readers(self, g: int) -> list[int]:
        return [h for h, source in enumerate(self.source) if source == g]
