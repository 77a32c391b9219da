"""One simulated kernel as a set of choices that leave its meaning alone: rounding, order, tiling, base, normalisation.

    s = cap·tanh(scale·q·k/cap) + bias,   p = exp(s − lse),   o = p v,   as in refattn.Dense, one head, rows and keys in 2-D

The code is its own: it shares neither text nor names with the library that it is used to test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulated.arithmetic import PRODUCTS, rounded

Array = Any
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453


class Problem(NamedTuple):
    """q (n, d), k (m, d), v (m, e), do (n, e), see (n, m) bool, and the optional terms."""

    q: Array
    k: Array
    v: Array
    do: Array
    see: Array
    bias: Array | None = None  # (n, m)
    sink: float | None = None
    keep: Array | None = None  # (n, m) bool
    keep_rate: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class Kernel:
    """compute: dtype of all arithmetic. result, operand, every: formats of results, of P and dS (and of all operands, if
    given), and of every intermediate. walk: keys whole, by tiles in the order of `seed`, or by splits merged at the end."""

    compute: str = "float32"
    result: str = "float32"
    operand: str = ""
    given: bool = False
    every: str = ""
    product: str = "blas"
    walk: str = "whole"
    tile: int = 64
    seed: int | None = None
    base2: bool = False
    scale_in: str = "scores"  # or "query", "exponent"
    apart: bool = False  # exponent as s·c − m·c, not (s − m)·c
    normalise: str = "last"
    delta_from: str = "output"  # or "weights"
    scale_ds: bool = False

    # -------------------------------------------------------------- arithmetic

    def number(self, x: Any) -> Any:
        return np.asarray(x, self.compute)[()]

    def keep_in(self, x: Array) -> Array:
        """An intermediate result as this kernel holds it."""
        x = np.asarray(x, self.compute)
        return rounded(x, self.every) if self.every else x

    def times(self, a: Array, b: Array, computed: bool = False) -> Array:
        """a·b; `computed` operands on the left (P, dS) are rounded, given ones too if the kernel says so."""
        if self.operand and (computed or self.given):
            a = rounded(a, self.operand)
        if self.operand and self.given:
            b = rounded(b, self.operand)
        return self.keep_in(PRODUCTS[self.product](a, b))

    def total(self, x: Array, axis: int = -1) -> Array:
        if self.product in ("sequential", "truncating"):
            return np.cumsum(x, axis=axis, dtype=self.compute).take([-1], axis=axis) if x.shape[axis] else x.sum(
                axis=axis, keepdims=True)
        return x.sum(axis=axis, keepdims=True, dtype=self.compute)

    def store(self, x: Array) -> Array:
        return rounded(np.asarray(x, self.compute), self.result)

    # -------------------------------------------------------------- scores

    def scale(self, p: Problem) -> Any:
        return self.number(p.q.shape[1] ** -0.5)

    def in_exponent(self, p: Problem) -> bool:
        return self.scale_in == "exponent" and p.softcap is None and p.bias is None and p.sink is None

    def scores(self, p: Problem, keys: Any) -> tuple[Array, Array | None]:
        """Scores against `keys` (unscaled if the scale waits for the exponent), and the tanh of a softcap."""
        scale, k = self.scale(p), p.k[keys]
        if self.in_exponent(p):
            s = self.times(p.q, k.T)
        elif self.scale_in == "query":
            s = self.times(self.keep_in(p.q * scale), k.T)
        else:
            s = self.keep_in(self.times(p.q, k.T) * scale)
        bent = None
        if p.softcap is not None:
            bent = self.keep_in(np.tanh(s / self.number(p.softcap)))
            s = self.keep_in(bent * self.number(p.softcap))
        return (s if p.bias is None else self.keep_in(s + p.bias[:, keys])), bent

    def exponential(self, p: Problem, s: Array, m: Array) -> Array:
        """exp of (s − m), in this kernel's base and form; m in the units of s."""
        factor = self.scale(p) if self.in_exponent(p) else self.number(1.0)
        if not self.base2:
            return self.keep_in(np.exp(self.keep_in((s - m) * factor)))
        c = self.number(float(factor) * LOG2E)
        return self.keep_in(np.exp2(s * c - m * c if self.apart else (s - m) * c))

    def log_sum(self, p: Problem, m: Array, z: Array) -> Array:
        """lse = m + log z, through base 2 where the kernel lives there."""
        factor = self.scale(p) if self.in_exponent(p) else self.number(1.0)
        if self.base2:
            return (m * self.number(float(factor) * LOG2E) + np.log2(z)) * self.number(LN2)
        return self.keep_in(m * factor + self.keep_in(np.log(z)))

    # -------------------------------------------------------------- forward

    def forward(self, p: Problem) -> tuple[Array, Array]:
        """o (n, e) as stored, lse (n, 1)."""
        if self.walk == "splits":
            o, lse = self._merged([self._walk(p, [part], first) for first, part in enumerate(self.parts(p))])
        else:
            o, lse = self._walk(p, self.parts(p), 0)
        return self.store(o), lse

    def parts(self, p: Problem) -> list[Array]:
        """The keys of each tile or split, in the order in which they are visited."""
        m = p.k.shape[0]
        if self.walk == "whole":
            return [np.arange(m)]
        tiles = [np.arange(t, min(t + self.tile, m)) for t in range(0, m, self.tile)]
        if self.seed is not None:
            tiles = [tiles[t] for t in np.random.default_rng(self.seed).permutation(len(tiles))]
        return tiles

    def _walk(self, p: Problem, tiles: list[Array], number: int) -> tuple[Array, Array]:
        """Online softmax over tiles; the sink, if any, is a key of the first walk."""
        n, low = p.q.shape[0], self.number(-np.inf)
        m, z = np.full((n, 1), low), np.zeros((n, 1), self.compute)
        acc = np.zeros((n, p.v.shape[1]), self.compute)
        if p.sink is not None and number == 0:
            m, z = np.full((n, 1), self.number(p.sink)), np.ones((n, 1), self.compute)
        for keys in tiles:
            s = np.where(p.see[:, keys], self.scores(p, keys)[0], low)
            high = np.maximum(m, s.max(-1, keepdims=True))
            safe = np.where(np.isfinite(high), high, self.number(0))
            e = np.where(p.see[:, keys], self.exponential(p, np.where(p.see[:, keys], s, safe), safe), self.number(0))
            old = np.where(np.isfinite(m), self.exponential(p, np.where(np.isfinite(m), m, safe), safe), self.number(0))
            z = self.keep_in(z * old + self.total(e))
            e = e if self.normalise == "last" else self.keep_in(e / np.where(z == 0, self.number(1), z))
            acc = acc * old + self.times(self.dropped(p, e, keys), p.v[keys], computed=True)
            m = high
        blind = z == 0
        o = acc if self.normalise == "first" else acc / np.where(blind, self.number(1), z)
        lse = self.log_sum(p, np.where(blind, self.number(0), m), np.where(blind, self.number(1), z))
        return o, np.where(blind, low, lse)

    def dropped(self, p: Problem, e: Array, keys: Any) -> Array:
        if p.keep is None:
            return e
        return self.keep_in(np.where(p.keep[:, keys], e, self.number(0)) * self.number(1.0 / p.keep_rate))

    def _merged(self, parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Partial outputs weighted by exp(lse_part − lse), each kept in the compute dtype."""
        top = np.maximum.reduce([lse for _, lse in parts])
        safe = np.where(np.isfinite(top), top, self.number(0))
        weights = [np.exp(lse - safe) for _, lse in parts]
        z = sum(weights)
        o = sum(w * part for w, (part, _) in zip(weights, parts, strict=True))
        with np.errstate(divide="ignore"):
            lse = safe + np.log(z)
        return o / np.where(z == 0, self.number(1), z), lse

    # -------------------------------------------------------------- backward

    def backward(self, p: Problem, o: Array, lse: Array) -> dict[str, Array]:
        """dq, dk, dv and, where there are such inputs, dbias and dsink, as stored."""
        scale, safe = self.scale(p), np.where(np.isfinite(lse), lse, self.number(0))
        delta = self.total(self.keep_in(p.do * o)) if self.delta_from == "output" else self._delta(p, safe)
        dq = np.zeros_like(p.q)
        dk, dv, dbias = np.zeros_like(p.k), np.zeros_like(p.v), np.zeros_like(p.see, self.compute)
        for keys in self.parts(p):
            weights, bent = self.weights(p, keys, safe)
            slope = self.keep_in(self.dropped(p, self.times(p.do, p.v[keys].T), keys))
            ds = self.keep_in(weights * self.keep_in(slope - delta))
            dbias[:, keys] = ds
            ds = ds if bent is None else self.keep_in(ds * (1 - bent * bent))
            ds = self.keep_in(ds * scale) if self.scale_ds else ds
            dq += self.times(ds, p.k[keys], computed=True)
            dk[keys] = self.times(ds.T, p.q, computed=True)
            dv[keys] = self.times(self.dropped(p, weights, keys).T, p.do, computed=True)
        if not self.scale_ds:
            dq, dk = dq * scale, dk * scale
        grads = {"dq": dq, "dk": dk, "dv": dv}
        if p.bias is not None:
            grads["dbias"] = dbias
        if p.sink is not None:
            grads["dsink"] = -self.total(self.keep_in(np.exp(self.number(p.sink) - safe) * delta), axis=0)[0, 0]
        return {name: self.store(g) for name, g in grads.items()}

    def weights(self, p: Problem, keys: Any, lse: Array) -> tuple[Array, Array | None]:
        """P recomputed from lse; a key that nobody may see has weight 0."""
        s, bent = self.scores(p, keys)
        see, zero = p.see[:, keys], self.number(0)
        if self.in_exponent(p):
            c = self.number(float(self.scale(p)) * (LOG2E if self.base2 else 1.0))
            x = np.where(see, s * c - lse * (self.number(LOG2E) if self.base2 else self.number(1)), zero)
            return np.where(see, np.exp2(x) if self.base2 else np.exp(x), zero), bent
        x = self.keep_in(np.where(see, s - lse, zero))
        e = np.exp2(x * self.number(LOG2E)) if self.base2 else np.exp(x)
        return np.where(see, self.keep_in(e), zero), bent

    def _delta(self, p: Problem, lse: Array) -> Array:
        """D_i = Σ_j P_ij dP_ij, from the weights themselves."""
        everyone = np.arange(p.k.shape[0])
        weights, _ = self.weights(p, everyone, lse)
        return self.total(self.keep_in(weights * self.dropped(p, self.times(p.do, p.v.T), everyone)))
