"""The array of the counting reading: a shape, a kind of dtype, and the memory that it holds, but no values.

How an array lies in memory is NumPy's own affair, asked of an array with items of no bytes at all: views, copies, shapes
and errors are then NumPy's, at any size. Who owns what is followed by reference counting: a new array owns its elements
until its last reference goes, a view owns nothing and keeps its base alive, what was given belongs to the caller.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.errors import DtypeError

from .shell import Shell

Array = Any
Shape = tuple[int, ...]
BOOL, INT, FLOAT = (np.dtype(name) for name in ("bool", "int64", "float64"))
KINDS = {"bool": BOOL, "int": INT, "float": FLOAT}
_RANK = {"b": 0, "i": 1, "f": 2}
_NOTHING = np.empty((), "V0")


@dataclass
class Tally:
    """Exact counts. Views, numbers and arrays that were given cost nothing.

    macs: multiply-adds of contractions. exps: elements exponentiated. flops: other elementwise arithmetic, one for each
    element of a result and each term of a sum. compares: elements compared, selected or ordered (a sort of n: n⌈log₂ n⌉).
    moved: elements that operations read and write, as if each operation went to memory. live, peak: elements owned now,
    and at most so far.
    """

    macs: int = 0
    exps: int = 0
    flops: int = 0
    compares: int = 0
    moved: int = 0
    live: int = 0
    peak: int = 0


class Counted(Shell):
    """An array of which only the shape and the dtype are known; float64 stands for every float dtype."""

    __slots__ = ("_layout", "base", "dtype", "own", "reading", "shape")
    base: Counted | None

    def __init__(self, reading: Any, shape: Shape, dtype: Any, *, base: Counted | None = None, layout: Array = None,
                 given: bool = False) -> None:
        self.own = 0
        self.reading, self.shape, self.dtype = reading, shape, dtype
        self.base = base if base is None or base.base is None else base.base
        self._layout = layout
        if base is None and not given:
            self.own = math.prod(shape)
            tally = reading.running
            tally.live += self.own
            tally.peak = max(tally.peak, tally.live)

    def __del__(self) -> None:
        if self.own:
            self.reading.running.live -= self.own

    @property
    def __refattn_backend__(self) -> Any:
        return self.reading

    @property
    def layout(self) -> Array:
        """A NumPy array of this shape and these strides whose items have no bytes."""
        return contiguous(self.shape) if self._layout is None else self._layout

    def view(self, look: Callable[[Array], Array]) -> Counted:
        """What NumPy's `look` makes of an array that lies in memory like this one: a view of it."""
        seen = look(self.layout)
        return Counted(self.reading, seen.shape, self.dtype, base=self, layout=seen)

    def __repr__(self) -> str:
        return f"Counted({self.shape}, {self.dtype})"


def _refuse(use: str) -> Callable[..., Any]:
    def refuse(self: Counted, *_: Any, **__: Any) -> Any:
        raise TypeError(f"an array of the counting reading has a shape, {self.shape}, but no values: {use} needs them")

    return refuse


for _name in ("float", "int", "index", "complex", "array"):
    setattr(Counted, f"__{_name}__", _refuse(f"__{_name}__"))
for _name in ("iter", "contains"):
    setattr(Counted, f"__{_name}__", _refuse("iteration"))
for _name in ("item", "tolist"):
    setattr(Counted, _name, _refuse(f"{_name}()"))


@functools.lru_cache(maxsize=1024)
def contiguous(shape: Shape) -> Array:
    """A NumPy array in C order whose items have no bytes: strides are in elements, sizes have no limit."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return np.lib.stride_tricks.as_strided(_NOTHING, shape, strides)


@functools.lru_cache(maxsize=4096)
def together(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to; ValueError, as NumPy's, if they do not."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    out: list[int] = []
    for axis in range(-max(map(len, shapes)), 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            raise ValueError("operands could not be broadcast together with shapes " + " ".join(map(str, shapes)))
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def promoted(*dtypes: Any) -> Any:
    """The dtype that holds all of them: truth values, then integers, then numbers."""
    return max(dtypes, key=lambda dtype: _RANK[dtype.kind])


def kind_of(dtype: Any) -> Any:
    """bool, int64 or float64 for a dtype of any library.

    Raises
    ------
    DtypeError
        For complex numbers, texts and objects.
    """
    name = dtype.name if isinstance(dtype, np.dtype) else np.dtype(dtype).name if isinstance(dtype, type) else str(dtype)
    name = name.rpartition(".")[2]
    if name == "bool":
        return BOOL
    if name.startswith(("int", "uint")):
        return INT
    if name.startswith(("float", "bfloat")):
        return FLOAT
    raise DtypeError(f"the counting reading has no arrays of dtype {name}: give booleans, integers or floats")
