"""Linformer's table 3: what the paper measured, what is counted, and what `refattn bench` measures here.

    python benchmarks/linformer_table.py [--write] [--kept] [--lengths N,...] [--written N,...] [--repeats N] [--limit S]

Each cell is how many times as much dense attention takes as Linformer with k slots, in the forward of a BERT-base layer
(12 heads of 64, feed-forward 3072, one E for keys and values, float32, one item). Time is processor time of one thread, in
turn, medians. Memory is the peak of a forward in a fresh process beyond its inputs and parameters. Both are measured twice:
with refattn's kernels, and with all scores written (`refattn bench --scheme linformer-layer,linformer-layer-written`).

--write keeps the results in benchmarks/results/linformer.json and the table in docs/schemes/linformer.md; a busy machine
writes nothing. --kept measures nothing and shows what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # BLAS chooses its kernels by the processor
    os.environ.pop(name, None)

from refattn.bench import bench  # noqa: E402 - after the environment that it is to find
from refattn.bench.measure import busy  # noqa: E402
from refattn.bench.subjects.linformer_layer import DENSE, LAYER, WRITTEN  # noqa: E402
from refattn.bench.table import ran_on  # noqa: E402
from refattn.verify.linformer_paper import TIME, Cell, counted, table  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs" / "schemes" / "linformer.md", ROOT / "benchmarks" / "results" / "linformer.json"
BEGIN, END = "<!-- table 3: begin -->", "<!-- table 3: end -->"
HEAD = ("n", "k", "MACs, attention", "MACs, layer", "time, here", "time, scores written", "time, paper",
        "peak, attention", "peak, layer", "memory, here", "memory, scores written", "memory, paper")  # fmt: skip
Found = dict[str, Any]


def main() -> int:
    args = _arguments()
    if args.kept:
        found: Found = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        if (why := busy()) is not None:
            say(f"the machine is busy: {why}")
            if args.write:
                return 3
        found = measured(args.lengths, args.written, args.repeats, args.limit)
    print(text(found))
    if found["busy"] and not args.kept:
        return 3
    if args.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        page = DOCS.read_text(encoding="utf-8")
        page = page[:page.index(BEGIN) + len(BEGIN)] + "\n" + text(found) + "\n" + page[page.index(END):]
        DOCS.write_text(page, encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true", help="keep the results, and show them in the docs")
    p.add_argument("--kept", action="store_true", help="measure nothing: the results that are kept")
    p.add_argument("--lengths", default="512,1024,2048,4096,8192,16384", help="n of the layer (default %(default)s)")
    p.add_argument("--written", default="512,1024,2048,4096,8192", help="n with all scores written (default %(default)s)")
    p.add_argument("--repeats", type=int, default=15, help="calls of each (default 15)")
    p.add_argument("--limit", type=float, default=20.0, help="seconds of processor time at a length, for fewer calls (20)")
    args = p.parse_args()
    for name in ("lengths", "written"):
        given = [int(n) for n in getattr(args, name).split(",") if n]
        if wrong := [n for n in given if n not in TIME]:
            p.error(f"--{name}: table 3 has no n = {wrong[0]}, but {', '.join(map(str, TIME))}")
        setattr(args, name, given)
    return args


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measured(lengths: Sequence[int], written: Sequence[int], repeats: int, limit: float) -> Found:
    """The machine, the rows of both subjects, and whether it was busy. A length that fails is told and left out."""
    found: Found = {"rows": [], "busy": None}
    for subject, n in [(LAYER, n) for n in lengths] + [(WRITTEN, n) for n in written]:
        try:
            one = bench((subject,), ("float32",), (n,), None, repeats, False, say, memory=True, limit=limit)
        except RuntimeError as error:
            say(str(error))
            continue
        found |= {"machine": one["machine"], "rows": found["rows"] + one["rows"], "busy": found["busy"] or one["busy"]}
    return found


def text(found: Found) -> str:
    """The table, and below it what was measured where, what was not, and how the figures compare."""
    rows = {(row["scheme"], row["n"], row["who"]): row for row in found["rows"]}
    cells = table()
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(_shown(rows, cell)) + " |" for cell in cells]
    machine = ran_on(found["machine"], "numpy", "numba") if "machine" in found else "no machine"
    calls = [", ".join(f"{row['calls']} at {n}" for (scheme, n, who), row in rows.items() if (scheme, who) == (one, DENSE))
             for one in (LAYER, WRITTEN)]
    where = f"Measured on {machine}. Calls of each layer: {calls[0]}; with scores written {calls[1]}."
    noisy = [f"Nothing can be concluded: the machine was busy ({found['busy']})."] if found["busy"] else []
    notes = (where, *_left_out(rows), *_compared(rows, cells), *noisy)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def ratio(rows: Found, scheme: str, cell: Cell, what: str) -> float | None:
    """Dense attention's figure over that of k slots; None if it was not measured."""
    dense, few = rows.get((scheme, cell.n, DENSE)), rows.get((scheme, cell.n, f"k={cell.k}"))
    if dense is None or few is None or few[what] is None:
        return None
    return float(dense[what] / few[what])


def _shown(rows: Found, c: Cell) -> tuple[str, ...]:
    four = [ratio(rows, scheme, c, what) for what in ("ms", "extra") for scheme in (LAYER, WRITTEN)]
    a, b, x, y = ("" if r is None else f"{r:.2f}" for r in four)
    return (str(c.n), str(c.k), f"{float(c.attention):.1f}", f"{float(c.layer):.2f}", a, b, f"{c.time:g}",
            f"{float(c.peak):.1f}", f"{float(c.layer_peak):.2f}", x, y, f"{c.memory:g}")


def _left_out(rows: Found) -> list[str]:
    """Which lengths were not measured, and what a call of dense attention would take there."""
    found = []
    dense = {n: row for (scheme, n, who), row in rows.items() if (scheme, who) == (LAYER, DENSE)}
    if dense and (left := [n for n in TIME if n not in dense]):
        rate = dense[max(dense)]["gflops"]
        long = ", ".join(f"{2 * counted(n, None).layer / rate / 1e9:.0f} s at {n}" for n in left)
        found.append(f"Not measured with refattn's kernels: a forward with dense attention would take {long}.")
    if left := [n for n in TIME if (WRITTEN, n, DENSE) not in rows]:
        large = ", ".join(f"{4 * counted(n, None).layer_peak / 1e9:.0f} GB at {n}" for n in left)
        found.append(f"Not measured with scores written: dense attention would hold {large}.")
    return found


def _compared(rows: Found, cells: Sequence[Cell]) -> list[str]:
    """By how much measured ratios differ from the counted ones of the layer."""
    time = {"with refattn's kernels": [(c, ratio(rows, LAYER, c, "ms")) for c in cells],
            "with scores written": [(c, ratio(rows, WRITTEN, c, "ms")) for c in cells],
            "in the paper": [(c, c.time) for c in cells]}
    memory = {"with scores written": [(c, ratio(rows, WRITTEN, c, "extra")) for c in cells],
              "in the paper": [(c, c.memory) for c in cells]}
    return [f"Time over the layer's multiply-adds: {_ranges(time, 'layer')}.",
            f"Memory over the layer's peak: {_ranges(memory, 'layer_peak')}."]


def _ranges(found: dict[str, list[tuple[Cell, float | None]]], count: str) -> str:
    shares = {name: [r / float(getattr(c, count)) for c, r in some if r is not None] for name, some in found.items()}
    return ", ".join(f"{min(some):.2f} to {max(some):.2f} {name}" for name, some in shares.items() if some)


if __name__ == "__main__":
    sys.exit(main())
