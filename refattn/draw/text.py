"""Who sees whom, read out of a running scheme and drawn with characters.

With q = k = 0 and v = I the output of a scheme is its matrix of weights: o_ij = p_ij. Query i sees key j where p_ij > 0.
"""

from __future__ import annotations

import math
from typing import Any

from refattn.backend import load
from refattn.errors import OptionError

Array = Any
LARGEST = 4096
"""v = I has m² elements, and the weights n·m."""


def sees(scheme: Any, n: int = 12, m: int | None = None) -> Array:
    """The boolean matrix (n, m) of visible pairs of a scheme with inputs q, k and v; m defaults to n.

    A query without any key sees nothing, whatever the scheme returns for it. Raises OptionError for sizes beyond 4096, and
    whatever the scheme raises for its configuration (ShapeError for a causal scheme without `align` and n ≠ m).
    """
    m = n if m is None else m
    for name, size in (("n", n), ("m", m)):
        if not 1 <= size <= LARGEST:
            raise OptionError(f"{name}={size}: a picture has 1 to {LARGEST} queries and keys")
    b = load("numpy")
    q, k, v = b.xp.zeros((1, 1, n, 1)), b.xp.zeros((1, 1, m, 1)), b.xp.eye(m)[None, None]
    o, saved = scheme.forward(q, k, v, **needed(scheme, b.xp.ones((1, 1, n, m), dtype=b.xp.bool)))
    weights = o[0, 0] > 0
    if "lse" in scheme.outputs:
        weights = weights & (saved.lse[0, 0][:, None] > -math.inf)
    return weights


def needed(scheme: Any, everything: Any) -> dict[str, Any]:
    """Inputs that a configuration can't do without, set so that they hide nothing: dropout that keeps every weight."""
    return {"keep": everything} if getattr(scheme, "keep_rate", None) is not None else {}


def as_text(scheme: Any, n: int = 12, m: int | None = None, *, unicode: bool = True, width: int | None = None) -> str:
    """The matrix of visible pairs as lines of text: a row for each query, a column for each key.

    Raises
    ------
    OptionError
        If the drawing is wider than `width` columns.
    """
    see = sees(scheme, n, m)
    rows, columns = see.shape
    margin = len(f"query {rows - 1}") + 2
    if width is not None and (wide := margin + 2 * columns) > width:
        raise OptionError(
            f"m={columns} keys need {wide} columns and this terminal has {width}: "
            f"draw at most {max((width - margin) // 2, 1)} keys, or a picture with --png FILE"
        )
    on, off = ("■", "·") if unicode else ("#", ".")
    lines = ["key".rjust(margin - 2) + "  " + _ruler(columns)]
    for i in range(rows):
        label = f"query {i}" if i == 0 else str(i)
        lines.append(label.rjust(margin - 2) + "  " + " ".join(on if x else off for x in see[i]))
    return "\n".join(line.rstrip() for line in lines)


def _ruler(columns: int) -> str:
    """Key numbers over their columns, every fifth one, as wide as a number may be without touching the next."""
    ruler = ""
    for j in range(0, columns, 5):
        ruler = ruler.ljust(2 * j) + str(j)
    return ruler
