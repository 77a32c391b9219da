"""Configured schemes as text, read without evaluating anything.

    Dense(causal=True, align='bottom_right')        Dense.conventions['jax']        Local.total(7) | Global(first=1)
    Sparse(Diet.cascade(3).at(1))                   Heads((Causal(), All())).at(0)

An expression is made of constructors, named constructors (class methods), entries of a scheme's ``conventions``, literals
(numbers, strings, True, False, None, tuples, unary minus), ``.at(k)`` for layer k of Alternate and head k of Heads (also
``.at(layer=k)``, ``.at(head=k)``), and the operators ``| & + ~``. Everything else is refused, with a caret under it and what
could stand there instead.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import operator
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from refattn.errors import OptionError
from refattn.patterns import Alternate, Heads, Pattern

_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.BitOr: ("|", operator.or_),
    ast.BitAnd: ("&", operator.and_),
    ast.Add: ("+", operator.add),
}
_PLAIN = (bool, int, float, str, type(None))
_FORMS = "write constructors, X.conventions['name'], numbers, strings, True, False, None, tuples and | & + ~"


def parse(text: str, names: Mapping[str, type]) -> Any:
    """The value that `text` describes; `names` are the classes that it may construct.

    Raises
    ------
    OptionError
        For anything that is no expression of this kind. The message shows the text with a caret under the offending part.
    """
    return _Reader(" ".join(text.split("\n")).strip(), names).read()


def written(value: Any) -> str:
    """The shortest expression for a value: a constructor with the fields that differ from their defaults."""
    if isinstance(value, tuple):
        inside = ", ".join(written(x) for x in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if not dataclasses.is_dataclass(value) or isinstance(value, type | Pattern | Heads | Alternate):
        return repr(value)  # that of a pattern is its expression
    changed = [
        f"{f.name}={written(getattr(value, f.name))}"
        for f in dataclasses.fields(value)
        if f.init and getattr(value, f.name) != _default(f)
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


@dataclass(frozen=True)
class _Reader:
    """One text on one line, and the classes that it may name."""

    text: str
    names: Mapping[str, type]

    def read(self) -> Any:
        if not self.text:
            raise OptionError(f"an empty expression; write for example {_first(self.names)}()")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text, mode="eval")
            return self.value(tree.body)
        except SyntaxError as error:
            at = min(max((error.offset or 1) - 1, 0), len(self.text))
            raise OptionError(self.shown(f"this is no expression: {error.msg}", at, at + 1)) from None
        except (ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"this expression can't be read ({error}): {self.text[:80]!r}") from None

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if isinstance(value, _PLAIN):
                return value
            case ast.Tuple(elts=items):
                return tuple(self.value(item) for item in items)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.negative(node, self.value(inner))
            case ast.UnaryOp(op=ast.Invert(), operand=inner):
                return self.applied(node, "~", operator.invert, self.value(inner))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                sign, act = _OPERATORS[type(op)]
                return self.applied(node, sign, act, self.value(left), self.value(right))
            case ast.Call(func=ast.Attribute(value=several, attr="at")) if not _is_name(several):
                return self.picked(node, self.value(several))
            case ast.Call():
                return self.call(node)
            case ast.Subscript():
                return self.convention(node)
            case ast.Name() | ast.Attribute():
                what = self.constructor(node)
                self.refuse(node, f"{what.__qualname__} is a constructor: write {what.__qualname__}(...)")
        self.refuse(node, f"this can't stand here; {_FORMS}")

    def negative(self, node: ast.expr, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(node, "a minus belongs to a number")
        return -value

    def picked(self, node: ast.Call, several: Any) -> Any:
        """The pattern of one layer of Alternate, or of one head of Heads; its number may have its name before it."""
        if not isinstance(several, Alternate | Heads):
            self.refuse(node, f".at(...) picks from Alternate and Heads, not from {type(several).__name__}")
        name = "layer" if isinstance(several, Alternate) else "head"
        which = [*node.args, *(word.value for word in node.keywords if word.arg == name)]
        if len(which) != 1 or len(node.args) + len(node.keywords) != 1:
            self.refuse(node, f"{type(several).__name__}.at takes one number, .at(1) or .at({name}=1)")
        number = self.value(which[0])
        try:
            return several.at(number)
        except OptionError as error:
            self.refuse(which[0], str(error))

    def applied(self, node: ast.expr, sign: str, act: Callable[..., Any], *values: Any) -> Any:
        """An operator on constructed values; on literals it would mean arithmetic, which is not read here."""
        kinds = " and ".join(type(x).__name__ for x in values)
        if any(isinstance(x, (*_PLAIN, tuple)) for x in values):
            self.refuse(node, f"{sign} joins what constructors make, not {kinds}")
        try:
            return act(*values)
        except TypeError:
            self.refuse(node, f"{sign} has no meaning for {kinds}")

    def convention(self, node: ast.Subscript) -> Any:
        """X.conventions['name']."""
        match node:
            case ast.Subscript(value=ast.Attribute(value=ast.Name() as owner, attr="conventions"), slice=key):
                known = getattr(self.named(owner), "conventions", {})
                wanted = self.value(key)
                if not isinstance(wanted, str) or wanted not in known:
                    self.choose(key, f"{owner.id} has no convention {wanted!r}", str(wanted), known, "conventions")
                return known[wanted]
        self.refuse(node, f"only X.conventions['name'] takes brackets; {_FORMS}")

    def call(self, node: ast.Call) -> Any:
        make = self.constructor(node.func)
        for item in (*node.args, *node.keywords):
            if isinstance(item, ast.Starred) or (isinstance(item, ast.keyword) and item.arg is None):
                self.refuse(item, "stars are not read here: write the arguments out")
        signature = inspect.signature(make)
        self.check_names(node, make, list(signature.parameters))
        args = [self.value(x) for x in node.args]
        named = {str(x.arg): self.value(x.value) for x in node.keywords}
        try:
            bound = signature.bind(*args, **named)
        except TypeError as error:
            self.refuse(node, f"{make.__qualname__}: {error}; it takes {_list(signature.parameters)}")
        self.check_kinds(node, make, bound.arguments)
        try:
            return make(*args, **named)
        except (TypeError, ValueError) as error:
            self.refuse(node, str(error))

    def check_names(self, node: ast.Call, make: Any, known: list[str]) -> None:
        seen: set[str] = set()
        for word in node.keywords:
            name = str(word.arg)
            if name not in known:
                self.choose(word, f"{make.__qualname__} has no field {name!r}", name, known, "fields", len(name))
            if name in seen:
                self.refuse(word, f"{name} is given twice")
            seen.add(name)

    def check_kinds(self, node: ast.Call, make: Any, given: Mapping[str, Any]) -> None:
        """Refuse a literal of another type than the field's: causal='no' would mean True."""
        hints = typing.get_type_hints(make if isinstance(make, type) else make.__func__)
        places = dict(zip(given, node.args, strict=False)) | {str(x.arg): x.value for x in node.keywords}
        for name, value in given.items():
            if not _admits(hints.get(name, Any), value):
                kind = _kind(hints[name])
                self.refuse(places.get(name, node), f"{name}={value!r} must be {kind}")

    def constructor(self, node: ast.expr) -> Any:
        """A class, or a class method that makes one of its values."""
        match node:
            case ast.Name():
                return self.named(node)
            case ast.Attribute(value=ast.Name() as owner, attr=attr):
                cls = self.named(owner)
                makers = [n for n, x in inspect.getmembers_static(cls) if isinstance(x, classmethod) and n[0] != "_"]
                if attr not in makers:
                    entries = [f"conventions[{name!r}]" for name in getattr(cls, "conventions", {})]
                    self.choose(node, f"{owner.id} has no named constructor {attr!r}", attr, makers + entries, "it has")
                return getattr(cls, attr)
        self.refuse(node, f"only constructors can be called; {_FORMS}")

    def named(self, node: ast.Name) -> type:
        if node.id not in self.names:
            self.choose(node, f"nothing is called {node.id!r}", node.id, self.names, "there is")
        return self.names[node.id]

    def choose(
        self, node: Any, message: str, wrong: str, choices: Iterable[str], title: str, length: int | None = None
    ) -> NoReturn:
        """Refuse a name, with the nearest one and all that there are."""
        names = list(choices)
        lower = {name.lower(): name for name in names}
        near = [lower[name] for name in difflib.get_close_matches(wrong.lower(), lower, n=1)]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.refuse(node, message + hint, f"\n{title}: {_list(names)}", length)

    def refuse(self, node: Any, message: str, below: str = "", length: int | None = None) -> NoReturn:
        start, end = (self.column(x) for x in (node.col_offset, node.end_col_offset))
        raise OptionError(self.shown(message, start, end if length is None else start + length) + below)

    def column(self, offset: int) -> int:
        """Python counts columns in bytes of UTF-8."""
        return len(self.text.encode()[:offset].decode(errors="ignore"))

    def shown(self, message: str, start: int, end: int) -> str:
        return f"{message}\n    {self.text}\n    {' ' * start}{'^' * max(end - start, 1)}"


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _first(names: Iterable[str]) -> str:
    return next(iter(names), "")


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "(none)"


def _parts(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type alone."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _admits(hint: Any, value: Any) -> bool:
    """False if `hint` is made of plain types only and `value` is of none of them; a whole number is a float too."""
    kinds = _parts(hint)
    if any(kind not in _PLAIN for kind in kinds):
        return True
    return type(value) in kinds or (type(value) is int and float in kinds)


def _kind(hint: Any) -> str:
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}
    return " or ".join(names[kind] for kind in _parts(hint))
