"""Linformer in stages: tokens become slots, softmax attention to the slots, and back. A third implementation.

    there_k, there_v → slots_k, slots_v → the stages of softmax attention over slots
    the backward of these → tokens_k, tokens_v, weights_k, weights_v → serve
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.staged import Staged, sum_of

Array = Any


@dataclass
class LinformerStaged(Staged):
    """One run of Linformer on its inputs. Slots are (B, H_kv, s, d) until they are repeated for their query heads."""

    def prepare(self) -> None:
        self.there = {name: self.do(f"there_{name}", getattr(self.inputs, name)) for name in "kv"}
        slots = {name: self.do(f"slots_{name}", self.there[name], self.weight(name)) for name in "kv"}
        tokens, self.inputs = self.inputs, self.inputs._replace(**slots)
        super().prepare()
        self.inputs = tokens

    def weight(self, name: str) -> Any:
        """E for keys, F or E for values; None of a pooling."""
        i = self.inputs
        return i.E if name == "k" or i.F is None else i.F

    def there_k(self, x: Array) -> Array:
        return self.zeroed(x)

    def there_v(self, x: Array) -> Array:
        return self.zeroed(x)

    def zeroed(self, x: Array) -> Array:
        """Tokens of padding are zeros."""
        valid = self.given("key_valid")
        if valid is None:
            return x
        there = np.asarray(of(valid).host(valid))
        return of(x).xp.where(there[..., None, :, None], x, 0.0)

    def slots_k(self, x: Array, w: Array) -> Array:
        return self.compress(x, w)

    def slots_v(self, x: Array, w: Array) -> Array:
        return self.compress(x, w)

    def taps(self, w: Array) -> int:
        """How many tokens a segment has; 0 for matrices."""
        kind = self.scheme.projection
        if kind == "linear":
            return 0
        return int(self.scheme.stride if w is None else w.shape[-2 if kind == "depthwise" else -3])

    def segments(self, x: Array, c: int) -> list[Array]:
        """The i-th token of every segment, (…, s, d) for each i < c: with zeros behind the end, or without the rest."""
        xp, m = of(x).xp, x.shape[-2]
        s = -(-m // c) if self.scheme.tail == "pad" else m // c
        if s * c > m:
            x = xp.concat([x, xp.zeros_like(x[..., : s * c - m, :])], axis=-2)
        return [x[..., i : s * c : c, :] for i in range(c)]

    def compress(self, x: Array, w: Array) -> Array:
        """(..., m, d) → (..., s, d)."""
        xp, kind, c = of(x).xp, self.scheme.projection, self.taps(w)
        if kind == "linear":
            return xp.matmul(w[..., : x.shape[-2]], x)
        parts = self.segments(x, c)
        if kind == "mean":
            return sum_of(parts) / c
        if kind == "max":
            top = parts[0]
            for part in parts[1:]:
                top = xp.maximum(top, part)
            return top
        return sum_of([_tap(part, w, i, kind) for i, part in enumerate(parts)])

    def allowed(self) -> Any:
        """The slots that a head has: (1, H | 1, 1, s)."""
        valid = self.given("slot_valid")
        if valid is None:
            return np.ones((1, 1, 1, self.k.shape[-2]), dtype=bool)
        there = np.asarray(of(valid).host(valid))
        return (there[self.source] if there.ndim == 2 else there[None])[None, :, None, :]

    def shown(self) -> Any:
        return np.ones((1, 1, self.q.shape[-2], self.k.shape[-2]), dtype=bool)

    def gauge(self, s: Array) -> Array:
        """Without a slot there is no maximum."""
        return super().gauge(s) if s.shape[-1] else of(s).xp.sum(s, axis=-1, keepdims=True)

    # ---- backward
    def backward(self, o: Array, lse: Array, do: Array, dlse: Array | None) -> dict[str, Array]:
        grads = super().backward(o, lse, do, dlse)
        slots = {name: grads[f"d{name}"] for name in "kv"}
        for name, dy in slots.items():
            grads[f"d{name}"] = self.do(f"tokens_{name}", dy, self.weight(name))
        if self.inputs.E is None:
            return grads
        pulled = {name: self.do(f"weights_{name}", self.there[name], slots[name], self.weight(name)) for name in "kv"}
        return {**grads, **self.do("serve", pulled["k"], pulled["v"])}

    def serve(self, dE: Array, dF: Array) -> dict[str, Array]:
        """An E that serves both has both gradients."""
        return {"dE": dE, "dF": dF} if self.inputs.F is not None else {"dE": dE + dF}

    def tokens_k(self, dy: Array, w: Array) -> Array:
        return self.zeroed(self.spread_out(dy, w, self.there["k"]))

    def tokens_v(self, dy: Array, w: Array) -> Array:
        return self.zeroed(self.spread_out(dy, w, self.there["v"]))

    def weights_k(self, x: Array, dy: Array, w: Array) -> Array:
        return self.pull_weight(x, dy, w)

    def weights_v(self, x: Array, dy: Array, w: Array) -> Array:
        return self.pull_weight(x, dy, w)

    def spread_out(self, dy: Array, w: Array, x: Array) -> Array:
        """The adjoint of ``compress`` in x."""
        xp, kind, c, m = of(x).xp, self.scheme.projection, self.taps(w), x.shape[-2]
        if kind == "linear":
            return xp.matmul(xp.matrix_transpose(w[..., :m]), dy)
        if kind == "mean":
            back = [dy / c] * c
        elif kind == "max":
            back = _to_the_first(self.segments(x, c), dy)
        else:
            back = [_tap_back(dy, w, i, kind) for i in range(c)]
        return laid(back, x)

    def pull_weight(self, x: Array, dy: Array, w: Array) -> Array:
        """The adjoint of ``compress`` in its weights, summed over items, and over heads if they share them."""
        xp, kind = of(x).xp, self.scheme.projection
        axes = (0,) if w.ndim == {"linear": 3, "depthwise": 3, "dense": 4}[kind] else (0, 1)
        if kind == "linear":
            dw = xp.sum(xp.matmul(dy, xp.matrix_transpose(x)), axis=axes)
            wide = w.shape[-1] - x.shape[-2]
            return xp.concat([dw, xp.zeros_like(w[..., x.shape[-2] :])], axis=-1) if wide else dw
        parts = self.segments(x, self.taps(w))
        if kind == "depthwise":
            return xp.stack([xp.sum(xp.sum(part * dy, axis=-2), axis=axes) for part in parts], axis=-2)
        return xp.stack([xp.sum(xp.matmul(xp.matrix_transpose(part), dy), axis=axes) for part in parts], axis=-3)


def _tap(part: Array, w: Array, i: int, kind: str) -> Array:
    """What the i-th tokens of segments give to their slots."""
    return part * w[..., i : i + 1, :] if kind == "depthwise" else of(part).xp.matmul(part, w[..., i, :, :])


def _tap_back(dy: Array, w: Array, i: int, kind: str) -> Array:
    if kind == "depthwise":
        return dy * w[..., i : i + 1, :]
    xp = of(dy).xp
    return xp.matmul(dy, xp.matrix_transpose(w[..., i, :, :]))


def laid(back: list[Array], x: Array) -> Array:
    """The i-th tokens of every segment, (..., s, d) for each i, as tokens (..., m, d) of x; a rest is zeros."""
    xp, (*lead, s, d), c, m = of(x).xp, back[0].shape, len(back), x.shape[-2]
    rows = xp.reshape(xp.stack(back, axis=-2), (*lead, s * c, d))
    return rows[..., :m, :] if s * c >= m else xp.concat([rows, xp.zeros_like(x[..., s * c :, :])], axis=-2)


def _to_the_first(parts: list[Array], dy: Array) -> list[Array]:
    """dy where the i-th token is the first of the largest of its segment."""
    xp, out = of(dy).xp, []
    for i, part in enumerate(parts):
        mine = None
        for j, other in enumerate(parts):
            if j != i:
                wins = part > other if j < i else part >= other
                mine = wins if mine is None else mine & wins
        out.append(dy if mine is None else xp.where(mine, dy, 0.0))
    return out
