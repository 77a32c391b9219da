"""Shapes of a catalogue row's inputs at sizes that nobody would draw: read off a few small draws.

Every axis of every input is taken for a sum of multiples of the sizes, a = c + Σ c_x·x over the letters x of the row's
variant. Draws at the variant's own sizes, and with each letter doubled in turn, give the multiples; one more with all
sizes tripled must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from refattn import tree
from refattn.catalogue import Row, Variant
from refattn.errors import OptionError

Axes = Mapping[str, tuple[Fraction, ...]]


def shapes(row: Row, variant: Variant, **sizes: int) -> Any:
    """The variant's Inputs with the shape of each input at other `sizes`, as ``shapes(row, variant, n=10**6, m=10**6)``.

    Raises
    ------
    OptionError
        If the variant has no such size, or an axis that is no sum of multiples of sizes.
    """
    return at_sizes(row, variant)(sizes)


def at_sizes(row: Row, variant: Variant) -> Callable[[Mapping[str, int]], Any]:
    """``shapes`` of one variant as a function of the sizes, so that many sizes need the draws only once."""
    base = dict(variant.sizes)

    def draw(changed: Mapping[str, int]) -> Any:
        return tree.map(lambda x: tuple(x.shape), row.draw(replace(variant, sizes={**base, **changed}), 1))

    nest = draw({})
    start = dict(tree.items(nest))
    steps = {x: _steps(start, dict(tree.items(draw({x: 2 * size}))), size) for x, size in base.items()}
    tripled = {x: 3 * size for x, size in base.items()}
    for name, shape in tree.items(draw(tripled)):
        if _moved(start, steps, base, tripled)[name] != shape:
            raise OptionError(f"{row.name}: {name} has shape {shape} at {tripled}: no sum of multiples of the sizes")

    def at(sizes: Mapping[str, int]) -> Any:
        if unknown := sorted(set(sizes) - set(base)):
            raise OptionError(f"{row.name} has no size called {', '.join(unknown)}; it has {', '.join(base)}")
        found = iter(_moved(start, steps, base, sizes).values())
        return tree.map(lambda _: tuple(int(axis) for axis in next(found)), nest)

    return at


def _steps(start: Mapping[str, Any], doubled: Mapping[str, Any], size: int) -> Axes:
    """How much each axis grows with one more of a size."""
    pairs = {name: zip(shape, doubled[name], strict=True) for name, shape in start.items()}
    return {name: tuple(Fraction(b - a, size) for a, b in axes) for name, axes in pairs.items()}


def _moved(start: Mapping[str, Any], steps: Mapping[str, Axes], base: Mapping[str, int], sizes: Mapping[str, int]) -> Axes:
    """Every axis at other sizes."""

    def axis(name: str, at: int, first: int) -> Fraction:
        return first + sum((steps[x][name][at] * (size - base[x]) for x, size in sizes.items()), Fraction(0))

    return {name: tuple(axis(name, at, first) for at, first in enumerate(shape)) for name, shape in start.items()}
