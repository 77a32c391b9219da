"""What only a fresh process shows: processor time of the import and of the first call, the peak of memory, two threads."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from refattn.bench.memory import extra
from refattn.bench.room import Room
from refattn.bench.subject import BOTH, NUMBA, Target

_IMPORT = """
import json, time
import numpy
start = time.process_time()
import refattn
print(json.dumps(time.process_time() - start))
"""
_FIRST = """
import json, time
from refattn.bench.subjects import SUBJECTS
p = SUBJECTS["NAME"].problem(512, "float32")
start = time.process_time()
_, saved = p.scheme.forward(*p.inputs)
p.scheme.vjp(saved, p.do)
print(json.dumps(time.process_time() - start))
"""
_THREADS = """
import json, statistics, time
import numpy as np
import refattn
from refattn import Dense
rng = np.random.default_rng(0)
q, k, v, do = (rng.standard_normal((1, 8, 2048, 64), dtype="float32") for _ in range(4))
times = {1: [], 2: []}
for _ in range(16):
    for number in times:
        refattn.set_threads(number)
        start = time.perf_counter()
        _, saved = Dense().forward(q, k, v)
        Dense().vjp(saved, do)
        times[number].append(time.perf_counter() - start)
print(json.dumps(statistics.median(times[1][1:]) / statistics.median(times[2][1:])))
"""


PROCESS = {
    "import refattn, s": Target(0.3, 0.15),
    "two threads, n = 2048, times one": Target(1.7, 1.95, upper=False),
}
"""What a whole process is measured for, and what must hold of it."""
FIRST = Target(6.0, 3.0), Target(6.0, 0.3)
"""The first forward and backward of a family of kernels at n = 512, in seconds: nothing cached, and from the cache."""


def process() -> dict[str, float | None]:
    """The measurements of ``PROCESS``; None where this machine can't tell."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = statistics.median(_python(_IMPORT) for _ in range(5)), _python(_THREADS) if cores > 1 else None
    return dict(zip(PROCESS, found, strict=True))


def first(subject: str) -> tuple[float, float]:
    """Processor time of the first forward and backward of a subject in float32: with nothing cached, and from the cache."""
    code = _FIRST.replace("NAME", subject)
    with tempfile.TemporaryDirectory() as cache:
        cold = _python(code, NUMBA_CACHE_DIR=cache)
        return cold, statistics.median(_python(code, NUMBA_CACHE_DIR=cache) for _ in range(5))


def peak(subject: str, n: int) -> float | None:
    """The extra memory of a forward and backward of a subject in a fresh process, in units of its first input; None where
    this machine can't tell."""
    found = extra(Room(subject, "float32", n, [NUMBA], 1), BOTH)
    return None if found is None else found.bytes / found.unit


def _python(code: str, **variables: str) -> float:
    """What a fresh interpreter prints."""
    mine = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], env=mine, capture_output=True, text=True, check=True)
    found: Any = json.loads(done.stdout)
    return float(found)
