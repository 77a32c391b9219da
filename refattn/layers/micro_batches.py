"""Micro-batches: the items of a batch a few at a time, with gradients of the parameters that add up.

    y[i : i + b/m] = f(x[i : i + b/m], θ)   for m parts of a batch of b,        dθ = Σ_parts dθ_part

``accumulate`` goes forward and backward through one part before it begins the next, as gradient accumulation does: what is
alive is what one part saves, and nothing is computed twice. ``forward`` and ``vjp`` do the same for a layer inside others:
they keep the inputs, and the backward computes each part again. Exact for every layer that treats items apart.
Huang et al. (arXiv:1811.06965) call the parts micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import AUTO, of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import Wrapper, bound, gradients_of, layer, like_of, narrowed
from refattn.schemes.base import admit
from refattn.shapes import product, shape_of

Array = Any
LEAST = {"x": 3, "context": 3, "values": 3}  # axes, the batch among them


@dataclass(frozen=True)
class MicroBatches(Wrapper):
    """inner: a layer. parts: m. batched: names of the inputs whose first axis is the batch; other inputs go to every part.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Saved(NamedTuple):
        inputs: Any

    inner: Any
    parts: int
    batched: tuple[str, ...] = ("x", "ids", "context", "values", "given.context")

    def __post_init__(self) -> None:
        if isinstance(self.parts, bool) or not isinstance(self.parts, int) or self.parts < 1:
            raise OptionError(f"parts={self.parts!r}: give a whole number of parts, 1 or more")

    def check(self, inputs: Any) -> None:
        """Refuse batches that can't be cut, and what the layer inside refuses."""
        self._cuts(tree.map(shape_of, inputs))
        self.inner.check(inputs)

    def _cuts(self, given: Any) -> list[slice]:
        shapes = {name: shape for name, shape in tree.items(given) if name in self.batched}
        listed = ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
        if not shapes or any(len(shape) < LEAST.get(name.rpartition(".")[2], 2) for name, shape in shapes.items()):
            raise ShapeError(f"there is no batch to cut: {listed or 'nothing'} of {', '.join(self.batched)}")
        first = {shape[0] for shape in shapes.values()}
        if len(first) > 1 or min(first) % self.parts:
            raise ShapeError(f"the first axis can't be cut into {self.parts} equal parts: {listed}")
        step = min(first) // self.parts
        return [slice(i * step, (i + 1) * step) for i in range(self.parts)]

    def _each(self, nest: Any, change: Callable[[Any, bool], Any], prefix: str = "") -> Any:
        """The nest with ``change(leaf, whether it is batched)`` for every leaf."""
        if nest is None or not tree.is_branch(nest):
            return None if nest is None else change(nest, prefix[1:] in self.batched)
        fields = zip(nest._fields, nest, strict=True)
        return type(nest)(*(self._each(x, change, f"{prefix}.{name}") for name, x in fields))

    def _part(self, inputs: Any, at: slice) -> Any:
        return self._each(inputs, lambda x, cut: x[at, ...] if cut else x)

    def _sum(self, parts: Callable[[slice], Any], inputs: Any) -> Any:
        """The gradients of all parts: those of batched inputs side by side, the others added, one array at a time."""
        total: list[Any] = []
        pieces = []
        for at in self._cuts(tree.map(shape_of, inputs)):
            grads = parts(at)
            pieces.append(self._each(grads, lambda g, cut: g if cut else None))
            rest = self._each(grads, lambda g, cut: None if cut else g)
            shapes, leaves = tree.map(shape_of, rest), tree.leaves(rest)
            del grads, rest
            total = total or [None] * len(leaves)
            for i, g in enumerate(leaves):
                total[i] = tree.add(total[i], g)
                leaves[i] = None
            del g
        return tree.add(tree.map(lambda _: total.pop(0), shapes), _side_by_side(pieces))

    @layer
    def forward(self, inputs: Any, *, block: Any) -> tuple[Array, Saved]:
        """y; what a part saves is dropped at once."""
        made = []
        for at in self._cuts(tree.map(shape_of, inputs)):
            part = self._part(inputs, at)
            y = self.inner.forward(part, block=block)[0]
            wanted = self.inner.result(tree.map(shape_of, part))
            if shape_of(y) != wanted:
                raise ShapeError(f"a part has y of shape {shape_of(y)}, not {wanted}: name whatever has the batch "
                                 f"as its first axis in batched={self.batched}")
            made.append(y)
        return of(y).xp.concat(made, axis=0), self.Saved(inputs)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Any:
        """Each part forward once more, then backward."""

        def part(at: slice) -> Any:
            return self.inner.vjp(self.inner.forward(self._part(saved.inputs, at), block=block)[1], dy[at, ...], block=block)

        return self._sum(part, saved.inputs)

    def accumulate(self, inputs: Any, pull: Callable[[Array, slice], Array], *, block: Any = AUTO) -> Any:
        """Gradients of a loss, part by part: ``pull(y, at)`` is its gradient at y of the items in a slice."""
        mine: Any = self
        b, inputs = admit(mine, (bound(mine, (inputs,), {}),), {})
        wide = tree.map(b.widen, inputs)

        def part(at: slice) -> Any:
            y, kept = self.inner.forward(self._part(wide, at), block=block)
            dy = b.widen(pull(b.narrow(y, like_of(inputs)), at))
            del y
            return self.inner.vjp(kept, dy, block=block)

        return narrowed(b, self._sum(part, wide), inputs)

    def cost(self, shapes: Any) -> Passes:
        """m times that of a part, whose forward ``vjp`` computes again; y alone is kept."""
        given = tree.map(shape_of, shapes)
        step = self._cuts(given)[0].stop
        one = self.inner.cost(self._each(given, lambda x, cut: (step, *x[1:]) if cut else x))
        forward, backward = one.forward, one.backward
        macs, exps = self.parts * forward.macs, self.parts * forward.exps
        kept, grads = product(self.result(given)), gradients_of(given, self.kinds, self.fixed)
        return Passes(Count(macs, exps, kept),
                      Count(macs + self.parts * backward.macs, exps + self.parts * backward.exps, grads))


def _side_by_side(pieces: list[Any]) -> Any:
    """Nests of equal structure, leaf by leaf one array along the first axis."""
    first = pieces[0]
    if first is None:
        return None
    if tree.is_branch(first):
        return type(first)(*(_side_by_side(list(leaves)) for leaves in zip(*pieces, strict=True)))
    return of(first).xp.concat(pieces, axis=0)
