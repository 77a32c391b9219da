"""Transformer block: layers with residual connections and norms.

    x ← x + f(N(x))          order="pre"                x ← N(x + f(x))          order="post"

for f = attention, then cross-attention to a context (if there is one), then the feed-forward layer; each has its own norm.

x, y: (..., n, d)   context: (..., m, c).  Without a layer for cross-attention the context is what attention reads.
Vaswani et al. (arXiv:1706.03762), §3.1 ("post"); Xiong et al. (arXiv:2002.04745) compare the orders. The norm that a stack
of "pre" blocks ends with is no part of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refattn import tree
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import layer, size, size_of
from refattn.ops.base import one_of
from refattn.ops.layer_norm import LayerNorm
from refattn.rng import Source
from refattn.shapes import product, shape_of

Array = Any
OTHERS = {"attention": "others", "cross": "cross_others"}  # of each part, where it has some


@dataclass(frozen=True)
class Block:
    """attention, cross, feed_forward: layers, cross None by default. norm: an operation of x and its own parameters.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        attention: Any
        feed_forward: Any
        norm_attention: Any  # Inputs of the norm, its x None
        norm_feed_forward: Any
        cross: Any = None
        norm_cross: Any = None

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        params: Block.Params
        context: Array | None = None  # (..., m, c)
        others: Any = None  # what attention is given beside
        cross_others: Any = None  # what cross-attention is given beside
        positions: Array | None = None  # int, (n,) or per item (..., n): of rotary attention

    class Saved(NamedTuple):
        """What each layer and each norm saves."""

        inputs: Block.Inputs
        attention: Any
        feed_forward: Any
        norm_attention: Any
        norm_feed_forward: Any
        cross: Any = None
        norm_cross: Any = None

    attention: Any
    feed_forward: Any
    norm: Any = field(default_factory=LayerNorm)
    order: str = "pre"
    cross: Any = None

    def __post_init__(self) -> None:
        one_of(("pre", "post"), order=self.order)
        if not hasattr(self.norm, "parameters"):
            raise OptionError(f"norm={self.norm!r}: give an operation that has parameters of its own, as LayerNorm()")

    @property
    def kinds(self) -> Mapping[str, str]:
        cross = self.attention if self.cross is None else self.cross
        return {**self.attention.kinds, **{f"cross_{name}": kind for name, kind in cross.kinds.items()}}

    @property
    def fixed(self) -> tuple[str, ...]:
        cross = () if self.cross is None else self.cross.fixed
        return (*self.attention.fixed, *(f"cross_{name}" for name in cross))

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("attention", "feed_forward") if self.cross is None else ("attention", "cross", "feed_forward")

    def init(self, sizes: Mapping[str, int], rng: Source) -> Params:
        """sizes: d, and what the layers need (k, e, f; c is the width of the context of cross-attention)."""
        made = {}
        for name in self._parts:
            made[name] = getattr(self, name).init(self._sizes(name, sizes), rng.at(name))
            start = self.norm.parameters(size(sizes, "d", self))
            made[f"norm_{name}"] = self.norm.Inputs(x=None, **{n: rng.filled(*at) for n, at in start.items()})
        return self.Params(**made)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes: those of the layers and of a norm for each."""
        norm = sum(product(shape) for shape, _ in self.norm.parameters(size(sizes, "d", self)).values())
        return sum(getattr(self, name).parameters(self._sizes(name, sizes)) + norm for name in self._parts)

    def _sizes(self, name: str, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Attention reads x itself if there is cross-attention, and then has no width c; e is that of a head, not of y."""
        left = {"feed_forward": ("e", "k"), "attention": ("c",) if self.cross is not None else ()}.get(name, ())
        return {letter: size for letter, size in sizes.items() if letter not in left}

    def check(self, inputs: Inputs) -> None:
        """Refuse what no layer would read; the layers check the rest."""
        p = inputs.params
        if (self.cross is None) != (p.cross is None) or (self.cross is None) != (p.norm_cross is None):
            raise OptionError(f"cross={self.cross}, but params.cross or params.norm_cross is "
                              f"{'given' if self.cross is None else 'missing'}")
        if self.cross is None and inputs.cross_others is not None:
            raise OptionError("cross_others is given, but the block has no cross-attention")
        if self.cross is not None and inputs.context is None:
            raise OptionError("cross-attention has no context: give one, (..., m, c)")

    def _reads(self, name: str, inputs: Inputs) -> dict[str, Any]:
        """What a layer reads beside x, without what is None."""
        at = {"params": getattr(inputs.params, name)}
        if name != "feed_forward":
            sees_context = name == "cross" or self.cross is None
            at["context"] = inputs.context if sees_context else None
            at["others"] = getattr(inputs, OTHERS[name])
            at["positions"] = inputs.positions if name == "attention" else None
        return {key: x for key, x in at.items() if x is not None}

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        shape: tuple[int, ...] = given.x
        return shape

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """y, with what the parts save."""
        x, kept = inputs.x, {}
        for name in self._parts:
            if self.order == "pre":
                y, kept[f"norm_{name}"], kept[name] = self.branch(name, inputs, x, block=block)
                x = self.added(name, x, y)
            else:
                weights = _weights(getattr(inputs.params, f"norm_{name}"))
                y, kept[name] = getattr(self, name).forward(x, **self._reads(name, inputs), block=block)
                x, kept[f"norm_{name}"] = self.norm.forward(self.added(name, x, y), **weights)
        return x, self.Saved(inputs, **kept)

    def branch(self, name: str, inputs: Inputs, x: Array, *, block: Any) -> tuple[Array, Any, Any]:
        """f(N(x)) of a part of a "pre" block, with what norm and layer save; the x of `inputs` is not read."""
        normed, before = self.norm.forward(x, **_weights(getattr(inputs.params, f"norm_{name}")))
        y, kept = getattr(self, name).forward(normed, **self._reads(name, inputs), block=block)
        return y, before, kept

    def branch_vjp(self, name: str, before: Any, kept: Any, dy: Array, *, block: Any) -> tuple[Array, Any, Any]:
        """dx of f(N(x)), with the gradients of the layer's other inputs and of the norm's parameters."""
        inner = getattr(self, name).vjp(kept, dy, block=block)
        outer = self.norm.vjp(before, inner.x)
        return outer.x, inner._replace(x=None), outer._replace(x=None)

    def replay(self, inputs: Inputs, saved: Saved) -> dict[str, Any]:
        """What a second forward of almost the same x is given instead, so that attention decides as in `saved`, by name."""
        found = {name: self.replay_part(name, inputs, getattr(saved, name)) for name in self._parts}
        return {OTHERS[name]: others for name, others in found.items() if others is not None}

    def replay_part(self, name: str, inputs: Inputs, kept: Any) -> Any:
        """The same of one part, which saved `kept`: its others; None if it decides nothing."""
        f = getattr(self, name)
        return f.replay(getattr(inputs, OTHERS[name]), kept) if name in OTHERS and hasattr(f, "replay") else None

    def replay_shapes(self, shapes: Inputs) -> Inputs:
        """The shapes of what a second forward is given."""
        for name in self._parts:
            f = getattr(self, name)
            if name in OTHERS and hasattr(f, "replay_shapes"):
                part = f.replay_shapes(f.Inputs(shapes.x, **self._reads(name, shapes)))
                shapes = shapes._replace(**{OTHERS[name]: part.others})
        return shapes

    @staticmethod
    def added(name: str, x: Array, y: Array) -> Array:
        if x.shape != y.shape:
            raise ShapeError(f"{name} makes {tuple(y.shape)} of x {tuple(x.shape)}: a residual needs equal shapes")
        return x + y

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """Backwards, the cotangent of x being that of its two uses: dx = dy + (f ∘ N)ᵀ dy, or g + fᵀ g with g = Nᵀ dy."""
        grads: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for name in reversed(self._parts):
            norm, kept = getattr(saved, f"norm_{name}"), getattr(saved, name)
            if self.order == "pre":
                dx, inner, outer = self.branch_vjp(name, norm, kept, dy, block=block)
                dy = dy + dx
            else:
                outer = self.norm.vjp(norm, dy)
                inner = getattr(self, name).vjp(kept, outer.x, block=block)
                dy = outer.x + inner.x
            grads[name], grads[f"norm_{name}"] = inner.params, outer._replace(x=None)
            if name != "feed_forward":
                found[OTHERS[name]] = inner.others
                if inner.context is not None:
                    found["context"] = inner.context
        return self.Inputs(dy, self.Params(**grads), **found)

    def cost(self, shapes: Inputs) -> Passes:
        """The sum over the layers and norms, whose saved results are all kept; residuals multiply nothing."""
        given = tree.map(shape_of, shapes)
        total = Passes(Count(0, 0, 0), Count(0, 0, 0))
        grads = size_of(given.x) + size_of(given.params) + (0 if given.context is None else size_of(given.context))
        for name in self._parts:
            f = getattr(self, name)
            part = f.cost(f.Inputs(given.x, **self._reads(name, given)))
            total += part + self.norm.cost(self.norm.Inputs(given.x, **_weights(getattr(given.params, f"norm_{name}"))))
        floats = [x for name, x in tree.items(given) if name.partition(".")[0].endswith("others")
                  and self.kinds.get(name, "float") == "float" and name not in self.fixed]
        grads += sum(map(product, floats))
        return Passes(total.forward, Count(total.backward.macs, total.backward.exps, grads))


def _weights(nest: Any) -> dict[str, Any]:
    """The parameters of a norm by name, those that are there."""
    return dict(tree.items(nest))
