"""The dictionary of mistakes: complete, without copies, every one of them visible, killed and called by its name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.testing.judge import floor
from refattn.testing.match import out_of_class
from refattn.testing.mutants import Mutant, everything
from refattn.testing.staged import Staged
from testing.laboratory import MASKED, SETTINGS, Bench, Setting, bench_of

Array = Any
CERTAIN = 30.0
COPY = 0.05  # the largest distance of copies, in units of the larger mistake
SWEPT = {  # every case of a configuration, the long ones too
    "causal, all": Setting(Dense(causal=True, align="bottom_right"), ("q_positions", "k_positions"), "float32"),
    "masks, all": Setting(Dense(), MASKED, "float32"),
    "half masks, all": Setting(Dense(), MASKED, "bfloat16"),
}
# The mistakes of softmax attention that are in circulation, numbered; the dictionary has more numbers than these.
NOT_HERE = {
    24: "windows are masks to Dense",
    25: "windows are masks to Dense",
    26: "windows are masks to Dense",
    42: "paged caches have block tables, Dense has none",
    43: "rotary positions are applied before Dense",
    44: "linear biases are an input of Dense, their slopes are not its affair",
}
FORWARD, BACKWARD = set(range(1, 50)) - set(NOT_HERE), set(range(1, 19))


def kind(mutant_id: str) -> str:
    """The mistake without its tile size: variants are one class."""
    return mutant_id.partition("@")[0]


MUTANTS: dict[str, Mutant] = {m.id: m for m in everything()}
CLASSES = list(dict.fromkeys(map(kind, MUTANTS)))


def bench(name: str) -> Bench:
    return bench_of(SETTINGS[name] if name in SETTINGS else SWEPT[name])


def seen(name: str) -> dict[str, str]:
    """Class → the variant that the bench's cases see best, of those that they see."""
    best: dict[str, str] = {}
    power = {i: max(p.values()) for i, p in bench(name).power.items()}
    for i, p in power.items():
        if p >= CERTAIN and p > power.get(best.get(kind(i), ""), 0.0):
            best[kind(i)] = i
    return best


# ---- the dictionary
def test_ids_are_unique_and_titles_tell_mistakes_apart() -> None:
    found = everything()
    assert len({m.id for m in found}) == len(found)
    assert len({m.title for m in found}) == len(found), [m.title for m in found]
    assert all("{" not in m.title and m.family and m.title for m in found)
    assert {m.equivalent_to for m in found} - {None} <= {m.id for m in found}
    assert len(CLASSES) >= 40


def test_the_published_mistakes_that_apply_are_there() -> None:
    numbers = {(i[0], int(re.match(r"\d+", i[1:])[0])) for i in CLASSES}
    assert {("F", i) for i in FORWARD} | {("B", i) for i in BACKWARD} <= numbers
    assert not {("F", i) for i in NOT_HERE} & numbers


# ---- what a mutant does
@pytest.mark.parametrize("name", CLASSES)
def test_every_mistake_is_seen_somewhere(name: str) -> None:
    power = {s: max((max(p.values()) for i, p in bench(s).power.items() if kind(i) == name), default=0.0) for s in SETTINGS}
    assert max(power.values()) >= CERTAIN, power


def test_a_mistake_of_the_backward_starts_from_the_same_forward_whichever_way_it_is_run() -> None:
    for s in ("causal", "masks"):
        for c in bench(s).cases[-4:]:
            right = Staged(c.scheme, c.inputs)
            right.run(c.do, c.dlse)
            for m in bench(s).mutants[c.id]:
                if m.backward:
                    alone, after = m.values(c, "float32"), m.mutant.values(c, "float32", right)
                    assert alone.keys() == after.keys(), m.id
                    assert all(np.array_equal(alone[n], after[n], equal_nan=True) for n in alone), m.id


def test_mutants_stay_on_their_side_and_keep_shapes_and_inputs() -> None:
    for s in SETTINGS:
        for c in bench(s).cases:
            before = [None if x is None else x.tobytes() for x in c.inputs]
            for m in bench(s).mutants[c.id]:
                for name, x in m.values(c, SETTINGS[s].dtype).items():
                    assert name in m.tensors, m.id
                    assert x.shape == bench(s).refs[c.id][name].value.shape, (m.id, name)
                    assert x.dtype == np.float64, (m.id, name)
            assert [None if x is None else x.tobytes() for x in c.inputs] == before


def changes(b: Bench) -> Iterator[tuple[str, dict[str, tuple[Array, Array]]]]:
    """Case by case: mutant → (its change in σ, where it is of another class), over all tensors of its side."""
    for c in b.cases:
        out = {}
        for m in b.mutants[c.id]:
            ref, parts, odd = b.refs[c.id], [], []
            for name in m.tensors:
                if name not in ref:
                    continue
                x = m.values(c, b.setting.dtype).get(name, ref[name].value)
                with np.errstate(invalid="ignore"):
                    off = (x - ref[name].value) / floor(ref[name].sigma)
                parts.append(np.clip(np.where(np.isfinite(off), off, 0.0), -1e100, 1e100).ravel())
                odd.append(out_of_class(x, ref[name].value).ravel())
            out[m.id] = np.concatenate(parts), np.concatenate(odd)
        yield c.id, out


@functools.cache
def told_apart(name: str) -> set[frozenset[str]]:
    """Pairs of mutants of one side that differ on some case of a bench on which one of them is seen."""
    b, apart = bench(name), set()
    for case, found in changes(b):
        for side in "FB":
            ids = [i for i in found if i[0] == side]
            loud = np.array([b.power[i][case] >= CERTAIN for i in ids])
            delta = np.stack([found[i][0] for i in ids])
            size = np.linalg.norm(delta, axis=1)
            gap2 = size[:, None] ** 2 + size[None, :] ** 2 - 2 * delta @ delta.T
            most = np.maximum(size[:, None], size[None, :])
            odd = np.stack([found[i][1] for i in ids]).astype(np.int32)
            same_class = (odd[:, None].sum(-1) + odd[None].sum(-1) - 2 * odd @ odd.T) == 0
            differ = ((gap2 > (COPY * most) ** 2) & (most > 0) | ~same_class) & (loud[:, None] | loud[None, :])
            apart |= {frozenset((ids[a], ids[z])) for a, z in zip(*np.nonzero(differ), strict=True) if a < z}
            others = [i for i in MUTANTS if i[0] == side and i not in found]
            apart |= {frozenset((i, o)) for i, is_loud in zip(ids, loud, strict=True) if is_loud for o in others}
    return apart


def test_no_two_mistakes_are_copies_unless_declared() -> None:
    apart = set().union(*map(told_apart, SETTINGS))
    ids = sorted({i for s in SETTINGS for i in seen(s).values()})
    pairs = [(a, b) for a in ids for b in ids if a < b and a[0] == b[0] and kind(a) != kind(b)]
    copies = {p for p in pairs if frozenset(p) not in apart}
    declared = {(a, b) for a, b in pairs if MUTANTS[a].equivalent_to == b or MUTANTS[b].equivalent_to == a}
    assert copies == declared


# ---- killed and named
def is_named(s: str, mutant_id: str, names: list[str]) -> bool:
    """The best name is the mistake, a variant of it with another tile, or one that does the same on all these cases."""
    return bool(names) and (kind(names[0]) == kind(mutant_id) or frozenset((names[0], mutant_id)) not in told_apart(s))


@pytest.mark.parametrize("name", CLASSES)
def test_every_mistake_is_killed_and_named(name: str) -> None:
    where = next(s for s in SETTINGS if name in seen(s))
    mutant_id = seen(where)[name]
    _, names = bench(where).names(mutant_id)
    assert is_named(where, mutant_id, names), (where, mutant_id, names)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", SWEPT)
def test_every_mistake_is_killed_and_named_on_all_cases(setting: str) -> None:
    missed = {}
    for mutant_id in seen(setting).values():
        _, names = bench(setting).names(mutant_id)
        if not is_named(setting, mutant_id, names):
            missed[mutant_id] = names[:4]
    assert missed == {}
