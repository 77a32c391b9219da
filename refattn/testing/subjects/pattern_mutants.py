"""The known mistakes of kernels over a pattern: another pattern, tiles of it, and those of all softmax attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.patterns import Heads
from refattn.testing.cases import Case
from refattn.testing.mutants import TILES, Mutant, everything, host
from refattn.testing.mutants_backward import masked_as
from refattn.testing.mutants_masks import seen, tiles_that_see
from refattn.testing.subjects import pattern_faults as faults
from refattn.testing.subjects.pattern_conventions import conventions
from refattn.testing.subjects.pattern_neighbours import Near, near
from refattn.testing.subjects.pattern_nodes import Node, counts, edges, inside, same, start

Array = Any
LONGEST = 900
"""Queries and keys of the longest case; beyond it a pattern's edges are not looked for."""


@functools.lru_cache(maxsize=64)
def mutants(scheme: Any) -> tuple[Mutant, ...]:
    """Conventions, neighbours, mistakes in tiles, these in the backward alone, then the mistakes of softmax attention."""
    pattern = scheme.pattern
    others = list(_different(pattern, (*conventions(pattern), *near(pattern))))
    patterns = [*map(_mutant, others), *_tiles(pattern)]
    members = MEMBERS if scheme.within is None else (*MEMBERS, WITHIN)
    return (*patterns, *map(masked_as, patterns), *members, *map(masked_as, members), *everything())


def _different(pattern: Node, others: Iterable[Near]) -> Iterator[Near]:
    """Each set of pairs once: of patterns that are the same on all these sizes, the first."""
    n = edges(pattern, LONGEST)
    sizes = ((n, n, 0), (n // 2, n, n - n // 2), (12, 12, 0), (5, 5, 0))
    known = {_key(pattern, sizes)}
    for other in others:
        key = _key(other.pattern, sizes)
        if key not in known or _depends_on_length(other):
            known.add(key)
            yield other


def _key(pattern: Node, sizes: Iterable[tuple[int, int, int]]) -> tuple[bytes, ...]:
    return tuple(counts(pattern, *size).tobytes() for size in sizes)


def _depends_on_length(other: Near) -> bool:
    """A rule for short sequences shows at one length alone."""
    return other.id.startswith("S:Short")


def _mutant(other: Near) -> Mutant:
    convention = other.id.startswith("C:")

    def before(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
        return replace(scheme, pattern=other.pattern), inputs

    instead = (lambda scheme: replace(scheme, pattern=other.pattern)) if convention else None
    family = "convention" if convention else "pattern"
    return Mutant(other.id, family, other.title, _differs(lambda p, t: other.pattern), before, instead=instead)


def _differs(make: Callable[[Node, int], Node], tile: int = 0) -> Callable[[Case, str], bool]:
    """True where the pattern that is made of the case's means something else for its sizes."""

    def applies(case: Case, dtype: str) -> bool:
        n, m = case.sizes["n"], case.sizes["m"]
        pattern = case.scheme.pattern
        return not same(pattern, make(pattern, tile), case.scheme.within, n, m, start(case.scheme.align, n, m))

    return applies


def _tiles(pattern: Node) -> Iterator[Mutant]:
    for t in TILES:
        for i, back, words in (("S24", 0, "keys in another tile of {} than the query are not seen"),
                               ("S24b", 1, "keys more than one tile of {} away from the query's are not seen")):
            make = functools.partial(_within, back=back)
            yield Mutant(f"{i}@{t}", "pattern", words.format(t), _differs(make, t), _before(make), tile=t)
        for i, rule, words in (("S25", tiles_that_see, "in tiles of {} of which a part is seen nothing is hidden"),
                               ("S25f", _full_tiles, "tiles of {} of which only a part is seen are skipped")):
            yield Mutant(f"{i}@{t}", "pattern", words.format(t), _touched(t, rule), patches=seen(rule), tile=t)


def _within(pattern: Node, tile: int, back: int) -> Node:
    if isinstance(pattern, Heads):
        return Heads(tuple(faults.Near(p, tile, back) for p in pattern.patterns))
    return faults.Near(pattern, tile, back)


def _before(make: Callable[[Node, int], Node]) -> Callable[[Any, Any, int], tuple[Any, Any]]:
    return lambda scheme, inputs, tile: (replace(scheme, pattern=make(scheme.pattern, tile)), inputs)


def _full_tiles(kernel: Any, i: Any, j: Any) -> Any:
    """What is seen of tiles all of whose pairs are seen."""
    hidden = SimpleNamespace(tile=kernel.tile, see=~np.broadcast_to(kernel.see, (*kernel.see.shape[:-2], i.size, j.size)))
    return ~tiles_that_see(hidden, i, j)


def _touched(tile: int, rule: Callable[[Any, Any, Any], Any]) -> Callable[[Case, str], bool]:
    """True where whole tiles are something else than the pattern."""

    @functools.lru_cache(maxsize=64)
    def changes(pattern: Node, within: Any, n: int, m: int, offset: int) -> bool:
        see = inside(pattern, within, n, m, offset) > 0
        kernel = SimpleNamespace(tile=tile, see=see)
        return bool((rule(kernel, np.arange(n)[:, None], np.arange(m)[None, :]) != see).any())

    def applies(case: Case, dtype: str) -> bool:
        n, m = case.sizes["n"], case.sizes["m"]
        return changes(case.scheme.pattern, case.scheme.within, n, m, start(case.scheme.align, n, m))

    return applies


# ---- members of each item, and what holds them
def _has_members(case: Case, dtype: str) -> bool:
    return case.given("is_global") is not None


def _without_rows(kernel: Any, i: Any, j: Any) -> Any:
    return (kernel.plain | kernel.column) & kernel.limits


def _without_columns(kernel: Any, i: Any, j: Any) -> Any:
    return (kernel.plain | kernel.row) & kernel.limits


MEMBERS = (
    Mutant("S6", "pattern", "is_global is ignored", _has_members, lambda s, x, t: (s, x._replace(is_global=None))),
    Mutant("S6f", "pattern", "is_global of the first item is used for every item",
           lambda c, _: c.given("is_global") is not None and c.sizes["b"] > 1,
           lambda s, x, t: (s, x._replace(is_global=host(x.is_global)[:1]))),
    Mutant("S6r", "pattern", "members of is_global see no more than others", _has_members, patches=seen(_without_rows)),
    Mutant("S6c", "pattern", "members of is_global are seen by no more than see others", _has_members,
           patches=seen(_without_columns)),
)  # fmt: skip
WITHIN = Mutant("S26", "pattern", "what holds the pairs, within, is ignored",
                before=lambda s, x, t: (replace(s, within=None), x))


# ---- for schemes whose global positions have projections of their own
def _second_columns(kernel: Any, usual: Any, q: Array, k: Array) -> Array:
    """Scores of ordinary queries with global keys from the second projection of keys."""
    xp = of(q, k).xp
    return xp.where(_routed(kernel), usual(q, kernel.inputs.k_global), usual(q, k))


def _second_values(kernel: Any, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    xp = of(e, v).xp
    column = _routed(kernel)
    own, second = xp.where(column, 0.0, e), xp.where(column, e, 0.0)
    return usual(own, z, v, c, s) + usual(second, z, kernel.inputs.v_global, c, s)


def _routed(kernel: Any) -> Any:
    """Pairs of an ordinary query and a global key."""
    at = host(kernel.inputs.is_global)
    return ~at[..., None, :, None] & at[..., None, None, :]


LATER = (
    Mutant("S5", "pattern", "ordinary queries see global keys through the second projections, those of global rows",
           lambda c, _: c.given("k_global") is not None, patches={"scores": _second_columns, "combine": _second_values}),
)  # fmt: skip
"""For schemes that have ``is_global``, ``k_global`` and ``v_global`` among their inputs; no scheme here has them yet."""
