"""Claims as a picture, through matplotlib, which is loaded when a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refattn.errors import BackendUnavailable, OptionError
from refattn.verify.claim import Claim, Picture

INK, GRID = "#33383d", "#dde2e7"
COLOURS = ("#2f5d8c", "#c2571a", "#3b7d4f", "#8a4fa3", "#a88b1d", "#5b6770")
MARKS = "osD^vP"


def save(claims: Sequence[Claim], file: str | Path) -> Path:
    """Draw the pictures of `claims` into `file`, those with the same axes in one panel, and return its path.

    Raises
    ------
    BackendUnavailable
        If matplotlib is not installed.
    OptionError
        If no claim has a picture, or the ending of `file` is no image format that can be written.
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
        raise OptionError(f"{file}: the name must end in an image format, as claim.png; there are {', '.join(formats)}")
    panels = _panels(claims)
    if not panels:
        raise OptionError(f"nothing to draw: {', '.join(claim.name for claim in claims) or 'no claim'} has no picture")
    figure = Figure(figsize=(5.6 * len(panels), 4.6), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    for axes, pictures in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, pictures)
    figure.savefig(file)
    return Path(file)


def _panels(claims: Sequence[Claim]) -> list[list[Picture]]:
    found: dict[tuple[str, str, bool], list[Picture]] = {}
    for claim in claims:
        if claim.picture is not None:
            p = claim.picture
            found.setdefault((p.x, p.y, p.logarithmic), []).append(p)
    return list(found.values())


def _draw(axes: Any, pictures: Sequence[Picture]) -> None:
    """One colour and one mark for each picture: its bound as a line below, its measurements as marks."""
    if pictures[0].logarithmic:
        axes.set(xscale="log", yscale="log")
    for number, picture in enumerate(pictures):
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        for curve in picture.curves:
            if curve.bound:
                axes.plot(curve.x, curve.y, "-", color=colour, linewidth=1.2, alpha=0.6, label=curve.label, zorder=2)
            else:
                axes.plot(curve.x, curve.y, mark, color=colour, markersize=4.5, label=curve.label, zorder=3)
    axes.set_xlabel(pictures[0].x, color=INK)
    axes.set_ylabel(pictures[0].y, color=INK)
    axes.grid(color=GRID, linewidth=0.7, zorder=0)
    axes.tick_params(colors=INK, which="both", length=0)
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
