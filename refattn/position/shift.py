"""Transformer-XL's relative shift: scores by distance become scores by key.

    out_ij = raw_{i, j + n − 1 − i}      for j ≤ i + m − n          (query i stands at position i + m − n)
             0                           above                      wrapped: what reshaping leaves there

raw, out: (..., n, m); column c of raw belongs to distance m − 1 − c.
Dai et al. (arXiv:1901.02860), appendix B, and `_rel_shift` of their code, which leaves a zero and parts of the next row
above the causal diagonal: these must be masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.position.angles import check_float
from refattn.shapes import shape_of

Array = Any


@dataclass(frozen=True)
class RelativeShift:
    """The shift; the module has the equation. above: "zero", or "wrapped" for the published code bit for bit."""

    above: str = "zero"

    def __post_init__(self) -> None:
        if self.above not in ("zero", "wrapped"):
            raise OptionError(f"above={self.above!r}: choose 'zero' or 'wrapped' (as the published code leaves it)")

    def __call__(self, raw: Array) -> Array:
        return self.forward(raw)

    def definition(self, raw: Array) -> Array:
        """out entry by entry; above the diagonal what follows raw_i in memory, with a zero before every row."""
        (*lead, n, m), xp = raw.shape, of(raw).xp
        blank, entries = xp.sum(xp.zeros_like(raw), axis=(-2, -1)), []
        for i in range(n):
            for j in range(m):
                further, beyond = divmod(j - (i + m - n) - 1, m + 1)
                if further < 0:
                    entries.append(raw[..., i, j + n - 1 - i])
                elif self.above == "zero" or beyond == 0:
                    entries.append(blank)
                else:
                    entries.append(raw[..., i + 1 + further, beyond - 1])
        stacked = xp.stack(entries, axis=-1) if entries else raw
        return xp.reshape(stacked, (*lead, n, m))

    def forward(self, raw: Array) -> Array:
        """out: a zero in front of every row, and the whole read from its n-th entry on in rows of m."""
        xp = self._check(raw)
        (*lead, n, m) = raw.shape
        longer = xp.concat([xp.sum(xp.zeros_like(raw), axis=-1, keepdims=True), raw], axis=-1)
        out = xp.reshape(xp.reshape(longer, (*lead, n * (m + 1)))[..., n:], (*lead, n, m))
        return out if self.above == "wrapped" else xp.tril(out, k=m - n)

    def vjp(self, dout: Array) -> Array:
        """draw: the same entries moved back; the shift only moves, so its adjoint is its inverse where there is one."""
        xp = self._check(dout)
        (*lead, n, m) = dout.shape
        dout = dout if self.above == "wrapped" else xp.tril(dout, k=m - n)
        before = xp.sum(xp.zeros_like(dout), axis=-1)
        flat = xp.concat([before, xp.reshape(dout, (*lead, n * m))], axis=-1)
        return xp.reshape(flat, (*lead, n, m + 1))[..., 1:]

    def _check(self, raw: Array) -> Any:
        check_float("raw", raw)
        if raw.ndim < 2:
            raise ShapeError(f"raw has shape {shape_of(raw)}, but needs the axes (..., n, m)")
        return of(raw).xp
