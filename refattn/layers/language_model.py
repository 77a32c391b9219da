"""Language model: tokens in, a score for every word of the vocabulary out; the table of words may be used at both ends.

    logits = f(E_ids + …) Eᵀ + b        tied=True            logits = f(E_ids + …) W + b        tied=False

ids: (..., n), whole numbers 0 … v − 1   E: (v, d)   W: (o, v), o the width of f's y   b: (v,) or None   logits: (..., n, v)
Press and Wolf (arXiv:1608.05859); Vaswani et al. (arXiv:1706.03762), §3.4. A tied table stands once among the parameters, in
the embedding; its gradient is the sum of that of the rows that were looked up and that of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError
from refattn.layers.base import dense_weight, gradients_of, layer, size
from refattn.ops.projection import Projection
from refattn.rng import Source
from refattn.shapes import shape_of

Array = Any
_project = Projection()


@dataclass(frozen=True)
class LanguageModel:
    """embedding: an Embedding. body: a layer of x, as a Stack. tied: the head is the table. bias: ``init`` makes b.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        embedding: Any
        body: Any
        w: Array | None = None  # (o, v), of a head that is not tied
        b: Array | None = None  # (v,)

    class Inputs(NamedTuple):
        ids: Array  # (..., n), int
        params: LanguageModel.Params
        given: Any = None  # an Inputs of the body: what it reads beside x and parameters, which are None

    class Saved(NamedTuple):
        inputs: LanguageModel.Inputs
        embedding: Any
        body: Any
        y: Array  # (..., n, o), of the body

    embedding: Any
    body: Any
    tied: bool = True
    bias: bool = False

    @property
    def kinds(self) -> Mapping[str, str]:
        return {"ids": "int", **{f"given.{name}": kind for name, kind in self.body.kinds.items()}}

    @property
    def fixed(self) -> tuple[str, ...]:
        return tuple(f"given.{name}" for name in self.body.fixed)

    def init(self, sizes: Mapping[str, int], rng: Source) -> Params:
        """sizes: v, d, and what embedding and body need; o, the width of the body's y, if the head is not tied (d)."""
        v, d = size(sizes, "v", self), size(sizes, "d", self)
        o = sizes.get("o", d)
        inside = {letter: size for letter, size in sizes.items() if letter != "o"}
        w = None if self.tied else dense_weight(rng.at("w"), o, v)
        return self.Params(self.embedding.init(inside, rng.at("embedding")), self.body.init(inside, rng.at("body")), w,
                           rng.filled((v,), 0.0) if self.bias else None)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes; a tied table counts once."""
        v, d = size(sizes, "v", self), size(sizes, "d", self)
        o = sizes.get("o", d)
        inside = {letter: size for letter, size in sizes.items() if letter != "o"}
        made: int = self.embedding.parameters(inside) + self.body.parameters(inside)
        return made + (0 if self.tied else o * v) + (v if self.bias else 0)

    def check(self, inputs: Inputs) -> None:
        """Refuse a head that is there twice or not at all; embedding and body check the rest."""
        p, given = inputs.params, inputs.given
        if (p.w is None) != self.tied:
            raise OptionError(f"tied={self.tied}, but params.w is {'missing' if p.w is None else 'given'}")
        if given is not None and not isinstance(given, self.body.Inputs):
            raise OptionError(f"given is a {type(given).__name__}: give an Inputs of {type(self.body).__name__}")
        if given is not None and (given.x is not None or given.params is not None):
            raise OptionError("given has x or params, which the model has itself: leave None there")

    def _inside(self, inputs: Inputs, x: Array) -> Any:
        """The Inputs of the body, of arrays or of shapes."""
        if inputs.given is None:
            return self.body.Inputs(x, inputs.params.body)
        return inputs.given._replace(x=x, params=inputs.params.body)

    def _head(self, params: Params, y: Array) -> Any:
        w = params.w
        if self.tied:
            table = params.embedding.table
            w = table[::-1] if isinstance(table, tuple) else of(table).xp.matrix_transpose(table)
        return Projection.Inputs(y, w, params.b)

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of the logits."""
        return (*given.ids, given.params.embedding.table[0])

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """The logits, with what embedding and body save."""
        x, embedded = self.embedding.forward(inputs.ids, inputs.params.embedding, block=block)
        y, kept = self.body.forward(self._inside(inputs, x), block=block)
        return _project.forward(*self._head(inputs.params, y))[0], self.Saved(inputs, embedded, kept, y)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """Through the head, the body and the embedding; of a tied table dE = dlogitsᵀ y + that of the look-up."""
        inputs, embedded, kept, y = saved
        head = _project.vjp(Projection.Saved(self._head(inputs.params, y)), dy)
        body = self.body.vjp(kept, head.x, block=block)
        table = self.embedding.vjp(embedded, body.x, block=block).params
        if self.tied:
            table = table._replace(table=table.table + of(head.w).xp.matrix_transpose(head.w))
        given = None if inputs.given is None else body._replace(x=None, params=None)
        return self.Inputs(None, self.Params(table, body.params, None if self.tied else head.w, head.b), given)

    def cost(self, shapes: Inputs) -> Passes:
        """The sum over embedding, body and head."""
        given = tree.map(shape_of, shapes)
        embedding = self.embedding.Inputs(given.ids, given.params.embedding)
        inside = self._inside(given, self.embedding.result(embedding))
        total = self.embedding.cost(embedding) + self.body.cost(inside)
        total += _project.cost(self._head(given.params, self.body.result(inside)))
        backward = Count(total.backward.macs, total.backward.exps, gradients_of(given, self.kinds, self.fixed))
        return Passes(total.forward, backward)
