"""What several commands take and use: the scheme's place, sizes, times, the width of the terminal."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from refattn.errors import OptionError

DTYPES = ("float64", "float32", "float16", "bfloat16")


def scheme_argument(p: argparse.ArgumentParser) -> None:
    p.add_argument("scheme", metavar="EXPR", help="a scheme, as \"Dense(causal=True, align='bottom_right')\"")


def size(text: str) -> int:
    """A whole number ≥ 0; 1_000_000, 1e6 and 10**6 are numbers too."""
    match = re.fullmatch(r"(\d[\d_]*)(?:(e|\*\*)(\d{1,2}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give a whole number, as 4096, 10**6 or 1e6")
    base, sign, power = int(match[1].replace("_", "")), match[2], int(match[3] or 0)
    return base if sign is None else base * 10**power if sign == "e" else base**power


def seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (found := float(text)) < float("inf"):
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds above 0")


def refuse_files(options: Mapping[str, str | Path | None]) -> None:
    """Refuse files that can't be written, by option: before a long run, not after it. "-" is no file.

    Raises
    ------
    OptionError
        If one is a folder, or its folder does not exist.
    """
    for name, file in options.items():
        if file is None or str(file) == "-":
            continue
        path = Path(file).absolute()
        if path.is_dir():
            raise OptionError(f"{name} {file}: this is a folder; give a file")
        if not path.parent.is_dir():
            raise OptionError(f"{name} {file}: there is no folder {path.parent}")


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
