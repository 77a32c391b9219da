"""Nested inputs as trees: a NamedTuple is a branch, None is an absent leaf, everything else is a leaf.

Names are the path of fields joined by dots, as in ``inputs.q`` or ``params.w_q``.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def is_branch(x: Any) -> bool:
    """True for a NamedTuple, False for arrays, shapes (plain tuples) and None."""
    return isinstance(x, tuple) and hasattr(x, "_fields")


def items(nest: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, leaf) of every leaf that is there, in the order of the fields."""
    if is_branch(nest):
        for name, value in zip(nest._fields, nest, strict=True):
            if value is not None:
                yield from items(value, f"{prefix}.{name}" if prefix else name)
    elif nest is not None:
        yield prefix, nest


def leaves(nest: Any) -> list[Any]:
    """The leaves that are there, in the order of the fields."""
    return [leaf for _, leaf in items(nest)]


def names(nest: Any) -> list[str]:
    """The dotted names of the leaves that are there."""
    return [name for name, _ in items(nest)]


def map(fn: Callable[[Any], Any], nest: Any) -> Any:
    """The same nest with fn applied to every leaf; None stays None."""
    if is_branch(nest):
        return type(nest)(*(None if value is None else map(fn, value) for value in nest))
    return None if nest is None else fn(nest)


def pick(nest: Any, wanted: Callable[[str], bool], prefix: str = "") -> Any:
    """The nest with those leaves alone whose names are wanted; a branch without any is None."""
    if not is_branch(nest):
        return nest if nest is not None and wanted(prefix) else None
    fields = zip(nest._fields, nest, strict=True)
    parts = [pick(value, wanted, f"{prefix}.{name}" if prefix else name) for name, value in fields]
    return None if all(part is None for part in parts) else type(nest)(*parts)


def fits(a: Any, b: Any) -> bool:
    """Whether two nests are of the same types wherever both are there, so that ``add`` can join them."""
    if a is None or b is None or not (is_branch(a) or is_branch(b)):
        return True
    return type(a) is type(b) and all(fits(x, y) for x, y in zip(a, b, strict=True))


def row(nests: Iterable[Any]) -> Any:
    """Nests side by side, as those of the layers of a stack: a branch whose fields are called l0, l1, …"""
    values = tuple(nests)
    return _rows(len(values))(*values)


@functools.cache
def _rows(size: int) -> Any:
    make: Any = collections.namedtuple
    fields = make("Row", [f"l{i}" for i in range(size)])
    return type("Row", (fields,), {"__slots__": (), "__reduce__": lambda self: (row, (tuple(self),))})


def add(a: Any, b: Any) -> Any:
    """The sum of two nests of one structure, leaf by leaf; None is nothing."""
    if a is None or b is None:
        return b if a is None else a
    return type(a)(*(add(x, y) for x, y in zip(a, b, strict=True))) if is_branch(a) else a + b
