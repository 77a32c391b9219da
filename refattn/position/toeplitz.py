"""A bias that depends on the difference of positions alone, one number for each difference.

    T_ij = w_{j − i − offset + c},      w = (w_0 … w_{2c}), its middle w_c belongs to difference 0
    dw_t = Σ_{j − i − offset + c = t} dT_ij

w: (..., 2c + 1), c ≥ all differences      T: (..., n, m)
Hua et al. (arXiv:2202.10447), appendix, `rel_pos_bias` below 512 tokens, where c = n − 1. Departures: n = 1, for which the
published code's slice is empty; m ≠ n; a w that is longer than needed is used about its middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import ShapeError
from refattn.position.angles import check_float, check_sizes, check_whole
from refattn.shapes import shape_of

Array = Any


@dataclass(frozen=True)
class ToeplitzBias:
    """A bias by difference of positions; the module has the equation. offset: the position of the first query."""

    offset: int = 0

    def __post_init__(self) -> None:
        check_whole("offset", self.offset)

    def __call__(self, w: Array, n: int, m: int) -> Array:
        return self.forward(w, n, m)

    def definition(self, w: Array, n: int, m: int) -> Array:
        """T entry by entry."""
        self._first(w, n, m)
        xp, c = of(w).xp, w.shape[-1] // 2
        entries = [w[..., j - i - self.offset + c] for i in range(n) for j in range(m)]
        stacked = xp.stack(entries, axis=-1) if entries else w[..., :0]
        return xp.reshape(stacked, (*w.shape[:-1], n, m))

    def forward(self, w: Array, n: int, m: int) -> Array:
        """T, in the dtype of w."""
        first = self._first(w, n, m)
        return toeplitz(w[..., first : first + max(n + m - 1, 0)], n, m)

    def vjp(self, w: Array, dT: Array) -> Array:
        """dw: the sums of the diagonals of dT; differences that do not occur have gradient 0."""
        b = of(w, dT)
        xp, (n, m), first = b.xp, dT.shape[-2:], self._first(w, *dT.shape[-2:])
        sums = diagonal_sums(b.widen(dT))
        lead, rest = sums.shape[:-1], w.shape[-1] - first - max(n + m - 1, 0)
        parts = [_zeros(sums, (*lead, first)), sums, _zeros(sums, (*lead, rest))]
        return b.narrow(xp.concat(parts, axis=-1), w)

    def _first(self, w: Array, n: int, m: int) -> int:
        """Where the smallest difference stands in w."""
        check_sizes(n=n, m=m)
        check_float("w", w)
        c, extra = divmod(w.shape[-1] - 1, 2) if w.ndim else (0, 1)
        first = c - self.offset - max(n - 1, 0)
        if extra or first < 0 or first + max(n + m - 1, 0) > w.shape[-1]:
            least = 2 * max(self.offset + n - 1, m - 1 - self.offset, 0) + 1
            raise ShapeError(f"w has shape {shape_of(w)}; n={n}, m={m}, offset={self.offset} needs an odd number of "
                             f"entries, {least} or more, with difference 0 in the middle")
        return int(first)


def toeplitz(w: Array, n: int, m: int) -> Array:
    """T_ij = w_{j − i + n − 1}, (..., n + m − 1) → (..., n, m): rows of a sheet one entry too long lie one step apart."""
    check_sizes(n=n, m=m)
    xp = of(w).xp
    lead, length = w.shape[:-1], w.shape[-1]
    if n == 0 or m == 0:
        return xp.reshape(w[..., :0], (*lead, n, m))
    sheet = xp.broadcast_to(w[..., None, :], (*lead, n, length))
    flat = xp.concat([xp.reshape(sheet, (*lead, n * length)), _zeros(w, (*lead, n))], axis=-1)
    return xp.flip(xp.reshape(flat, (*lead, n, length + 1))[..., :m], axis=-2)


def diagonal_sums(dT: Array) -> Array:
    """The adjoint of ``toeplitz``: dw_t = Σ_{j − i + n − 1 = t} dT_ij, (..., n, m) → (..., n + m − 1)."""
    xp = of(dT).xp
    (*lead, n, m) = dT.shape
    length = max(n + m - 1, 0)
    if n == 0 or m == 0:
        return _zeros(dT, (*lead, length))
    sheet = xp.concat([xp.flip(dT, axis=-2), _zeros(dT, (*lead, n, n))], axis=-1)
    flat = xp.reshape(sheet, (*lead, n * (length + 1)))[..., : n * length]
    return xp.sum(xp.reshape(flat, (*lead, n, length)), axis=-2)


def _zeros(like: Array, shape: tuple[int, ...]) -> Array:
    """Zeros in the dtype and on the device of `like`."""
    xp = of(like).xp
    return xp.broadcast_to(xp.sum(xp.zeros_like(like)), shape)
