"""Attention layer: projections to heads, a scheme on every head, and one projection back.

    q = x W_q + b_q,   k = c W_k + b_k,   v = c′ W_v + b_v        c = x, or the context (cross-attention); c′ = c or `values`
    y = merge(scheme(turn(split(q)), turn(split(k)), split(v), …)) W_o + b_o       turn: rotary positions, if there are any

x: (..., n, d)   context, values: (..., m, c)   W_q: (d, h·k)  W_k: (c, g·k)  W_v: (c, g·e)  W_o: (h·e, o)   y: (..., n, o)
h query heads, g key heads; head i is columns i·k … (i + 1)·k of W_q. Vaswani et al. (arXiv:1706.03762), §3.2.2.
A scheme with one input for queries and keys (qk) has no W_k. Departure: biases, which the paper lacks, are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import dense_weight, fit, layer, size
from refattn.ops.base import over_rows
from refattn.ops.projection import Projection
from refattn.position.rope import rotate
from refattn.rng import Source
from refattn.shapes import product, shape_of

Array = Any
_project = Projection()
PROJECTED = ("q", "qk", "k", "v")


@dataclass(frozen=True)
class Attention:
    """scheme: any scheme. heads: h; kv_heads: g, default h. bias: ``init`` makes biases. rotary: a position.rope.Rope.

    Rotary positions are those of `rotary`, or `positions`; they turn q and k of self-attention. What a scheme makes of
    positions of its own (``others.q_positions``) is another matter, and given apart.
    What the scheme reads beside q, k, v is learned (``params.scheme``) or given (``others``), each an Inputs of the scheme
    with those fields filled. Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Params(NamedTuple):
        w_q: Array  # (d, h·k); of qk, for a scheme that shares
        w_k: Array | None  # (c, g·k)
        w_v: Array  # (c, g·e)
        w_o: Array  # (h·e, o)
        b_q: Array | None = None
        b_k: Array | None = None
        b_v: Array | None = None
        b_o: Array | None = None
        scheme: Any = None  # an Inputs of the scheme: what it learns

    class Inputs(NamedTuple):
        x: Array  # (..., n, d)
        params: Attention.Params
        context: Array | None = None  # (..., m, c)
        others: Any = None  # an Inputs of the scheme: what it is given
        positions: Array | None = None  # int, (n,) or per item (..., n): of rotary
        values: Array | None = None  # (..., m, c): what values are made of, where that is not what keys are made of

    class Saved(NamedTuple):
        inputs: Attention.Inputs
        scheme: Any  # the scheme's Saved

    scheme: Any
    heads: int = 1
    kv_heads: int | None = None
    bias: bool = True
    rotary: Any = None

    def __post_init__(self) -> None:
        if not hasattr(self.scheme, "forward"):
            raise OptionError(f"scheme={self.scheme!r} is no scheme")
        if self.rotary is not None and not hasattr(self.rotary, "tables"):
            raise OptionError(f"rotary={self.rotary!r}: give a Rope, as Rope('halves'), or None")
        for name, x in (("heads", self.heads), ("kv_heads", self.groups)):
            if isinstance(x, bool) or not isinstance(x, int) or x < 1:
                raise OptionError(f"{name}={x!r}: give a whole number, 1 or more")

    @property
    def groups(self) -> int:
        """g, the number of key heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def kinds(self) -> Mapping[str, str]:
        return {"positions": "int", **{f"others.{name}": kind for name, kind in self.scheme.kinds.items()}}

    @property
    def fixed(self) -> tuple[str, ...]:
        return tuple(f"others.{name}" for name in getattr(self.scheme, "fixed", ()))

    @property
    def _names(self) -> tuple[str, ...]:
        """The inputs of the scheme that are projected: q, k, v or qk, v."""
        return tuple(name for name in self.scheme.Inputs._fields if name in PROJECTED)

    @property
    def _turned(self) -> tuple[str, ...]:
        """The inputs of the scheme that rotary positions turn."""
        return tuple(name for name in self._names if name != "v")

    def init(self, sizes: Mapping[str, int], rng: Source, learned: Any = None) -> Params:
        """sizes: d, and k (default d/h), e (k), c (d), o (d). Weights normal of variance 1/(rows), biases 0.

        learned: initial values of what the scheme learns, as an Inputs of the scheme.
        """
        shapes = self._weights(sizes)
        weights = {f"w_{x}": dense_weight(rng.at(f"w_{x}"), *shape) for x, shape in shapes.items()}
        biases = {f"b_{x}": rng.filled(shape[1:], 0.0) for x, shape in shapes.items() if self.bias}
        return self.Params(**{"w_k": None, **weights, **biases}, scheme=learned)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes, without what the scheme learns: d·h·k + c·g·(k + e) + h·e·o and the biases."""
        return sum(product(shape) + (shape[1] if self.bias else 0) for shape in self._weights(sizes).values())

    def _weights(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        d = size(sizes, "d", self)
        if "k" not in sizes and d % self.heads:
            raise ShapeError(f"d={d} is no multiple of heads={self.heads}: say how wide a head is, as k={d // self.heads}")
        k = sizes.get("k", d // self.heads)
        e, c, o = sizes.get("e", k), sizes.get("c", d), sizes.get("o", d)
        found = {"q": (d, self.heads * k), "k": (c, self.groups * k), "v": (c, self.groups * e), "o": (self.heads * e, o)}
        return found if "k" in self._names else {name: shape for name, shape in found.items() if name != "k"}

    def check(self, inputs: Inputs) -> None:
        """Refuse parameters that do not fit together, and inputs of the scheme that are there twice or not its own."""
        shapes = self._shapes(tree.map(shape_of, inputs))
        if self.rotary is None and inputs.positions is not None:
            raise OptionError("positions are given, but rotary=None would ignore them")
        if self.rotary is not None and inputs.context is not None:
            raise OptionError("rotary positions are those of one sequence: cross-attention to a context has none")
        k = shapes[self._turned[0]][-1]
        if self.rotary is not None and self.rotary.width is None and k % 2:
            raise ShapeError(f"heads of {k} features can't be turned in pairs: give the Rope an even width")
        for where, nest in (("params.scheme", inputs.params.scheme), ("others", inputs.others)):
            if nest is not None and not isinstance(nest, self.scheme.Inputs):
                raise OptionError(f"{where} is a {type(nest).__name__}: give an Inputs of {type(self.scheme).__name__}")
            wrong = [] if nest is None else [name for name in self._names if getattr(nest, name) is not None]
            if wrong:
                raise OptionError(f"{where} has {', '.join(wrong)}, which the layer projects from x: leave None there")
        fixed = [name for name in tree.names(inputs.params.scheme) if name in getattr(self.scheme, "fixed", ())]
        if fixed:
            raise OptionError(f"params.scheme has {', '.join(fixed)}, which can't be learned: give it in others")
        both = set(tree.names(inputs.params.scheme)) & set(tree.names(inputs.others))
        if both:
            raise OptionError(f"{', '.join(sorted(both))} in params.scheme and in others: give each once")

    def _shapes(self, given: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of q, k, v with their heads, from shapes of the inputs; ShapeError if widths do not fit."""
        p, x = given.params, given.x
        if ("k" in self._names) != (p.w_k is not None):
            there = "missing" if p.w_k is None else "given"
            raise OptionError(f"params.w_k is {there}, but {type(self.scheme).__name__} reads {', '.join(self._names)}")
        if "qk" in self._names and given.context is not None:
            raise OptionError(f"context is given, but {type(self.scheme).__name__} has queries and keys in one")
        self._check_sources(given)
        found = {}
        for name in self._names:
            letter, where = name[0], self._source(name, given)
            source, heads = getattr(given, where), self.heads if letter == "q" else self.groups
            fit(where, source, p, letter)
            w = getattr(p, f"w_{letter}")
            if w[1] % heads:
                raise ShapeError(f"params.w_{letter} has {w[1]} columns, no multiple of its {heads} heads")
            found[name] = (*source[:-2], heads, source[-2], w[1] // heads)
        fit("what heads return", (*x[:-1], self.heads * found["v"][-1]), p, "o")
        return found

    def _source(self, name: str, inputs: Any) -> str:
        """Which input q, qk, k or v is made of."""
        if name == "v" and inputs.values is not None:
            return "values"
        return "x" if name in ("q", "qk") or inputs.context is None else "context"

    def _check_sources(self, given: Any) -> None:
        """Refuse a context and values, by their shapes, that are not of as many items and tokens as there must be."""
        x, c = given.x, given.x if given.context is None else given.context
        for name, other in (("context", c), ("values", c if given.values is None else given.values)):
            if len(other) != len(x) or other[:-2] != x[:-2]:
                raise ShapeError(f"x has shape {x} and {name} {other}: their leading axes must be the same")
        if given.values is not None and given.values[-2] != c[-2]:
            where = "x" if given.context is None else "context"
            raise ShapeError(f"values has shape {given.values}, but keys are made of {where} {c}: there must be as many "
                             "tokens")

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        return (*given.x[:-1], given.params.w_o[1])

    @layer
    def forward(self, inputs: Inputs, *, block: Any) -> tuple[Array, Saved]:
        """y, with what the scheme saves: q, k, v as it was given them, its results."""
        p, others, made = inputs.params, inputs.others, {}
        for name in self._names:
            a, source = name[0], getattr(inputs, self._source(name, inputs))
            rows, _ = _project.forward(source, getattr(p, f"w_{a}"), getattr(p, f"b_{a}"))
            made[name] = _split(rows, self.heads if a == "q" else self.groups)
        made |= self._rotated({name: made[name] for name in self._turned}, inputs.positions, 1.0)
        extra = {name: leaf for nest in (p.scheme, others) for name, leaf in tree.items(nest)}
        o, kept = self.scheme.forward(**made, **extra, block=block)
        return _project.forward(_merge(o), p.w_o, p.b_o)[0], self.Saved(inputs, kept)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Inputs:
        """Through W_o, the scheme's vjp, and the projections: those that read one array are one product, as if fused.

        With W = [W_q W_k W_v] and g = [dq dk dv]:  dx = g Wᵀ,  dW = xᵀ g.
        """
        inputs, kept = saved
        p, others, positions = inputs.params, inputs.others, inputs.positions
        o = getattr(kept, self.scheme.outputs[0])
        out = _project.vjp(Projection.Saved(Projection.Inputs(_merge(o), p.w_o, p.b_o)), dy)
        pulled = self.scheme.vjp(kept, _split(out.x, self.heads), block=block)
        found = {name: getattr(pulled, name) for name in self._names}
        found |= self._rotated({name: found[name] for name in self._turned}, positions, -1.0)
        rows = {name[0]: _merge(found[name]) for name in self._names}
        grads: dict[str, Array | None] = {"w_k": None}
        back: dict[str, Array] = {}
        for source in dict.fromkeys(self._source(name, inputs) for name in self._names):
            letters = tuple(name[0] for name in self._names if self._source(name, inputs) == source)
            back[source] = self._projections(grads, getattr(inputs, source), p, rows, letters)
        learned, given = (None if nest is None else _chosen(pulled, nest) for nest in (p.scheme, others))
        params = self.Params(**grads, w_o=out.w, b_o=out.b, scheme=learned)
        return self.Inputs(params=params, others=given, **back)

    def replay(self, others: Any, saved: Saved) -> Any:
        """What a second forward of almost the same x is given instead of `others`, so that the scheme decides as in `saved`.

        Schemes whose values hang on decisions, as which bucket a key falls into, say so by a method of this name; None if
        the scheme has no such decisions.
        """
        return self.scheme.replay(self._given(others), saved.scheme) if hasattr(self.scheme, "replay") else None

    def replay_shapes(self, shapes: Inputs) -> Inputs:
        """The shapes of what a second forward is given: by the scheme's ``replay_shapes``, of shapes of its inputs."""
        if not hasattr(self.scheme, "replay_shapes"):
            return shapes
        given = tree.map(shape_of, shapes)
        extra = {name: leaf for nest in (given.params.scheme, given.others) for name, leaf in tree.items(nest)}
        made = self._shapes(given)
        found = self.scheme.replay_shapes(self._given(None)._replace(**made, **extra))
        mine = {name: x for name, x in tree.items(found) if name not in (*made, *tree.names(given.params.scheme))}
        again: Attention.Inputs = given._replace(others=self._given(None)._replace(**mine))
        return again

    def _given(self, others: Any) -> Any:
        """`others`, an Inputs of the scheme with nothing in it if None."""
        return self.scheme.Inputs(*(None,) * len(self.scheme.Inputs._fields)) if others is None else others

    def _rotated(self, arrays: dict[str, Array], positions: Array | None, sign: float) -> dict[str, Array]:
        """Heads (..., h, n, k) turned by their positions, or back (sign −1)."""
        if self.rotary is None:
            return arrays
        cos, sin = self.rotary.tables(next(iter(arrays.values())), positions)
        sin = sin if sign > 0.0 else -sin
        return {name: rotate(x, cos, sin, self.rotary.pairs) for name, x in arrays.items()}

    def _projections(self, grads: dict[str, Array | None], x: Array, p: Params, rows: Any, names: tuple[str, ...]) -> Array:
        """dx of the projections `names`, which all read x; the gradients of their weights go to `grads`."""
        xp = of(x).xp
        weights = [getattr(p, f"w_{a}") for a in names]
        joined = Projection.Inputs(x, xp.concat(weights, axis=-1))
        out = _project.vjp(Projection.Saved(joined), xp.concat([rows[a] for a in names], axis=-1))
        start = 0
        for a, w in zip(names, weights, strict=True):
            grads[f"w_{a}"] = out.w[:, start : start + w.shape[1]]
            start += w.shape[1]
            bias = getattr(p, f"b_{a}")
            grads[f"b_{a}"] = None if bias is None else over_rows(rows[a])
        return out.x

    def cost(self, shapes: Inputs) -> Passes:
        """The projections and the scheme; q, k, v and what the scheme saves are kept."""
        given = tree.map(shape_of, shapes)
        made, p = self._shapes(given), given.params
        total = Passes(Count(0, 0, 0), Count(0, 0, 0))
        for name, shape in made.items():
            source = (*shape[:-3], shape[-2], getattr(p, f"w_{name[0]}")[0])
            total += _project.cost(Projection.Inputs(source, getattr(p, f"w_{name[0]}"), getattr(p, f"b_{name[0]}")))
        extra = {name: leaf for nest in (p.scheme, given.others) for name, leaf in tree.items(nest)}
        inner = self.scheme.cost(self.scheme.Inputs(**made, **extra))
        merged = (*given.x[:-1], self.heads * made["v"][-1])
        total += Passes(inner.forward, inner.backward) + _project.cost(Projection.Inputs(merged, p.w_o, p.b_o))
        numbers = [given.x, given.context, given.values, *tree.leaves(p), *self._floats(given.others)]
        grads = sum(product(x) for x in numbers if x is not None)
        turns = self._frequencies(made)
        forward = Count(total.forward.macs, total.forward.exps + turns, total.forward.saved)
        return Passes(forward, Count(total.backward.macs, total.backward.exps + turns, grads))

    def _frequencies(self, made: dict[str, tuple[int, ...]]) -> int:
        """How many powers of the base rotary positions take."""
        if self.rotary is None:
            return 0
        width: int = made[self._turned[0]][-1] if self.rotary.width is None else self.rotary.width
        return width // 2

    def _floats(self, nest: Any) -> list[tuple[int, ...]]:
        """The shapes of what has a gradient among `others`."""
        names = ((f"others.{name}", x) for name, x in tree.items(nest))
        return [x for name, x in names if self.kinds.get(name, "float") == "float" and name not in self.fixed]


def _split(x: Array, heads: int) -> Array:
    """(..., n, h·k) → (..., h, n, k)."""
    xp = of(x).xp
    return xp.moveaxis(xp.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads)), -2, -3)


def _merge(x: Array) -> Array:
    """(..., h, n, k) → (..., n, h·k)."""
    xp, (*lead, h, n, k) = of(x).xp, x.shape
    return xp.reshape(xp.moveaxis(x, -3, -2), (*lead, n, h * k))


def _chosen(grads: Any, given: Any) -> Any:
    """The gradients of those fields that were given, in the same nest."""
    return type(given)(*(None if x is None else g for g, x in zip(grads, given, strict=True)))
