"""Rotary positions: pairs of features are turned by angles that grow with the position, so that products see differences.

    (y_a, y_b)_i = (x_a cos iθ_f − x_b sin iθ_f,  x_a sin iθ_f + x_b cos iθ_f),      θ_f = base^(−2f / width)
    y_q,i · y_k,j = Σ_f (q_a k_a + q_b k_b) cos (i − j)θ_f + (q_a k_b − q_b k_a) sin (i − j)θ_f + (unturned features)
    pair f of width/2:   halves (a, b) = (f, f + width/2)       neighbours (a, b) = (2f, 2f + 1)

x, y: (..., H, n, d)      positions: (n,), or per item (..., n): the leading axes before the head axis
Su et al. (arXiv:2104.09864), eq. 15 and 34, who pair neighbours. Departures: the other pairing (GPT-NeoX, LLaMA in
transformers, FLASH), a part of the features only (GPT-NeoX), any base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.position.angles import (
    check_base,
    check_float,
    check_pairs,
    check_positions,
    check_whole,
    frequencies,
    over_heads,
    places,
    turns,
)
from refattn.shapes import shape_of

Array = Any


@dataclass(frozen=True)
class Rope:
    """Rotary positions; the module has the equation.

    pairs: "halves" or "neighbours"; published models disagree, so there is no default. base: of the frequencies. width:
    how many features are turned, an even number; None turns all. offset: the position of the first token.

    Raises OptionError, ShapeError or DtypeError for what it can't honour.
    """

    pairs: str
    base: float = 10000.0
    width: int | None = None
    offset: int = 0

    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check_pairs(self.pairs)
        check_base(self.base)
        check_whole("offset", self.offset)
        if self.width is not None:
            check_whole("width", self.width)
        if self.width is not None and (self.width < 0 or self.width % 2):
            raise OptionError(f"width={self.width}: turn an even number of features, 0 or more, or None for all of them")

    def __call__(self, x: Array, positions: Array | None = None) -> Array:
        return self.forward(x, positions)

    def definition(self, q: Array, k: Array, q_positions: Array | None = None, k_positions: Array | None = None) -> Array:
        """Scores y_q · y_k (..., H, n, m) from differences of positions, pair by pair; nothing is turned."""
        for name, x, given in (("q", q, q_positions), ("k", k, k_positions)):
            self._check(name, x, given, f"{name}_positions")
        xp, half, width = of(q, k).xp, self._half(q), 2 * self._half(q)
        i, j = places(q_positions, q.shape[-2], self.offset, q), places(k_positions, k.shape[-2], self.offset, k)
        apart = over_heads(i[..., :, None] - j[..., None, :], 2)
        s = xp.matmul(q[..., width:], xp.matrix_transpose(k[..., width:]))
        theta = frequencies(half, self.base, q)
        for f in range(half):
            a, b = (f, f + half) if self.pairs == "halves" else (2 * f, 2 * f + 1)
            angle = xp.astype(apart, xp.float64) * theta[f]
            (qa, qb), (ka, kb) = (q[..., :, None, a], q[..., :, None, b]), (k[..., None, :, a], k[..., None, :, b])
            cos, sin = xp.astype(xp.cos(angle), q.dtype), xp.astype(xp.sin(angle), q.dtype)
            s = s + (qa * ka + qb * kb) * cos + (qa * kb - qb * ka) * sin
        return s

    def forward(self, x: Array, positions: Array | None = None) -> Array:
        """y, in the dtype of x."""
        b = of(x)
        wide = b.widen(x)
        cos, sin = self.tables(wide, positions)
        return b.narrow(rotate(wide, cos, sin, self.pairs), x)

    def vjp(self, dy: Array, positions: Array | None = None) -> Array:
        """dx: a rotation is linear and orthogonal, so its adjoint turns back, by −position."""
        b = of(dy)
        wide = b.widen(dy)
        cos, sin = self.tables(wide, positions)
        return b.narrow(rotate(wide, cos, -sin, self.pairs), dy)

    def tables(self, x: Array, positions: Array | None = None) -> tuple[Array, Array]:
        """cos and sin for x (..., H, n, d) in its dtype: (n, width/2), or (..., 1, n, width/2) for positions per item."""
        self._check("x", x, positions, "positions")
        cos, sin = turns(places(positions, x.shape[-2], self.offset, x), self._half(x), self.base, x)
        return over_heads(cos, 2), over_heads(sin, 2)

    def _check(self, name: str, x: Array, positions: Array | None, told: str) -> None:
        check_float(name, x)
        if x.ndim < 2:
            raise ShapeError(f"{name} has shape {shape_of(x)}, but needs the axes (..., n, d)")
        check_positions(told, positions, x.shape[-2], shape_of(x)[:-3], self.offset)

    def _half(self, x: Array) -> int:
        d = x.shape[-1]
        width = d if self.width is None else self.width
        if width > d or width % 2:
            raise ShapeError(f"width={self.width} of the d={d} features of {shape_of(x)} can't be turned in pairs: give an "
                             f"even width, {d - d % 2} at most")
        return int(width) // 2


def rotate(x: Array, cos: Array, sin: Array, pairs: str) -> Array:
    """The first 2r features of x (..., n, d), turned pair by pair, given cosines and sines (..., n, r); the rest stays."""
    xp, half = of(x, cos, sin).xp, cos.shape[-1]
    a, b = split(x[..., : 2 * half], pairs)
    y = join(a * cos - b * sin, a * sin + b * cos, pairs)
    return y if 2 * half == x.shape[-1] else xp.concat([y, x[..., 2 * half :]], axis=-1)


def split(x: Array, pairs: str) -> tuple[Array, Array]:
    """First and second members of the pairs, (..., 2r) → two of (..., r)."""
    half = x.shape[-1] // 2
    if pairs == "halves":
        return x[..., :half], x[..., half:]
    both = of(x).xp.reshape(x, (*x.shape[:-1], half, 2))
    return both[..., 0], both[..., 1]


def join(a: Array, b: Array, pairs: str) -> Array:
    """The inverse of ``split``."""
    xp = of(a, b).xp
    if pairs == "halves":
        return xp.concat([a, b], axis=-1)
    return xp.reshape(xp.stack([a, b], axis=-1), (*a.shape[:-1], 2 * a.shape[-1]))


Rope.conventions = {
    "roformer": Rope("neighbours"),  # Su et al.; also GPT-J, which turns 64 of 256 features
    "llama": Rope("halves"),  # transformers' LLaMA: rotate_half; Meta's own code pairs neighbours
    "llama-3": Rope("halves", base=500000.0),  # transformers' LLaMA 3, before its scaling for long contexts
    "gpt-neox-20b": Rope("halves", width=24),  # rotary_pct 0.25 of 96 features
    "flash": Rope("halves"),  # Hua et al. (arXiv:2202.10447), appendix
}
