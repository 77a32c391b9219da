"""Image files through matplotlib, which is loaded when a picture is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refattn.errors import BackendUnavailable, OptionError


def drawing(file: str | Path, example: str = "picture.png") -> tuple[Any, Any]:
    """matplotlib's Figure and FigureCanvasAgg, if a picture can be saved as `file`; nothing is written.

    Raises
    ------
    BackendUnavailable
        If matplotlib is not installed.
    OptionError
        If the ending of `file` is no image format that can be written; `example` is a name that would do.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailable(f"pictures need matplotlib ({error}): pip install 'refattn[plot]'") from None
    formats = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(file).suffix[1:].lower() not in formats:
        raise OptionError(f"{file}: the name must end in an image format, as {example}; there are {', '.join(formats)}")
    return Figure, FigureCanvasAgg
