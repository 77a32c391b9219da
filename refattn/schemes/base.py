"""What every scheme shares: ``@core``, which stands between the caller's arrays and a scheme's dtype-free text.

``@core`` binds what it is given to the scheme's ``Inputs``, checks libraries, dtypes and shapes, lifts to the backend of an
enclosing ``using``, widens half precision to float32, runs the text, and stores the results as a kernel would: the fields
that the scheme calls ``stored`` in the dtype of the inputs, statistics in the accumulator's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from refattn import tree
from refattn.backend import AUTO, Backend, active, is_array, of
from refattn.cost import Cost
from refattn.errors import DtypeError, LibraryError, OptionError, ShapeError

Array = Any
FLOATS = ("float64", "float32", "float16", "bfloat16")


class Scheme(Protocol):
    """A configured attention scheme: a frozen dataclass whose fields are configuration and whose inputs are arrays."""

    Inputs: ClassVar[type]
    Saved: ClassVar[type]
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


def dtype_name(x: Array) -> str:
    """The dtype's plain name in any library: float32, bfloat16, bool, int64."""
    return str(x.dtype).rpartition(".")[2]


def core(text: Callable[..., Any]) -> Any:
    """Wrap a scheme's ``definition``, ``forward`` or ``vjp`` text; the wrapped name decides which."""
    return {"definition": _definition, "forward": _forward, "vjp": _vjp}[text.__name__](text)


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
        b = active() or of(*tree.leaves(saved.inputs))
        given = {"do": do, **{name: x for name, x in cotangents.items() if x is not None}}
        given = {name: _cotangent(self, b, saved, name, x) for name, x in given.items()}
        wide = tree.map(b.widen, saved)
        grads = text(self, wide, given.pop("do"), block=_rows(b, block), **given)
        pairs = zip(grads, saved.inputs, strict=True)
        return type(grads)(*(None if g is None else b.narrow(g, x) for g, x in pairs))

    return vjp


def _rows(b: Backend, block: Any) -> int | None:
    """The number of query rows at a time that a caller asked for."""
    if block is AUTO:
        return b.block
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise OptionError(f"block={block!r}: give a positive number of query rows, None for all of them, or AUTO")
    return block


def _store(scheme: Scheme, b: Backend, name: str, x: Array, like: Array) -> Array:
    return b.narrow(x, like) if name in scheme.stored else b.settle(x)


def admit(scheme: Scheme, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Backend, Any]:
    """The backend and the bound, checked and lifted Inputs of a call."""
    inputs = bind(scheme, args, named)
    for name, x in tree.items(inputs):
        if not is_array(x):
            raise LibraryError(
                f"{name} is a {type(x).__name__}, not an array: give NumPy, CuPy or other array API arrays"
            )
    inside = active()
    if inside is not None:
        inputs = tree.map(lambda x: x if belongs(x, inside) else inside.lift(x), inputs)
    b = of(*tree.leaves(inputs))
    check_dtypes(scheme, inputs)
    scheme.check(inputs)
    return b, inputs


def belongs(x: Array, b: Backend) -> bool:
    return of(x).name == b.name


def bind(scheme: Scheme, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Positional and keyword arguments as the scheme's Inputs; one Inputs alone passes through."""
    fields = scheme.Inputs._fields  # type: ignore[attr-defined]
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


def check_dtypes(scheme: Scheme, inputs: Any) -> None:
    """Refuse inputs of the wrong kind, and two float dtypes in one call."""
    floats: dict[str, str] = {}
    for name, x in tree.items(inputs):
        kind, dtype = scheme.kinds.get(name, "float"), dtype_name(x)
        fits = dtype in FLOATS if kind == "float" else dtype.startswith(("int", "uint") if kind == "int" else kind)
        if not fits:
            raise DtypeError(f"{name} has dtype {dtype}; it must be {_KINDS[kind]}")
        if kind == "float":
            floats[name] = dtype
    if len(set(floats.values())) > 1:
        both = ", ".join(f"{name}: {dtype}" for name, dtype in floats.items())
        raise DtypeError(f"mixed float dtypes ({both}): cast them to one, nothing is cast silently")


_KINDS = {
    "float": "one of " + ", ".join(FLOATS),
    "bool": "bool (True = may attend); an integer or additive mask is not guessed at: compare it with 0, or pass it as bias",
    "int": "an integer dtype",
}


def _cotangent(scheme: Scheme, b: Backend, saved: Any, name: str, x: Array) -> Array:
    """A cotangent checked against the result that it belongs to, lifted and widened."""
    if not is_array(x):
        raise LibraryError(f"{name} is a {type(x).__name__}, not an array")
    result = getattr(saved, "o" if name == "do" else name.removeprefix("d"), None)
    if result is None or (name != "do" and name.removeprefix("d") not in scheme.outputs):
        known = ", ".join(f"d{out}" for out in scheme.outputs)
        raise OptionError(f"{type(scheme).__name__} has no cotangent {name}; it has {known}")
    if tuple(x.shape) != tuple(result.shape):
        raise ShapeError(f"{name} has shape {tuple(x.shape)}, but {name[1:]} has shape {tuple(result.shape)}")
    x = x if belongs(x, b) else b.lift(x)
    if dtype_name(x) != dtype_name(result):
        raise DtypeError(f"{name} has dtype {dtype_name(x)}, but {name[1:]} has dtype {dtype_name(result)}")
    return b.widen(x)
