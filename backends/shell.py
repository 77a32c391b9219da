"""What the arrays of all readings share: Python's operators, each handed to a function of the array's namespace by name.

A reading's array has a shape and a namespace; it has no truth value, no length and no iterator, so that a scheme's text
cannot branch on data in Python. Mixed expressions with NumPy arrays come here, never to NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar


class Shell:
    """Base of a reading's arrays: it needs ``shape`` and ``__refattn_backend__``, and gives operators and sizes."""

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None
    __iter__: ClassVar[None] = None
    __hash__: ClassVar[None]  # type: ignore[assignment]

    shape: Any

    @property
    def __refattn_backend__(self) -> Any:
        raise NotImplementedError

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return self.__refattn_backend__.xp

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def mT(self) -> Any:
        return self.__refattn_backend__.xp.matrix_transpose(self)

    @property
    def device(self) -> str:
        return "cpu"

    def __getitem__(self, key: Any) -> Any:
        return self.__refattn_backend__.xp.getitem(self, key)

    def __bool__(self) -> bool:
        raise TypeError("an array of a reading has no truth value: choose by where(condition, a, b), not by if")

    def __eq__(self, other: object) -> Any:
        return self.__refattn_backend__.xp.equal(self, other)

    def __ne__(self, other: object) -> Any:
        return self.__refattn_backend__.xp.not_equal(self, other)


_UNARY = {"neg": "negative", "abs": "abs", "invert": "bitwise_invert"}
_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
}
_COMPARED = {"gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal"}


def _one(name: str) -> Callable[[Any], Any]:
    return lambda a: getattr(a.__refattn_backend__.xp, name)(a)


def _two(name: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: getattr(a.__refattn_backend__.xp, name)(a, b)


def _turned(name: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: getattr(a.__refattn_backend__.xp, name)(b, a)


for _operator, _name in _UNARY.items():
    setattr(Shell, f"__{_operator}__", _one(_name))
for _operator, _name in {**_BINARY, **_COMPARED}.items():
    setattr(Shell, f"__{_operator}__", _two(_name))
for _operator, _name in _BINARY.items():
    setattr(Shell, f"__r{_operator}__", _turned(_name))
