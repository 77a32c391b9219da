"""Chunked feed-forward: a layer that treats every position alike, a few positions at a time.

    y[i : i + r] = f(x[i : i + r])   for i = 0, r, 2r, …

x: (..., n, d)   y: (..., n, e)   r: `rows`; the last chunk may be shorter.   f: any layer of x and parameters.
The hidden layer, (..., n, f), is never there at once, neither forward nor backward: nothing but x is kept, and the backward
computes each chunk again. Kitaev et al. (arXiv:2001.04451), §3. Departures: trax cuts examples and positions as one axis,
and does not cut at all what is no multiple; Hugging Face refuses it; lucidrains says how many chunks, not how long they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError
from refattn.layers.base import Wrapper, gradients_of, layer
from refattn.shapes import product, shape_of

Array = Any


@dataclass(frozen=True)
class ChunkedFF(Wrapper):
    """inner: a FeedForward, or what else treats positions alike. rows: r.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Saved(NamedTuple):
        inputs: Any

    inner: Any
    rows: int

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise OptionError(f"rows={self.rows!r}: give a whole number of positions, 1 or more")
        if self.inner.Inputs._fields != ("x", "params"):
            raise OptionError(f"inner={self.inner!r} reads more than x and parameters: positions may not be alike to it")

    def _chunks(self, n: int) -> list[slice]:
        return [slice(start, min(start + self.rows, n)) for start in range(0, max(n, 1), self.rows)]

    @layer
    def forward(self, inputs: Any, *, block: Any) -> tuple[Array, Saved]:
        """y; what a chunk saves is dropped at once."""
        x, p = inputs
        parts = [self.inner.forward(x[..., at, :], p, block=block)[0] for at in self._chunks(x.shape[-2])]
        return of(x).xp.concat(parts, axis=-2), self.Saved(inputs)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Any:
        """Each chunk forward once more, then backward; gradients of the parameters are sums over chunks."""
        x, p = saved.inputs
        dx, dparams = [], None
        for at in self._chunks(x.shape[-2]):
            kept = self.inner.forward(x[..., at, :], p, block=block)[1]
            grads = self.inner.vjp(kept, dy[..., at, :], block=block)
            dx.append(grads.x)
            dparams = tree.add(dparams, grads.params)
            del kept, grads
        return self.inner.Inputs(of(x).xp.concat(dx, axis=-2), dparams)

    def cost(self, shapes: Any) -> Passes:
        """The sum over chunks, whose forward is computed again by the backward; y alone is kept."""
        given = tree.map(shape_of, shapes)
        *lead, n, d = given.x
        total = Passes(Count(0, 0, 0), Count(0, 0, 0))
        for at in self._chunks(n):
            total += self.inner.cost(given._replace(x=(*lead, at.stop - at.start, d)))
        forward, backward = total.forward, total.backward
        grads = gradients_of(given, self.kinds, self.fixed)
        return Passes(Count(forward.macs, forward.exps, product(self.result(given))),
                      Count(forward.macs + backward.macs, forward.exps + backward.exps, grads))
