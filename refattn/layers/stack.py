"""Stack: layers one after the other, each with a scheme of its own, and parameters that several of them may share.

    x_(i+1) = f_i(x_i, θ_(s_i))   for i = 0 … L − 1,        y = N(x_L), or x_L

x, y: (..., n, d)   context: (..., m, c), read by every layer that has one.   s: `share`, which parameters layer i reads.
Single leaves are shared by name, `tied`: all layers read those of the first, as Linformer's E with layerwise sharing.
A norm after the last layer is what "pre" blocks end with (Xiong et al., arXiv:2002.04745). Sharing over all layers is that
of Dehghani et al. (arXiv:1807.03819) and Lan et al. (arXiv:1909.11942). What is shared stands once among the parameters, so
that no update can pull its copies apart; its gradient is the sum over the layers that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import gradients_of, layer, size
from refattn.rng import Shapes, Source
from refattn.shapes import product, shape_of

Array = Any
COMMON = ("context", "positions")  # one for all layers
OWN = ("others", "cross_others")  # one for each


@dataclass(frozen=True)
class Stack:
    """layers: first to last. norm: an operation of x and its own parameters, or None. share: None, or for each layer the
    number of its parameters, new numbers in order: (0, 1, 0, 1); the first layer of a number makes them. tied: names of
    parameters of the first layer, as ("attention.scheme.E",), that all layers read; they stand in the first nest alone.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        layers: Any  # tree.row of parameters, one nest for each number in `share`
        norm: Any = None  # Inputs of the norm, its x None

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        params: Stack.Params
        context: Array | None = None  # (..., m, c)
        others: Any = None  # tree.row of what each layer is given beside, None where it is nothing
        cross_others: Any = None  # tree.row, likewise
        positions: Array | None = None  # int, (n,) or per item (..., n)

    class Saved(NamedTuple):
        inputs: Stack.Inputs
        layers: Any  # tree.row of what each layer saves
        norm: Any = None

    layers: tuple[Any, ...]
    norm: Any = None
    share: tuple[int, ...] | None = None
    tied: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple) or not self.layers:
            raise OptionError(f"layers={self.layers!r}: give a tuple of layers, one or more")
        if self.share is not None:
            new = list(dict.fromkeys(self.share))
            if len(self.share) != len(self.layers) or new != list(range(len(new))):
                raise OptionError(f"share={self.share} for {len(self.layers)} layers: give each a number, new ones "
                                  "in order, as (0, 1, 0, 1)")
        if not isinstance(self.tied, tuple) or not all(isinstance(name, str) for name in self.tied):
            raise OptionError(f"tied={self.tied!r}: give a tuple of names, as ('attention.scheme.E',)")

    @property
    def reads(self) -> tuple[int, ...]:
        """Which parameters each layer reads."""
        return tuple(range(len(self.layers))) if self.share is None else self.share

    @property
    def makers(self) -> tuple[Any, ...]:
        """The layers that make parameters: the first of each number."""
        return tuple(self.layers[self.reads.index(s)] for s in range(max(self.reads) + 1))

    @property
    def kinds(self) -> Mapping[str, str]:
        found = {"positions": "int"}
        for i, f in enumerate(self.layers):
            for name, kind in f.kinds.items():
                first, _, rest = name.partition(".")
                found |= {f"{first}.l{i}.{rest}": kind} if rest else {}
        return found

    @property
    def fixed(self) -> tuple[str, ...]:
        names = ((i, *name.partition(".")) for i, f in enumerate(self.layers) for name in f.fixed)
        return tuple(f"{first}.l{i}.{rest}" for i, first, _, rest in names)

    def init(self, sizes: Mapping[str, int], rng: Source, width: int | None = None) -> Params:
        """sizes: d, and what the layers need. width: that of the last norm, if it is not d."""
        whole = (f.init(sizes, rng.at("layers", i)) for i, f in enumerate(self.makers))
        made = (self._own(params) if i and self.tied else params for i, params in enumerate(whole))
        start = {} if self.norm is None else self.norm.parameters(width or size(sizes, "d", self))
        norm = None if self.norm is None else self.norm.Inputs(x=None, **{n: rng.filled(*at) for n, at in start.items()})
        return self.Params(tree.row(made), norm)

    def parameters(self, sizes: Mapping[str, int], width: int | None = None) -> int:
        """How many numbers ``init`` makes: those of the layers, shared and tied ones once, and of the norm."""
        norm = {} if self.norm is None else self.norm.parameters(width or size(sizes, "d", self))
        of_layers: int = sum(f.parameters(sizes) for f in self.makers)
        if self.tied:
            later = (f.init(sizes, Shapes(0)) for f in self.makers[1:])
            of_layers -= sum(product(shape) for params in later for shape in tree.leaves(self._common(params)))
        return of_layers + sum(product(shape) for shape, _ in norm.values())

    def check(self, inputs: Inputs) -> None:
        """Refuse parameters and further inputs that are not those of so many layers; the layers check the rest."""
        p, many = inputs.params, len(self.layers)
        if not tree.is_branch(p.layers) or len(p.layers) != len(self.makers):
            there = len(p.layers) if isinstance(p.layers, tuple) else type(p.layers).__name__
            raise OptionError(f"params.layers has {there} nests; the stack has {len(self.makers)} of parameters")
        if (p.norm is None) != (self.norm is None):
            raise OptionError(f"norm={self.norm}, but params.norm is {'missing' if p.norm is None else 'given'}")
        self._check_tied(p.layers)
        for name in OWN:
            row = getattr(inputs, name)
            if row is not None and (not tree.is_branch(row) or len(row) != many):
                raise OptionError(f"{name}: give tree.row of {many} nests, one for each layer, None where it is nothing")
        for name in (*COMMON, *OWN):
            if getattr(inputs, name) is not None and not any(name in f.Inputs._fields for f in self.layers):
                raise OptionError(f"{name} is given, but no layer reads it")

    def _check_tied(self, layers: Any) -> None:
        """Refuse tied parameters that the first nest has not, that another has too, or that another has no place for."""
        missing = [name for name in self.tied if name not in tree.names(layers[0])]
        if missing:
            there = ", ".join(tree.names(layers[0]))
            raise OptionError(f"tied: params.layers.l0 has no {', '.join(missing)}; it has {there}")
        for s, own in enumerate(layers[1:], 1):
            twice = tree.names(self._common(own)) if self.tied else []
            if twice:
                raise OptionError(f"{', '.join(twice)} in params.layers.l{s}: it is tied, and all layers read that of l0")
            if self.tied and not tree.fits(own, self._common(layers[0])):
                raise OptionError(f"tied={self.tied}: params.layers.l{s} has no place for it")

    def _common(self, params: Any) -> Any:
        """What is tied of the parameters of a layer."""
        return tree.pick(params, lambda name: name in self.tied)

    def _own(self, params: Any) -> Any:
        """What is not."""
        return tree.pick(params, lambda name: name not in self.tied)

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        shape: tuple[int, ...] = given.x
        return shape

    def given(self, i: int, inputs: Inputs, x: Array) -> Any:
        """The Inputs of layer i, of arrays or of shapes."""
        f, layers, s = self.layers[i], inputs.params.layers, self.reads[i]
        params = tree.add(layers[s], self._common(layers[0])) if s and self.tied else layers[s]
        more = {name: getattr(inputs, name) for name in COMMON}
        more |= {name: None if getattr(inputs, name) is None else getattr(inputs, name)[i] for name in OWN}
        found = {name: a for name, a in more.items() if a is not None and name in f.Inputs._fields}
        return f.Inputs(x, params, **found)

    def step(self, i: int, inputs: Inputs, x: Array, *, block: Any, replay: Mapping[str, Any] | None = None
             ) -> tuple[Array, Any]:
        """Layer i, with what it saves; replay: what it is given instead, having been there before."""
        y, kept = self.layers[i].forward(*self.given(i, inputs, x)._replace(**(replay or {})), block=block)
        if y.shape != x.shape:
            raise ShapeError(f"layer {i} makes {tuple(y.shape)} of x {tuple(x.shape)}: a stack needs equal shapes")
        return y, kept

    def last(self, params: Params, x: Array) -> tuple[Array, Any]:
        """The norm after the last layer."""
        return (x, None) if self.norm is None else self.norm.forward(x, **dict(tree.items(params.norm)))

    def last_vjp(self, kept: Any, dy: Array) -> tuple[Array, Any]:
        """dx of the last norm, and the gradients of its parameters."""
        if self.norm is None:
            return dy, None
        grads = self.norm.vjp(kept, dy)
        return grads.x, grads._replace(x=None)

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """y, with what every layer saves."""
        x, kept = inputs.x, []
        for i in range(len(self.layers)):
            x, saved = self.step(i, inputs, x, block=block)
            kept.append(saved)
        y, norm = self.last(inputs.params, x)
        return y, self.Saved(inputs, tree.row(kept), norm)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """The chain backwards: the cotangent of x_i is f_iᵀ of that of x_(i+1)."""
        dx, norm = self.last_vjp(saved.norm, dy)
        sums = self.sums()
        for i in reversed(range(len(self.layers))):
            dx = sums.add(i, self.layers[i].vjp(saved.layers[i], dx, block=block))
        return sums.nest(dx, norm)

    def sums(self) -> Sums:
        """Where gradients of the layers come together."""
        return Sums(self)

    def cost(self, shapes: Inputs) -> Passes:
        """The sum over the layers and the norm, whose saved results are all kept."""
        given = tree.map(shape_of, shapes)
        total = self.last_cost(given.params, given.x)
        for i, f in enumerate(self.layers):
            total += f.cost(self.given(i, given, given.x))
        backward = Count(total.backward.macs, total.backward.exps, gradients_of(given, self.kinds, self.fixed))
        return Passes(total.forward, backward)

    def last_cost(self, params: Params, x: tuple[int, ...]) -> Passes:
        """That of the norm after the last layer."""
        nothing = Count(0, 0, 0)
        weights = dict(tree.items(params.norm))
        found: Passes = Passes(nothing, nothing) if self.norm is None else self.norm.cost(self.norm.Inputs(x, **weights))
        return found


class Sums:
    """Gradients of a stack as they come, from the last layer to the first: those of what is shared are added."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.params: list[Any] = [None] * len(stack.makers)
        self.common: dict[str, Any] = dict.fromkeys(COMMON)
        self.own: dict[str, list[Any]] = {name: [None] * len(stack.layers) for name in OWN}

    def add(self, i: int, grads: Any) -> Array:
        """Take the gradients of layer i, an Inputs of it, and hand back its dx."""
        s, params = self.stack.reads[i], grads.params
        if s and self.stack.tied:
            self.params[0] = tree.add(self.params[0], self.stack._common(params))
            params = self.stack._own(params)
        self.params[s] = tree.add(self.params[s], params)
        for name in COMMON:
            self.common[name] = tree.add(self.common[name], getattr(grads, name, None))
        for name in OWN:
            self.own[name][i] = getattr(grads, name, None)
        return grads.x

    def nest(self, dx: Array, norm: Any) -> Stack.Inputs:
        """All of them as an Inputs of the stack."""
        own = {name: tree.row(row) if any(g is not None for g in row) else None for name, row in self.own.items()}
        return self.stack.Inputs(dx, self.stack.Params(tree.row(self.params), norm), **self.common, **own)
