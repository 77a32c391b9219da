"""The counting reading: a scheme's own text, run on arrays that are only shapes.

    with using(load("counting", block=None)) as reading:
        inputs = reading.shaped(Dense.Inputs(q=(1, 10**6, 64), k=(1, 10**6, 64), v=(1, 10**6, 64)))
        with reading.counted() as forward:
            o, saved = scheme.forward(*inputs)          # forward.macs, forward.exps, forward.live, forward.peak
        grads = scheme.vjp(saved, reading.shaped(o))    # reading.tally: everything since the reading was made

No array has values, so a million rows cost no more than eight, and a text that asks for one (``if``, ``float``,
iteration, ``x[condition]``) raises: what runs here has no branch and no shape that depends on data. The counts are those of
the text as NumPy runs it, masked work included. Rules stand in tables by kind: structure, arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from refattn import tree
from refattn.errors import LibraryError, OptionError

from . import counting_arithmetic, counting_rows, counting_structure
from .counting_array import BOOL, FLOAT, INT, KINDS, Counted, Shape, Tally, kind_of

RULES: dict[str, Callable[..., Any]] = {**counting_structure.RULES, **counting_arithmetic.RULES}
_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None}
_DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "int64", "int32")} | {"bool": np.dtype(bool)}


class Namespace:
    """The array API names that have a counting rule, bound to one reading."""

    def __init__(self, reading: Counting) -> None:
        for name, rule in RULES.items():
            setattr(self, name, functools.partial(rule, reading))
        for name, value in {**_CONSTANTS, **_DTYPES}.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the counting reading has no rule for {name!r}; it has {', '.join(sorted(RULES))}")

    @staticmethod
    def isdtype(dtype: Any, kind: Any) -> bool:
        return bool(np.isdtype(dtype, kind))


class Counting:
    """A reading and its tally. ``block`` is what AUTO stands for: the 256 rows of a run on values, None for all rows."""

    name = "counting"
    kernels: Mapping[str, Callable[..., Any]] = MappingProxyType({**counting_arithmetic.KERNELS, **counting_rows.KERNELS})

    def __init__(self, block: int | None = 256) -> None:
        self.block = block
        self.running = Tally()
        self.xp = Namespace(self)

    @property
    def tally(self) -> Tally:
        """What has been counted until now, as a copy."""
        return dataclasses.replace(self.running)

    @contextmanager
    def counted(self) -> Iterator[Tally]:
        """A Tally that holds, when the block ends, what was counted inside it.

        ``live`` is what the block leaves alive, ``peak`` the most that was alive at once beyond what was there before.
        """
        before, inside, now = self.tally, Tally(), self.running
        now.peak = now.live
        try:
            yield inside
        finally:
            for name, count in vars(now).items():
                setattr(inside, name, count - getattr(before, name))
            inside.peak = now.peak - before.live
            now.peak = max(now.peak, before.peak)

    def add(self, count: str, steps: int) -> None:
        """Add steps to one count of the tally."""
        setattr(self.running, count, getattr(self.running, count) + steps)

    def new(self, shape: Shape, dtype: Any, reads: int = 0) -> Counted:
        """An array that owns its elements, made from so many elements that were read."""
        out = Counted(self, shape, dtype)
        self.running.moved += reads + out.own
        return out

    def lift(self, x: Any, like: Any = None) -> Counted:
        """Arrays of any library keep their shape and kind and belong to the caller; a range is made here."""
        if isinstance(x, Counted):
            if x.reading is not self:
                raise LibraryError("arrays of two counting readings in one call: count forward and backward in one")
            return x
        if isinstance(x, bool | np.bool_ | int | float):
            number = BOOL if isinstance(x, bool | np.bool_) else INT if isinstance(x, int) else FLOAT
            return Counted(self, (), number, given=True)
        if isinstance(x, range):
            return self.new((len(x),), INT)
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise LibraryError(f"the counting reading cannot lift a {type(x).__name__}: give arrays, numbers or ranges")
        return Counted(self, tuple(int(size) for size in x.shape), kind_of(x.dtype), given=True)

    def shaped(self, nest: Any, kinds: Mapping[str, str] = MappingProxyType({})) -> Any:
        """The same nest with an array of this reading for every leaf, which is an array or the tuple of its sizes.

        Arrays keep their kind. Tuples are floats, unless `kinds` (a scheme's ``kinds``, as ``{"mask": "bool"}``) says
        otherwise for the field's name.
        """
        fields = iter(tree.names(nest))

        def one(leaf: Any) -> Counted:
            kind = KINDS[kinds.get(next(fields).rpartition(".")[2], "float")]
            if not isinstance(leaf, tuple | list):
                return Counted(self, tuple(leaf.shape), kind_of(leaf.dtype), given=True)
            if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in leaf):
                raise OptionError(f"{leaf!r} is no shape: give a tuple of sizes, none of them negative")
            return Counted(self, tuple(leaf), kind, given=True)

        return tree.map(one, nest)

    def host(self, x: Counted) -> Any:
        raise TypeError(f"an array of the counting reading has a shape, {x.shape}, but no values to bring to the host")

    def constant(self, x: Counted) -> Counted:
        return x

    def widen(self, x: Counted) -> Counted:
        return x

    def narrow(self, x: Counted, like: Any = None) -> Counted:
        return x

    def settle(self, x: Counted) -> Counted:
        return x


def backend(block: int | None = 256) -> Counting:
    """A new reading with an empty tally; `block`: rows of a block that AUTO stands for, None: all rows at once.

    Raises
    ------
    OptionError
        If `block` is neither None nor a positive number.
    """
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise OptionError(f"block={block!r}: give a positive number of query rows, or None for all of them")
    return Counting(block)
