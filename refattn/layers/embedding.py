"""Embedding: tokens as rows of a table, and where they stand: learned positions, or sinusoids.

    y_t = s E_(ids_t) + P_t              s = 1, or √d (scale=True);  P_t of a table that is learned
    y_t = s E_(ids_t) + a e_t            e_t the sinusoids of t;  a = 1, or a number that is learned (scaled=True: ScaledSin)

ids: (..., n), whole numbers 0 … v − 1   E: (v, d)   P: (L, d), L ≥ n   a: ()   y: (..., n, d)
Vaswani et al. (arXiv:1706.03762), §3.4 and 3.5, who multiply by √d; learned positions as in Gehring et al.
(arXiv:1705.03122); ScaledSin as in Hua et al. (arXiv:2202.10447), whose a starts at 1/√d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import layer, size
from refattn.ops.base import axes, zeros
from refattn.ops.erf import root
from refattn.ops.lookup import Lookup
from refattn.rng import Source
from refattn.shapes import product, shape_of

Array = Any
_look_up = Lookup()


@dataclass(frozen=True)
class Embedding:
    """positions: None, "learned", or a position.sinusoid.Sinusoid; scaled: a is learned. scale: rows of E times √d.

    NumPy's ids are checked; on other devices that would mean to wait for them, and what is outside of the table is up to
    the library. Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        table: Array  # (v, d)
        positions: Array | None = None  # (L, d)
        factor: Array | None = None  # (), a

    class Inputs(NamedTuple):
        ids: Array  # (..., n), int
        params: Embedding.Params

    class Saved(NamedTuple):
        inputs: Embedding.Inputs

    positions: Any = None
    scaled: bool = False
    scale: bool = False

    kinds: ClassVar[Mapping[str, str]] = {"ids": "int"}
    fixed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.positions not in (None, "learned") and not hasattr(self.positions, "table"):
            raise OptionError(f"positions={self.positions!r}: give None, 'learned', or a Sinusoid, as Sinusoid('halves')")
        if self.scaled and self._sinusoid is None:
            raise OptionError(f"scaled=True is for a Sinusoid, not for positions={self.positions!r}")

    @property
    def _sinusoid(self) -> Any:
        return None if self.positions in (None, "learned") else self.positions

    def init(self, sizes: Mapping[str, int], rng: Source) -> Params:
        """sizes: v, d, and L for learned positions. Normal numbers: rows of s E have variance 1; a = 1/√d."""
        v, d = size(sizes, "v", self), size(sizes, "d", self)
        table = rng.at("table").normal((v, d), max(d, 1) ** -0.5 if self.scale else 1.0)
        learned = None
        if self.positions == "learned":
            learned = rng.at("positions").normal((size(sizes, "L", self), d), 0.02)
        return self.Params(table, learned, rng.filled((), max(d, 1) ** -0.5) if self.scaled else None)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes: v·d, L·d for learned positions, 1 for a."""
        rows = size(sizes, "v", self) + (size(sizes, "L", self) if self.positions == "learned" else 0)
        return rows * size(sizes, "d", self) + int(self.scaled)

    def check(self, inputs: Inputs) -> None:
        """Refuse parameters that do not fit, sequences that are too long, and ids outside of the table."""
        ids, p = inputs
        shape = shape_of(ids)
        if not shape:
            raise ShapeError("ids has shape (): give a sequence, (..., n)")
        axes(p, table="v d", positions="L d", factor="")
        for name, wanted in (("positions", self.positions == "learned"), ("factor", self.scaled)):
            if (getattr(p, name) is not None) != wanted:
                there = "missing" if wanted else "given"
                raise OptionError(f"params.{name} is {there}, with positions={self.positions!r} and scaled={self.scaled}")
        if p.positions is not None and shape[-1] > shape_of(p.positions)[0]:
            raise ShapeError(f"ids has n={shape[-1]} tokens, but only {shape_of(p.positions)[0]} positions are learned")
        rows = shape_of(p.table)[0]
        if product(shape) and of(ids).name == "numpy":
            least, most = int(ids.min()), int(ids.max())
            if least < 0 or most >= rows:
                raise OptionError(f"ids from {least} to {most}, but the table has rows 0 … {rows - 1}")

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        return (*given.ids, given.params.table[1])

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """y; the backward needs the ids."""
        ids, p = inputs
        y, _ = _look_up.forward(p.table, ids)
        y = y * self._factor(p.table) if self.scale else y
        if p.positions is not None:
            y = y + p.positions[: ids.shape[-1], :]
        return (y if self._sinusoid is None else self._sinusoid.forward(y, p.factor)), self.Saved(inputs)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """dE = s × the sum of dy where a token stood,  dP_t = Σ_items dy_t,  da = Σ dy · e."""
        ids, p = saved.inputs
        xp = of(dy).xp
        dtable = _look_up.vjp(Lookup.Saved(Lookup.Inputs(p.table, ids)), dy).table
        dtable = dtable * self._factor(p.table) if self.scale else dtable
        dfactor = None if p.factor is None else self._sinusoid.vjp(dy, p.factor, dy)[1]
        if p.positions is None:
            return self.Inputs(None, self.Params(dtable, factor=dfactor))
        dpositions = xp.sum(dy, axis=tuple(range(dy.ndim - 2)))
        rest = p.positions.shape[0] - dpositions.shape[0]
        if rest:
            dpositions = xp.concat([dpositions, zeros(p.positions, rest)], axis=0)
        return self.Inputs(None, self.Params(dtable, dpositions))

    def _factor(self, table: Array) -> Any:
        return root(table, max(table.shape[1], 1))

    def cost(self, shapes: Inputs) -> Passes:
        """Rows are moved and added, nothing is contracted; sinusoids take d/2 powers of their base."""
        given = tree.map(shape_of, shapes)
        d = given.params.table[1]
        powers = 0 if self._sinusoid is None else d // 2
        grads = sum(map(product, tree.leaves(given.params)))
        return Passes(Count(0, powers, product(given.ids) * d), Count(0, powers if self.scaled else 0, grads))
