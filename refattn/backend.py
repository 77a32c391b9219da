"""What an array backend is, and how the one that belongs to an array is found.

A backend is a plug-in ``refattn/backends/<name>_backend.py`` with a function ``backend(**options)``. It is found by the
type of the arrays that a scheme is given, or by name; nothing in refattn imports one statically, and a library that the
caller does not use is never loaded.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from refattn.errors import BackendUnavailable, LibraryError, OptionError

Array = Any


class _Auto:
    def __repr__(self) -> str:
        return "AUTO"


AUTO: Final = _Auto()
"""``block=AUTO``: as many query rows at a time as the backend likes best (``Backend.block``; None: all of them)."""
Block = int | None | _Auto


class Backend(Protocol):
    """An array namespace, a table of kernels, and the few words that the array API standard lacks.

    ``name`` array library or reading; ``xp`` namespace of the 2024.12 standard; ``kernels`` overrides by the names that
    ``@kernel`` gives; ``block`` rows of a block that AUTO stands for (None: all rows at once).
    """

    @property
    def name(self) -> str: ...
    @property
    def xp(self) -> Any: ...
    @property
    def kernels(self) -> Mapping[str, Callable[..., Any]]: ...
    @property
    def block(self) -> int | None: ...

    def lift(self, x: Any, like: Array | None = None) -> Array:
        """A host array, a range or a number as an array of this backend, on the device of `like`."""

    def host(self, x: Array) -> Any:
        """The values of x as a NumPy array."""

    def constant(self, x: Array) -> Array:
        """x as a gauge: any value would give the same result, so errors, radii and gradients of x are dropped."""

    def widen(self, x: Array) -> Array:
        """Half precision to float32; everything else, and everything in a reading, as it is."""

    def narrow(self, x: Array, like: Array) -> Array:
        """x in the dtype of `like`, the way a kernel stores a result."""

    def settle(self, x: Array) -> Array:
        """x as a kernel stores a statistic: in the accumulator's precision. The identity for values."""


_ACTIVE: ContextVar[Backend | None] = ContextVar("refattn_backend", default=None)
_FINDERS: dict[type, Callable[[Any], Backend | None] | None] = {}


def of(*arrays: Any) -> Backend:
    """The one backend of all arrays among `arrays`; what is no array (None, numbers, configuration) is skipped.

    Raises
    ------
    LibraryError
        If there is no array, or arrays of two libraries.
    """
    found: Backend | None = None
    for x in arrays:
        other = _backend_of(x)
        if other is None:
            continue
        if found is not None and found.name != other.name:
            raise LibraryError(
                f"arrays of two libraries in one call: {found.name} and {other.name}; move them to one of the two first"
            )
        found = found or other
    if found is None:
        raise LibraryError("no array among " + (", ".join(type(x).__name__ for x in arrays) or "no arguments"))
    return found


def is_array(x: Any) -> bool:
    """True if some backend takes x for an array."""
    return _backend_of(x) is not None


_INSTEAD = {
    "MaskedArray": "its mask would be ignored; give the data, and what hides keys as a boolean input",
    "matrix": "its products are not those of arrays; give numpy.asarray of it",
    "Tensor": "only strided tensors have their elements in memory; give x.to_dense()",
}


def check_array(name: str, x: Any) -> None:
    """Refuse what no backend takes for an array, showing what it is.

    Raises
    ------
    LibraryError
        Always, but for arrays.
    """
    if is_array(x):
        return
    what = "None" if x is None else f"a {type(x).__name__}"
    known = (_INSTEAD[t.__name__] for t in type(x).__mro__ if t.__name__ in _INSTEAD)
    raise LibraryError(f"{name} is {what}, not an array: {next(known, 'give NumPy, CuPy or other array API arrays')}")


def _backend_of(x: Any) -> Backend | None:
    kind = type(x)
    if kind not in _FINDERS:
        _FINDERS[kind] = _make_finder(x)
    find = _FINDERS[kind]
    return None if find is None else find(x)


def _make_finder(x: Any) -> Callable[[Any], Backend | None] | None:
    """How the backend of things like x is found: its own, the plug-in that is called like its library, or ``array_api``."""
    if hasattr(type(x), "__refattn_backend__"):
        return lambda y: y.__refattn_backend__
    if not hasattr(x, "shape"):  # numbers, None, configuration; a NumPy scalar has a shape, though float64 is a float too
        return None
    if not importlib.import_module("array_api_compat").is_array_api_obj(x):
        return None
    if any(t.__name__ in ("MaskedArray", "matrix") for t in type(x).__mro__):
        return None
    roots = [t.__module__.partition(".")[0].replace("jaxlib", "jax") for t in type(x).__mro__]
    own = next((r for r in roots if r in _all()), None)
    found = _known(own) if own else _known("array_api", library=next(r for r in roots if r != "builtins"))
    return functools.partial(_if_held, found) if hasattr(found, "holds") else functools.partial(_always, found)


def _always(backend: Backend, _: Any) -> Backend:
    return backend


def _if_held(backend: Any, x: Any) -> Backend | None:
    """A library may have things of the type of its arrays whose elements can't be reached, as sparse tensors."""
    return backend if backend.holds(x) else None


def load(name: str, **options: Any) -> Backend:
    """The backend called `name`, as in ``load("cupy")`` or ``load("rounding", precision=PRESETS["fp32"])``.

    Raises
    ------
    BackendUnavailable
        If there is no such backend, or its library or device is missing; the message says what to install.
    OptionError
        For options that the backend does not have, or needs and was not given.
    """
    if name not in _all():
        raise BackendUnavailable(f"no backend is called {name!r}; there are {', '.join(_all())}")
    make = importlib.import_module(f"refattn.backends.{name}_backend").backend
    signature = inspect.signature(make)
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = f"its options are {', '.join(signature.parameters)}" if signature.parameters else "it has no options"
        raise OptionError(f"load({name!r}): {error}; {takes}") from None
    made: Backend = make(**options)
    return made


_known = functools.cache(load)


@functools.cache
def _all() -> list[str]:
    folder = importlib.import_module("refattn.backends").__path__
    return sorted(m.name.removesuffix("_backend") for m in pkgutil.iter_modules(folder) if m.name.endswith("_backend"))


@contextmanager
def using(backend: Backend) -> Iterator[Backend]:
    """Inside it, schemes lift the NumPy arrays that they are given to `backend`."""
    token = _ACTIVE.set(backend)
    try:
        yield backend
    finally:
        _ACTIVE.reset(token)


def active() -> Backend | None:
    """The backend of the innermost ``using``, or None."""
    return _ACTIVE.get()
