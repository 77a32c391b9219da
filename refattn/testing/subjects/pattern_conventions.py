"""Other conventions of a pattern: what else the name could mean by which published code or a paper calls it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from refattn.errors import OptionError
from refattn.patterns import Blocks, Coarse, Fixed, Global, Heads, Local, Random, Strided
from refattn.patterns.named import BigBird, LocalBlocks, Longformer, SparseTransformer
from refattn.patterns.named_sources import NAMED
from refattn.testing.subjects.pattern_neighbours import Near
from refattn.testing.subjects.pattern_nodes import Node, nodes, numbers

Call = tuple[Callable[..., Any], Mapping[str, Any]]
PARTS = ("joint", "second", "heads")


@functools.cache
def conventions(pattern: Node) -> tuple[Near, ...]:
    """Patterns that go by a name of this one under another convention, each once."""
    found: dict[Node, Near] = {}
    for group in _groups(pattern):
        made = [(call, value) for call in group if (value := _made(*call)) is not None]
        mine = [call for call, value in made if value == pattern]
        for call, value in made if mine else ():
            if value != pattern and value not in found:
                title = f"{_written(*call)} where {_written(*mine[0])} is asked{_means(*call)}"
                key = " ".join(call[1][k] for k in ("convention", "counting", "plan") if k in call[1]) or call[0].__name__
                taken = sum(x.id.partition("/")[0] == f"C:{key}" for x in found.values())
                found[value] = Near(f"C:{key}" + (f"/{taken + 1}" if taken else ""), title, value)
    return tuple(found.values())


def _groups(pattern: Node) -> Iterator[list[Call]]:
    """Calls of named constructors that differ in their convention alone."""
    known = nodes(pattern)
    yield from _sparse_transformer(pattern, known)
    yield from _longformer(pattern, known)
    yield from _local_blocks(known)
    yield from _big_bird(pattern, known)


def _calls(make: Callable[..., Any], conventions: Iterable[str], **fixed: Any) -> list[Call]:
    return [(make, {**fixed, "convention": c}) for c in conventions]


def _sparse_transformer(pattern: Node, known: list[Any]) -> Iterator[list[Call]]:
    full = sum(p == pattern.patterns[-1] for p in pattern.patterns[2:]) if isinstance(pattern, Heads) else 0
    periods = {p.period - back for p in known if isinstance(p, Strided) for back in (0, 1)}
    for l, part in itertools.product(sorted(periods), PARTS):
        yield _calls(SparseTransformer.strided, ("paper", "openai", "survey"), l=l, part=part,
                     full=full if part == "heads" else 0)
    for p in known:
        if isinstance(p, Fixed):
            for part in PARTS:
                yield _calls(SparseTransformer.fixed, ("paper", "survey"), l=p.l, c=p.c, part=part, slot=p.slot,
                             full=full if part == "heads" else 0)


def _longformer(pattern: Node, known: list[Any]) -> Iterator[list[Call]]:
    """Windows on both sides; one that looks back alone has no name here: one key less would be taken for a convention."""
    places = next((p.at for p in known if isinstance(p, Global) and p.at), None)
    for p in known:
        if not isinstance(p, Local) or p.left != p.right or p.left == 0:
            continue
        for w in (p.left, 2 * p.left):
            if p.dilation == 1 and places is None:
                yield _calls(Longformer.sliding, ("ai2", "hf", "survey"), w=w)
            if places is not None:
                yield _calls(Longformer.with_global, ("ai2", "hf", "survey"), w=w, at=places)
        for w, dilation in ((p.left, p.dilation), (2 * p.left, p.dilation - 1)):
            if p.dilation > 1:
                yield _calls(Longformer.dilated, ("ai2", "paper"), w=w, dilation=dilation)


def _local_blocks(known: list[Any]) -> Iterator[list[Call]]:
    """Four sets share the name: the own block, with the one before, and with a window over both."""
    for p in known:
        if isinstance(p, Blocks):
            size = {"size": p.size}
            yield [(LocalBlocks.own, size), (LocalBlocks.t2t_right, size), (LocalBlocks.lucidrains, {"window": p.size}),
                   (LocalBlocks.lucidrains, {"window": p.size, "exact": True})]
            if p.back == 0:
                continue
            both = {"window": p.size, "look_backward": p.back, "look_forward": p.ahead, "causal": False}
            yield [(LocalBlocks.lucidrains, both), (LocalBlocks.lucidrains, {**both, "exact": True})]
            before = {"window": p.size, "look_backward": p.back}
            yield [(LocalBlocks.lucidrains, before), (LocalBlocks.lucidrains, {**before, "exact": True})]


def _big_bird(pattern: Node, known: list[Any]) -> Iterator[list[Call]]:
    sizes = {p.size for p in known if isinstance(p, Coarse)}
    seeds = {p.seed for p in known if isinstance(p, Random)} or {0}
    few = sorted({p.keys for p in known if isinstance(p, Random)} | {x for x in numbers(pattern) if 0 < x < 9} | {1, 2, 3})
    for block, seed, random in itertools.product(sorted(sizes), sorted(seeds), few):
        kinds = itertools.product(("set", "multiset"), ("seeded", "hf_eval"))
        yield [(BigBird.itc, {"block": block, "random": random, "counting": c, "plan": plan,
                              **({"seed": seed} if plan == "seeded" and seed else {})}) for c, plan in kinds]


def _made(make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    try:
        return make(**options)
    except OptionError:
        return None


def _written(make: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """The call as it is written on the command line, without what need not be said."""
    usual = {"part": "joint", "full": 0, "slot": 0, "counting": "set", "plan": "seeded"}
    shown = ", ".join(f"{k}={v!r}" for k, v in options.items() if k not in usual or v != usual[k])
    return f"{make.__qualname__}({shown})"


def _means(make: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """What the table of named patterns says of this convention, in brackets."""
    named = NAMED.get(make.__qualname__)
    keys = {options.get("convention"), *(f"{k}={v!r}" for k, v in options.items())}
    says = [] if named is None else [text for key, text in named.conventions.items() if key in keys]
    return f" ({'; '.join(says)})" if says else ""
