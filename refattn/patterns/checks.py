"""What the fields of patterns may be: whole numbers in a range, tuples of them; anything else is refused with its value."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.errors import DtypeError, OptionError


def whole(owner: str, name: str, value: Any, least: int) -> None:
    """Refuse a field that is no whole number ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{owner}: {name}={value!r} must be a whole number")
    if value < least:
        raise OptionError(f"{owner}: {name}={value} must be at least {least}")


def between(owner: str, name: str, value: Any, low: int, high: int, why: str) -> None:
    """Refuse a whole number outside low … high."""
    whole(owner, name, value, low)
    if value > high:
        raise OptionError(f"{owner}: {name}={value} must be at most {high}: {why}")


def wholes(owner: str, name: str, values: Any, least: int) -> None:
    """Refuse what is no tuple of whole numbers ≥ `least`."""
    if not isinstance(values, tuple):
        raise OptionError(f"{owner}: {name}={values!r} must be a tuple of whole numbers, as ({name}=(1, 2))")
    for at, value in enumerate(values):
        whole(owner, f"{name}[{at}]", value, least)


def sizes(n: Any, m: Any, offset: Any) -> tuple[int, int, int]:
    """n queries, m keys and the place of query 0 as Python integers."""
    found = []
    for name, value, least in (("n", n, 0), ("m", m, 0), ("offset", offset, None)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise OptionError(f"{name}={value!r} must be a whole number (n queries, m keys, query 0 at position offset)")
        if least is not None and value < least:
            raise OptionError(f"{name}={value} must be at least {least}")
        found.append(int(value))
    return found[0], found[1], found[2]


def positions(name: str, x: Any) -> Any:
    """Positions as an int64 array."""
    made = np.asarray(x)
    if made.dtype.kind not in "iu":
        raise DtypeError(f"{name} has dtype {made.dtype}: positions are whole numbers")
    return made.astype(np.int64)
