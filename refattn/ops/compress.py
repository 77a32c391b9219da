"""Compression of a sequence: m tokens become s slots, by a matrix or by disjoint segments of c tokens.

    linear     y_t = Σ_j W_tj x_j                      0 ≤ j < m      W: (s, M), M ≥ m: its first m columns
    mean       y_t = (1/c) Σ_i x_(ct+i)                0 ≤ i < c
    max        y_t = max_i x_(ct+i)                    each channel; its gradient goes to the first of the largest
    depthwise  y_t = Σ_i W_i ∘ x_(ct+i)                               W: (c, d)
    dense      y_t = Σ_i x_(ct+i) W_i                                 W: (c, d, d)

    s = m/c, which must be whole (tail="error"), or is rounded down (tail="drop": the last tokens are not read) or up
    (tail="pad": zeros are read beyond the end)

x: (..., m, d)   y: (..., s, d)   W as above for all heads, or with a first axis for those of x, its axis −3.
Wang et al. (arXiv:2006.04768), §4: linear projections, pooling, and convolution with kernel = stride.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.ops.base import one_of, zeros
from refattn.ops.heads import unbroadcast
from refattn.shapes import Shape, product, shape_of

Array = Any
WEIGHTS = {"linear": "s M", "mean": "", "max": "", "depthwise": "c d", "dense": "c d d"}
POOLS = ("mean", "max")


@dataclass(frozen=True)
class Compression:
    """kind: one of the above. stride: c of "mean" and "max"; convolutions take theirs from W. Raises OptionError."""

    kind: str
    stride: int | None
    tail: str

    def __post_init__(self) -> None:
        one_of(WEIGHTS, projection=self.kind)
        one_of(("error", "drop", "pad"), tail=self.tail)
        c = self.stride
        if self.kind not in POOLS and c is not None:
            taken = "has segments of no length" if self.kind == "linear" else "takes it from the length of E"
            raise OptionError(f"stride={c!r} would be ignored: projection={self.kind!r} {taken}; leave stride=None")
        if self.kind in POOLS and (isinstance(c, bool) or not isinstance(c, int) or c < 1):
            raise OptionError(f"stride={c!r}: projection={self.kind!r} needs its number of tokens, as stride=4")

    def check(self, name: str, w: Any, of_what: str, x: Shape, slicing: bool) -> None:
        """Refuse a W (an array, a shape or None) called `name` that does not fit x (..., m, d), called `of_what`."""
        axes, shape = WEIGHTS[self.kind].split(), None if w is None else shape_of(w)
        if not axes:
            if shape is not None:
                raise OptionError(f"{name} is given, but projection={self.kind!r} has no weights and would ignore it")
            return
        if shape is None:
            raise OptionError(f"{name} is missing: projection={self.kind!r} needs its weights ({', '.join(axes)})")
        own = (x[-3],) if len(x) > 2 and len(shape) == len(axes) + 1 else ()
        wide = {"s": None, "c": None, "d": x[-1], "M": None if slicing else x[-2]}
        want = (*own, *(wide[a] for a in axes))
        if len(want) != len(shape) or any(b is not None and a != b for a, b in zip(shape, want, strict=True)):
            per_head = f", or one for each of the {x[-3]} heads in front" if len(x) > 2 else ""
            more = "; shorter sequences take shorter='slice'" if self.kind == "linear" and not slicing else ""
            raise ShapeError(f"{name} has shape {shape}, but {of_what} has shape {x}: it needs the axes ({', '.join(axes)})"
                             f"{per_head}, with {'M=m=' + str(x[-2]) if 'M' in axes else 'd=' + str(x[-1])}{more}")
        if self.kind == "linear" and shape[-1] < x[-2]:
            raise ShapeError(f"{name} has M={shape[-1]} columns for fewer tokens than the m={x[-2]} of {of_what} {x}")
        if self.kind != "linear" and self._length(shape) == 0:
            raise ShapeError(f"{name} has shape {shape}: segments of c=0 tokens")

    def slots(self, w: Any, m: int) -> int:
        """s; ShapeError if the tail is refused."""
        if self.kind == "linear":
            return int(shape_of(w)[-2])
        c = self._length(None if w is None else shape_of(w))
        if self.tail == "error" and m % c:
            raise ShapeError(f"m={m} tokens are no whole number of segments of {c}: give tail='drop' (the last {m % c} are "
                             f"not read) or tail='pad' (zeros are read beyond the end), or another m")
        return -(-m // c) if self.tail == "pad" else m // c

    def _length(self, w: Shape | None) -> int:
        """c, from the shape of W if that has it."""
        if self.stride is not None:
            return self.stride
        assert w is not None
        return int(w[-len(WEIGHTS[self.kind].split())])

    def forward(self, x: Array, w: Array | None) -> Array:
        """y, as one product or one sum."""
        xp = of(x).xp
        if self.kind == "linear":
            return xp.matmul(_columns(w, x.shape[-2]), x)
        segments = self._segments(x, w)
        if self.kind == "mean":
            return xp.sum(segments, axis=-2) / segments.shape[-2]
        if self.kind == "max":
            return xp.max(segments, axis=-2)
        if self.kind == "depthwise":
            return xp.sum(segments * xp.expand_dims(w, axis=-3), axis=-2)
        return xp.matmul(_flat(segments), _matrix(w))

    def vjp(self, x: Array, w: Any, dy: Array) -> tuple[Array, Array | None]:
        """dx and dW, the latter summed over everything that shares W.

            linear     dx = Wᵀ dy                         dW = Σ dy xᵀ
            mean       dx_(ct+i) = dy_t / c
            max        dx_(ct+i) = dy_t where i is the first of the largest, 0 elsewhere
            depthwise  dx_(ct+i) = W_i ∘ dy_t             dW_i = Σ_t x_(ct+i) ∘ dy_t
            dense      dx_(ct+i) = dy_t W_iᵀ              dW_i = Σ_t x_(ct+i)ᵀ dy_t
        """
        xp, m = of(x, dy).xp, x.shape[-2]
        if self.kind == "linear":
            return xp.matmul(xp.matrix_transpose(_columns(w, m)), dy), _columns_vjp(x, w, dy)
        segments, dw = self._segments(x, w), None
        if self.kind == "mean":
            c = segments.shape[-2]
            back = xp.broadcast_to(xp.expand_dims(dy, axis=-2) / c, segments.shape)
        elif self.kind == "max":
            back = _to_the_largest(segments, dy)
        elif self.kind == "depthwise":
            pulled = xp.expand_dims(dy, axis=-2)
            back, dw = pulled * xp.expand_dims(w, axis=-3), unbroadcast(xp.sum(segments * pulled, axis=-3), w.shape)
        else:
            back = xp.reshape(xp.matmul(dy, xp.matrix_transpose(_matrix(w))), segments.shape)
            rows = xp.matrix_transpose(_rows(_flat(segments), w.ndim == 4))
            dw = xp.reshape(xp.matmul(rows, _rows(dy, w.ndim == 4)), w.shape)
        return _joined(x, back), dw

    def macs(self, x: Shape, w: Shape | None) -> int:
        """Multiply-adds in contractions of ``forward``; ``vjp`` has twice as many."""
        if self.kind == "linear":
            assert w is not None
            return product(x) * w[-2]
        return product(x[:-2]) * self.slots(w, x[-2]) * product(w[-3:]) if self.kind == "dense" and w is not None else 0

    def _segments(self, x: Array, w: Array | None) -> Array:
        """(..., m, d) → (..., s, c, d)."""
        xp, (*lead, m, d) = of(x).xp, x.shape
        s, c = self.slots(w, m), self._length(None if w is None else w.shape)
        if s * c > m:
            x = xp.concat([x, zeros(x, s * c - m)], axis=-2)
        return xp.reshape(x[..., : s * c, :], (*lead, s, c, d))


def _columns(w: Array, m: int) -> Array:
    """The columns of W (…, s, M) that m tokens have."""
    return w if w.shape[-1] == m else w[..., :m]


def _columns_vjp(x: Array, w: Array, dy: Array) -> Array:
    """Σ dy xᵀ over what shares W, as one product for each W, and 0 in the columns that x has not."""
    xp, own, m, wide = of(x).xp, w.ndim == 3, x.shape[-2], w.shape[-1]
    dw = xp.reshape(xp.matmul(_beside(dy, own), xp.matrix_transpose(_beside(x, own))), (*w.shape[:-1], m))
    return dw if wide == m else xp.concat([dw, xp.zeros_like(w[..., m:])], axis=-1)


def _items(x: Array, own: bool) -> Array:
    """(..., G, a, b) → (items, G, a, b), or (items, 1, a, b) if heads share as items do."""
    *lead, a, b = x.shape
    pair = (product(lead[:-1]), lead[-1]) if own else (product(lead), 1)
    return of(x).xp.reshape(x, (*pair, a, b))


def _beside(x: Array, own: bool) -> Array:
    """(..., G, a, b) → (G | 1, a, items·b)."""
    xp, x = of(x).xp, _items(x, own)
    items, heads, a, b = x.shape
    return xp.reshape(xp.permute_dims(x, (1, 2, 0, 3)), (heads, a, items * b))


def _rows(x: Array, own: bool) -> Array:
    """(..., G, a, b) → (G | 1, items·a, b)."""
    xp, x = of(x).xp, _items(x, own)
    items, heads, a, b = x.shape
    return xp.reshape(xp.permute_dims(x, (1, 0, 2, 3)), (heads, items * a, b))


def _flat(segments: Array) -> Array:
    """(..., s, c, d) → (..., s, c·d)."""
    *lead, c, d = segments.shape
    return of(segments).xp.reshape(segments, (*lead, c * d))


def _matrix(w: Array) -> Array:
    """(…, c, d, d) → (…, c·d, d)."""
    *lead, c, d, e = w.shape
    return of(w).xp.reshape(w, (*lead, c * d, e))


def _to_the_largest(segments: Array, dy: Array) -> Array:
    """dy at the first of the largest of each segment, 0 elsewhere: the last one that beats all before it."""
    xp, c = of(segments).xp, segments.shape[-2]
    top, beats = segments[..., 0, :], []
    for i in range(1, c):
        beats.append(segments[..., i, :] > top)
        top = xp.maximum(top, segments[..., i, :])
    parts, later = [], None
    for beat in reversed(beats):
        parts.append(xp.where(beat if later is None else beat & ~later, dy, 0.0))
        later = beat if later is None else later | beat
    parts.append(dy if later is None else xp.where(later, 0.0, dy))
    return xp.stack(parts[::-1], axis=-2)


def _joined(x: Array, back: Array) -> Array:
    """(..., s, c, d) → (..., m, d) of x: nothing for a tail that was not read, without the padding."""
    xp, (*lead, s, c, d), m = of(x).xp, back.shape, x.shape[-2]
    if s == 0:
        return xp.zeros_like(x)
    dx = xp.reshape(back, (*lead, s * c, d))
    if s * c < m:
        return xp.concat([dx, zeros(dx, m - s * c)], axis=-2)
    return dx if s * c == m else xp.concat([dx[..., :m, :]], axis=-2)  # a view would keep the padding alive
