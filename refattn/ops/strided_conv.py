"""Strided convolution along the sequence: one output for every c positions, all channels mixed.

    y_t = Σ_j x_(ct+j−P) W_j + b,     0 ≤ j < r,     x = 0 outside of the sequence

    outputs: (n + P + P′ − r)/c + 1, which must be whole (tail="error"), or is rounded down (tail="drop": the last
    positions are not read) or up (tail="pad": zeros are read beyond the end); none for a sequence of no position

x: (..., n, d)   w: (r, d, e)   b: (e,) or None   y: (..., outputs, e);   kernel r, stride c, padding (P, P′).
With r = c it compresses disjoint segments. Liu et al. (arXiv:1801.10198), §4.2.3: r = c = 3. As torch.nn.Conv1d, which
drops a tail silently and has w as (e, d, r).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.ops.base import axes, flat, one_of, over_rows, total, zeros
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class StridedConv:
    """stride: c; padding: (P, P′); tail: "error", "drop" or "pad". Raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        w: Array  # (r, d, e)
        b: Array | None = None  # (e,)

    class Saved(NamedTuple):
        inputs: StridedConv.Inputs

    stride: int
    padding: tuple[int, int] = (0, 0)
    tail: str = "error"

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        one_of(("error", "drop", "pad"), tail=self.tail)
        if isinstance(self.stride, bool) or not isinstance(self.stride, int) or self.stride < 1:
            raise OptionError(f"stride={self.stride!r}: give a whole number, 1 or more")
        whole = isinstance(self.padding, tuple) and len(self.padding) == 2
        if not whole or not all(isinstance(p, int) and p >= 0 for p in self.padding):
            raise OptionError(f"padding={self.padding!r}: give zeros before and after, as (1, 1)")

    def forward(self, x: Array, w: Array, b: Array | None = None) -> tuple[Array, Saved]:
        """y as one product of what each output reads, (..., outputs, r·d), and W, (r·d, e)."""
        inputs = self.Inputs(x, w, b)
        self._sizes(inputs)
        y = of(x, w).xp.matmul(self._windows(x, w.shape[0]), _matrix(w))
        return (y if b is None else y + b), self.Saved(inputs)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """With s = c u + i, 0 ≤ i < c, position s − P is read by the outputs u − a with tap a c + i, so

        dx_(cu+i−P) = Σ_a dy_(u−a) W_(ac+i)ᵀ          one product: (..., u, a·e) by (a·e, i·d), taps from r on being zero
        dW_j = Σ_t x_(ct+j−P)ᵀ dy_t,   db = Σ_t dy_t, both over the leading axes too.
        """
        x, w, b = saved.inputs
        xp, (r, d, e) = of(x, w, dy).xp, w.shape
        windows = flat(self._windows(x, r))
        dw = xp.reshape(xp.matmul(xp.matrix_transpose(windows), flat(dy)), (r, d, e))
        return self.Inputs(self._pulled(x, w, dy), dw, None if b is None else over_rows(dy))

    def cost(self, shapes: Inputs) -> Passes:
        """outputs·r·d·e multiply-adds forward and for dW; (outputs + a − 1)·a·c·d·e for dx, a = ⌈r/c⌉."""
        at, outputs = self._sizes(shapes)
        items, each = product(at["*"]), at["d"] * at["e"]
        reach = -(-at["r"] // self.stride)
        macs = items * outputs * at["r"] * each
        pulled = items * (outputs + reach - 1) * reach * self.stride * each if outputs else 0
        return Passes(Count(macs, 0, items * outputs * at["e"]), Count(macs + pulled, 0, total(shapes)))

    def outputs(self, n: int, r: int) -> int:
        """How many outputs n positions give; ShapeError if the tail is refused."""
        room = n + sum(self.padding) - r
        if n == 0:
            return 0
        if self.tail == "error" and (room < 0 or room % self.stride):
            raise ShapeError(
                f"x has n={n}, and (n + {sum(self.padding)} − {r})/{self.stride} + 1 outputs is no whole number: give "
                f"tail='drop' (the last positions are not read) or tail='pad' (zeros beyond the end), or another n"
            )
        if self.tail == "pad":
            return max(-(-room // self.stride) + 1, 1)
        return max(room // self.stride + 1, 0)

    def _sizes(self, inputs: Inputs) -> tuple[dict[str, Any], int]:
        at = axes(inputs, x="* n d", w="r d e", b="e")
        if at["r"] == 0:
            raise ShapeError("w has r=0 taps; give one at least")
        return at, self.outputs(at["n"], at["r"])

    def _windows(self, x: Array, r: int) -> Array:
        """(..., outputs, r·d): what each output reads."""
        xp, c, (*lead, n, d) = of(x).xp, self.stride, x.shape
        count = self.outputs(n, r)
        x = _fit(x, self.padding[0], (count - 1) * c + r if count else 0)
        if r == c or not count:
            return xp.reshape(x, (*lead, count, r * d))
        taps = [x[..., j : j + (count - 1) * c + 1 : c, :] for j in range(r)]
        return xp.reshape(xp.stack(taps, axis=-2), (*lead, count, r * d))

    def _pulled(self, x: Array, w: Array, dy: Array) -> Array:
        xp, c, (*lead, n, d), (r, _, e) = of(x, w).xp, self.stride, x.shape, w.shape
        count, reach = dy.shape[-2], -(-r // self.stride)
        if not count:
            return xp.zeros_like(x)
        taps = xp.reshape(_fit(xp.reshape(w, (r, d * e)), 0, reach * c), (reach, c, d, e))
        taps = xp.reshape(xp.permute_dims(taps, (0, 3, 1, 2)), (reach * e, c * d))
        steps = count + reach - 1
        seen = xp.concat([_fit(dy, a, steps) for a in range(reach)], axis=-1)  # at u: dy_u, dy_(u−1), …
        dx = xp.reshape(xp.matmul(seen, taps), (*lead, steps * c, d))
        return xp.concat([_fit(dx, -self.padding[0], n)], axis=-2)  # a view would keep the rows that are cut alive


def _matrix(w: Array) -> Array:
    return of(w).xp.reshape(w, (w.shape[0] * w.shape[1], w.shape[2]))


def _fit(x: Array, before: int, length: int) -> Array:
    """(..., n, d) → (..., length, d): zeros in front (or, below 0, so many rows cut off), then zeros behind or a cut."""
    xp, n = of(x).xp, x.shape[-2]
    first = min(max(-before, 0), n)
    before = min(max(before, 0), length)
    inside = x[..., first : min(first + length - before, n), :]
    after = length - before - inside.shape[-2]
    return xp.concat([zeros(x, before), inside, zeros(x, after)], axis=-2) if before or after else inside
