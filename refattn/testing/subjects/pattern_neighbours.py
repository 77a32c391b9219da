"""The neighbours of a pattern: every field one more and one less, parts left out, counts confused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from refattn.errors import OptionError
from refattn.patterns import (
    All,
    Axial,
    Blocks,
    Causal,
    Coarse,
    Cross,
    Fixed,
    Global,
    Heads,
    Local,
    LogSparse,
    Pattern,
    Random,
    Self,
    Short,
    Split,
    Strided,
)
from refattn.patterns.algebra import Complement, Intersection, Sum, Union, _Joined
from refattn.testing.subjects.pattern_faults import Clamped, Moved, Phase, Tail, Turned, Wrapped
from refattn.testing.subjects.pattern_nodes import Node, blocks, each, nodes, replaced


class Near(NamedTuple):
    """A pattern in place of the right one: id, what the mistake is, in words, and what it makes of the pattern."""

    id: str
    title: str
    pattern: Node


STEPS: dict[type, dict[str, tuple[str, str]]] = {  # what one more and one less means
    Local: {
        "left": ("the window is one key wider to the left", "the window is one key narrower to the left"),
        "right": ("the window is one key wider to the right", "the window is one key narrower to the right"),
        "dilation": ("keys of the window are one position further apart", "keys of the window are one position closer"),
    },
    Strided: {"period": ("the stride is one longer", "the stride is one shorter")},
    Fixed: {
        "l": ("blocks of summary columns are one longer", "blocks of summary columns are one shorter"),
        "c": ("there is one summary column more", "there is one summary column less"),
        "slot": ("summary columns of the next slot", "summary columns of the slot before"),
    },
    Blocks: {
        "size": ("blocks are one longer", "blocks are one shorter"),
        "shift": ("the block after the right one is seen", "the block before the right one is seen"),
        "back": ("one block more is seen before", "one block less is seen before"),
        "ahead": ("one block more is seen after", "one block less is seen after"),
        "margin": ("the margin is one key wider", "the margin is one key narrower"),
    },
    Split: {
        "n_blocks": ("there is one block more", "there is one block less"),
        "shift": ("the block after the right one is seen", "the block before the right one is seen"),
    },
    Coarse: {"size": ("blocks are one longer", "blocks are one shorter")},
    Global: {
        "first": ("one global position more at the beginning", "one global position less at the beginning"),
        "last": ("one global position more at the end", "one global position less at the end"),
    },
    Random: {
        "keys": ("one random key more", "one random key less"),
        "seed": ("keys of the next seed", "keys of the seed before"),
    },
    Short: {"below": ("full attention up to one length more", "full attention up to one length less")},
}  # fmt: skip


def near(pattern: Node) -> Iterator[Near]:
    """All neighbours that can be written, those of one field first; some do the same on given sizes, or in general."""
    for place, node in enumerate(nodes(pattern)):
        same = [x for x in nodes(pattern) if type(x) is type(node)]
        name = type(node).__name__ + (f"[{same.index(node)}]" if len(same) > 1 else "")
        for key, words, make in (*_changes(node), *_steps(node)):
            try:
                found = make()
            except OptionError:  # a window of −1, a slot that a block does not hold
                continue
            title = f"{words}: {_shown(found)} for {_shown(node)}"
            yield Near(f"S:{name}.{key}", title, replaced(pattern, node, found))
        yield from _without_parts(pattern, node, place)
    yield from _heads(pattern)
    yield from _whole(pattern)


Change = tuple[str, str, Any]


def _steps(node: Pattern) -> Iterator[Change]:
    for field, words in STEPS.get(type(node), {}).items():
        for by, text in zip((1, -1), words, strict=True):
            value = getattr(node, field) + by
            yield f"{field}{by:+d}", text, functools.partial(_with, node, **{field: value})


def _with(node: Any, **fields: Any) -> Pattern:
    made: Pattern = dataclasses.replace(node, **fields)
    return made


def _changes(node: Pattern) -> Iterator[Change]:
    match node:
        case Local(left=left, right=right, dilation=dilation):
            yield "both+1", "the window is one key wider on both sides", lambda: Local(left + 1, right + 1, dilation)
            yield "both-1", "the window is one key narrower on both sides", lambda: Local(left - 1, right - 1, dilation)
            yield "left0", "the window has no left side", lambda: Local(0, right, dilation)
            yield "right0", "the window has no right side", lambda: Local(left, 0, dilation)
            yield "mirror", "the window looks the other way", lambda: Local(right, left, dilation)
            yield "dilation1", "the dilation is ignored", lambda: Local(left, right)
            if 1 < dilation <= max(left, right):
                tokens = "the window is as many tokens wide as it must have keys"
                yield "tokens", tokens, lambda: Local(left // dilation, right // dilation, dilation)
            if dilation == 1:
                yield "clamp", "a window that does not fit at an end is moved inwards, not cut", lambda: Clamped(node)
        case Strided():
            yield "late", "strides begin one key after the query", lambda: Phase(node, 1)
            yield "early", "strides begin one key before the query", lambda: Phase(node, -1)
        case Fixed(l=l, c=c):
            yield "first", "the first columns of a block for the last ones", lambda: Fixed(l, c, l // c - 1)
        case Split(n_blocks=count, shift=shift):
            yield "inverse", "the permutation of blocks is inverted", lambda: Split(count, -shift % count)
            yield "identity", "the permutation of blocks is ignored", lambda: Split(count)
        case Blocks(back=back, ahead=ahead):
            yield "mirror", "blocks before and after are exchanged", lambda: _with(node, back=ahead, ahead=back)
            yield "own", "only the own block is seen", lambda: _with(node, back=0, ahead=0)
        case Global(at=at):
            yield "rows", "global positions see no more than others", lambda: _with(node, rows=False)
            yield "columns", "global positions are not seen by all", lambda: _with(node, rows=True, columns=False)
            yield "swap", "global rows and columns are confused", lambda: _swapped(node)
            yield "both", "global rows and columns for those of one kind", lambda: _with(node, rows=True, columns=True)
            if at:
                yield "at+1", "global positions are one too far", lambda: _with(node, at=tuple(x + 1 for x in at))
        case Axial(shape=shape, axis=axis):
            for other in range(len(shape)):
                if other != axis % len(shape):
                    yield f"axis{other}", "another axis of the grid", lambda other=other: Axial(shape, other)
            yield "turned", "the grid's axes are in the other order", lambda: Axial(shape[::-1], axis)
        case Cross(shape=shape):
            yield "turned", "the grid's axes are in the other order", lambda: Cross(shape[::-1])
            lines = tuple(Axial(shape, a) for a in range(len(shape)))
            yield "sum", "the position itself counts once for each axis", lambda: Sum(lines)
            for a in range(len(shape)):
                yield f"axis{a}", "one axis of the grid alone", lambda a=a: Axial(shape, a)
        case LogSparse():
            yield "from1", "steps begin one position before the query", lambda: Self() | (LogSparse() & ~Local(1, 0))
        case Causal():
            yield "strict", "strictly causal: a query does not see its own position", lambda: Causal() & ~Self()
            yield "beyond", "a query sees one key beyond the diagonal", lambda: Causal() | Local(0, 1)
        case Short(then=then, otherwise=otherwise):
            yield "always", "the rule for short sequences is always followed", lambda: then
            yield "never", "the rule for short sequences is ignored", lambda: otherwise


def _swapped(node: Global) -> Pattern:
    if node.rows and node.columns:
        raise OptionError("nothing to confuse")
    return _with(node, rows=node.columns, columns=node.rows)


def _without_parts(pattern: Node, node: Pattern, place: int) -> Iterator[Near]:
    """Parts of a union, an intersection or a sum left out; a complement forgotten; union and sum confused."""
    if isinstance(node, Union) and len(node.parts) > 1:
        title = f"a key counts once for each part that has it: {Sum(node.parts)!r} for {node!r}"
        yield Near(f"S:sum[{place}]", title, replaced(pattern, node, Sum(node.parts)))
    if isinstance(node, Sum) and len(node.parts) > 1:
        title = f"a key that several parts have counts once: {Union(node.parts)!r} for {node!r}"
        yield Near(f"S:union[{place}]", title, replaced(pattern, node, Union(node.parts)))
    if isinstance(node, _Joined):
        for k, part in enumerate(node.parts):
            others = tuple(p for i, p in enumerate(node.parts) if i != k)
            rest = others[0] if len(others) == 1 else dataclasses.replace(node, parts=others)
            if others:
                words = "is ignored" if isinstance(node, Intersection) else "is left out"
                yield Near(f"S:without[{place}.{k}]", f"{part!r} {words} in {node!r}", replaced(pattern, node, rest))
    if isinstance(node, Complement):
        yield Near(f"S:not[{place}]", f"{node!r} is ignored", replaced(pattern, node, All()))


def _heads(pattern: Node) -> Iterator[Near]:
    if not isinstance(pattern, Heads):
        return
    parts = pattern.patterns
    yield Near("S3", "all heads use the pattern of the first", Heads(parts[:1] * len(parts)))
    yield Near("S3l", "all heads use the pattern of the last", Heads(parts[-1:] * len(parts)))
    yield Near("S3n", "the pattern of head h is that of head h − 1", Heads((*parts[-1:], *parts[:-1])))
    yield Near("S3r", "the patterns of heads come in reverse", Heads(parts[::-1]))
    joint: Pattern = Union(tuple(dict.fromkeys(parts)))
    yield Near("S3u", "every head uses the patterns of all, joined", Heads((joint,) * len(parts)))


def _whole(pattern: Node) -> Iterator[Near]:
    """What happens to a pattern as a whole, of each head alike."""
    yield Near("S1", "blocks, strides and grids are counted from position 1", _each(pattern, lambda p: Moved(p, 1)))
    yield Near("S1m", "blocks, strides and grids are counted from position −1", _each(pattern, lambda p: Moved(p, -1)))
    yield Near("S7s", "a key that counts several times counts once", _each(pattern, lambda p: p.level(1)))
    yield Near("S8", "what lies beyond an end of the sequence is taken from the other end", _each(pattern, Wrapped))
    yield Near("S20", "the query itself is not seen", _each(pattern, lambda p: p & ~Self()))
    yield Near("S20a", "the query itself is seen, where it must not be", _each(pattern, lambda p: p | Self()))
    yield Near("S20t", "the query itself counts twice", _each(pattern, lambda p: p + (p.level(1) & Self())))
    yield Near("S21", "the pattern is transposed: keys see queries", _each(pattern, Turned))
    yield Near("S22", "the pattern is ignored: every query sees every key", _each(pattern, lambda p: All()))
    yield Near("S22c", "causal, and nothing else of the pattern", _each(pattern, lambda p: Causal()))
    yield Near("S22f", "not causal: what sees a query is seen by it too", _each(pattern, lambda p: p | Turned(p)))
    yield Near("S22p", "keys behind the query are hidden", _each(pattern, lambda p: p & Causal()))
    for size in sorted(blocks(pattern)):
        for i, queries, words in (("S23", False, "its keys are dropped"), ("S23q", True, "its queries see nothing")):
            title = f"of the last block of {size}, if it is not full, {words}"
            yield Near(f"{i}:{size}", title, _each(pattern, functools.partial(Tail, size=size, queries=queries)))


def _each(pattern: Node, make: Any) -> Node:
    return Heads(tuple(make(p) for p in each(pattern))) if isinstance(pattern, Heads) else make(pattern)


def _shown(pattern: Pattern) -> str:
    """The pattern as written; in short where patterns are inside, and in words where a fault has no expression."""
    match pattern:
        case Clamped(window=window):
            return f"at both ends of {window!r}"
        case Phase(strides=strides, by=by):
            return f"keys {by:+d} + a multiple of {strides.period}"
        case Coarse(size=size):
            return f"Coarse(…, size={size})"
        case Short(below=below):
            return f"Short(below={below}, …)"
    return repr(pattern)
