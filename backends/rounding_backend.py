"""The rounding reading: a scheme's own text, run on values that carry what a correct kernel may be off by.

    with using(load("rounding", precision=PRESETS["flash-bf16"])) as reading:
        o, saved = scheme.forward(*inputs)                 # o.value, o.bound, o.sigma
        grads = scheme.vjp(saved, do)                      # reading.log: decisions that the precision leaves open

A candidate is within ``bound`` of ``value`` for any order of summation, any tiling with online rescaling, any folding of
constants, either base of exponentials, normalisation first or last, as long as it keeps its ``Precision``. Inputs are
exact because they were given, but for what ``Precision.inputs`` says. Rules stand in tables by kind: elementwise, choices,
structure, contractions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from refattn.errors import LibraryError, OptionError
from refattn.precision import PRESETS, Precision

from . import rounding_choices, rounding_contractions, rounding_elementwise, rounding_rows, rounding_structure
from .rounding_array import Rounded, Variance, finite_only, repeated, stored
from .rounding_elementwise import constant_error

Array = Any
RULES: dict[str, Callable[..., Any]] = {
    **rounding_structure.RULES,
    **rounding_elementwise.RULES,
    **rounding_choices.RULES,
    **rounding_contractions.RULES,
}
KERNELS: dict[str, Callable[..., Any]] = {
    **rounding_elementwise.KERNELS,
    **rounding_contractions.KERNELS,
    **rounding_rows.KERNELS,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None}
_DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "int64", "int32")} | {"bool": np.dtype(bool)}


class Namespace:
    """The array API names that have a rounding rule, bound to one reading."""

    def __init__(self, reading: Rounding) -> None:
        for name, rule in RULES.items():
            setattr(self, name, _quiet(functools.partial(rule, reading)))
        for name, value in {**_CONSTANTS, **_DTYPES}.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the rounding reading has no rule for {name!r}; it has {', '.join(sorted(RULES))}")

    @staticmethod
    def isdtype(dtype: Any, kind: Any) -> bool:
        return bool(np.isdtype(dtype, kind))


def _quiet(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A NaN or inf that arises in an error means unbounded; one in a value is the text's own affair."""

    def call(*args: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return rule(*args, **named)

    return call


class Rounding:
    """A reading under one precision. ``log`` collects (function, items, undecided items) of every rounded decision."""

    name = "rounding"
    block = None  # a blocked text describes one order of summation, and its bound would be too narrow for others
    kernels: Mapping[str, Callable[..., Any]] = MappingProxyType({name: _quiet(k) for name, k in KERNELS.items()})

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.log: list[tuple[str, int, int]] = []
        self.met: int | None = None  # tiles that a row's keys lie in, where its sum does not show it: ``rounding_rows``
        self.xp = Namespace(self)

    def lift(self, x: Any, like: Any = None) -> Rounded:
        """Given numbers are exact; a Python constant is rounded if the precision cannot hold it."""
        if isinstance(x, Rounded):
            if x.reading is not self:
                raise LibraryError("arrays of two rounding readings in one call: read forward and backward under one")
            return x
        if isinstance(x, bool | np.bool_):
            return Rounded(self, np.asarray(x))
        if isinstance(x, int | float):
            return self._number(x)
        if isinstance(x, range):
            return Rounded(self, np.arange(x.start, x.stop, x.step))
        array = np.asarray(x)
        if array.dtype.kind in "iu":
            return Rounded(self, array.astype(np.int64, copy=False))
        return Rounded(self, array if array.dtype.kind == "b" else array.astype(np.float64, copy=False))

    def _number(self, x: float) -> Rounded:
        error = self.precision.constants * constant_error(x, self.precision.u)
        if error == 0.0:
            return Rounded(self, np.asarray(x))
        return Rounded(self, np.float64(x), np.float64(error), Variance(row=np.float64(error * error / 3.0)))

    def host(self, x: Rounded) -> Array:
        return x.value

    def constant(self, x: Rounded) -> Rounded:
        return Rounded(self, x.value)

    def widen(self, x: Rounded) -> Rounded:
        return x

    def narrow(self, x: Rounded, like: Any = None) -> Rounded:
        """One rounding to the precision that results are stored in."""
        return stored(x, self.precision.out, self.precision.tiny_out) if x.value.dtype.kind == "f" else x

    def settle(self, x: Rounded) -> Rounded:
        """A statistic as kernels keep it: to base 2, or times a factor that is taken off again, then stored.

        The constant is folded into lse and out of it, each time rounded itself and rounding the product.
        """
        if x.value.dtype.kind != "f":
            return x
        p = self.precision
        kept = stored(x, p.u, p.tiny)
        turned = repeated(p.u, p.settle) * kept.reach
        return Rounded(self, x.value, finite_only(x.value, kept.error + turned), kept.variance)


def backend(precision: Precision | None = None) -> Rounding:
    """A new reading, with an empty log, under `precision` (as ``PRESETS["fp32"]`` or ``parse("flash-bf16(tile=1)")``).

    Raises
    ------
    OptionError
        If `precision` is not a Precision.
    """
    if not isinstance(precision, Precision):
        raise OptionError(
            f"the rounding reading needs precision=, a Precision, not {precision!r}: one of PRESETS, {', '.join(PRESETS)}"
        )
    return Rounding(precision)
