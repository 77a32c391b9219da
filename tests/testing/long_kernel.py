"""A float32 attention in tiles that computes chosen rows alone, zeros elsewhere, and can be made to go wrong at length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
F = np.float32


def all_keys(i: int, m: int) -> Array:
    return np.arange(m)


@dataclass(frozen=True)
class LongKernel:
    """keys(i, m): the keys that row i reads, in order; lost: so many last keys get no dk."""

    rows: Sequence[int]
    keys: Callable[[int, int], Array] = all_keys
    lost: int = 0
    tile: int = 8192

    def tiles(self, i: int, m: int) -> list[Array]:
        keys = self.keys(i, m)
        return [keys[a : a + self.tile] for a in range(0, len(keys), self.tile)]

    def heads(self, q: Array, k: Array) -> list[tuple[int, int]]:
        return [(h, h // (q.shape[1] // k.shape[1])) for h in range(q.shape[1])]

    def forward(self, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.zeros(q.shape[:-1], F)
        scale = F(q.shape[-1] ** -0.5)
        for h, g in self.heads(q, k):
            for i in map(int, self.rows):
                top, z, total = F(-np.inf), F(0), np.zeros(v.shape[-1], F)
                for at in self.tiles(i, k.shape[2]):
                    s = k[0, g, at].astype(F) @ q[0, h, i].astype(F) * scale
                    new = max(top, s.max())
                    p, fade = np.exp(s - new), np.exp(top - new)
                    z, total, top = z * fade + p.sum(dtype=F), total * fade + p @ v[0, g, at].astype(F), new
                if z:
                    o[0, h, i], lse[0, h, i] = total / z, top + np.log(z)
                else:
                    lse[0, h, i] = -np.inf
        return o, lse

    def vjp(self, q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array) -> dict[str, Array]:
        dq, dk, dv = np.zeros_like(q), np.zeros(k.shape, F), np.zeros(v.shape, F)
        scale = F(q.shape[-1] ** -0.5)
        for h, g in self.heads(q, k):
            for i in map(int, self.rows):
                q_i, do_i = q[0, h, i].astype(F), do[0, h, i].astype(F)
                total, D = np.zeros(q.shape[-1], F), do_i @ o[0, h, i].astype(F)
                for at in self.tiles(i, k.shape[2]):
                    keys = k[0, g, at].astype(F)
                    p = np.exp(keys @ q_i * scale - lse[0, h, i])
                    ds = p * (v[0, g, at].astype(F) @ do_i - D) * scale
                    total += ds @ keys
                    dk[0, g, at] += ds[:, None] * q_i
                    dv[0, g, at] += p[:, None] * do_i
                dq[0, h, i] = total
        if self.lost:
            dk[:, :, -self.lost :] = 0
        return {"dq": dq, "dk": dk.astype(k.dtype), "dv": dv.astype(v.dtype)}
