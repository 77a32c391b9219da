"""What only a fresh process shows: processor time of the import and of the first call, the peak of memory, two threads.

The peak is that of the memory map, which starts anew with the process; ru_maxrss does not: it is inherited from the parent.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

_IMPORT = """
import json, time
import numpy
start = time.process_time()
import refattn
print(json.dumps(time.process_time() - start))
"""
_FIRST = """
import json, time
import numpy as np
from refattn import Dense
x = np.ones((1, 1, 256, 64), "float32")
start = time.process_time()
_, saved = Dense().forward(x, x, x)
Dense().vjp(saved, x)
print(json.dumps(time.process_time() - start))
"""
_MEMORY = """
import json
import numpy as np
from refattn import Dense, set_threads
set_threads(1)
rng = np.random.default_rng(0)
def kibibytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))
def run(n):
    q, k, v, do = (rng.standard_normal((1, 8, n, 64), dtype="float32") for _ in range(4))
    before = kibibytes("VmRSS")
    _, saved = Dense().forward(q, k, v)
    grads = Dense().vjp(saved, do)
    return (kibibytes("VmHWM") - before) * 1024 / q.nbytes
run(256)
print(json.dumps(run(4096)))
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


def process() -> dict[str, float | None]:
    """The measurements of ``targets.PROCESS``, by their names; None where this machine can't tell."""
    with tempfile.TemporaryDirectory() as cache:
        cold = [_python(_FIRST, NUMBA_CACHE_DIR=cache)]
        warm = [_python(_FIRST, NUMBA_CACHE_DIR=cache) for _ in range(5)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "import refattn, s": statistics.median(_python(_IMPORT) for _ in range(5)),
        "first kernels of a dtype, nothing cached, s": cold[0],
        "first kernels of a dtype, cached, s": statistics.median(warm),
        "extra memory, dense forward and backward, n = 4096, of one input":
            _python(_MEMORY) if os.path.exists("/proc/self/status") else None,
        "two threads, n = 2048, times one": _python(_THREADS) if cores > 1 else None,
    }


def _python(code: str, **variables: str) -> float:
    """What a fresh interpreter prints."""
    mine = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], env=mine, capture_output=True, text=True, check=True)
    found: Any = json.loads(done.stdout)
    return float(found)
