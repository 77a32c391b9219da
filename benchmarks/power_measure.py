"""The measurements behind the table of power: mistakes, correct kernels, held-out faults, judged by the kit and by rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from power_panel import DTYPES, SETTINGS, STYLES, Panel, naive, simulate
from power_rules import RULES, objections

from heldout.kernel import Attention
from heldout.pairs import PAIRS
from heldout.reported import REPORTED
from heldout.trial import checked, drawn, misnamed, names, power, results, says
from refattn.precision import PRESETS
from refattn.testing.cases import Case
from refattn.testing.diagnose import CERTAIN, Diagnosis
from refattn.testing.judge import judge
from refattn.testing.tolerance import expect
from refattn.testing.verdicts import Level
from testing.test_false_alarms import draw, looks

Array = Any
KIT = "refattn"
FAULTS: tuple[type[Attention], ...] = REPORTED + PAIRS
QUICK_TILES = ("", "2", "32")


@dataclass
class Mistake:
    """A mutant as a candidate. level: the kit's; name: what it is called, and whether that is right; caught: by whom, of
    `cases` cases with power on how many."""

    id: str
    preset: str
    visible: bool
    level: Level = Level.OK
    name: str = ""
    named: bool = False
    caught: Counter[str] = field(default_factory=Counter)
    cases: int = 0


@dataclass
class Alarms:
    """Correct kernels. runs: one kernel on one case; levels, rules: how many of them get a level, or are rejected."""

    preset: str
    kernels: int = 0
    runs: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)


@dataclass
class Held:
    """A held-out fault under a preset. name: "right", "wrong" or none; says: the kit's words; caught: rules that object."""

    fault: str
    preset: str
    visible: bool
    killed: bool = False
    name: str = ""
    says: str = ""
    caught: frozenset[str] = frozenset()


# ---- mistakes of the dictionary
def panels(preset: str, quick: bool) -> list[Panel]:
    return [Panel(preset, s, quick) for s in SETTINGS.values()]


def homes(found: list[Panel], quick: bool) -> dict[str, Panel]:
    """The panel that each mutant is judged on: the first on which it has power, or else the first to which it applies."""
    home: dict[str, Panel] = {}
    for p in found:
        for i in p.power:
            if i not in home or (p.visible(i) and not home[i].visible(i)):
                home[i] = p
    return {i: p for i, p in home.items() if not quick or i.partition("@")[2] in QUICK_TILES}


def mistakes(preset: str, quick: bool, part: int, parts: int) -> list[Mistake]:
    """Every so-manieth mutant of a preset, judged as a candidate."""
    home = homes(panels(preset, quick), quick)
    return [mistake(p, i, quick) for i, p in list(home.items())[part::parts]]


def mistake(p: Panel, mutant: str, quick: bool) -> Mistake:
    """One mutant on all cases of its panel. --quick looks for no name where the candidate fails."""
    out = Mistake(mutant, p.preset, p.visible(mutant))
    got = {c.id: p.candidate(c, mutant) for c in p.cases}
    failing = {c.id for c in p.cases if p.fails(c, got[c.id], mutant)}
    d = None if failing and quick else p.diagnosed(got, mutant.startswith("B") if failing else None)
    like = {} if d is None else {case: n for case, (n, *_) in d.looks().items() if n.how == "filter"}
    if failing:
        out.level, out.name = Level.FAIL, "" if d is None else first_name(d)
    elif like:
        best = max(like.values(), key=lambda n: n.power)
        out.level, out.name = (Level.LOOKS_LIKE if best.instead is None else Level.CONVENTION), best.mutant
    out.named = bool(out.name) and (out.name == mutant or p.same(out.name, mutant))
    for c in p.cases:
        if p.power[mutant].get(c.id, 0.0) >= CERTAIN:
            out.cases += 1
            out.caught.update([KIT] if c.id in failing or c.id in like else [])
            out.caught.update(objections(floats(got[c.id]), values(p, c), p.naive[c.id], p.dtype))
    return out


def first_name(d: Diagnosis) -> str:
    names = d.names()
    return names[0][0].mutant if names else ""


def floats(got: dict[str, Array]) -> dict[str, Array]:
    return {name: x.astype(np.float64) for name, x in got.items()}


def values(p: Panel, c: Case) -> dict[str, Array]:
    return {name: b.value for name, b in p.refs[c.id].items()}


# ---- correct kernels
def correct_on_cases(preset: str, quick: bool, count: int) -> Alarms:
    """Correct kernels of the preset's styles on the cases that the mistakes are judged on, each diagnosed as a whole."""
    out = Alarms(preset)
    for p in panels(preset, quick):
        for kernel in p.kernels(count):
            got = {c.id: {n: p.stored(n, x) for n, x in simulate(kernel, c).items()} for c in p.cases}
            like = p.diagnosed(got, None).looks()
            out.kernels, out.runs = out.kernels + 1, out.runs + len(p.cases)
            for c in p.cases:
                fails, warns = p.failing(c, got[c.id])
                looks_like = any(n.how == "filter" for n in like.get(c.id, []))
                levels = {"FAIL": bool(fails), "LOOKS LIKE": looks_like, "WARN": warns and not fails}
                out.levels.update(level for level, there in levels.items() if there)
                out.rules.update(objections(floats(got[c.id]), values(p, c), p.naive[c.id], p.dtype))
                out.details += [f"{c.id} {sorted(fails)} {like.get(c.id)} by {kernel}"] if fails or looks_like else []
    return out


def correct_at_random(preset: str, first: int, count: int) -> Alarms:
    """Correct kernels on a problem of their own each, with mutants judged on that alone; those of another dtype left out."""
    out, dtype = Alarms(preset), DTYPES[preset]
    for number in range(first, first + count):
        for style in STYLES[preset]:
            kernel, precision, c, got = draw(style, number)
            if kernel.result != dtype:
                continue
            ref = expect(c.scheme, c.inputs, precision, c.do, c.dlse)
            levels = {judge(n, got[n], ref[n], dtype).level for n in ref}
            like = dict(looks(got, c, dtype, precision, ref))
            out.kernels, out.runs = out.kernels + 1, out.runs + 1
            fails = Level.FAIL in levels
            found = {"FAIL": fails, "LOOKS LIKE": bool(like), "WARN": Level.WARN in levels and not fails}
            out.levels.update(level for level, there in found.items() if there)
            base = simulate(naive(preset), c)
            out.rules.update(objections(floats({n: got[n] for n in ref}), {n: b.value for n, b in ref.items()}, base, dtype))
            out.details += [f"{style} {number}: {found} {list(like)}"] if found["FAIL"] or like else []
    return out


# ---- held-out faults
def held_out(preset: str, quick: bool, part: int, parts: int) -> list[Held]:
    dtype = DTYPES[preset]
    return [held(f, preset, dtype, quick) for f in FAULTS[part::parts] if dtype in f.dtypes]


def held(fault: type[Attention], preset: str, dtype: str, quick: bool) -> Held:
    """One fault through check(), with everyday inputs besides those that show it, and its results before the rules."""
    found = drawn(fault, dtype)
    seen = max(power(fault, c, preset, dtype) for c in found)
    report = checked(fault, dtype, preset, plain=not quick)
    caught: set[str] = set()
    for c in found:
        c = c if c.inputs.keep is None else replace(c, dlse=None)
        ref = expect(c.scheme, c.inputs, PRESETS[preset], c.do, c.dlse)
        got = floats(results(fault, c, dtype))
        caught |= objections(got, {n: b.value for n, b in ref.items()}, simulate(naive(preset), c), dtype)
    name = "" if not names(report) else "wrong" if misnamed(fault, report) else "right"
    return Held(fault.__name__, preset, seen >= CERTAIN, report.level > Level.WARN, name, says(report), frozenset(caught))


def summed(found: list[Alarms], preset: str) -> Alarms:
    """All measurements of correct kernels of a preset together."""
    out = Alarms(preset)
    for a in found:
        if a.preset == preset:
            out.kernels, out.runs = out.kernels + a.kernels, out.runs + a.runs
            out.levels.update(a.levels)
            out.rules.update(a.rules)
            out.details += a.details
    return out


WHO = (KIT, *RULES)
