"""Look-up of rows: each integer is replaced by the row of a table that it names.

    y_t = E_(ids_t)            dE_v = Σ_{t: ids_t = v} dy_t

table: (v, d)   ids: (...), whole numbers 0 … v − 1   y: (..., d).  What is outside of the table is the caller's to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.kernels import kernel
from refattn.ops.base import axes, flat, total
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class Lookup:
    """y_t = E_(ids_t); raises ShapeError."""

    class Inputs(NamedTuple):
        table: Array  # (v, d)
        ids: Array  # (...), int

    class Saved(NamedTuple):
        inputs: Lookup.Inputs

    kinds: ClassVar[Mapping[str, str]] = {"ids": "int"}

    def forward(self, table: Array, ids: Array) -> tuple[Array, Saved]:
        """y; the backward needs the ids and the size of the table."""
        inputs = self.Inputs(table, ids)
        axes(inputs, table="v d")
        xp = of(table, ids).xp
        y = xp.take(table, xp.reshape(ids, (product(ids.shape),)), axis=0)
        return xp.reshape(y, (*ids.shape, table.shape[1])), self.Saved(inputs)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dE_v is the sum of the dy_t that looked v up; ids have no gradient, they are whole numbers."""
        table, ids = saved.inputs
        at = of(ids).xp.reshape(ids, (product(ids.shape),))
        return self.Inputs(sum_rows(flat(dy), at, table.shape[0]), None)

    def cost(self, shapes: Inputs) -> Passes:
        """Rows are moved and added; nothing is multiplied."""
        d = axes(shapes, table="v d")["d"]
        return Passes(Count(0, 0, total(shapes, "ids") * d), Count(0, 0, total(shapes, "table")))


@kernel("sum_rows")
def sum_rows(x: Array, at: Array, size: int) -> Array:
    """Σ of the rows x_t with at_t = v, for every v < size: (rows, d), (rows,) → (size, d); 0 where there is none.

    Nothing is written to one place from two sides: rows are put in order of `at`, and the running sum of each group is
    formed by doubling, sum of 2s rows = sum of s rows + the s rows before, as long as they are of the same group.
    """
    b, rows = of(x, at), x.shape[0]
    xp = b.xp
    if rows == 0:
        return xp.zeros_like(xp.broadcast_to(xp.sum(x, axis=0, keepdims=True), (size, x.shape[1])))
    order = xp.argsort(at, stable=True)
    at, x = xp.take(at, order), xp.take(x, order, axis=0)
    step = 1
    while step < rows:
        same = at[step:] == at[:-step]
        x = xp.concat([x[:step, :], x[step:, :] + xp.where(same[:, None], x[:-step, :], 0.0)], axis=0)
        step *= 2
    names = b.lift(range(size), at)
    last = xp.maximum(xp.searchsorted(at, names, side="right") - 1, 0)
    there = xp.take(at, last) == names
    return xp.where(there[:, None], xp.take(x, last, axis=0), 0.0)
