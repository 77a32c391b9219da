"""What every scheme shares: ``@core``, which stands between the caller's arrays and a scheme's dtype-free text.

``@core`` binds what it is given to the scheme's ``Inputs``, checks libraries, dtypes and shapes, lifts to the backend of an
enclosing ``using``, widens half precision to float32, runs the text, and stores the results as a kernel would: the fields
that the scheme calls ``stored`` in the dtype of the inputs, statistics in the accumulator's. A backward's ``Saved`` may
have been put together by hand from what a kernel returned, so it is checked as inputs are.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, Protocol

from refattn import tree
from refattn.backend import AUTO, Backend, active, check_array, of
from refattn.cost import Cost
from refattn.errors import DtypeError, LibraryError, OptionError, ShapeError

Array = Any
Shape = tuple[int, ...]
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8")
_ACCUMULATOR = {"float16": "float32", "bfloat16": "float32"}
_NORMAL = {"float32": (2.0**-126, (2.0 - 2.0**-23) * 2.0**127), "float64": (2.0**-1022, (2.0 - 2.0**-52) * 2.0**1023)}


class Scheme(Protocol):
    """A configured attention scheme: a frozen dataclass whose fields are configuration and whose inputs are arrays.

    A scheme whose o or lse have other shapes than (..., H, n, e) and (..., H, n), those of its q and v, or that saves more
    whose shape is known, has a method ``results(inputs)``: shapes by the names of Saved.
    """

    Inputs: ClassVar[Any]
    Saved: ClassVar[Any]
    outputs: ClassVar[tuple[str, ...]]
    stored: ClassVar[tuple[str, ...]]
    kinds: ClassVar[Mapping[str, str]]
    conventions: ClassVar[Mapping[str, Any]]

    def check(self, inputs: Any) -> None: ...
    def definition(self, *inputs: Any, **named: Any) -> tuple[Array, ...]: ...
    def forward(self, *inputs: Any, **named: Any) -> tuple[Array, Any]: ...
    def vjp(self, saved: Any, do: Array, **named: Any) -> Any: ...
    def cost(self, shapes: Any, block: int | None = 256) -> Cost: ...


def plain_fields(scheme: Any) -> None:
    """NumPy scalars among the fields as Python numbers: float32 arrays times a NumPy float64 scalar are float64 arrays."""
    for name, value in list(vars(scheme).items()):
        if getattr(value, "shape", None) == ():
            object.__setattr__(scheme, name, value.item())


def number(scheme: Any, name: str) -> None:
    """Refuse a field that is no finite real number; None passes. What arrays can not be multiplied with becomes a float."""
    value = getattr(scheme, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(f"{name}={value!r} is a {type(value).__name__}, not a number")
    try:
        as_float = float(value)
    except OverflowError:
        raise OptionError(f"{name} is beyond the largest float, 1.8e308") from None
    if not math.isfinite(as_float):
        raise OptionError(f"{name}={value!r} is not finite")
    if not isinstance(value, int) or abs(value) > 2**53:
        object.__setattr__(scheme, name, as_float)


def dtype_name(x: Array) -> str:
    """The dtype's plain name in any library: float32, bfloat16, bool, int64."""
    return _dtype_name(type(x.dtype).__module__, x.dtype)


@functools.lru_cache(maxsize=256)
def _dtype_name(library: str, dtype: Any) -> str:
    """`library` keeps dtypes apart that may be equal, or refuse to be compared."""
    return str(dtype).rpartition(".")[2]


def core(text: Callable[..., Any]) -> Any:
    """Wrap a scheme's ``definition``, ``forward``, ``vjp``, ``step`` or ``cost`` text; the wrapped name decides which."""
    wrappers = {"definition": _definition, "forward": _forward, "vjp": _vjp, "step": _step, "cost": _cost}
    return wrappers[text.__name__](text)


def _definition(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def definition(self: Scheme, *args: Any, **named: Any) -> tuple[Array, ...]:
        b, inputs = admit(self, args, named)
        out = text(self, tree.map(b.widen, inputs))
        return tuple(_store(self, b, name, x, inputs[0]) for name, x in zip(self.outputs, out, strict=True))

    return definition


def _forward(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def forward(self: Scheme, *args: Any, block: Any = AUTO, **named: Any) -> tuple[Array, Any]:
        b, inputs = admit(self, args, named)
        saved = text(self, tree.map(b.widen, inputs), block=_rows(b, block))
        results = {name: _store(self, b, name, x, inputs[0]) for name, x in saved._asdict().items() if name != "inputs"}
        saved = saved._replace(inputs=inputs, **results)
        return getattr(saved, self.outputs[0]), saved

    return forward


def _vjp(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def vjp(self: Scheme, saved: Any, do: Array, *, block: Any = AUTO, **cotangents: Any) -> Any:
        b, saved = _admit_saved(self, saved)
        given = {"do": do, **{name: x for name, x in cotangents.items() if x is not None}}
        given = {name: _cotangent(self, b, saved, name, x) for name, x in given.items()}
        wide = tree.map(b.widen, saved)
        grads = text(self, wide, given.pop("do"), block=_rows(b, block), **given)
        pairs = zip(grads, saved.inputs, strict=True)
        return type(grads)(*(None if g is None else b.narrow(g, x) for g, x in pairs))

    return vjp


def _step(text: Callable[..., Any]) -> Any:
    """A stream keeps its state in the accumulator's dtype and gives results in that of its tokens."""

    @functools.wraps(text)
    def step(self: Scheme, state: Any, *token: Any, block: Any = AUTO, **named: Any) -> tuple[Any, Array]:
        b, inputs = admit(self, token, named)
        state = tree.map(lambda x: x if belongs(x, b) else b.lift(x), state)
        state, o = text(self, state, tree.map(b.widen, inputs), block=_rows(b, block))
        return tree.map(b.settle, state), b.narrow(o, inputs[0])

    return step


def _cost(text: Callable[..., Any]) -> Any:
    @functools.wraps(text)
    def cost(self: Scheme, shapes: Any, block: Any = 256) -> Cost:
        if not isinstance(shapes, self.Inputs):
            name = self.Inputs.__qualname__
            raise OptionError(f"cost takes the shapes of all inputs as {name}, not {_told(shapes)}: {name}((2, 4, 9, 3), …)")
        _check_needed(self, shapes)
        given = self.Inputs(*(tree.map(functools.partial(_shape, name), x) for name, x in shapes._asdict().items()))
        self.check(given)
        found: Cost = text(self, given, check_block(256 if block is AUTO else block))
        return found

    return cost


def _shape(name: str, x: Any) -> Shape:
    """The sizes of an array, or of a shape that may have been written as a list."""
    sizes = x.shape if hasattr(x, "shape") else x
    try:
        shape = tuple(operator.index(size) for size in sizes)
    except TypeError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise OptionError(f"{name}={x!r} is no shape: give a tuple of sizes, whole numbers none of which is negative")
    return shape


def _rows(b: Backend, block: Any) -> int | None:
    """The number of query rows at a time that a caller asked for."""
    return b.block if block is AUTO else check_block(block)


def check_block(block: Any) -> int | None:
    """`block` itself, or OptionError if it is no number of rows."""
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise OptionError(f"block={block!r}: give a positive number of query rows, None for all of them, or AUTO")
    return block


def _store(scheme: Scheme, b: Backend, name: str, x: Array, like: Array) -> Array:
    if x is None:  # a result that this configuration does not have
        return None
    return b.narrow(x, like) if name in scheme.stored else b.settle(x)


def admit(scheme: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Backend, Any]:
    """The backend and the bound, checked and lifted Inputs of a call."""
    inputs = bind(scheme, args, named)
    _check_needed(scheme, inputs)
    inputs = _lifted(inputs)
    return _fitting(scheme, inputs), inputs


def _fitting(scheme: Scheme, inputs: Any) -> Backend:
    """The one backend of Inputs whose dtypes and shapes fit together, and to the scheme."""
    b = of(*tree.leaves(inputs))
    dtype = check_dtypes(scheme, inputs)
    scheme.check(inputs)
    if dtype is not None:
        check_numbers(scheme, dtype)
    return b


def _check_needed(scheme: Scheme, inputs: Any) -> None:
    """Refuse an Inputs that lacks a field without a default; these come first."""
    for name, x in zip(inputs._fields[: len(inputs) - len(inputs._field_defaults)], inputs, strict=False):
        if x is None:
            raise LibraryError(f"{name} is None: {type(scheme).__name__} needs it")


def _lifted(nest: Any) -> Any:
    """The nest, of which every leaf must be an array, with the backend's own arrays inside ``using``."""
    for name, x in tree.items(nest):
        check_array(name, x)
    inside = active()
    return nest if inside is None else tree.map(lambda x: x if belongs(x, inside) else inside.lift(x), nest)


def _admit_saved(scheme: Scheme, saved: Any) -> tuple[Backend, Any]:
    """The backend of a backward, and its Saved checked and lifted. Which configuration made it, nothing in it can say."""
    name = type(scheme).__name__
    if not isinstance(saved, scheme.Saved):
        raise OptionError(f"{name}.vjp takes the {name}.Saved that forward returns, o, saved = scheme.forward(...), as in "
                          f"scheme.vjp(saved, do), not {_told(saved)}")
    if not isinstance(saved.inputs, scheme.Inputs):
        raise OptionError(f"saved.inputs is {_told(saved.inputs)}; it must be the {name}.Inputs that forward was given")
    _check_needed(scheme, saved.inputs)
    for out in scheme.outputs:
        if getattr(saved, out) is None:
            raise OptionError(f"saved.{out} is None: the backward needs what forward returned")
    saved = _lifted(saved)
    b = _fitting(scheme, saved.inputs)
    _check_results(scheme, b, saved.inputs, saved._replace(inputs=None))
    return b, saved


def _check_results(scheme: Scheme, b: Backend, inputs: Any, results: Any) -> None:
    """Refuse results that do not belong to the inputs by library, dtype or shape."""
    stored = dtype_name(inputs[0])
    kept = _ACCUMULATOR.get(stored, stored)
    for name, x in tree.items(results):
        if not belongs(x, b):
            raise LibraryError(f"saved.{name} is of {of(x).name}, but the inputs are of {b.name}: move it there first")
        dtype, want = dtype_name(x), stored if name in scheme.stored else kept
        if dtype != want and (dtype in FLOATS or name in scheme.outputs):
            raise DtypeError(f"saved.{name} has dtype {dtype}; for inputs of {stored} forward keeps it in {want}: cast it")
    for name, shape in getattr(scheme, "results", _results)(inputs).items():
        x = getattr(results, name, None)
        if x is not None and tuple(x.shape) != shape:
            given = ", ".join(f"{i}: {tuple(a.shape)}" for i, a in tree.items(inputs))
            raise ShapeError(f"saved.{name} has shape {tuple(x.shape)}; inputs of these shapes give {shape} ({given})")


def _results(inputs: Any) -> dict[str, Shape]:
    """o, lse and its parts top and z, of attention with queries q (or qk) and values v."""
    q, v = getattr(inputs, "q", getattr(inputs, "qk", None)), getattr(inputs, "v", None)
    if q is None or v is None:
        return {}
    rows = tuple(q.shape[:-1])
    return {"o": (*rows, v.shape[-1]), **dict.fromkeys(("lse", "top", "z"), rows)}


def _told(x: Any) -> str:
    """What someone gave, for an error: arrays and tuples by their type alone."""
    return "None" if x is None else f"a {type(x).__qualname__}"


def belongs(x: Array, b: Backend) -> bool:
    return of(x).name == b.name


def joined(name: str, x: Array, b: Backend) -> Array:
    """A cotangent among the arrays of b: inside ``using`` it is lifted, elsewhere one of another library is refused."""
    if belongs(x, b):
        return x
    if active() is None:
        raise LibraryError(f"{name} is of {of(x).name}, but saved is of {b.name}: move it there first")
    return b.lift(x)


def bind(scheme: Scheme, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Positional and keyword arguments as the scheme's Inputs; one Inputs alone passes through."""
    fields = scheme.Inputs._fields
    if len(args) == 1 and isinstance(args[0], scheme.Inputs) and not named:
        return args[0]
    unknown = sorted(set(named) - set(fields))
    if unknown or len(args) > len(fields):
        wrong = f"no input called {', '.join(unknown)}" if unknown else f"{len(args)} inputs given"
        raise OptionError(f"{type(scheme).__name__}: {wrong}; the inputs are {', '.join(fields)}")
    try:
        return scheme.Inputs(*args, **named)
    except TypeError as error:
        raise OptionError(f"{type(scheme).__name__}: {error}; the inputs are {', '.join(fields)}") from None


def check_dtypes(scheme: Scheme, inputs: Any) -> str | None:
    """The one float dtype of all inputs, None if there is none; inputs of the wrong kind and a second one are refused."""
    floats: dict[str, str] = {}
    for name, x in tree.items(inputs):
        kind, dtype = scheme.kinds.get(name, "float"), dtype_name(x)
        if dtype not in _FITS[kind]:
            bias = ", or pass it as bias" if "bias" in scheme.Inputs._fields else ""
            more = f" (True = may attend){bias}" if name == "mask" else ""
            raise DtypeError(f"{name} has dtype {dtype}; it must be {_KINDS[kind]}{more}")
        if kind == "float":
            floats[name] = dtype
    if len(set(floats.values())) > 1:
        both = ", ".join(f"{name}: {dtype}" for name, dtype in floats.items())
        raise DtypeError(f"mixed float dtypes ({both}): cast them to one, nothing is cast silently")
    return next(iter(floats.values()), None)


def check_numbers(scheme: Scheme, dtype: str) -> None:
    """Refuse a number among the fields that is 0 or infinite in the dtype of arithmetic, as 1e39 in float32: 0·∞ is NaN."""
    least, most = _NORMAL[_ACCUMULATOR.get(dtype, dtype)]
    for name, x in vars(scheme).items():
        if isinstance(x, float) and x and not least <= abs(x) <= most:
            what = f"{type(scheme).__name__} with {name}={x!r}"
            raise OptionError(f"{what}: {dtype} inputs are computed in {_ACCUMULATOR.get(dtype, dtype)}, whose numbers "
                              f"are {least:.2g} … {most:.2g}; give one of those, or wider inputs")


_KINDS = {
    "float": "one of " + ", ".join(FLOATS),
    "bool": "bool; what integers or additive numbers mean is not guessed at: compare it with 0",
    "int": "one of " + ", ".join(INTS) + " (libraries do not compare wider unsigned integers with these)",
}
_FITS = {"float": FLOATS, "bool": ("bool",), "int": INTS}


def _cotangent(scheme: Scheme, b: Backend, saved: Any, name: str, x: Array) -> Array:
    """A cotangent checked against the result that it belongs to, lifted and widened."""
    check_array(name, x)
    result = getattr(saved, "o" if name == "do" else name.removeprefix("d"), None)
    if result is None or (name != "do" and name.removeprefix("d") not in scheme.outputs):
        known = ", ".join(f"d{out}" for out in scheme.outputs)
        raise OptionError(f"{type(scheme).__name__} has no cotangent {name}; it has {known}")
    if tuple(x.shape) != tuple(result.shape):
        raise ShapeError(f"{name} has shape {tuple(x.shape)}, but {name[1:]} has shape {tuple(result.shape)}")
    x = joined(name, x, b)
    if dtype_name(x) != dtype_name(result):
        raise DtypeError(f"{name} has dtype {dtype_name(x)}, but {name[1:]} has dtype {dtype_name(result)}")
    return b.widen(x)
