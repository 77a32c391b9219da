"""What the operations share: a frozen dataclass with ``Inputs``, ``Saved``, ``forward``, ``vjp`` and ``cost``.

An operation is a text below the entry points of schemes and layers: its arrays are of one library and one dtype, float32
or float64, half precision having been widened by who calls. None among the inputs is what is not used, and its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from refattn.backend import AUTO, of
from refattn.cost import Passes
from refattn.errors import OptionError, ShapeError
from refattn.shapes import Shape, listing, product, shape_of, sizes

Array = Any


class Operation(Protocol):
    """A configured operation; `kinds` names the inputs that are no floats."""

    Inputs: ClassVar[type]
    Saved: ClassVar[type]
    kinds: ClassVar[Mapping[str, str]]

    def forward(self, *inputs: Any) -> tuple[Array, Any]: ...
    def vjp(self, saved: Any, dy: Array) -> Any: ...
    def cost(self, shapes: Any) -> Passes: ...


def axes(inputs: Any, **spec: str) -> dict[str, Any]:
    """Letter → size, for the inputs (arrays or shapes) that are there: ``axes(inputs, x="* d", g="d")``.

    Raises
    ------
    ShapeError
        If they do not fit together; the message prints all of them.
    """
    shapes = {name: shape_of(getattr(inputs, name)) for name in spec if getattr(inputs, name) is not None}
    return sizes({name: spec[name] for name in shapes}, shapes)


def total(inputs: Any, *names: str) -> int:
    """The number of elements of the inputs that are there, all or those called `names`."""
    chosen = names or inputs._fields
    return sum(product(shape_of(getattr(inputs, n))) for n in chosen if getattr(inputs, n) is not None)


def flat(x: Array) -> Array:
    """(..., d) as (rows, d): sums over all leading axes are then one sum."""
    return of(x).xp.reshape(x, (product(x.shape[:-1]), x.shape[-1]))


def over_rows(x: Array) -> Array:
    """(..., d) → (d,): the sum over all leading axes."""
    return of(x).xp.sum(x, axis=tuple(range(x.ndim - 1)))


def mean(x: Array) -> Array:
    """(..., d) → (..., 1): the mean along the last axis, 0 of nothing."""
    return of(x).xp.sum(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)


def zeros(x: Array, rows: int) -> Array:
    """So many rows of zeros, to stand beside the rows of x (..., n, d), n not 0."""
    xp = of(x).xp
    return xp.broadcast_to(xp.zeros_like(x[..., :1, :]), (*x.shape[:-2], rows, x.shape[-1]))


def rows_at_once(x: Array, block: Any) -> int | None:
    """How many rows `block` means for x: AUTO is the backend's choice, None all of them."""
    found: int | None = of(x).block if block is AUTO else block
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
        raise OptionError(f"block={block!r}: give a positive number of rows, None for all of them, or AUTO")
    return found


def positive(**number: Any) -> None:
    """Refuse a number that is not positive and finite: ``positive(eps=self.eps)``."""
    for name, x in number.items():
        if isinstance(x, bool) or not isinstance(x, int | float) or not 0.0 < x < math.inf:
            raise OptionError(f"{name}={x!r}: give a positive, finite number")


def one_of(choices: Any, **option: Any) -> None:
    """Refuse an option that is none of the choices: ``one_of(("mean", "sum"), reduction=self.reduction)``."""
    for name, x in option.items():
        if x not in choices:
            raise OptionError(f"{name}={x!r}: choose one of {', '.join(map(repr, choices))}")


def matches(name: str, got: Shape, want: Shape, **others: Shape) -> None:
    """Refuse a shape that is not the one that is wanted, naming what it follows from."""
    if got != want:
        raise ShapeError(f"{name} has shape {got}; it must be {want} ({listing(others)})")
