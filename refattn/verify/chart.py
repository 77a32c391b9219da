"""Claims as a picture, through matplotlib, which is loaded when a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from refattn.errors import OptionError
from refattn.images import drawing
from refattn.verify.claim import Claim, Heat

INK, GRID = "#33383d", "#dde2e7"
COLOURS = ("#2f5d8c", "#c2571a", "#3b7d4f", "#8a4fa3", "#a88b1d", "#5b6770")
MARKS = "osD^vP"
ACROSS = 3
"""Panels in one line."""


def save(claims: Sequence[Claim], file: str | Path, dpi: int = 160) -> Path:
    """Draw the pictures of `claims` into `file`, those with the same axes in one panel, and return its path.

    Where none has a picture, they are drawn in words. dpi: pixels of an inch; a panel is 5.6 by 4.6 inches.

    Raises
    ------
    BackendUnavailable
        If matplotlib is not installed.
    OptionError
        If there is no claim, or the ending of `file` is no image format that can be written.
    OSError
        If the file can't be written.
    """
    Figure, FigureCanvasAgg = drawing(file, "claim.png")
    if not claims:
        raise OptionError("nothing to draw: there is no claim")
    panels = _panels(claims)
    words = [] if panels else [part for claim in claims for line in str(claim).splitlines() for part in wrap(line, 78)]
    across = min(len(panels), ACROSS) or 1
    down = -(-len(panels) // across) or 1
    size = (5.6 * across, 4.6 * down) if panels else (5.6, 0.12 * len(words) + 0.3)
    figure = Figure(figsize=size, dpi=dpi, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(down, across, squeeze=False).ravel()
    for axes, pictures in zip(places, panels, strict=False):
        _draw(axes, pictures)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    if words:
        places[0].text(0.0, 1.0, "\n".join(words), va="top", family="monospace", fontsize=6.5, color=INK)
    figure.savefig(file)
    return Path(file)


def _panels(claims: Sequence[Claim]) -> list[list[Any]]:
    """Pictures with the same axes together, as many as there are colours; a table alone."""
    found: dict[Any, list[Any]] = {}
    for claim in claims:
        p = claim.picture
        if p is not None:
            found.setdefault(p if isinstance(p, Heat) else (p.x, p.y, p.logarithmic), []).append(p)
    return [some[i : i + len(COLOURS)] for some in found.values() for i in range(0, len(some), len(COLOURS))]


def _heat(axes: Any, heat: Heat) -> None:
    """Dark is large; the numbers stand in their cells."""
    low, high = (pick(map(pick, heat.values)) for pick in (min, max))
    axes.imshow(heat.values, cmap="Blues", vmin=low - 0.15 * (high - low), vmax=high, aspect="auto")
    for y, row in enumerate(heat.values):
        for x, value in enumerate(row):
            dark = value > low + 0.55 * (high - low)
            axes.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7.5,
                      color="white" if dark else INK)  # fmt: skip
    axes.set_title(heat.title, fontsize=9, color=INK)
    axes.set_xticks(range(len(heat.values[0])), range(1, len(heat.values[0]) + 1))
    axes.set_yticks(range(len(heat.values)), range(1, len(heat.values) + 1))


def _draw(axes: Any, pictures: Sequence[Any]) -> None:
    """A table in shades; or bounds as lines below and measurements as marks.

    A picture has one colour and one mark; where it has a panel of its own, its first bound and its first measurement share
    one, its second ones the next.
    """
    if isinstance(pictures[0], Heat):
        _heat(axes, pictures[0])
        _trim(axes, pictures[0])
        return
    alone = len(pictures) == 1
    for number, picture in enumerate(pictures):
        for bound in (True, False):
            for place, curve in enumerate(c for c in picture.curves if c.bound is bound):
                at = place if alone else number
                style: dict[str, Any] = {"color": COLOURS[at % len(COLOURS)], "label": curve.label}
                if bound:
                    axes.plot(curve.x, curve.y, "-", linewidth=1.2, alpha=0.6, zorder=2, **style)
                else:
                    axes.plot(curve.x, curve.y, MARKS[at % len(MARKS)], markersize=4.5, zorder=3, **style)
    if pictures[0].logarithmic:
        _logarithmic(axes)
    axes.grid(color=GRID, linewidth=0.7, zorder=0)
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK)
    _trim(axes, pictures[0])


def _logarithmic(axes: Any) -> None:
    """Logarithmic scales, with numbers at 1, 2, 5 times powers of ten where an axis has few of these."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log", yscale="log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_minor_formatter(NullFormatter())
        if high < 400.0 * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _trim(axes: Any, picture: Any) -> None:
    """Names of the axes, and nothing that no number stands on."""
    axes.set_xlabel(picture.x, color=INK)
    axes.set_ylabel(picture.y, color=INK)
    axes.tick_params(colors=INK, which="both", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
