"""The language of ``--only``: what sizes a candidate takes, as in ``"d=64,128; n%64=0; nq=nk; heads=1:1"``.

    d=64,128     one of these values (any of b, h, hkv, n or nq, m or nk, d, e)
    n%64=0       a multiple (n alone: of queries and keys)
    nq=nk, d=e   two sizes equal        heads=1:1, heads=4:1      query heads for each key head
    family=tail,mask                    these families alone

Cases are reshaped to the nearest sizes that fit, upwards; a case that can't be is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from refattn.errors import OptionError

NAMES = {"b": "b", "h": "h", "hkv": "g", "nq": "n", "nk": "m", "m": "m", "d": "d", "e": "e", "dv": "e"}
FORMS = "write d=64,128; n%64=0; nq=nk; d=e; heads=4:1; family=tail,mask"


@dataclass(frozen=True)
class Only:
    """A parsed filter."""

    values: Mapping[str, tuple[int, ...]]
    multiples: Mapping[str, int]
    equal: tuple[tuple[str, str], ...]
    ratio: int | None
    families: tuple[str, ...] | None

    def fit(self, sizes: Mapping[str, int]) -> Mapping[str, int] | None:
        """The sizes nearest to these that satisfy the filter, or None."""
        out = dict(sizes)
        for axis, allowed in self.values.items():
            out[axis] = next((a for a in sorted(allowed) if a >= out[axis]), max(allowed))
        for axis, step in self.multiples.items():
            out[axis] = -(-out[axis] // step) * step
        for one, two in self.equal:
            out[two] = out[one]
        if self.ratio is not None:
            out["h"] = out["g"] * self.ratio
        return out if self._holds(out) else None

    def _holds(self, sizes: Mapping[str, int]) -> bool:
        return (
            all(sizes[a] in allowed for a, allowed in self.values.items())
            and all(sizes[a] % step == 0 for a, step in self.multiples.items())
            and all(sizes[a] == sizes[b] for a, b in self.equal)
            and (sizes["g"] == 0 or sizes["h"] % sizes["g"] == 0)
        )


def parse(text: str) -> Only:
    """The filter that `text` describes.

    Raises
    ------
    OptionError
        For a clause of another form, showing it and the forms that there are.
    """
    values: dict[str, tuple[int, ...]] = {}
    multiples: dict[str, int] = {}
    equal: list[tuple[str, str]] = []
    ratio: int | None = None
    families: tuple[str, ...] | None = None
    for clause in filter(None, (c.strip() for c in text.split(";"))):
        left, right = (part.strip() for part in clause.partition("=")[::2])
        axis, _, step = left.partition("%")
        if left == "family" and right:
            families = tuple(f.strip() for f in right.split(","))
        elif left == "heads" and re.fullmatch(r"[1-9]\d*:1", right):
            ratio = int(right[:-2])
        elif step.isdigit() and int(step) > 0 and right == "0":
            multiples |= {a: int(step) for a in _axes(clause, axis)}
        elif re.fullmatch(r"\d+(\s*,\s*\d+)*", right):
            values |= {a: tuple(int(r) for r in right.split(",")) for a in _axes(clause, left)}
        elif right in NAMES and left in NAMES:
            equal.append((NAMES[left], NAMES[right]))
        else:
            raise OptionError(f"--only {clause!r} is not understood: {FORMS}")
    return Only(values, multiples, tuple(equal), ratio, families)


def _axes(clause: str, name: str) -> tuple[str, ...]:
    if name == "n":
        return ("n", "m")
    if name not in NAMES:
        raise OptionError(f"--only {clause!r}: no size is called {name!r}; there are n, {', '.join(NAMES)}. {FORMS}")
    return (NAMES[name],)
