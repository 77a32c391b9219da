"""A whole run: every problem with everyone who takes part, what that means against the targets, and on which machine."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata
from typing import Any

from refattn.bench.measure import busy
from refattn.bench.memory import extra
from refattn.bench.process import FIRST, PROCESS, first, peak, process
from refattn.bench.room import Room, measured, rooms
from refattn.bench.subject import Subject, Target, compiled, installed
from refattn.bench.subjects import HELD, SUBJECTS
from refattn.threads import warmup

DTYPES = ("float32", "float64")
Say = Callable[[str], None]
Row = dict[str, Any]


def bench(subjects: Sequence[str] = HELD, dtypes: Sequence[str] = DTYPES, lengths: Sequence[int] | None = None,
          who: Sequence[str] | None = None, repeats: int = 15, processes: bool = True, say: Say = lambda _: None,
          memory: bool | None = None, limit: float | None = None) -> dict[str, Any]:
    """Everything measured, as JSON has it: machine, rows, whole processes, and why nothing can be concluded, if so.

    dtypes: of these, the ones that a subject has. lengths: None for each subject's own. who: None for everyone installed.
    memory: whether subjects that say so have the extra memory of everyone measured; None: if `processes`. limit: seconds of
    processor time at one problem, into which fewer rounds than `repeats` may fit, but always one.
    """
    noisy, rows, absent = busy(), list[Row](), set[str]()
    for name in subjects:
        subject = SUBJECTS[name]
        asked = [x for x in subject.contenders if who is None or x in who]
        there = [x for x in asked if installed(subject.contenders[x].library)]
        absent |= {*asked} - {*there}
        for dtype in [x for x in dtypes if x in subject.dtypes]:
            for n in subject.lengths if lengths is None else lengths:
                for room in rooms(name, dtype, n, there, repeats, limit):
                    say(f"{name} {dtype} n={n}: {', '.join(room.who)}")
                    found = _compared(room, subject, measured(room))
                    weighs = subject.memory and (processes if memory is None else memory)
                    rows += _weighed(room, subject, found, say) if weighs else found
    say("whole processes" if processes else "done")
    return {
        "machine": machine(),
        "absent": sorted(absent),
        "busy": noisy or busy(),
        "rows": rows,
        "processes": _processes([SUBJECTS[name] for name in subjects]) if processes else [],
    }


def _compared(room: Room, subject: Subject, rows: list[Row]) -> list[Row]:
    """The rows with their ratios to the yardsticks of the same room, and what must hold of them; yardsticks that only
    stand beside somebody who wants to be alone are not told twice."""
    found = []
    for row in rows:
        here = {other["who"]: other for other in rows if other["work"] == row["work"]}
        ratios = {y: row["ms"] / here[y]["ms"] for y in subject.yardsticks if y in here}
        if subject.rate is not None and subject.rate in here:
            ratios[subject.rate] = row["gflops"] / here[subject.rate]["gflops"]
        targets = [_held(y, x, t) for y, x in ratios.items()
                   if (t := subject.target(row["who"], y, row["dtype"], row["work"], row["n"])) is not None]
        found.append(row | {"ratios": ratios, "targets": targets})
    alone = [name for name in room.who if subject.contenders[name].alone]
    return [row for row in found if not alone or row["who"] in alone]


def _weighed(room: Room, subject: Subject, rows: list[Row], say: Say) -> list[Row]:
    """The rows with their extra memory in bytes, None where the machine can't tell, and its ratios to the yardsticks'."""
    found = {}
    for row in rows:
        say(f"{room.subject} {room.dtype} n={room.n}: memory of {row['who']}, {row['work']}")
        taken = extra(room._replace(who=[row["who"]]), row["work"])
        found[row["work"], row["who"]] = None if taken is None else taken.bytes
    out = []
    for row in rows:
        mine = found[row["work"], row["who"]]
        theirs = {y: found.get((row["work"], y)) for y in subject.yardsticks}
        out.append(row | {"extra": mine, "extra ratios": {y: mine / x for y, x in theirs.items() if x and mine is not None}})
    return out


def _held(against: str, ratio: float, target: Target) -> Row:
    return {"against": against, "ratio": ratio, "must": target.must, "goal": target.goal, "upper": target.upper,
            "must met": target.met(ratio, target.must), "goal met": target.met(ratio, target.goal)}


def _processes(subjects: Sequence[Subject]) -> list[Row]:
    rows = [_whole(what, x, PROCESS[what]) for what, x in process().items()]
    for s in subjects:
        if s.family:
            taken = zip(("nothing cached", "cached"), first(s.name), FIRST, strict=True)
            rows += [_whole(f"first kernels of {s.name}, {how}, s", x, target) for how, x, target in taken]
        rows += [_whole(f"extra memory, {s.name} forward and backward, n = {n}, of one input", peak(s.name, n), target)
                 for n, target in s.peak.items()]
    return rows


def _whole(what: str, found: float | None, target: Target) -> Row:
    return {"what": what} | (_held("", found, target) if found is not None else {"ratio": None})


def machine() -> Row:
    """What ran: the processor, its cores, and the versions of everyone who took part."""
    known = {x.library for s in SUBJECTS.values() for x in s.contenders.values()} | {"scipy"}
    versions = {name: version for name in sorted(known) if (version := _version(name))}
    with compiled(True):
        warmup()  # brings the BLAS that kernels call
    libraries = import_module("threadpoolctl").threadpool_info()
    blas = {f"{x['internal_api']} {x['version']} {x.get('architecture', '')}".strip() for x in libraries
            if x["user_api"] == "blas"}
    return {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version(),
            "system": platform.system(), "blas": sorted(blas), "versions": versions}


def _version(library: str) -> str | None:
    """The version of what provides a module; None if nothing does."""
    names = _providers().get(library, ()) if installed(library) else ()
    return metadata.version(names[0]) if names else None


@functools.cache
def _providers() -> Mapping[str, Sequence[str]]:
    """Which distributions provide a module. It reads the list of files of everything installed, so it is read once."""
    return metadata.packages_distributions()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = dict(line.split(":", 1) for line in file if ":" in line)
        facts = {name.strip(): value.strip() for name, value in found.items()}
        flags = facts.get("flags", facts.get("Features", "")).split()
        wide = next((x for x in ("avx512f", "avx2", "asimd") if x in flags), "")
        family = f"family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts else ""
        return ", ".join(x for x in (facts.get("model name", platform.machine()), family, wide) if x)
    except OSError:
        return platform.processor() or platform.machine()
