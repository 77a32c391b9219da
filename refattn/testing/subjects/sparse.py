"""Attention over a pattern as the kit sees it: softmax attention whose pairs, and how often they count, a pattern says."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.patterns import Heads, Local, Short
from refattn.testing.cases import Case
from refattn.testing.families import FAMILIES, NULL_ROWS, Family, Generator, Inputs, Want, aligned, scores_of, sizes
from refattn.testing.mutants import host
from refattn.testing.staged import EVERY, Staged
from refattn.testing.subjects.base import Sizes, Subject
from refattn.testing.subjects.dense import nulls
from refattn.testing.subjects.pattern_conventions import conventions
from refattn.testing.subjects.pattern_mutants import LONGEST, mutants
from refattn.testing.subjects.pattern_neighbours import near
from refattn.testing.subjects.pattern_nodes import counts, each, edges, inside, nodes, reach, start

Array = Any
FEW = 130
"""Longer cases have one item and one head."""


@dataclass
class SparseStaged(Staged):
    """One run of Sparse: the pattern written out as counts (1, H | 1, n, m)."""

    def shown(self) -> Any:
        n, m = self.inputs.q.shape[-2], self.inputs.k.shape[-2]
        offset, within, members = start(self.option("align"), n, m), self.option("within"), self.given("is_global")
        self.times = counts(self.scheme.pattern, n, m, offset)[None]
        self.limits = np.ones((n, m), bool) if within is None else counts(within, n, m, offset)[0] > 0
        self.plain = self.times > 0
        if members is not None:
            at, place = host(members), np.arange(offset, offset + n)
            wide = np.concatenate([at, np.zeros((*at.shape[:-1], 1), bool)], axis=-1)  # a place without a key is no member
            row = wide[..., np.where((place >= 0) & (place < m), place, m)]
            self.row, self.column = row[..., None, :, None], at[..., None, None, :]
            self.times = np.maximum(self.times, self.row | self.column)
        self.times = np.where(self.limits, self.times, 0)
        self.limits = self.limits & self.allowed()
        return self.times > 0

    def counted(self, e: Array, at: slice = EVERY) -> Array:
        if not (self.times > 1).any():
            return e
        return e * np.maximum(self.times[..., at], 1).astype(np.float64)


def fit(scheme: Any, sizes: Sizes) -> Sizes | None:
    """As many query heads as patterns, where each has one; shared key heads are as few as they were, if that divides."""
    if not isinstance(scheme.pattern, Heads):
        return sizes
    h = len(scheme.pattern)
    shared = sizes["h"] != sizes["g"]
    g = math.gcd(h, sizes["g"]) if shared else h
    return None if shared and g == h else {**sizes, "h": h, "g": g}


def _edges(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


def _short(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)


@functools.lru_cache(maxsize=64)
def families(scheme: Any) -> tuple[Family, ...]:
    """Those of softmax attention, and lengths on which the edges of the pattern show, or that are shorter than it."""
    n = edges(scheme.pattern, LONGEST)
    whole = -(-n // 64) * 64
    b, h = (2, 3) if n <= FEW else (1, 1)
    two = {"pow2": sizes(1, 2, 2, whole, whole, 32, 32)} if whole <= FEW else {}
    effect = "queries near an edge of the pattern see wrong keys"
    return (
        *FAMILIES,
        Family("edges", "the edges of the pattern, in a length that is no multiple of its blocks", effect,
               {"odd": sizes(b, h, h, n, n, 24, 20), **two}, _edges),
        Family("edges and more keys", "where the pattern stands when there are more keys than queries", effect,
               {"odd": sizes(1, h, h, n // 2 + 1, n, 24, 20)}, _edges, fits=_placed),
        Family("edges and more queries", "where the pattern stands when there are more queries than keys", effect,
               {"odd": sizes(1, h, h, n, n // 2 + 1, 24, 20)}, _edges, fits=_placed),
        Family("short", "a sequence that is shorter than the pattern", "keys that are not there are read",
               {"five": sizes(2, 3, 3, 5, 5, 24, 20), "two": sizes(2, 3, 3, 2, 2, 16, 12)}, _short, exempt=NULL_ROWS),
        *_rules(scheme.pattern),
        Family("members", "positions of each item that see all and are seen by all", "an item has the members of another",
               {"odd": sizes(2, 3, 3, 37, 37, 24, 20)}, _members, applies=lambda want: want.takes("is_global")),
        Family("one token", "a sequence of one token", "keys that are not there are read",
               {"one": sizes(2, 3, 3, 1, 1, 24, 20)}, _short, exempt=NULL_ROWS),
    )  # fmt: skip


def _members(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["is_global"] = g.random((sizes["b"], sizes["m"])) < 0.1
    x["is_global"][:, sizes["m"] // 3] = True


def _rules(pattern: Any) -> list[Family]:
    """Lengths below, at and above those from which on a rule for short sequences no longer holds."""
    found = sorted({p.below for p in nodes(pattern) if isinstance(p, Short) and 1 < p.below <= LONGEST})
    tiers = {f"{n + by}": sizes(1, 1, 1, n + by, n + by, 16, 12) for n in found for by in (-1, 0, 1)}
    effect = "the wrong one of two patterns at this length"
    return [Family("length rule", "the length from which on another pattern holds", effect, tiers, _short)] if tiers else []


def _placed(want: Want, sizes: Sizes) -> bool:
    return aligned(want, sizes) and sizes["n"] != sizes["m"]


def note(scheme: Any, cases: Sequence[Case]) -> str:
    """What of the pattern is longer than any case."""
    longest = max((case.sizes["m"] for case in cases), default=0)
    hidden = [repr(p) for p in dict.fromkeys(each(scheme.pattern)) if reach(p) > longest]
    if not hidden or not longest:
        return ""
    reaches = f"{' and '.join(hidden[:2])} {'reaches' if len(hidden) == 1 else 'reach'}"
    return (f"{reaches} further than the longest case of {longest} keys, so that mistakes at the far edge can't show; judge "
            "the kernel with smaller windows, strides or blocks too")


Read = Sequence[tuple[Array, int, int]]


def long(scheme: Any) -> tuple[tuple[int, int], ...]:
    """A length on which the whole pattern shows."""
    n = edges(scheme.pattern, LONGEST)
    return ((n, n),) if n > FEW else ()


def tell(scheme: Any, read: Read) -> str:
    """The pattern that a kernel has in place of its own, if it is another convention, a neighbour or a window."""
    for other in (*conventions(scheme.pattern), *near(scheme.pattern)):
        if _is(other.pattern, scheme, read):
            what = "another convention" if other.id.startswith("C:") else "a known mistake"
            return f"That is the mask of {what}: {other.title} [{other.id}]"
    window = _window(scheme, read)
    return "" if window is None else f"That is the mask of {window!r}"


def _is(pattern: Any, scheme: Any, read: Read) -> bool:
    """True if this is what was read out at every length."""
    wanted = [inside(pattern, scheme.within, n, m, start(scheme.align, n, m)) for _, n, m in read]
    return all(np.array_equal(np.broadcast_to(want, got.shape), got) for want, (got, _, _) in zip(wanted, read, strict=True))


def _window(scheme: Any, read: Read) -> Local | None:
    """The window that reaches as far as what was read out, if it is one."""
    away = [int(x) for got, n, m in read for i, j in [np.nonzero(got[0])] for x in (j - i - start(scheme.align, n, m))]
    window = Local(max(-min(away, default=0), 0), max(*away, 0)) if away else None
    return window if window is not None and _is(window, scheme, read) else None


SUBJECT = Subject(kernel=SparseStaged, mutants=mutants, nulls=nulls, families=families, fit=fit, note=note,
                  reads=lambda scheme: True, long=long, counted=True, tell=tell)
