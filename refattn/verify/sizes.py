"""Shapes of a catalogue row's inputs at sizes that nobody would draw: read off a few small draws.

Every axis of every input is taken for a sum of multiples of the sizes, a = c + Σ c_x·x over the letters x of the row's
variant. Draws at the variant's own sizes, and with each letter doubled in turn, give the multiples; one more with all
sizes tripled must agree.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from refattn import tree
from refattn.catalogue import Row, Variant
from refattn.errors import OptionError


def shapes(row: Row, variant: Variant, **sizes: int) -> Any:
    """The variant's Inputs with the shape of each input at other `sizes`, as ``shapes(row, variant, n=10**6, m=10**6)``.

    Raises
    ------
    OptionError
        If the variant has no such size, or an axis that is no sum of multiples of sizes.
    """
    if unknown := sorted(set(sizes) - set(variant.sizes)):
        raise OptionError(f"{row.name} has no size called {', '.join(unknown)}; it has {', '.join(variant.sizes)}")
    base = dict(variant.sizes)

    def draw(changed: dict[str, int]) -> dict[str, tuple[int, ...]]:
        drawn = row.draw(replace(variant, sizes={**base, **changed}), 1)
        return {name: tuple(x.shape) for name, x in tree.items(drawn)}

    start = draw({})
    doubled = {letter: draw({letter: 2 * size}) for letter, size in base.items()}

    def axis(name: str, at: int, wanted: dict[str, int]) -> Fraction:
        first = start[name][at]
        steps = ((x, Fraction(doubled[x][name][at] - first, base[x])) for x in base)
        return first + sum((step * (wanted[x] - base[x]) for x, step in steps), Fraction(0))

    def all_axes(wanted: dict[str, int]) -> dict[str, tuple[Fraction, ...]]:
        return {name: tuple(axis(name, at, wanted) for at in range(len(shape))) for name, shape in start.items()}

    tripled = {letter: 3 * size for letter, size in base.items()}
    for name, shape in draw(tripled).items():
        if all_axes(tripled)[name] != shape:
            raise OptionError(f"{row.name}: {name} has shape {shape} at {tripled}: no sum of multiples of the sizes")
    found = {name: tuple(map(int, axes)) for name, axes in all_axes({**base, **sizes}).items()}
    fields = row.draw(variant, 1)._fields
    return type(row.draw(variant, 1))(*(found.get(name) for name in fields))
