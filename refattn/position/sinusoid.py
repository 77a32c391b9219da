"""Sinusoids of the position, added to embeddings, with a learned factor where one is given (ScaledSin).

    y_i = x_i + scalar · e_i         e_i = (sin iθ_f, cos iθ_f) for f = 0 … D/2 − 1,   θ_f = base^(−2f / D)
    halves: all sines, then all cosines        neighbours: sine and cosine in turn

x, y: (..., n, D), D even      scalar: (), starts at 1/√D in FLASH; absent: 1      positions: (n,) or (..., n)
Vaswani et al. (arXiv:1706.03762), §3.5: neighbours. Hua et al. (arXiv:2202.10447), appendix, ScaledSin, and
Transformer-XL (arXiv:1901.02860, code): halves.
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
    check_sizes,
    check_whole,
    frequencies,
    places,
    turns,
)
from refattn.position.rope import join
from refattn.shapes import shape_of

Array = Any


@dataclass(frozen=True)
class Sinusoid:
    """Sinusoids; the module has the equation.

    pairs: "halves" or "neighbours"; published code disagrees, so there is no default. offset: position of the first token.
    """

    pairs: str
    base: float = 10000.0
    offset: int = 0

    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check_pairs(self.pairs)
        check_base(self.base)
        check_whole("offset", self.offset)

    def __call__(self, x: Array, scalar: Array | None = None, positions: Array | None = None) -> Array:
        return self.forward(x, scalar, positions)

    def table(self, like: Array, width: int, n: int, positions: Array | None = None) -> Array:
        """e (..., n, width), in the dtype of `like`."""
        check_sizes(n=n, width=width)
        check_positions("positions", positions, n, shape_of(positions)[:-1] if positions is not None else (), self.offset)
        if width % 2:
            raise OptionError(f"width={width}: sines and cosines come in pairs, give an even width")
        cos, sin = turns(places(positions, n, self.offset, like), width // 2, self.base, like)
        return join(sin, cos, self.pairs)

    def definition(self, x: Array, scalar: Array | None = None) -> Array:
        """y token by token and feature by feature, one frequency at a time."""
        xp, b = of(x).xp, of(x)
        n, half = x.shape[-2], x.shape[-1] // 2
        features, theta = [], frequencies(half, self.base, x)
        for c in range(2 * half):
            f, cosine = (c % half, c >= half) if self.pairs == "halves" else (c // 2, c % 2 == 1)
            position = xp.astype(b.lift(range(self.offset, self.offset + n), x), xp.float64)
            turn = xp.cos if cosine else xp.sin
            features.append(xp.astype(turn(position * theta[f]), x.dtype))
        if not features:
            return x * 1.0
        e = xp.stack(features, axis=-1)
        return x + (e if scalar is None else e * scalar)

    def forward(self, x: Array, scalar: Array | None = None, positions: Array | None = None) -> Array:
        """y, in the dtype of x."""
        b = of(x)
        wide = b.widen(x)
        e = self._table_of(wide, scalar, positions)
        return b.narrow(wide + (e if scalar is None else e * b.widen(scalar)), x)

    def vjp(self, x: Array, scalar: Array | None, dy: Array, positions: Array | None = None) -> tuple[Array, Array | None]:
        """dx = dy; dscalar = Σ dy · e, None where no scalar was given."""
        b = of(x, dy)
        wide = b.widen(dy)
        if scalar is None:
            return b.narrow(wide * 1.0, x), None
        return b.narrow(wide * 1.0, x), b.narrow(b.xp.sum(wide * self._table_of(b.widen(x), scalar, positions)), scalar)

    def _table_of(self, x: Array, scalar: Array | None, positions: Array | None) -> Array:
        check_float("x", x)
        if x.ndim < 2:
            raise ShapeError(f"x has shape {shape_of(x)}, but needs the axes (..., n, D)")
        check_positions("positions", positions, x.shape[-2], shape_of(x)[:-2], self.offset)
        if scalar is not None and scalar.ndim:
            raise ShapeError(f"scalar has shape {shape_of(scalar)}; it is one number for the whole table, ()")
        return self.table(x, x.shape[-1], x.shape[-2], positions)


Sinusoid.conventions = {
    "vaswani": Sinusoid("neighbours"),  # Attention is all you need, §3.5
    "transformer-xl": Sinusoid("halves"),  # kimiyoung/transformer-xl, PositionalEmbedding, used as a table of differences
    "flash": Sinusoid("halves"),  # ScaledSin, with its scalar
}
