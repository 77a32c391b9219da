"""Reversible stack: two streams, each of which is changed by the other alone, so that the inputs follow from the outputs.

    x₁ = x₂ = x      per block:  y₁ = x₁ + F(x₂),  y₂ = x₂ + G(y₁)      backward:  x₂ = y₂ − G(y₁),  x₁ = y₁ − F(x₂)
    y = N([y₁ y₂])  (join="concat")          y = N((y₁ + y₂)/2)  (join="mean")          N the norm of the stack, if any

F = attention ∘ norm, G = feed-forward ∘ norm of a "pre" block.   x: (..., n, d)   y: (..., n, 2d), of the mean (..., n, d).
Gomez et al. (arXiv:1707.04585), §3; Kitaev et al. (arXiv:2001.04451), §3. trax and Hugging Face's Reformer join by
concatenation before the last norm, lucidrains' reformer_pytorch by the mean. Only the last y₁, y₂ are kept, whatever the
depth, for one more forward of the layers. Inputs are recovered to rounding, not to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError
from refattn.layers.base import Wrapper, gradients_of, layer, replayed, size
from refattn.ops.base import one_of
from refattn.rng import Source
from refattn.shapes import product, shape_of

Array = Any


@dataclass(frozen=True)
class Reversible(Wrapper):
    """inner: a Stack of "pre" blocks without cross-attention. join: what becomes of the two streams.

    Whatever is random is an input, a dropout mask among ``others``: the second forward of a block reads the same. What a
    scheme decides by values, as buckets, is kept: recovered inputs differ by rounding, and might be decided otherwise.
    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Saved(NamedTuple):
        inputs: Any
        y1: Array  # (..., n, d)
        y2: Array
        norm: Any = None
        replay: Any = None  # tree.row of what attention decided, as its `others`; None where it decides nothing

    inner: Any
    join: str = "concat"

    def __post_init__(self) -> None:
        one_of(("concat", "mean"), join=self.join)
        if not hasattr(self.inner, "step"):
            raise OptionError(f"inner={self.inner!r} is no Stack: two streams need a Stack of pre-norm Blocks")
        for i, f in enumerate(self.inner.layers):
            if not hasattr(f, "branch") or f.order != "pre" or f.cross is not None:
                raise OptionError(f"layer {i} is {f!r}: two streams need a Stack of pre-norm Blocks without cross-attention")

    def _width(self, d: int) -> int:
        return 2 * d if self.join == "concat" else d

    def init(self, sizes: Mapping[str, int], rng: Source) -> Any:
        """Those of the stack, the last norm as wide as what it reads."""
        return self.inner.init(sizes, rng, self._width(size(sizes, "d", self)))

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes."""
        found: int = self.inner.parameters(sizes, self._width(size(sizes, "d", self)))
        return found

    def check(self, inputs: Any) -> None:
        """Refuse what the stack and its blocks refuse."""
        self.inner.check(inputs)
        for i, f in enumerate(self.inner.layers):
            f.check(self.inner.given(i, inputs, inputs.x))

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        return (*given.x[:-1], self._width(given.x[-1]))

    @layer
    def forward(self, inputs: Any, *, block: Any) -> tuple[Array, Saved]:
        """y, with the two streams after the last block."""
        y1 = y2 = inputs.x
        decided = []
        for i, f in enumerate(self.inner.layers):
            given = self.inner.given(i, inputs, inputs.x)
            made, _, kept = f.branch("attention", given, y2, block=block)
            decided.append(f.replay_part("attention", given, kept))
            y1 = f.added("attention", y1, made)
            del made, kept
            y2 = f.added("feed_forward", y2, f.branch("feed_forward", given, y1, block=block)[0])
        if self.join == "concat":
            d = y1.shape[-1]
            joined = of(y1).xp.concat([y1, y2], axis=-1)
            y1, y2 = joined[..., :d], joined[..., d:]
        else:
            joined = (y1 + y2) * 0.5
        y, norm = self.inner.last(inputs.params, joined)
        return y, self.Saved(inputs, y1, y2, norm, tree.row(decided) if any(x is not None for x in decided) else None)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Any:
        """From the last block to the first, with t = dy₁ + Gᵀ dy₂ at y₁ and x₂, x₁ recovered on the way:

        dx₁ = t,   dx₂ = dy₂ + Fᵀ t at x₂;       dx = dx₁ + dx₂ of the first block, which reads x twice.
        """
        inputs, y1, y2, norm, decided = saved
        pull, dnorm = self.inner.last_vjp(norm, dy)
        d = y1.shape[-1]
        dy1, dy2 = (pull[..., :d], pull[..., d:]) if self.join == "concat" else (pull * 0.5,) * 2
        del pull
        sums = self.inner.sums()
        for i in reversed(range(len(self.inner.layers))):
            given = self.inner.given(i, inputs, inputs.x)
            if decided is not None and decided[i] is not None:
                given = given._replace(others=decided[i])
            y2, dy1, feed = self._back(i, "feed_forward", given, y1, y2, dy2, dy1, block)
            y1, dy2, attention = self._back(i, "attention", given, y2, y1, dy1, dy2, block)
            sums.add(i, self._gathered(given, feed, attention))
        return sums.nest(dy1 + dy2, dnorm)

    def _back(self, i: int, name: str, given: Any, x: Array, y: Array, dy: Array, dx: Array, block: Any) -> tuple[Any, ...]:
        """y − f(x), dx + fᵀ dy and the gradients of the parameters, for one part f of a block."""
        f = self.inner.layers[i]
        made, before, kept = f.branch(name, given, x, block=block)
        y = y - made
        del made
        pulled, inner, outer = f.branch_vjp(name, before, kept, dy, block=block)
        return y, dx + pulled, (inner, outer)

    @staticmethod
    def _gathered(given: Any, feed: Any, attention: Any) -> Any:
        """The gradients of the two parts of a block as an Inputs of it."""
        params = type(given.params)(attention=attention[0].params, feed_forward=feed[0].params,
                                    norm_attention=attention[1], norm_feed_forward=feed[1])
        return type(given)(None, params, context=attention[0].context, others=attention[0].others)

    def cost(self, shapes: Any) -> Passes:
        """That of the blocks, and one more forward of them; two streams and their mean are kept, and what the norm saves."""
        given = tree.map(shape_of, shapes)
        out, nothing = self.result(given), Count(0, 0, 0)
        decided, again = 0, nothing
        norm, total = self.inner.last_cost(given.params, out), Passes(nothing, nothing)
        for i, f in enumerate(self.inner.layers):
            part = self.inner.given(i, given, given.x)
            second, more = replayed(f, part)
            total, again, decided = total + f.cost(part), again + f.cost(second).forward, decided + more
        forward, backward = total.forward, total.backward
        kept = 2 * product(given.x) + (product(out) if self.join == "mean" else 0) + norm.forward.saved + decided
        macs, exps = again.macs + backward.macs, again.exps + backward.exps
        grads = gradients_of(given, self.kinds, self.fixed)
        return Passes(Count(forward.macs + norm.forward.macs, forward.exps + norm.forward.exps, kept),
                      Count(macs + norm.backward.macs, exps + norm.backward.exps, grads))
