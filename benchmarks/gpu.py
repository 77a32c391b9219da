"""Every scheme of the catalogue on a GPU, through CuPy: are its values right, how fast is it, how much memory does it take?

    python benchmarks/gpu.py [--json FILE] [--n 1024,4096] [--repeats 10]    needs the extra cuda12 or cuda13, and a GPU
    python benchmarks/gpu.py --backend torch                                 another array library
    python benchmarks/gpu.py --dry-run                                       the same run on NumPy, to try the script itself

Values are held to the bounds of the rounding reading in float64 and float32. Times are those of the device between two
events, after a warm-up. Exit status 1 if a value is outside of its bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refattn import BackendUnavailable, Dense, load, tree, using
from refattn.catalogue import ROWS
from refattn.precision import PRESETS

ROOT = Path(__file__).resolve().parents[1]
WORK = {"dense": Dense(), "causal": Dense(causal=True)}


def values(scheme: Any, inputs: Any, cotangents: dict[str, Any]) -> dict[str, Any]:
    """Every output and gradient, by name."""
    _, saved = scheme.forward(*inputs)
    do, *others = (cotangents[name] for name in scheme.outputs)
    grads = scheme.vjp(saved, do, **{f"d{n}": x for n, x in zip(scheme.outputs[1:], others, strict=True)})
    return {n: getattr(saved, n) for n in scheme.outputs} | {f"d{n}": g for n, g in tree.items(grads)}


def outside(backend: Any, scheme: Any, inputs: Any, dtype: str) -> dict[str, float]:
    """Error ÷ bound of every result of a scheme on the device, by name."""
    shapes = {n: getattr(scheme.forward(*inputs)[1], n).shape for n in scheme.outputs}
    cotangents = {n: np.random.default_rng(1).standard_normal(s).astype("float32") for n, s in shapes.items()}

    def cast(to: str) -> tuple[Any, dict[str, Any]]:
        return (tree.map(lambda x: x.astype(to) if x.dtype.kind == "f" else x, inputs),
                {n: x.astype(to) for n, x in cotangents.items()})

    with using(load("rounding", precision=PRESETS[{"float64": "fp64", "float32": "fp32"}[dtype]])):
        bands = values(scheme, *cast("float64"))  # float32 holds every drawn value
    given, pulled = cast(dtype)
    got = values(scheme, tree.map(backend.lift, given), {n: backend.lift(x) for n, x in pulled.items()})
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = {n: np.where((x := backend.host(got[n])) == b.value, 0.0, np.abs(x - b.value)) for n, b in bands.items()}
        return {n: float(np.max(np.where(e == 0, 0.0, e / bands[n].bound), initial=0.0)) for n, e in errors.items()}


def stopwatch(backend: Any) -> Callable[[Callable[[], object]], float]:
    """A function that says how many seconds the device spends on a call."""
    if backend.name != "cupy":
        def host(run: Callable[[], object]) -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return host

    def device(run: Callable[[], object]) -> float:
        start, end = backend.cupy.cuda.Event(), backend.cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(backend.cupy.cuda.get_elapsed_time(start, end)) / 1e3

    return device


def timed(backend: Any, scheme: Any, n: int, dtype: str, repeats: int) -> dict[str, float]:
    """Median seconds of forward and of forward with backward, b = 1, h = 8, d = 64, and peak bytes beyond the inputs."""
    rng, watch = np.random.default_rng(0), stopwatch(backend)
    q, k, v, do = (backend.lift(rng.standard_normal((1, 8, n, 64)).astype(dtype)) for _ in range(4))

    def both() -> object:
        _, saved = scheme.forward(q, k, v)
        return scheme.vjp(saved, do)

    found = {}
    for name, run in (("forward", lambda: scheme.forward(q, k, v)), ("forward and backward", both)):
        run()
        found[name] = statistics.median(watch(run) for _ in range(repeats))
    if backend.name == "cupy":
        pool = backend.cupy.get_default_memory_pool()
        pool.free_all_blocks()
        before = pool.used_bytes()
        both()
        found["pool bytes"] = float(pool.total_bytes() - before)
    return found


def chosen(name: str) -> Any:
    """The backend called `name`; for a library without one, the generic path over its arrays."""
    home = ROOT / "backends" / f"{name}_backend.py"
    return load(name) if home.exists() else load("array_api", library=name)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dry-run", action="store_true", help="NumPy in place of CuPy, and short sequences")
    p.add_argument("--backend", default="cupy", metavar="NAME", help="a backend or array library (default cupy)")
    p.add_argument("--n", default="1024,4096", help="lengths to time (default 1024,4096; a dry run 64)")
    p.add_argument("--repeats", type=int, default=10, help="timed calls (default 10)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    args = p.parse_args()
    try:
        backend = chosen("numpy" if args.dry_run else args.backend)
    except BackendUnavailable as error:
        p.exit(2, f"gpu.py: {error}\n  (--dry-run tries this script on NumPy)\n")
    found: dict[str, Any] = {"backend": backend.name, "values": {}, "times": []}
    for row in ROWS:
        for variant in row.variants:
            for dtype in ("float64", "float32"):
                ratios = outside(backend, variant.scheme, row.draw(variant, 1), dtype)
                found["values"][f"{row.name} {variant} {dtype}"] = ratios
                worst = max(ratios, key=lambda name: ratios[name])
                print(f"{row.name} {variant} {dtype}: at most {ratios[worst]:.3f} of the bound, in {worst}", flush=True)
    for name, scheme in WORK.items():
        for dtype in ("float32", "float16"):
            for n in [64] if args.dry_run else [int(x) for x in args.n.split(",")]:
                times = timed(backend, scheme, n, dtype, args.repeats)
                found["times"].append({"scheme": name, "dtype": dtype, "n": n} | times)
                print(f"{name} {dtype} n={n}: " + ", ".join(f"{what} {x:.3g}" for what, x in times.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = [what for what, ratios in found["values"].items() if not all(x <= 1.0 for x in ratios.values())]
    print(f"outside of their bounds: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
