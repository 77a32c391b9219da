"""Where in a tensor the errors sit, in words: items, heads, rows, channels, tails and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

AXES = {4: ("item", "head", "row", "channel"), 3: ("item", "head", "row"), 1: ("head",)}
TILES = (128, 64, 32, 16)


def locate(out: Any) -> str:
    """Describe a boolean array of wrong elements by the indices that it touches along each axis."""
    if not out.any():
        return "nowhere"
    parts = []
    for axis, name in enumerate(AXES.get(out.ndim, tuple(f"axis {a}" for a in range(out.ndim)))):
        others = tuple(a for a in range(out.ndim) if a != axis)
        size = out.shape[axis]
        hit = np.flatnonzero(out.any(axis=others))
        if len(hit) < size:
            parts.append(f"{name}{'s' if len(hit) > 1 else ''} {indices(hit, size)} of {size}")
    many = out.mean() >= 0.0005
    share = f"{out.mean():.1%} of the elements" if many else f"{int(out.sum())} of {out.size} elements"
    share = "all of the elements" if out.mean() >= 0.9995 else share
    return share + (": " + ", ".join(parts) if parts else ", spread over every axis")


def indices(hit: Any, size: int) -> str:
    """A set of indices as a run, a tail behind a tile boundary, a period, or a short list."""
    first, last = int(hit[0]), int(hit[-1])
    if len(hit) == 1:
        return f"{first}" + (" (the last)" if first == size - 1 else "")
    if last - first + 1 == len(hit):
        tail = last == size - 1
        tile = next((t for t in TILES if tail and first and first % t == 0), None)
        remark = f" (the tail behind a multiple of {tile})" if tile else " (the tail)" if tail else ""
        return f"{first}…{last}{remark}"
    steps = np.unique(np.diff(hit))
    if len(steps) == 1 and len(hit) > 2:
        return f"{first}, {first + int(steps[0])}, … (every {ordinal(int(steps[0]))})"
    shown = ", ".join(str(int(i)) for i in hit[:6])
    return shown + (f", … ({len(hit)})" if len(hit) > 6 else "")


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
