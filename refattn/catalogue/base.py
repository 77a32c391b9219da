"""What a row of the catalogue is: a scheme with configurations of it, the sizes of their inputs, and how these are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Variant:
    """One configuration of a scheme with the sizes of its inputs and the optional inputs that are drawn for it."""

    scheme: Any
    sizes: Sizes
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = {f.name: (getattr(self.scheme, f.name), f.default) for f in fields(self.scheme)}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        parts = [*(f"{n}={v}" for n, v in changed.items()), *self.given, "x".join(str(s) for s in self.sizes.values())]
        return f"{type(self.scheme).__name__}({' '.join(parts)})"


@dataclass(frozen=True)
class Stated:
    """A quantity of a row (one that ``verify growth`` counts), the law that it follows, and who says so; blocked: at
    a fixed number of query rows at a time.
    """

    quantity: str
    law: str
    source: str
    blocked: bool = False


@dataclass(frozen=True)
class Row:
    """A scheme in the catalogue.

    draw(variant, seed) returns Inputs in float64 whose values are exact in float8 e4m3. certifiable: ball arithmetic can
    enclose it. decisions: names of its discrete outcomes (buckets, support), none for smooth schemes. growth: what
    ``refattn verify growth`` holds its first variant to.
    """

    name: str
    variants: tuple[Variant, ...]
    draw: Callable[[Variant, int], Any]
    tags: frozenset[str]
    paper: str
    certifiable: bool = True
    decisions: tuple[str, ...] = field(default=())
    growth: tuple[Stated, ...] = ()

    @property
    def scheme(self) -> Any:
        """The configuration that stands for the row."""
        return self.variants[0].scheme


def softmax_sizes(b: int, h: int, g: int, n: int, m: int, d: int, e: int) -> Sizes:
    """The axes of softmax attention: items, query heads, key heads, queries, keys, widths of keys and of values."""
    return {"b": b, "h": h, "g": g, "n": n, "m": m, "d": d, "e": e}


ODD = softmax_sizes(2, 6, 3, 7, 9, 5, 4)
SQUARE = softmax_sizes(2, 4, 2, 8, 8, 4, 3)
