"""A whole run: every problem with everyone who takes part, what that means against the targets, and on which machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from typing import Any

from refattn.bench.contenders import CONTENDERS, Pair, Problem, installed, problem
from refattn.bench.measure import busy, interleaved
from refattn.bench.process import process
from refattn.bench.targets import BOTH, FORWARD, GEMM, PROCESS, SDPA, TARGETS, Key, Target
from refattn.threads import get_threads, set_threads, warmup

SCHEMES, DTYPES, LENGTHS = ("dense", "causal"), ("float32", "float64"), (512, 2048)
Say = Callable[[str], None]


def bench(schemes: Sequence[str] = SCHEMES, dtypes: Sequence[str] = DTYPES, lengths: Sequence[int] = LENGTHS,
          who: Iterable[str] = CONTENDERS, repeats: int = 15, processes: bool = True, say: Say = lambda _: None
          ) -> dict[str, Any]:
    """Everything measured, as JSON has it: machine, rows, whole processes, and why nothing can be concluded, if so."""
    noisy, rows = busy(), []
    taking = [name for name in who if installed(CONTENDERS[name][0])]
    with one_thread():
        for scheme in schemes:
            for dtype in dtypes:
                for n in lengths:
                    say(f"{scheme} {dtype} n={n}")
                    rows += _rows(problem(scheme, n, dtype), taking, repeats)
    say("whole processes" if processes else "done")
    return {
        "machine": machine(),
        "absent": sorted(set(who) - set(taking)),
        "busy": noisy or busy(),
        "rows": rows,
        "processes": _processes() if processes else [],
    }


def _rows(p: Problem, who: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    made: dict[str, Pair] = {name: pair for name in who if (pair := CONTENDERS[name][1](p)) is not None}
    work = {FORWARD: {name: pair[0] for name, pair in made.items()},
            BOTH: {name: pair[1] for name, pair in made.items() if pair[1] is not None}}
    return [row for what, functions in work.items() for row in _timed(p, what, functions, repeats)]


def _timed(p: Problem, what: str, functions: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    timings, n, flops = interleaved(functions, repeats), p.arrays[0].shape[-2], _flops(p, what)
    rate = {name: (flops if name != GEMM else _products(p, what)) / t.median for name, t in timings.items()}
    rows = []
    for name, t in timings.items():
        row: dict[str, Any] = {"scheme": p.name, "dtype": p.arrays[0].dtype.name, "n": n, "work": what, "who": name,
                               "ms": t.median * 1e3, "low": t.low * 1e3, "high": t.high * 1e3, "calls": t.calls,
                               "gflops": rate[name] / 1e9}
        ratios = {SDPA: t.median / timings[SDPA].median} if SDPA in timings else {}
        ratios |= {GEMM: rate[name] / rate[GEMM]} if GEMM in timings else {}
        rows.append(row | {"ratios": ratios, "targets": _targets(Key(name, "", p.name, row["dtype"], what), ratios)})
    return rows


def _targets(key: Key, ratios: dict[str, float]) -> list[dict[str, Any]]:
    found = [(against, x, TARGETS.get(key._replace(theirs=against))) for against, x in ratios.items()]
    return [_held(against, x, target) for against, x, target in found if target is not None]


def _held(against: str, ratio: float, target: Target) -> dict[str, Any]:
    return {"against": against, "ratio": ratio, "must": target.must, "goal": target.goal, "upper": target.upper,
            "must met": target.met(ratio, target.must), "goal met": target.met(ratio, target.goal)}


def _processes() -> list[dict[str, Any]]:
    return [{"what": name} | _held("", x, PROCESS[name]) if x is not None else {"what": name, "ratio": None}
            for name, x in process().items()]


def _flops(p: Problem, what: str) -> float:
    """Useful floating-point operations: two products forward and five backward, over visible pairs."""
    _, heads, n, d = p.arrays[0].shape
    pairs = n * (n + 1) // 2 if p.causal else n * n
    return float(4 * heads * pairs * d) * (3.5 if what == BOTH else 1.0)


def _products(p: Problem, what: str) -> float:
    _, heads, n, d = p.arrays[0].shape
    rows = n - n % min(256, n)
    return float(4 * heads * rows * n * d) * (3.5 if what == BOTH else 1.0)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for refattn, BLAS, torch and jax, and BLAS as it finds the processor by itself."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    before = get_threads()
    warmup()  # brings the BLAS that kernels call, whose threads are to be limited too
    set_threads(1)
    try:
        with import_module("threadpoolctl").threadpool_limits(1):
            yield
    finally:
        set_threads(before)


def machine() -> dict[str, Any]:
    """What ran: the processor, its cores, and the versions of everyone who took part."""
    known = ("numpy", "scipy", "numba", "torch", "jax")
    versions = {name: metadata.version(name) for name in known if installed(name)}
    libraries = import_module("threadpoolctl").threadpool_info()
    blas = {f"{x['internal_api']} {x['version']} {x.get('architecture', '')}".strip() for x in libraries
            if x["user_api"] == "blas"}
    return {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version(),
            "system": platform.system(), "blas": sorted(blas), "versions": versions}


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
