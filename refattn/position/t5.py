"""T5's relative positions: differences fall into buckets, exact near zero and logarithmic beyond, one bias for each.

    r = j − i.   bidirectional: B buckets for r ≤ 0, B for r > 0, by |r|;   else B for r ≤ 0, and r > 0 counts as 0
    bucket = |r|                                                       for |r| < E = B/2
             min(B − 1, E + ⌊(B − E) log(|r|/E) / log(max_distance/E)⌋)   beyond
    b_hij = table[bucket(j − i), h]

table: (buckets, H), buckets = 2B or B      b: (H, n, m), or (..., H, n, m) for positions per item
Raffel et al. (arXiv:1910.10683), §2.1, and mesh_tensorflow's `_relative_position_bucket` for the formula. Departures: the
floor is taken in whole numbers, so that no logarithm's rounding decides on which side of a boundary a difference falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.position.angles import check_float, check_positions, check_sizes, check_whole, places
from refattn.position.toeplitz import diagonal_sums, toeplitz
from refattn.shapes import product, shape_of

Array = Any


@dataclass(frozen=True)
class T5Bias:
    """T5's bias; the module has the equation.

    buckets: rows of the table, both directions together. max_distance: from here on everything is one bucket.
    bidirectional: keys after the query have buckets of their own. offset: the position of the first query.
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    offset: int = 0

    def __post_init__(self) -> None:
        for name in ("buckets", "max_distance", "offset"):
            check_whole(name, getattr(self, name))
        least = 4 if self.bidirectional else 2
        if self.buckets < least or self.buckets % least:
            raise OptionError(f"buckets={self.buckets}: give a multiple of {least}, half of a direction's are exact")
        if self.max_distance <= self._side // 2:
            raise OptionError(f"max_distance={self.max_distance} must be larger than the {self._side // 2} exact buckets")

    @property
    def _side(self) -> int:
        return self.buckets // 2 if self.bidirectional else self.buckets

    def __call__(self, table: Array, n: int, m: int, **positions: Array | None) -> Array:
        return self.forward(table, n, m, **positions)

    def bucket(self, relative: Array) -> Array:
        """The buckets of differences key − query, integers of any shape."""
        xp = of(relative).xp
        size = xp.abs(relative) if self.bidirectional else xp.abs(xp.where(relative > 0, relative * 0, relative))
        low = xp.where(size < self._side // 2, size, self._side // 2 + size * 0)
        for start in self._starts()[1:]:
            low = low + xp.where(size >= start, size * 0 + 1, size * 0)
        return low + xp.where(relative > 0, size * 0 + self._side, size * 0) if self.bidirectional else low

    def _starts(self) -> list[int]:
        """Where logarithmic buckets start: the least r with (r/E)^L ≥ (max_distance/E)^k, L = B − E, in whole numbers."""
        exact, most = self._side // 2, self.max_distance
        steps, starts, r = self._side - exact, [], exact
        for k in range(steps):
            while r**steps * exact**k < most**k * exact**steps:
                r += 1
            starts.append(r)
        return starts

    def definition(self, table: Array, n: int, m: int) -> Array:
        """b entry by entry, each bucket by search from |r| = 0 upwards."""
        self._check(table, n, m)
        xp, starts = of(table).xp, [*range(self._side // 2), *self._starts()]
        rows = []
        for i in range(n):
            for j in range(m):
                r = j - i - self.offset
                size = abs(r) if self.bidirectional else max(-r, 0)
                rows.append(table[max(t for t, s in enumerate(starts) if s <= size)
                                  + (self._side if self.bidirectional and r > 0 else 0), :])  # fmt: skip
        stacked = xp.stack(rows, axis=-1) if rows else table[0, :, None][:, :0]
        return xp.reshape(stacked, (table.shape[-1], n, m))

    def forward(self, table: Array, n: int, m: int, *, q_positions: Array | None = None, k_positions: Array | None = None
                ) -> Array:
        """b, in the dtype of the table."""
        xp = of(table).xp
        relative, plain = self._relative(table, n, m, q_positions, k_positions)
        chosen = xp.take(table, xp.reshape(self.bucket(relative), (product(relative.shape),)), axis=0)
        if plain:
            return toeplitz(xp.matrix_transpose(chosen), n, m)
        return xp.moveaxis(xp.reshape(chosen, (*relative.shape, table.shape[-1])), -1, -3)

    def vjp(self, table: Array, db: Array, *, q_positions: Array | None = None, k_positions: Array | None = None) -> Array:
        """dtable_th = Σ_{bucket(j − i) = t} db_hij, by whole diagonals where positions are consecutive."""
        b = of(table, db)
        xp, (n, m) = b.xp, db.shape[-2:]
        relative, plain = self._relative(table, n, m, q_positions, k_positions)
        wide = b.widen(db)
        pulled = xp.matrix_transpose(diagonal_sums(wide)) if plain else xp.moveaxis(wide, -3, -1)
        count = product(relative.shape)
        own = xp.reshape(self.bucket(relative), (1, count)) == b.lift(range(self.buckets), table)[:, None]
        return b.narrow(xp.matmul(xp.astype(own, wide.dtype), xp.reshape(pulled, (count, table.shape[-1]))), table)

    def _relative(self, table: Array, n: int, m: int, q_positions: Array | None, k_positions: Array | None
                  ) -> tuple[Array, bool]:
        """Differences (..., n, m), or the n + m − 1 that there are if positions are consecutive; and which of the two."""
        self._check(table, n, m)
        for name, given, size in (("q_positions", q_positions, n), ("k_positions", k_positions, m)):
            check_positions(name, given, size, shape_of(given)[:-1] if given is not None else (),
                            self.offset if name == "q_positions" else 0, whole=True)
        if q_positions is None and k_positions is None:
            first = -self.offset - max(n - 1, 0)
            return of(table).lift(range(first, first + max(n + m - 1, 0)), table), True
        i, j = places(q_positions, n, self.offset, table), places(k_positions, m, 0, table)
        return j[..., None, :] - i[..., :, None], False

    def _check(self, table: Array, n: int, m: int) -> None:
        check_sizes(n=n, m=m)
        check_float("table", table)
        if table.ndim != 2 or table.shape[0] != self.buckets:
            raise ShapeError(f"table has shape {shape_of(table)}; give one row for each of the {self.buckets} buckets, "
                             "(buckets, H)")
