"""Processor times of several functions, taken in turn, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

Run = Callable[[], object]


class Timing(NamedTuple):
    """Processor seconds of a call: median, quartiles and how often it was called."""

    median: float
    low: float
    high: float
    calls: int


def interleaved(functions: dict[str, Run], repeats: int, limit: float | None = None, warm: bool = True) -> dict[str, Timing]:
    """Every function once to warm up, then `repeats` rounds in which each is called once, starting with another each time.

    Processor time of the whole process: a function that uses two threads is charged for both. limit: after the first round
    only as many as fit into so many seconds of processor time, if the next one takes as long as those before. warm=False:
    no function is called before the first round.
    """
    for run in functions.values() if warm else ():
        run()
    names, taken = list(functions), {name: list[float]() for name in functions}
    for i in range(repeats):
        spent = sum(map(sum, taken.values()))
        if i and limit is not None and spent * (i + 1) > limit * i:
            break
        for name in names[i % len(names):] + names[:i % len(names)]:
            settle()
            start = time.process_time()
            functions[name]()
            taken[name].append(time.process_time() - start)
    return {name: _timing(times) for name, times in taken.items()}


def settle() -> None:
    """Wait until the threads of the last function have stopped spinning, or the next one would be charged for them."""
    for _ in range(50):
        start = time.process_time()
        time.sleep(0.002)
        if time.process_time() - start < 2e-4:
            return


def _timing(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return Timing(median, low, high, len(times))


def busy() -> str | None:
    """Why nothing can be concluded now: more work on the machine than it has cores; None if it is quiet enough."""
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"load {load:.1f} on {cores} cores" if load > cores else None
