"""Rows moved along their axis: what falls off the end is gone, what comes in is zero."""

from __future__ import annotations

from typing import Any

from refattn.backend import of

Array = Any


def shift_rows(x: Array, by: int, length: int) -> Array:
    """y_t = x_{t − by} for t = 0 … length − 1, 0 where x has no such row: (..., n, d) → (..., length, d).

    The adjoint is ``shift_rows(dy, -by, n)``.
    """
    n, xp = x.shape[-2], of(x).xp
    first, last = max(-by, 0), min(n, length - by)
    before, rows = min(max(by, 0), length), max(last - first, 0)
    kept = x[..., first : first + rows, :] if rows < n else x
    if rows == length:
        return kept
    blank = xp.sum(xp.zeros_like(x), axis=-2, keepdims=True)
    parts = [(before, None), (rows, kept), (length - before - rows, None)]
    return xp.concat([xp.broadcast_to(blank, (*x.shape[:-2], size, x.shape[-1])) if part is None else part
                      for size, part in parts if size], axis=-2)  # fmt: skip
