"""Who sees whom as an image file, through matplotlib, which is loaded when a picture is asked for."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from refattn.draw.panels import Panel, panels
from refattn.images import drawing

SEEN, UNSEEN, LINE, INK = "#2f5d8c", "#eef1f4", "#ffffff", "#33383d"
TWICE = "#c2571a"
"""Seen more than once."""
ACROSS = 4
"""Panels side by side."""


def save(
    scheme: Any,
    file: str | Path,
    n: int = 12,
    m: int | None = None,
    *,
    title: str = "",
    align: str | None = None,
    hops: int | None = None,
    residual: bool = False,
) -> Path:
    """Draw who sees whom into `file` (its ending decides the format, as in .png) and return its path.

    A scheme or a pattern; several heads or layers stand side by side. The rest is as in ``panels``.

    Raises
    ------
    BackendUnavailable
        If matplotlib is not installed.
    OptionError
        If the ending of `file` is no image format that can be written, and for sizes beyond 4096.
    OSError
        If the file can't be written.
    """
    Figure, FigureCanvasAgg = drawing(file)
    found = panels(scheme, n, m, align=align, hops=hops, residual=residual)
    columns = min(len(found), ACROSS)
    lines = -(-len(found) // columns)
    wide, high = _size(*found[0].counts.shape)
    figure = Figure(figsize=(wide * columns, high * lines), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False)
    for at, axes in enumerate(grid.flat):
        if at >= len(found):
            axes.set_axis_off()
            continue
        _draw(axes, found[at].counts)
        axes.set_title("\n".join(_caption(found[at], title if at == 0 else "")), loc="left", fontsize=9.5, color=INK, pad=10)
    figure.savefig(file, bbox_inches="tight", pad_inches=0.15)
    return Path(file)


def _caption(panel: Panel, title: str) -> list[str]:
    counts = panel.counts
    seen = f"{int((counts > 0).sum())} of {counts.size} pairs seen"
    if counts.max() > 1:
        seen += f", {int(counts.sum())} with multiplicities"
    return [*textwrap.wrap(title, 62), f"{panel.label}: {seen}" if panel.label else seen]


def _size(n: int, m: int) -> tuple[float, float]:
    """Inches: the longer side is 5, the shorter one in proportion but never a sliver."""
    longest = max(n, m)
    return max(5 * m / longest, 2.5) + 0.9, max(5 * n / longest, 1.0) + 1.1


def _draw(axes: Any, counts: Any) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    n, m = counts.shape
    shades = ListedColormap([UNSEEN, SEEN, TWICE])
    axes.imshow(counts.clip(max=2), cmap=shades, vmin=0, vmax=2, interpolation="nearest", aspect="equal")
    if max(n, m) <= 64:  # beyond, lines between the cells would hide them
        axes.set_xticks([j - 0.5 for j in range(1, m)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(1, n)], minor=True)
        axes.grid(which="minor", color=LINE, linewidth=1.0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.tick_params(which="both", length=0, colors=INK)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("key", color=INK)
    axes.set_ylabel("query", color=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
