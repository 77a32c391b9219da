"""What every layer shares: ``@layer`` on forward and vjp, which stands between the caller's arrays and a dtype-free text.

A layer is a frozen dataclass. Its ``Inputs`` hold x, the parameters (a nest of NamedTuples) and what else it reads; ``vjp``
returns an Inputs of gradients, None for what has none or was not given. Half precision is computed in float32, and what a
layer saves is what its text computed; y and gradients come back in the dtype of the inputs. Layers know each other by this
protocol alone: a layer that is made of layers is given them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from refattn import tree
from refattn.backend import AUTO, Backend, active, is_array, of
from refattn.cost import Passes
from refattn.errors import DtypeError, LibraryError, OptionError, ShapeError
from refattn.rng import Source
from refattn.schemes.base import admit, bind, dtype_name, joined
from refattn.shapes import Shape, product, shape_of, sizes

Array = Any


class Layer(Protocol):
    """What a layer offers; `sizes` are axis letters, `rng` says where initial values come from, `given` are shapes."""

    Inputs: ClassVar[type]
    Params: ClassVar[type]
    Saved: ClassVar[type]

    @property
    def kinds(self) -> Mapping[str, str]: ...  # of inputs that are no floats, by dotted name: "int" or "bool"
    @property
    def fixed(self) -> tuple[str, ...]: ...  # floats that have no gradient
    def init(self, sizes: Mapping[str, int], rng: Source) -> Any: ...
    def parameters(self, sizes: Mapping[str, int]) -> int: ...
    def check(self, inputs: Any) -> None: ...
    def result(self, given: Any) -> Shape: ...
    def forward(self, *inputs: Any, **named: Any) -> tuple[Array, Any]: ...
    def vjp(self, saved: Any, dy: Array, **named: Any) -> Any: ...
    def cost(self, shapes: Any) -> Passes: ...


def layer(text: Callable[..., Any]) -> Any:
    """Wrap a layer's ``forward`` or ``vjp`` text; the wrapped name decides which."""
    return {"forward": _forward, "vjp": _vjp}[text.__name__](text)


def _forward(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def forward(self: Any, *args: Any, block: Any = AUTO, **named: Any) -> tuple[Array, Any]:
        b, inputs = admit(self, (bound(self, args, named),), {})
        y, saved = text(self, tree.map(b.widen, inputs), block=block)
        return b.narrow(y, like_of(inputs)), saved._replace(inputs=inputs)

    return forward


def _vjp(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def vjp(self: Any, saved: Any, dy: Array, *, block: Any = AUTO) -> Any:
        name = type(self).__name__
        if not isinstance(saved, self.Saved):
            raise OptionError(f"{name}.vjp takes the {name}.Saved that forward returns, y, saved = layer.forward(...), "
                              f"as in layer.vjp(saved, dy), not a {type(saved).__qualname__}")
        b = active() or of(*tree.leaves(saved.inputs))
        if not is_array(dy):
            raise LibraryError(f"dy is a {type(dy).__name__}, not an array")
        dy = joined("dy", dy, b)
        shape = self.result(tree.map(shape_of, saved.inputs))
        if shape_of(dy) != shape:
            raise ShapeError(f"dy has shape {shape_of(dy)}, but y has shape {shape}")
        wanted = dtype_name(like_of(saved.inputs))
        if dtype_name(dy) != wanted:
            raise DtypeError(f"dy has dtype {dtype_name(dy)}, but the results of this layer have dtype {wanted}")
        grads = text(self, tree.map(b.widen, saved), b.widen(dy), block=block)
        return narrowed(b, grads, saved.inputs)

    return vjp


def bound(layer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The Inputs of a call; OptionError if the parameters are no nest of this layer."""
    inputs = bind(layer, args, named)
    p = inputs.params
    if p is not None and not isinstance(p, layer.Params):
        raise OptionError(f"params is a {type(p).__qualname__}: {type(layer).__name__} takes {layer.Params.__qualname__}, "
                          "as its init makes them")
    return inputs


def size(sizes: Mapping[str, int], letter: str, layer: Any) -> int:
    """The size of an axis; ShapeError if it was not said."""
    if letter not in sizes:
        raise ShapeError(f"{type(layer).__name__} needs the size {letter}, and sizes has "
                         f"{', '.join(f'{name}={n}' for name, n in sizes.items()) or 'none'}")
    return sizes[letter]


def like_of(inputs: Any) -> Array:
    """An input that has the dtype of results: the first of numbers."""
    return next(x for x in tree.leaves(inputs) if dtype_name(x).startswith(("float", "bfloat")))


def narrowed(b: Backend, grads: Any, inputs: Any) -> Any:
    """A nest of gradients, each in the dtype of its input."""
    if grads is None or inputs is None:
        return None
    if tree.is_branch(grads):
        return type(grads)(*(narrowed(b, g, x) for g, x in zip(grads, inputs, strict=True)))
    return b.narrow(grads, inputs)


def size_of(nest: Any) -> int:
    """How many numbers a nest of arrays or shapes holds."""
    return sum(product(shape_of(x)) for x in tree.leaves(nest))


def gradients_of(given: Any, kinds: Mapping[str, str], fixed: Iterable[str] = ()) -> int:
    """How many numbers the gradients of an Inputs of shapes hold: those of every float that is not fixed."""
    none = {name for name, kind in kinds.items() if kind != "float"} | set(fixed)
    return sum(product(shape) for name, shape in tree.items(given) if name not in none)


def replayed(f: Any, given: Any) -> tuple[Any, int]:
    """The shapes that a second forward of a layer is given, and how many elements of decisions are kept for it."""
    if not hasattr(f, "replay_shapes"):
        return given, 0
    again = f.replay_shapes(given)
    before = set(tree.names(given))
    return again, sum(product(shape) for name, shape in tree.items(again) if name not in before)


def fit(name: str, x: Shape, params: Any, letter: str) -> None:
    """Refuse weights ``w_<letter>`` or biases ``b_<letter>`` that do not fit x, (..., n, d); `name` is what x is called."""
    w, b = f"params.w_{letter}", f"params.b_{letter}"
    shapes = {name: x, w: getattr(params, f"w_{letter}"), b: getattr(params, f"b_{letter}")}
    shapes = {key: shape for key, shape in shapes.items() if shape is not None}
    sizes({key: {name: "* n d", w: "d f", b: "f"}[key] for key in shapes}, shapes)


def dense_weight(rng: Source, d: int, e: int) -> Array:
    """A (d, e) matrix of normal numbers of variance 1/d: products of rows of variance 1 have variance 1."""
    return rng.normal((d, e), max(d, 1) ** -0.5)


class Wrapper:
    """A layer that computes what another one does, ``inner``, in another way: its inputs and parameters are that one's."""

    inner: Any

    @property
    def Inputs(self) -> Any:
        return self.inner.Inputs

    @property
    def Params(self) -> Any:
        return self.inner.Params

    @property
    def kinds(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.inner.kinds
        return found

    @property
    def fixed(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self.inner.fixed
        return found

    def init(self, sizes: Mapping[str, int], rng: Source) -> Any:
        """Those of the layer inside."""
        return self.inner.init(sizes, rng)

    def parameters(self, sizes: Mapping[str, int]) -> int:
        """How many numbers ``init`` makes."""
        found: int = self.inner.parameters(sizes)
        return found

    def check(self, inputs: Any) -> None:
        """Refuse what the layer inside refuses."""
        self.inner.check(inputs)

    def result(self, given: Any) -> Shape:
        """The shape of y."""
        found: Shape = self.inner.result(given)
        return found
