"""Depthwise convolution along the sequence: every channel has a filter of its own.

    y_tc = Σ_j w_jc x_(t+j−P)c + b_c,     0 ≤ j < r,     x = 0 outside of the sequence

    P = r − 1  (padding="causal": y_t reads x up to t)         P = ⌊r/2⌋  (padding="same": y_t reads both sides)

x, y: (..., n, d)   w: (r, d)   b: (d,) or None.   A cross-correlation, as torch.nn.Conv1d(groups=d); w is its transpose.
Wu et al. (arXiv:1901.10430), eq. 3. Departure: an even r is taken with "same" too, one more tap on the left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import AUTO, of
from refattn.cost import Count, Passes
from refattn.errors import ShapeError
from refattn.ops.base import axes, one_of, over_rows, rows_at_once, total, zeros
from refattn.shapes import blocks, product

Array = Any


@dataclass(frozen=True)
class DepthwiseConv:
    """padding: "causal" or "same"; raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        w: Array  # (r, d)
        b: Array | None = None  # (d,)

    class Saved(NamedTuple):
        inputs: DepthwiseConv.Inputs

    padding: str = "causal"

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        one_of(("causal", "same"), padding=self.padding)

    def forward(self, x: Array, w: Array, b: Array | None = None, *, block: Any = AUTO) -> tuple[Array, Saved]:
        """y, `block` positions at a time: r·d elements for each are alive at once."""
        inputs = self.Inputs(x, w, b)
        self._axes(inputs)
        y = _correlate(x, w, self._left(w), rows_at_once(x, block))
        return (y if b is None else y + b), self.Saved(inputs)

    def vjp(self, saved: Saved, dy: Array, *, block: Any = AUTO) -> Inputs:
        """dx_sc = Σ_j w_jc dy_(s−j+P)c, which is the forward with w turned round and P′ = r − 1 − P;

        dw_jc = Σ_t x_(t+j−P)c dy_tc,   db = Σ_t dy_t, both over the leading axes too.
        """
        x, w, b = saved.inputs
        xp, rows, left = of(x, w, dy).xp, rows_at_once(x, block), self._left(w)
        dx = _correlate(dy, xp.flip(w, axis=0), w.shape[0] - 1 - left, rows)
        dw = None
        for at in blocks(x.shape[-2], rows):
            windows, pulled = _windows(x, at, w.shape[0], left), _channels(dy[..., at, :])
            part = xp.matmul(xp.matrix_transpose(windows), pulled[..., None])[..., 0]
            dw = part if dw is None else dw + part
        return self.Inputs(dx, xp.matrix_transpose(dw), None if b is None else over_rows(dy))

    def cost(self, shapes: Inputs) -> Passes:
        """rows·d·r multiply-adds forward, twice that backward; taps on the padding included."""
        at = self._axes(shapes)
        size = product(at["*"]) * at["n"] * at["d"]
        return Passes(Count(size * at["r"], 0, size), Count(2 * size * at["r"], 0, total(shapes)))

    def _axes(self, inputs: Inputs) -> dict[str, Any]:
        at = axes(inputs, x="* n d", w="r d", b="d")
        if at["r"] == 0:
            raise ShapeError("w has r=0 taps; give one at least")
        return at

    def _left(self, w: Array) -> int:
        r: int = w.shape[0]
        return r - 1 if self.padding == "causal" else r // 2


def _channels(x: Array) -> Array:
    """(..., n, d) → (d, rows): all positions of all items of a channel in one line."""
    xp = of(x).xp
    return xp.matrix_transpose(xp.reshape(x, (product(x.shape[:-1]), x.shape[-1])))


def _windows(x: Array, at: slice, r: int, left: int) -> Array:
    """(..., n, d) → (d, rows, r): what each position in `at` reads, zeros outside of the sequence."""
    xp, n = of(x).xp, x.shape[-2]
    taps = [_channels(_shifted(x, at.start + j - left, at.stop - at.start, n)) for j in range(r)]
    return xp.stack(taps, axis=-1)


def _shifted(x: Array, start: int, length: int, n: int) -> Array:
    """Positions start … start + length − 1 of x, zeros where there is none."""
    xp = of(x).xp
    low, high = min(max(start, 0), n), min(max(start + length, 0), n)
    inside = x[..., low:high, :]
    before = min(max(-start, 0), length)
    after = length - before - (high - low)
    return xp.concat([zeros(x, before), inside, zeros(x, after)], axis=-2) if before or after else inside


def _correlate(x: Array, w: Array, left: int, rows: int | None) -> Array:
    """Σ_j w_j x_(t+j−left) for every t."""
    xp, (*lead, n, d) = of(x, w).xp, x.shape
    taps = xp.matrix_transpose(w)[:, :, None]
    parts = []
    for at in blocks(n, rows):
        y = xp.matmul(_windows(x, at, w.shape[0], left), taps)[..., 0]  # (d, rows)
        parts.append(xp.reshape(xp.matrix_transpose(y), (*lead, at.stop - at.start, d)))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)
