"""Heads that share keys: H query heads over H_kv key heads become two axes, so that broadcasting does the sharing.

    grouped: query head h reads kv head h // (H / H_kv)      (..., H, a, b) → (..., H_kv, G, a, b)
    tiled:   query head h reads kv head h % H_kv             (..., H, a, b) → (..., G, H_kv, a, b),   G = H / H_kv

Arrays with two axes have no heads and pass unchanged. Ainslie et al. (arXiv:2305.13245) group; the tiled map is what
repeating the whole list of kv heads gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError

Array = Any
Shape = tuple[int, ...]


@dataclass(frozen=True)
class HeadMap:
    """kv: number of key heads (None: there is no head axis); group: query heads for each; tiled: which map."""

    kv: int | None
    group: int
    tiled: bool

    @property
    def axis(self) -> int:
        """The axis over which query heads share one key head."""
        return -4 if self.tiled else -3

    def split(self, x: Array) -> Array:
        """Query side: (..., H | 1, a, b) with its head axis in two."""
        if self.kv is None:
            return x
        pair = (self.group, self.kv) if self.tiled else (self.kv, self.group)
        *lead, heads, a, b = x.shape
        both = pair if heads == self.kv * self.group else (1, 1)
        return of(x).xp.reshape(x, (*lead, *both, a, b))

    def full(self, x: Array, ndim: int) -> Array:
        """An array that broadcasts to (..., H, n, m), with all `ndim` axes and its head axis in two."""
        return self.split(of(x).xp.reshape(x, (*(1,) * (ndim - x.ndim), *x.shape)))

    def join(self, x: Array) -> Array:
        """The inverse of ``split``: (..., ·, ·, a, b) → (..., H, a, b)."""
        if self.kv is None:
            return x
        *lead, one, two, a, b = x.shape
        return of(x).xp.reshape(x, (*lead, one * two, a, b))

    def share(self, x: Array) -> Array:
        """Key side: (..., H_kv, m, d) with an axis of size 1 where the query side has its group."""
        return x if self.kv is None else of(x).xp.expand_dims(x, axis=self.axis)

    def collect(self, dx: Array) -> Array:
        """The adjoint of ``share`` under broadcasting: the sum over the query heads of each key head."""
        if self.kv is None:
            return dx
        xp = of(dx).xp
        return xp.squeeze(dx, axis=self.axis) if dx.shape[self.axis] == 1 else xp.sum(dx, axis=self.axis)

    def per_item(self, x: Array, axis: int) -> Array:
        """A (..., n) array that all heads share, ready to broadcast: (..., 1, 1, n, 1) for axis −2, (…, 1, n) for −1."""
        ones = (1, 1) if self.kv is not None else ()
        tail = (x.shape[-1], 1) if axis == -2 else (1, x.shape[-1])
        return of(x).xp.reshape(x, (*x.shape[:-1], *ones, *tail))


def head_map(q: Shape, k: Shape, heads: str) -> HeadMap:
    """The map for arrays of these shapes; `heads` is "grouped" or "tiled".

    Raises
    ------
    ShapeError
        If the number of query heads is no multiple of the number of key heads.
    """
    if len(q) < 3:
        return HeadMap(None, 1, False)
    many, few = q[-3], k[-3]
    if (few == 0 and many != 0) or (few and many % few):
        raise ShapeError(f"q has H={many} heads, which is no multiple of the H_kv={few} of k (q: {q}, k: {k})")
    return HeadMap(few, many // few if few else 1, heads == "tiled")


def check_heads(heads: str) -> None:
    """Refuse a head map that does not exist."""
    if not isinstance(heads, str) or heads not in ("grouped", "tiled"):
        raise OptionError(f"heads={heads!r}: choose 'grouped' (head h reads h // (H/H_kv)) or 'tiled' (h % H_kv)")


def unbroadcast(dx: Array, shape: Shape) -> Array:
    """The adjoint of broadcasting `shape` to the shape of dx: the sum over every axis that was repeated."""
    xp = of(dx).xp
    lead = dx.ndim - len(shape)
    if lead:
        dx = xp.sum(dx, axis=tuple(range(lead)))
    axes = tuple(a for a, size in enumerate(shape) if size == 1 and dx.shape[a] != 1)
    return xp.sum(dx, axis=axes, keepdims=True) if axes else dx
