"""Feed-forward layer: the same two projections at every position, with an activation or a gate between them.

    y = f(x W₁ + b₁) W₂ + b₂                                (gated=False)
    y = ((x W₁ + b₁) ∘ f(x W_g + b_g)) W₂ + b₂              (gated=True)

x: (..., n, d)   W₁, W_g: (d, f)   W₂: (f, e)   y: (..., n, e), e = d in a residual block; biases may be None.
Vaswani et al. (arXiv:1706.03762), §3.3; gated as in Shazeer (arXiv:2002.05202). W₁ carries the value and W_g the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError
from refattn.layers.base import dense_weight, layer, size
from refattn.ops.activation import Activation
from refattn.ops.base import over_rows
from refattn.ops.glu import GLU
from refattn.ops.projection import Projection
from refattn.rng import Source
from refattn.shapes import product, shape_of
from refattn.shapes import sizes as axis_sizes

Array = Any
_project = Projection()
AXES = {"x": "* n d"} | {
    f"params.{name}": axes
    for name, axes in {"w1": "d f", "wg": "d f", "w2": "f e", "b1": "f", "bg": "f", "b2": "e"}.items()
}


@dataclass(frozen=True)
class FeedForward:
    """activation: f, as ops.activation names it. gated: with W_g. bias: ``init`` makes biases.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        w1: Array  # (d, f)
        w2: Array  # (f, e)
        b1: Array | None = None  # (f,)
        b2: Array | None = None  # (e,)
        wg: Array | None = None  # (d, f), the gate
        bg: Array | None = None  # (f,)

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        params: FeedForward.Params

    class Saved(NamedTuple):
        """What is activated is computed again by the backward."""

        inputs: FeedForward.Inputs
        value: Array  # (..., n, f), x W₁ + b₁
        gate: Array | None  # (..., n, f), x W_g + b_g

    activation: str = "gelu"
    gated: bool = False
    bias: bool = True

    kinds: ClassVar[Mapping[str, str]] = {}
    fixed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        Activation(self.activation)

    def init(self, sizes: Mapping[str, int], rng: Source) -> Params:
        """sizes: d, f and e (default: d). Weights normal of variance 1/(rows), biases 0."""
        d, f, e = self._sizes(sizes)
        b1, b2 = (rng.filled((size,), 0.0) if self.bias else None for size in (f, e))
        w1, w2 = dense_weight(rng.at("w1"), d, f), dense_weight(rng.at("w2"), f, e)
        if not self.gated:
            return self.Params(w1, w2, b1, b2)
        bg = rng.filled((f,), 0.0) if self.bias else None
        return self.Params(w1, w2, b1, b2, dense_weight(rng.at("wg"), d, f), bg)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes: d·f + f·e, with a gate d·f more, and the biases."""
        d, f, e = self._sizes(sizes)
        first = 2 if self.gated else 1
        return first * d * f + f * e + (first * f + e if self.bias else 0)

    def check(self, inputs: Inputs) -> None:
        """Refuse parameters that do not fit together or that this configuration would ignore."""
        p = inputs.params
        if (p.wg is not None) != self.gated or (p.bg is not None and not self.gated):
            raise OptionError(f"gated={self.gated}, but wg is {'missing' if p.wg is None else 'given'}"
                              f"{'' if p.bg is None else ' and bg is given'}")
        self._axes(inputs)

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        return (*given.x[:-1], given.params.w2[1])

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """y, with what is activated saved; positions are independent of each other, and `block` is not needed."""
        x, p = inputs
        value, _ = _project.forward(x, p.w1, p.b1)
        gate = None if p.wg is None else _project.forward(x, p.wg, p.bg)[0]
        hidden, _ = self._activated(value, gate)
        return _project.forward(hidden, p.w2, p.b2)[0], self.Saved(inputs, value, gate)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """The chain of the three operations backwards. With a gate, W₁ and W_g are one product, as if fused:

        dx = [dvalue dgate] [W₁ W_g]ᵀ.
        """
        (x, p), value, gate = saved
        hidden, kept = self._activated(value, gate)
        last = _project.vjp(Projection.Saved(Projection.Inputs(hidden, p.w2, p.b2)), dy)
        if gate is None:
            dvalue = Activation(self.activation).vjp(kept, last.x).x
        else:
            dvalue, dgate = GLU(self.activation).vjp(kept, last.x)
        if gate is None:
            first = _project.vjp(Projection.Saved(Projection.Inputs(x, p.w1, p.b1)), dvalue)
            return self.Inputs(first.x, self.Params(first.w, last.w, first.b, last.b))
        xp, f = of(x).xp, value.shape[-1]
        both = Projection.Saved(Projection.Inputs(x, xp.concat([p.w1, p.wg], axis=-1)))
        first = _project.vjp(both, xp.concat([dvalue, dgate], axis=-1))
        b1, bg = (None if b is None else over_rows(g) for b, g in ((p.b1, dvalue), (p.bg, dgate)))
        return self.Inputs(first.x, self.Params(first.w[:, :f], last.w, b1, last.b, first.w[:, f:], bg))

    def _activated(self, value: Array, gate: Array | None) -> tuple[Array, Any]:
        return Activation(self.activation).forward(value) if gate is None else GLU(self.activation).forward(value, gate)

    def cost(self, shapes: Inputs) -> Passes:
        """Projections and activations, whose values the backward computes once more."""
        given = tree.map(shape_of, shapes)
        at, p = self._axes(given), given.params
        middle, rows = (*given.x[:-1], at["f"]), product(given.x[:-1])
        first = _project.cost(Projection.Inputs(given.x, p.w1, p.b1))
        last = _project.cost(Projection.Inputs(middle, p.w2, p.b2))
        inner = Activation(self.activation).cost(Activation.Inputs(middle))
        total = first + last
        if self.gated:
            inner = GLU(self.activation).cost(GLU.Inputs(middle, middle))
            total = total + _project.cost(Projection.Inputs(given.x, p.wg, p.bg))
        forward, backward = total.forward, total.backward
        exps = inner.forward.exps, inner.forward.exps + inner.backward.exps
        grads = sum(map(product, tree.leaves(given)))
        kept = rows * (at["e"] + at["f"] * (2 if self.gated else 1))
        return Passes(Count(forward.macs, exps[0], kept), Count(backward.macs, exps[1], grads))

    def _axes(self, inputs: Inputs) -> dict[str, Any]:
        shapes = {name: shape_of(x) for name, x in tree.items(inputs)}
        return axis_sizes({name: AXES[name] for name in shapes}, shapes)

    def _sizes(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        d = size(sizes, "d", self)
        return d, size(sizes, "f", self), sizes.get("e", d)
