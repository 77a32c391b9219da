"""The extra memory of a call, which only a fresh process shows: the most that its memory map held, less what it held before.

Before the call there are the inputs and parameters. The most is VmHWM of Linux, which is set back right before the call;
ru_maxrss would not do: it is inherited from the parent. Every array from 64 KiB on is given back to the system when it is
freed (MALLOC_MMAP_THRESHOLD_ of glibc), so that none takes the place of an earlier one unseen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from refattn import tree
from refattn.bench.room import Room, fresh, one_thread
from refattn.bench.subject import BOTH, Problem
from refattn.bench.subjects import SUBJECTS

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Extra(NamedTuple):
    """Bytes that a call took at its peak beyond what there was before, its results among them; unit: those of the first
    input."""

    bytes: int
    unit: int


def extra(room: Room, work: str) -> Extra | None:
    """The extra memory of a call of the first in the room; None if this machine can't tell."""
    if not os.path.exists(STATUS):
        return None
    return Extra(*fresh("memory", room, work, MALLOC_MMAP_THRESHOLD_=str(2**16)))


def extra_of(room: Room, work: str) -> Extra:
    """The same in this process, after a warm-up at a sixteenth of the length, or the least that the contender can do."""
    subject, make = SUBJECTS[room.subject], SUBJECTS[room.subject].contenders[room.who[0]].make

    def run(n: int) -> tuple[Problem, Callable[[], object] | None]:
        p = subject.problem(n, room.dtype)
        pair = make(p)
        return p, None if pair is None else pair[work == BOTH]

    length = min(room.n, max(room.n // 16, 512))
    while (warm := run(length)[1]) is None and length < room.n:
        length = min(2 * length, room.n)
    if warm is not None:
        warm()
    del warm
    p, call = run(room.n)
    if call is None:
        raise ValueError(f"{room.who[0]} can't do {work} of {room.subject} n={room.n}")
    with suppress(OSError):
        CLEAR.write_text("5")
    before = _held("VmRSS")
    call()
    return Extra(_held("VmHWM") - before, tree.leaves(p.inputs)[0].nbytes)


def _held(name: str) -> int:
    """Bytes of this process."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """A room on standard input, the kind of work as argument; bytes on standard output."""
    with one_thread():
        print(json.dumps(extra_of(Room(*json.load(sys.stdin)), sys.argv[1])))
