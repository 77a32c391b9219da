"""One process in which contenders take turns at one problem, JSON in and out.

A process for each problem, and for each contender that wants to be alone: what one leaves allocated or running does not
slow another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from refattn.bench.measure import Run, interleaved
from refattn.bench.subject import BOTH, FORWARD, Problem, compiled
from refattn.bench.subjects import SUBJECTS
from refattn.threads import get_threads, set_threads, warmup


class Room(NamedTuple):
    """A subject at one length and dtype, with those who take part."""

    subject: str
    dtype: str
    n: int
    who: Sequence[str]
    repeats: int
    limit: float | None = None


def rooms(subject: str, dtype: str, n: int, who: Sequence[str], repeats: int, limit: float | None = None) -> list[Room]:
    """Everybody together, then those who want to be alone, each beside the yardsticks that take part."""
    s = SUBJECTS[subject]
    alone = [name for name in who if s.contenders[name].alone]
    beside = [name for name in who if name in (*s.yardsticks, s.rate) and name not in alone]
    together = [name for name in who if name not in alone]
    found = [Room(subject, dtype, n, together, repeats, limit)] if together else []
    return found + [Room(subject, dtype, n, [name, *beside], repeats, limit) for name in alone]


def measured(room: Room) -> list[dict[str, Any]]:
    """What a fresh process measures: a row for each contender and kind of work."""
    rows: list[dict[str, Any]] = fresh("room", room)
    return rows


def fresh(module: str, room: Room, *more: str, **variables: str) -> Any:
    """What ``refattn.bench.<module>.main`` prints in a process of its own, where it reads the room, and more.

    Raises
    ------
    RuntimeError
        If the process fails, with the end of what it says.
    """
    command = [sys.executable, "-c", f"from refattn.bench.{module} import main; main()", *more]
    mine = {**os.environ, **variables}
    done = subprocess.run(command, input=json.dumps(room), env=mine, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{', '.join(room.who)} on {room.subject} {room.dtype} n={room.n} ended with {done.returncode}:\n"
                           + "\n".join(done.stderr.splitlines()[-15:]))
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(room: Room) -> list[dict[str, Any]]:
    """The same in this process."""
    subject = SUBJECTS[room.subject]
    short = 0 < subject.warm < room.n
    if short:
        for functions in _work(subject.problem(subject.warm, room.dtype), room).values():
            for run in functions.values():
                run()
    p, out = subject.problem(room.n, room.dtype), []
    for kind, functions in _work(p, room).items():
        for name, t in interleaved(functions, room.repeats, room.limit, warm=not short).items():
            out.append({"scheme": room.subject, "dtype": room.dtype, "n": room.n, "work": kind, "who": name,
                        "ms": t.median * 1e3, "low": t.low * 1e3, "high": t.high * 1e3, "calls": t.calls,
                        "gflops": subject.work(p, kind, name) / t.median / 1e9})
    return out


def _work(p: Problem, room: Room) -> dict[str, dict[str, Run]]:
    """The functions of everybody in the room who can, by the kind of work and by name."""
    contenders = SUBJECTS[room.subject].contenders
    made = {name: pair for name in room.who if (pair := contenders[name].make(p)) is not None}
    found = {FORWARD: {name: pair[0] for name, pair in made.items()},
             BOTH: {name: pair[1] for name, pair in made.items() if pair[1] is not None}}
    return {kind: functions for kind, functions in found.items() if functions}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for refattn, BLAS, torch and jax, and BLAS as it finds the processor by itself."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    before = get_threads()
    with compiled(True):
        warmup()  # brings the BLAS that kernels call, whose threads are to be limited too
    set_threads(1)
    try:
        with import_module("threadpoolctl").threadpool_limits(1):
            yield
    finally:
        set_threads(before)


def main() -> None:
    """A room on standard input, its rows on standard output."""
    with one_thread():
        print(json.dumps(rows_of(Room(*json.load(sys.stdin)))))
