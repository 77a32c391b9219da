"""The exact reading: what a namespace of balls is, and how its results become correctly rounded float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from flint import arb

from refattn.backend import using
from refattn.errors import DtypeError, LibraryError, Undecided

from . import exact_choices, exact_rules, exact_structure, exact_words
from .exact_array import Ball, at, balls, each, is_real

Array = Any
RULES: dict[str, Callable[..., Any]] = {**exact_structure.RULES, **exact_rules.RULES, **exact_choices.RULES}
_mid = each(arb.mid)
_CONSTANTS = {"inf": math.inf, "nan": math.nan, "newaxis": None}
_DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "int64", "int32")} | {"bool": np.dtype(bool)}


class Namespace:
    """The array API names that have an exact rule, bound to one reading and its precision; ``pi`` and ``e`` are balls."""

    def __init__(self, reading: Exact) -> None:
        for name, rule in RULES.items():
            setattr(self, name, _at(reading, rule))
        for name, value in {**_CONSTANTS, **_DTYPES}.items():
            setattr(self, name, value)
        with at(reading.bits):
            self.pi, self.e = (reading.ball(x) for x in (arb.pi(), arb.const_e()))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the exact reading has no rule for {name!r}; it has {', '.join(sorted(RULES))}")

    @staticmethod
    def isdtype(dtype: Any, kind: Any) -> bool:
        return bool(np.isdtype(dtype, kind))


def _at(reading: Exact, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule at the reading's precision, whatever flint's global one is."""

    @functools.wraps(rule)
    def call(*args: Any, **named: Any) -> Any:
        with at(reading.bits):
            return rule(reading, *args, **named)

    return call


class Golden(NamedTuple):
    """Correctly rounded results.

    values: float64 arrays by name. bits: the precision that settled every entry. zeros: by name, how many entries are 0
    because they were within 2^(−0.75·bits) of it and no precision tells that from cancelling exactly; 0 where every entry
    is proved.
    """

    values: dict[str, Array]
    bits: int
    zeros: dict[str, int]


class Exact:
    """A reading at so many bits. ``log``: ("zero", entries, entries taken for 0) of every array made golden."""

    name = "exact"
    block = None  # one sum, not one for each block
    kernels: Mapping[str, Callable[..., Any]] = MappingProxyType(exact_words.KERNELS)

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.log: list[tuple[str, int, int]] = []
        self.xp = Namespace(self)

    def ball(self, x: Any) -> Ball:
        """One arb as an array without axes."""
        return Ball(self, np.asarray(x, dtype=object))

    def lift(self, x: Any, like: Any = None) -> Ball:
        """Everything given is exact: a Python float is the number that its 53 bits say."""
        if isinstance(x, Ball):
            if x.reading is not self:
                raise LibraryError("arrays of two exact readings in one call: read forward and backward under one")
            return x
        if isinstance(x, float):
            return self.ball(arb(x))
        array = np.arange(x.start, x.stop, x.step) if isinstance(x, range) else np.asarray(x)
        if array.dtype.kind in "iu":
            return Ball(self, array.astype(np.int64, copy=False))
        if array.dtype.kind in "OcmMSU" or array.dtype.itemsize > 8:
            raise DtypeError(f"the exact reading lifts float64 and what it holds, integers and bool, not {array.dtype}")
        return Ball(self, array if array.dtype.kind == "b" else balls(array))

    def host(self, x: Ball) -> Array:
        return x.mid()

    def constant(self, x: Ball) -> Ball:
        """The midpoints, as exact numbers."""
        return Ball(self, _mid(x.entries)) if is_real(x.entries) else x

    def widen(self, x: Ball) -> Ball:
        return x

    def narrow(self, x: Ball, like: Any = None) -> Ball:
        return x

    def settle(self, x: Ball) -> Ball:
        return x

    def golden(self, read: Callable[[], Mapping[str, Ball]], *, most: int = 4096, prove: bool = False) -> Golden:
        """The results of `read`, correctly rounded to float64, at as many bits as that takes (doubled, `most` at most).

        `read` is called inside ``using`` of a reading of more and more bits: it runs a scheme on NumPy arrays and returns
        balls by name. prove: go on until no entry is 0 by rule alone, which ends below 2^−1075, at some 2048 bits.

        Raises
        ------
        Undecided
            If `most` bits leave a comparison or a rounding open.
        """
        bits = self.bits
        while True:
            reading = Exact(bits)
            try:
                with using(reading):
                    arrays = read()
                found = {name: x.settled() for name, x in arrays.items()}
                zeros = {name: count for name, (_, count) in found.items()}
                if not prove or not any(zeros.values()):
                    return Golden({name: values for name, (values, _) in found.items()}, bits, zeros)
                reason = f"{sum(zeros.values())} entries are 0 by rule, not by proof"
            except Undecided as error:
                reason = str(error)
            if 2 * bits > most:
                raise Undecided(f"{reason}; {bits} bits were not enough, and most={most}")
            bits *= 2
