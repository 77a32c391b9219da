"""Shapes by axis letters: ``sizes({"q": "* h n d", "k": "* h m d"}, q=…, k=…)`` or an error that prints them all.

``*`` stands for leading axes, which must be the same wherever it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refattn.errors import ShapeError

Shape = tuple[int, ...]


def shape_of(x: Any) -> Shape:
    """The shape of an array, or x itself where x is a shape already."""
    return tuple(map(int, x.shape if hasattr(x, "shape") else x))


def sizes(spec: Mapping[str, str], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Letter → size for arrays that share axis letters; ``"*"`` → the leading axes.

    Raises
    ------
    ShapeError
        If an array has too few axes, or one letter two sizes.
    """
    found: dict[str, tuple[Any, str]] = {}
    for name, axes in spec.items():
        letters, shape = axes.split(), shapes[name]
        named = [a for a in letters if a != "*"]
        if len(shape) < len(named) or ("*" not in letters and len(shape) != len(named)):
            raise ShapeError(f"{name} has shape {shape}, but needs the axes ({', '.join(letters)}); {listing(shapes)}")
        pairs = [*zip(named, shape[len(shape) - len(named) :], strict=True), ("*", shape[: len(shape) - len(named)])]
        for letter, size in pairs if "*" in letters else pairs[:-1]:
            known, where = found.setdefault(letter, (size, name))
            if known != size:
                axis = "leading axes" if letter == "*" else letter
                raise ShapeError(f"{where} has {axis}={known} but {name} has {axis}={size}; {listing(shapes)}")
    return {letter: size for letter, (size, _) in found.items()}


def listing(shapes: Mapping[str, Shape]) -> str:
    """Every name with its shape, for error messages."""
    return ", ".join(f"{name}: {shape}" for name, shape in shapes.items())


def broadcasts(name: str, shape: Shape, to: Shape, axes: str) -> None:
    """Refuse a shape that does not broadcast to `to` (whose axes are called `axes`)."""
    short = len(shape) <= len(to)
    if not short or any(a not in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False)):
        raise ShapeError(f"{name} has shape {shape}, which does not broadcast to ({axes}) = {to}")


def together(a: Shape, b: Shape) -> Shape:
    """The shape that two shapes broadcast to; ShapeError if they do not."""
    longer = max(len(a), len(b))
    pairs = list(zip((*(1,) * (longer - len(a)), *a), (*(1,) * (longer - len(b)), *b), strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise ShapeError(f"leading axes {tuple(a)} and {tuple(b)} do not broadcast together")
    return tuple(y if x == 1 else x for x, y in pairs)


def product(sizes: Iterable[int]) -> int:
    """The product of sizes, 1 for none."""
    out = 1
    for size in sizes:
        out *= int(size)
    return out


def blocks(n: int, block: int | None) -> list[slice]:
    """Slices that cover 0 … n−1, `block` at a time; None, or nothing to cover: one slice."""
    step = max(n if block is None else block, 1)
    return [slice(a, min(a + step, n)) for a in range(0, max(n, 1), step)]
