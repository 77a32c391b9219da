"""Candidates: other people's attention functions, found by name, and what their signatures say that they take.

A candidate is ``path/file.py:function`` or ``package.module:function`` (``Class.method`` too). It is called with the
required inputs of a scheme positionally and with the optional ones that its signature names by keyword; a vjp candidate is
called with everything by keyword.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from refattn.errors import UsageError
from refattn.testing.subjects import subject_of

STATISTICS = ("o", "lse", "do", "dlse")
"""What a vjp candidate may name besides the inputs of the forward."""


@dataclass(frozen=True)
class Fields:
    """A scheme's inputs and results as plain names, all that another process has to know of it.

    outputs: results in the order of a tuple. decided: discrete outcomes that a dict of results may hold besides. heads:
    inputs of shape (..., H, n, d). fixed: floats that have no gradient.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    floats: frozenset[str]
    outputs: tuple[str, ...] = ("o", "lse")
    decided: tuple[str, ...] = ()
    heads: frozenset[str] = frozenset({"q", "k", "v"})
    fixed: frozenset[str] = frozenset()

    @property
    def smooth(self) -> frozenset[str]:
        """The inputs that have a gradient."""
        return self.floats - self.fixed

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in Inputs order."""
        return self.required + self.optional


def fields(scheme: Any) -> Fields:
    """The input names of `scheme`: those without a default are required; all but booleans and integers are floats."""
    subject = subject_of(scheme)
    names, defaults = scheme.Inputs._fields, scheme.Inputs._field_defaults
    kinds: Mapping[str, str] = scheme.kinds
    return Fields(
        tuple(name for name in names if name not in defaults),
        tuple(name for name in names if name in defaults),
        frozenset(name for name in names if kinds.get(name, "float") == "float"),
        tuple(scheme.outputs), subject.decided, subject.heads, frozenset(getattr(scheme, "fixed", ())),
    )


@dataclass(frozen=True)
class Call:
    """What a function takes by keyword. needed: what it names without a default, None where a case does not have it."""

    names: frozenset[str]
    needed: frozenset[str] = frozenset()

    def pick(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of one call, out of all that there is."""
        return {name: known.get(name) for name in sorted(self.names) if name in known or name in self.needed}


def accepts(fn: Callable[..., Any], inputs: Fields) -> Call:
    """The optional inputs that a forward candidate takes: those that it names, all if it takes ``**kwargs``.

    A function without a readable signature (built-in, C extension) takes the required inputs only.

    Raises
    ------
    UsageError
        If it can't be called with the required inputs positionally, in Inputs order.
    """
    signature = _signature(fn)
    if signature is None:
        return Call(frozenset())
    parameters = list(signature.parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    first, order = places[: len(inputs.required)], ", ".join(inputs.required)
    if len(first) < len(inputs.required) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise UsageError(f"{title(fn)}{signature} can't be called with {order}: they are given positionally, in this order")
    for parameter, name in zip(first, inputs.required, strict=False):
        if parameter.name != name and parameter.name in inputs.names:
            raise UsageError(f"{title(fn)}{signature}: {parameter.name!r} stands where {name} is given; "
                             f"the inputs come positionally in the order {order}")
    return _keywords(fn, signature, [p for p in parameters if p not in first], inputs.optional)


def wants(fn: Callable[..., Any], inputs: Fields) -> Call:
    """What a vjp candidate takes, by keyword: among the inputs, o, lse, do and dlse those that it names.

    Raises
    ------
    UsageError
        If its signature can't be read, asks for something else, or has no `do`.
    """
    signature = _signature(fn)
    if signature is None:
        raise UsageError(f"the signature of {title(fn)} can't be read: wrap it in a Python function with named parameters")
    call = _keywords(fn, signature, list(signature.parameters.values()), inputs.names + STATISTICS)
    if "do" not in call.names:
        raise UsageError(f"{title(fn)}{signature} takes no 'do', the cotangent of o: a vjp candidate is called by keyword "
                         f"with what it names among {', '.join(inputs.names + STATISTICS)}")
    return call


def _keywords(fn: Callable[..., Any], signature: inspect.Signature, parameters: list[inspect.Parameter],
              known: tuple[str, ...]) -> Call:
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in needed:
        if p.name not in known or p.kind is p.POSITIONAL_ONLY:
            raise UsageError(f"{title(fn)}{signature}: nothing can be given for {p.name!r}; give it a default, or bind it "
                             f"in a function of your own. By keyword there are {', '.join(known)}")
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Call(frozenset(known if everything else named & set(known)), frozenset(p.name for p in needed))


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def title(fn: Callable[..., Any]) -> str:
    """The name of a function as its author wrote it."""
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def home(fn: Callable[..., Any]) -> str | None:
    """The folder of the file that a function was written in; None if it was not written in Python."""
    code = getattr(inspect.unwrap(fn), "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    return None if code is None else str(Path(code.co_filename).absolute().parent)


def load(spec: str) -> Callable[..., Any]:
    """The function that `spec` names; its folder (for a module: the current one) becomes the first to import from.

    Raises
    ------
    UsageError
        If there is no such file, module or function, or if importing it fails; the message has the traceback's last lines.
    """
    place, colon, name = spec.rpartition(":")
    if not (colon and place and name):
        raise UsageError(f"candidate {spec!r}: give path/file.py:function or package.module:function")
    found: Any = _from_file(spec, Path(place).expanduser()) if _is_path(place) else _from_name(spec, place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"candidate {spec!r}: {place} has no {part!r}{_instead(found, part)}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"candidate {spec!r}: {name} is no function but of type {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _instead(where: Any, wrong: str) -> str:
    """What to write instead of a name that is not there."""
    there = [name for name, x in vars(where).items() if callable(x) and not name.startswith("_")]
    close = difflib.get_close_matches(wrong, there, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it has {', '.join(there[:20])}" if there else " and no other function"


def _from_name(spec: str, name: str) -> ModuleType:
    _first(os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"candidate {spec!r}: there is no module {error.name!r} in {os.getcwd()} nor on Python's path; "
                             "for a file give path/file.py:function") from None
        raise UsageError(_failed(spec, error)) from error


def _from_file(spec: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"candidate {spec!r}: there is no file {path} (looked in {Path.cwd()})")
    path = path.resolve()
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    _first(str(path.parent))
    plan = importlib.util.spec_from_file_location(name, path)
    if plan is None or plan.loader is None:
        raise UsageError(f"candidate {spec!r}: {path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(plan)
    sys.modules[name] = module
    try:
        plan.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(_failed(spec, error)) from error
    return module


def _module_name(path: Path) -> str:
    """The file's own name, by which its neighbours import it too, unless a module of another file has that name."""
    name = path.stem
    known = getattr(sys.modules.get(name), "__file__", None)
    taken = name in sys.modules and not (known and Path(known).resolve() == path)
    return f"_candidate_{name}_{zlib.crc32(str(path).encode()):x}" if taken or not name.isidentifier() else name


def _first(folder: str) -> None:
    sys.path[:] = [folder, *(p for p in sys.path if p != folder)]


def _failed(spec: str, error: BaseException) -> str:
    """The last lines of a traceback, from the candidate's own code on."""
    report = traceback.TracebackException.from_exception(error)
    ours = (os.path.abspath(__file__), os.path.dirname(os.path.abspath(importlib.__file__)), "<frozen importlib")
    kept = [frame for frame in report.stack if not frame.filename.startswith(ours)]
    lines = [*traceback.format_list(kept), *report.format_exception_only()]
    tail = "".join(lines).rstrip().splitlines()[-8:]
    return f"candidate {spec!r} can't be imported:\n" + "\n".join(tail)
