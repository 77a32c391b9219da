"""Who sees whom, drawn with characters."""

from __future__ import annotations

from typing import Any

from refattn.draw.panels import Panel, panels
from refattn.errors import OptionError


def as_text(
    scheme: Any,
    n: int = 12,
    m: int | None = None,
    *,
    unicode: bool = True,
    width: int | None = None,
    align: str | None = None,
    hops: int | None = None,
    residual: bool = False,
) -> str:
    """Who sees whom as lines of text: a row for each query, a column for each key, a digit for what is seen twice or more.

    A scheme or a pattern; several heads or layers come one below the other. The rest is as in ``panels``.

    Raises
    ------
    OptionError
        If the drawing is wider than `width` columns.
    """
    found = panels(scheme, n, m, align=align, hops=hops, residual=residual)
    return "\n\n".join(_with_label(p, _lines(p.counts, unicode, width)) for p in found)


def _with_label(panel: Panel, text: str) -> str:
    return f"{panel.label}\n{text}" if panel.label else text


def _lines(counts: Any, unicode: bool, width: int | None) -> str:
    rows, columns = counts.shape
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
        cells = (off if x == 0 else on if x == 1 else str(x) if x <= 9 else "+" for x in map(int, counts[i]))
        lines.append(label.rjust(margin - 2) + "  " + " ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def _ruler(columns: int) -> str:
    """Key numbers over their columns, every fifth one, as wide as a number may be without touching the next."""
    ruler = ""
    for j in range(0, columns, 5):
        ruler = ruler.ljust(2 * j) + str(j)
    return ruler
