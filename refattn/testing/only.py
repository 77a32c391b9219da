"""The language of ``--only``: what sizes a candidate takes, as in ``"d=64,128; n%64=0; nq=nk; heads=1:1"``.

    d=64,128     one of these values (any of b, h, hkv, n or nq, m or nk, d, e)
    n%64=0       a multiple (n alone: of queries and keys)
    nq=nk, d=e   two sizes equal        heads=1:1, heads=4:1      query heads for each key head
    family=tail,mask                    these families alone

Cases are reshaped to the nearest sizes that fit, upwards. A case that can't be is left out, and so is one that would lose
what it is about: one query, n ≠ m, shared heads. Sizes are positive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refattn.errors import OptionError
from refattn.testing.families import FAMILIES, Family

NAMES = {"b": "b", "h": "h", "hkv": "g", "nq": "n", "nk": "m", "m": "m", "d": "d", "e": "e", "dv": "e"}
NO_AXES: Mapping[str, str] = {}
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
        """The sizes nearest to these that satisfy the filter; None if there are none, or if they lose what was meant."""
        out = dict(sizes)
        for axis in out:
            out[axis] = self._nearest(axis, out[axis])
        for one, two in self.equal:
            if not {one, two} <= out.keys():
                continue
            kept, changed = (two, one) if self._fixed(two) and not self._fixed(one) else (one, two)
            out[changed] = out[kept]
        if "g" in out:
            ratio = self.ratio or sizes["h"] // max(sizes["g"], 1)
            if not self._fixed("h"):
                out["h"] = out["g"] * ratio
            elif not self._fixed("g"):
                out["g"] = out["h"] // max(ratio, 1)
        return out if self._holds(out) and _same_kind(sizes, out) else None

    def _nearest(self, axis: str, size: int) -> int:
        """The smallest size not below `size` that the clauses on this axis allow, or the largest that they do."""
        step = self.multiples.get(axis, 1)
        if axis not in self.values:
            return -(-size // step) * step
        allowed = [a for a in sorted(self.values[axis]) if a % step == 0] or [size]
        return next((a for a in allowed if a >= size), allowed[-1])

    def _fixed(self, axis: str) -> bool:
        return axis in self.values or axis in self.multiples

    def _holds(self, sizes: Mapping[str, int]) -> bool:
        g = sizes.get("g", sizes["h"])
        return (
            all(sizes[a] in allowed for a, allowed in self.values.items() if a in sizes)
            and all(sizes[a] % step == 0 for a, step in self.multiples.items() if a in sizes)
            and all(sizes[a] == sizes[b] for a, b in self.equal if {a, b} <= sizes.keys())
            and (self.ratio is None or sizes["h"] == self.ratio * g)
            and (sizes["h"] % g == 0 if g else sizes["h"] == 0)
        )


def _same_kind(sizes: Mapping[str, int], fitted: Mapping[str, int]) -> bool:
    """No or one query or key, n ≠ m and shared heads are what a case is about: it is left out if they are lost."""
    there = [a for a in "nm" if a in sizes]
    return all(sizes[a] > 1 or fitted[a] == sizes[a] for a in there) and all(
        sizes[a] == sizes[b] or fitted[a] != fitted[b] for a, b in ("nm", "hg") if {a, b} <= sizes.keys()
    )


def of_family(text: str, family: str) -> str:
    """The filter that takes the cases of one family, out of those that `text` takes."""
    clauses = [clause.strip() for clause in text.split(";")]
    return "; ".join([*(c for c in clauses if c and c.partition("=")[0].strip() != "family"), f"family={family}"])


def parse(text: str, families: Sequence[Family] | None = None, axes: Mapping[str, str] = NO_AXES) -> Only:
    """The filter that `text` describes. families: those there are, by default of softmax attention; axes: further sizes.

    Raises
    ------
    OptionError
        For a clause of another form, showing it and the forms that there are.
    """
    if not isinstance(text, str):
        raise OptionError(f"only={text!r} is no text: {FORMS}")
    values: dict[str, tuple[int, ...]] = {}
    multiples: dict[str, int] = {}
    equal: list[tuple[str, str]] = []
    ratio: int | None = None
    chosen: tuple[str, ...] | None = None
    known = {**NAMES, **axes}
    for clause in filter(None, (c.strip() for c in text.split(";"))):
        left, right = (part.strip() for part in clause.partition("=")[::2])
        axis, _, step = left.partition("%")
        if left == "family" and right:
            chosen = _families(clause, right, FAMILIES if families is None else families)
        elif left == "heads" and re.fullmatch(r"[1-9]\d*:1", right):
            ratio = int(right[:-2])
        elif step.isdigit() and int(step) > 0 and right == "0":
            multiples |= {a: int(step) for a in _axes(clause, axis, known)}
        elif re.fullmatch(r"0*[1-9]\d*(\s*,\s*0*[1-9]\d*)*", right):
            values |= {a: tuple(int(r) for r in right.split(",")) for a in _axes(clause, left, known)}
        elif right in known and left in known:
            equal.append((known[left], known[right]))
        else:
            raise OptionError(f"--only {clause!r} is not understood: {FORMS}")
    return Only(values, multiples, tuple(equal), ratio, chosen)


def _axes(clause: str, name: str, known: Mapping[str, str]) -> tuple[str, ...]:
    if name == "n":
        return ("n", "m")
    if name not in known:
        raise OptionError(f"--only {clause!r}: no size is called {name!r}; there are n, {', '.join(known)}. {FORMS}")
    return (known[name],)


def _families(clause: str, names: str, families: Sequence[Family]) -> tuple[str, ...]:
    found, there = tuple(f.strip() for f in names.split(",")), [f.name for f in families]
    for name in found:
        if name not in there:
            raise OptionError(f"--only {clause!r}: no family is called {name!r}; there are {', '.join(there)}")
    return found
