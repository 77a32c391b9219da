"""Checkpoint: a stack that keeps the inputs of every k-th layer alone, and computes the rest again when it goes backward.

    kept: x_0, x_k, x_2k, …          backward, segment by segment: x_jk → x_(jk+1), …, with all that its k layers save

Memory is L/k inputs and what k layers save, O(√L) at k = √L; the price is one more forward of the layers.
Chen et al. (arXiv:1604.06174), §4. y and the gradients are those of the stack, to the last bit. What a scheme decides by
values, as buckets, is kept and not decided again: a device may add in another order the second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.cost import Count, Passes
from refattn.errors import OptionError
from refattn.layers.base import Wrapper, gradients_of, layer, replayed
from refattn.shapes import product, shape_of

Array = Any


@dataclass(frozen=True)
class Checkpoint(Wrapper):
    """inner: a Stack. every: k, how many layers a segment has; the last one may have fewer.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Saved(NamedTuple):
        inputs: Any
        starts: Any  # tree.row of the inputs of each segment
        norm: Any = None
        replay: Any = None  # tree.row: an Inputs of each layer with what it decided, None where it decides nothing

    inner: Any
    every: int

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise OptionError(f"every={self.every!r}: give a whole number of layers, 1 or more")
        if not hasattr(self.inner, "step"):
            raise OptionError(f"inner={self.inner!r} is no Stack: only a stack has layers to keep or to compute again")

    @property
    def _segments(self) -> list[range]:
        many = len(self.inner.layers)
        return [range(start, min(start + self.every, many)) for start in range(0, many, self.every)]

    @layer
    def forward(self, inputs: Any, *, block: Any) -> tuple[Array, Saved]:
        """y; what a layer saves is dropped at once."""
        x, starts, decided = inputs.x, [], []
        for segment in self._segments:
            starts.append(x)
            for i in segment:
                f, given = self.inner.layers[i], self.inner.given(i, inputs, x)
                x, kept = self.inner.step(i, inputs, x, block=block)
                found = f.replay(given, kept) if hasattr(f, "replay") else {}
                decided.append(f.Inputs(None, None, **found) if found else None)
                del kept, given
        y, norm = self.inner.last(inputs.params, x)
        kept = tree.row(decided) if any(x is not None for x in decided) else None
        return y, self.Saved(inputs, tree.row(starts), norm, kept)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Any:
        """Each segment forward once more, then backward; what a layer saved goes as soon as it was used."""
        dx, norm = self.inner.last_vjp(saved.norm, dy)
        sums = self.inner.sums()
        for segment, x in zip(reversed(self._segments), reversed(saved.starts), strict=True):
            kept = []
            for i in segment:
                decided = None if saved.replay is None else saved.replay[i]
                replay = {n: a for n, a in (decided._asdict() if decided else {}).items() if a is not None}
                x, layer_saved = self.inner.step(i, saved.inputs, x, block=block, replay=replay)
                kept.append(layer_saved)
            del x, layer_saved
            for i in reversed(segment):
                dx = sums.add(i, self.inner.layers[i].vjp(kept.pop(), dx, block=block))
        return sums.nest(dx, norm)

    def cost(self, shapes: Any) -> Passes:
        """That of the stack, and one more forward of its layers; kept are inputs of segments, decisions and the norm's."""
        given = tree.map(shape_of, shapes)
        plain, norm = self.inner.cost(given), self.inner.last_cost(given.params, given.x)
        again, kept = Count(0, 0, 0), len(self._segments) * product(given.x) + norm.forward.saved
        for i, f in enumerate(self.inner.layers):
            second, decided = replayed(f, self.inner.given(i, given, given.x))
            again, kept = again + f.cost(second).forward, kept + decided
        macs, exps = plain.backward.macs + again.macs, plain.backward.exps + again.exps
        forward = Count(plain.forward.macs, plain.forward.exps, kept)
        return Passes(forward, Count(macs, exps, gradients_of(given, self.kinds, self.fixed)))
