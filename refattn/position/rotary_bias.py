"""A bias by difference of positions in few numbers: two vectors, turned by the positions of query and key.

    T_ij = ⟨R_i a, R_j b⟩ = Σ_f A_f cos (i − j)θ_f + B_f sin (i − j)θ_f,       R_i: the rotation of ``Rope`` at position i
    A_f = a_1 b_1 + a_2 b_2,   B_f = a_1 b_2 − a_2 b_1   over the pairs (1, 2) of frequency f

a, b: (..., s), s even      T: (..., n, m)
Hua et al. (arXiv:2202.10447), appendix, `rel_pos_bias` from 512 tokens on, with s = 128 and halves. Departures: m ≠ n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import ShapeError
from refattn.position.angles import (
    check_base,
    check_float,
    check_pairs,
    check_sizes,
    check_whole,
    frequencies,
    places,
    turns,
)
from refattn.position.rope import rotate, split
from refattn.shapes import shape_of

Array = Any


@dataclass(frozen=True)
class RotaryBias:
    """The bias; the module has the equation. pairs, base: as in ``Rope``. offset: the position of the first query."""

    pairs: str = "halves"
    base: float = 10000.0
    offset: int = 0

    def __post_init__(self) -> None:
        check_pairs(self.pairs)
        check_base(self.base)
        check_whole("offset", self.offset)

    def __call__(self, a: Array, b: Array, n: int, m: int) -> Array:
        return self.forward(a, b, n, m)

    def definition(self, a: Array, b: Array, n: int, m: int) -> Array:
        """T from differences of positions, frequency by frequency; nothing is turned."""
        self._check(a, b, n, m)
        xp, half = of(a, b).xp, a.shape[-1] // 2
        (a1, a2), (b1, b2) = split(a, self.pairs), split(b, self.pairs)
        even, odd = a1 * b1 + a2 * b2, a1 * b2 - a2 * b1
        i, j = places(None, n, self.offset, a), places(None, m, 0, a)
        apart = xp.astype(i[:, None] - j[None, :], xp.float64)
        T = xp.sum(even[..., :0], axis=-1)[..., None, None] + xp.zeros_like(xp.astype(apart, a.dtype))
        theta = frequencies(half, self.base, a)
        for f in range(half):
            angle = apart * theta[f]
            cos, sin = xp.astype(xp.cos(angle), a.dtype), xp.astype(xp.sin(angle), a.dtype)
            T = T + even[..., f, None, None] * cos + odd[..., f, None, None] * sin
        return T

    def forward(self, a: Array, b: Array, n: int, m: int) -> Array:
        """T, in the dtype of a."""
        self._check(a, b, n, m)
        back = of(a, b)
        left, right = self._turned(back.widen(a), n, self.offset), self._turned(back.widen(b), m, 0)
        return back.narrow(back.xp.matmul(left, back.xp.matrix_transpose(right)), a)

    def vjp(self, a: Array, b: Array, dT: Array) -> tuple[Array, Array]:
        """da = Σ_i R_iᵀ Σ_j dT_ij R_j b and db = Σ_j R_jᵀ Σ_i dT_ij R_i a: turned back, then summed over positions."""
        back = of(a, b, dT)
        xp, (n, m), wide = back.xp, dT.shape[-2:], back.widen(dT)
        self._check(a, b, n, m)
        left, right = self._turned(back.widen(a), n, self.offset), self._turned(back.widen(b), m, 0)
        da = self._back(xp.matmul(wide, right), self.offset)
        db = self._back(xp.matmul(xp.matrix_transpose(wide), left), 0)
        return back.narrow(da, a), back.narrow(db, b)

    def _check(self, a: Array, b: Array, n: int, m: int) -> None:
        check_sizes(n=n, m=m)
        for name, x in (("a", a), ("b", b)):
            check_float(name, x)
        if a.shape[-1:] != b.shape[-1:]:
            raise ShapeError(f"a has shape {shape_of(a)} but b has {shape_of(b)}; their last axes are turned together")
        if a.ndim < 1 or a.shape[-1] % 2:
            raise ShapeError(f"a, b have shape {shape_of(a)}; their last axis is turned in pairs and must be even")

    def _turned(self, a: Array, n: int, offset: int) -> Array:
        """R_i a for all positions, (..., s) → (..., n, s)."""
        cos, sin = turns(places(None, n, offset, a), a.shape[-1] // 2, self.base, a)
        return rotate(a[..., None, :], cos, sin, self.pairs)

    def _back(self, x: Array, offset: int) -> Array:
        cos, sin = turns(places(None, x.shape[-2], offset, x), x.shape[-1] // 2, self.base, x)
        return of(x).xp.sum(rotate(x, cos, -sin, self.pairs), axis=-2)
