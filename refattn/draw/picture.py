"""Who sees whom as an image file, through matplotlib, which is loaded when a picture is asked for."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from refattn.draw.text import sees
from refattn.errors import BackendUnavailable, OptionError

SEEN, UNSEEN, LINE, INK = "#2f5d8c", "#eef1f4", "#ffffff", "#33383d"


def save(scheme: Any, file: str | Path, n: int = 12, m: int | None = None, *, title: str = "") -> Path:
    """Draw the visible pairs of a scheme into `file` (its ending decides the format, as in .png) and return its path.

    Raises
    ------
    BackendUnavailable
        If matplotlib is not installed.
    OptionError
        If the ending of `file` is no image format that can be written, and for sizes beyond 4096.
    OSError
        If the file can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable(f"pictures need matplotlib ({error}): pip install 'refattn[plot]'") from None
    formats = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(file).suffix[1:].lower() not in formats:
        raise OptionError(f"{file}: the name must end in an image format, as picture.png; there are {', '.join(formats)}")
    see = sees(scheme, n, m)
    figure = Figure(figsize=_size(*see.shape), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, see)
    caption = [*textwrap.wrap(title, 62), f"{int(see.sum())} of {see.size} pairs seen"]
    axes.set_title("\n".join(caption), loc="left", fontsize=9.5, color=INK, pad=10)
    figure.savefig(file, bbox_inches="tight", pad_inches=0.15)
    return Path(file)


def _size(n: int, m: int) -> tuple[float, float]:
    """Inches: the longer side is 5, the shorter one in proportion but never a sliver."""
    longest = max(n, m)
    return max(5 * m / longest, 2.5) + 0.9, max(5 * n / longest, 1.0) + 1.1


def _draw(axes: Any, see: Any) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    n, m = see.shape
    axes.imshow(see, cmap=ListedColormap([UNSEEN, SEEN]), vmin=0, vmax=1, interpolation="nearest", aspect="equal")
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
