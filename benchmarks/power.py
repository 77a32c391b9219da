"""How much the kit sees, how often it is wrong, and what the usual rules do on the same runs: one command, one table.

    python benchmarks/power.py [--quick] [--write] [--json FILE] [--workers N]

Everything is measured in one run, and drawn from fixed seeds. --quick takes fewer cases and one tile size, looks for no
names, and has the held-out faults under one preset. --write rewrites the tables of docs/power.md; it needs the full run,
to which it adds the quick one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from power_measure import (  # noqa: E402 - after the path to it
    FAULTS,
    KIT,
    WHO,
    Alarms,
    Held,
    Mistake,
    correct_at_random,
    correct_on_cases,
    held_out,
    mistakes,
    summed,
)
from power_panel import DTYPES  # noqa: E402

from refattn.testing.verdicts import Level  # noqa: E402

DOCS = ROOT / "docs" / "power.md"
BEGIN, END = "<!-- power: begin -->", "<!-- power: end -->"
SHOWN = "flash-bf16"  # the preset whose words on held-out faults are shown
# Draws of each style; of the styles in half precision some are of another dtype.
EACH = {"fp64": 100, "fp32": 40, "tf32": 100, "flash-bf16": 70, "flash-fp16": 70, "eager-bf16": 200, "eager-fp16": 200}
PARTS = {True: 1, False: 2}

Task = tuple[Callable[..., Any], tuple[Any, ...]]


def tasks(quick: bool) -> list[Task]:
    """What there is to measure, the longest first."""
    parts = PARTS[quick]
    return [
        *((mistakes, (p, quick, i, parts)) for p in DTYPES for i in range(parts)),
        *((held_out, (p, quick, i, parts)) for p in ((SHOWN,) if quick else DTYPES) for i in range(parts)),
        *((correct_on_cases, (p, quick, 1 if quick else 3)) for p in DTYPES),
        *((correct_at_random, (p, 0, EACH[p] // 20 if quick else EACH[p])) for p in DTYPES),
    ]  # fmt: skip


def one(task: Task) -> Any:
    """A task in a worker, its results in a list."""
    found = task[0](*task[1])
    return found if isinstance(found, list) else [found]


def measured(quick: bool, workers: int) -> list[Any]:
    """All results, in the order of the tasks."""
    todo, out = tasks(quick), []
    with ProcessPoolExecutor(workers) as pool:
        for (what, about), found in zip(todo, pool.map(one, todo), strict=True):
            print(f"{time.strftime('%X')} {what.__name__}{about}", file=sys.stderr, flush=True)
            out += found
    return out


# ---- summaries
def of(kind: type, found: Iterable[Any], preset: str) -> list[Any]:
    return [x for x in found if isinstance(x, kind) and x.preset == preset]


def wrong(m: Mistake) -> bool:
    return m.level > Level.WARN


def alarms(found: list[Any], preset: str) -> Alarms:
    return summed(of(Alarms, found, preset), preset)


def summary(found: list[Any]) -> dict[str, dict[str, Any]]:
    """The figures of the kit by preset, for programs."""
    out: dict[str, dict[str, Any]] = {}
    for p in DTYPES:
        seen, a, held = [m for m in of(Mistake, found, p) if m.visible], alarms(found, p), of(Held, found, p)
        out[p] = {
            "mutants": len(of(Mistake, found, p)), "visible": len(seen), "killed": sum(map(wrong, seen)),
            "named": sum(m.named for m in seen), "kernels": a.kernels, "runs": a.runs,
            "alarms": {level: a.levels[level] for level in ("FAIL", "LOOKS LIKE", "WARN")},
            "held": len([h for h in held if h.visible]), "held killed": sum(h.killed for h in held if h.visible),
            "held named": sum(h.name == "right" for h in held if h.visible),
            "held misnamed": sum(h.name == "wrong" for h in held if h.visible),
        }  # fmt: skip
    return out


def table(head: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def kit_table(found: list[Any], quick: bool) -> str:
    head = ["preset", "mutants", "with power", "killed", "named", "right kernels", "runs", "FAIL", "LOOKS LIKE", "WARN",
            "held-out faults", "killed", "named", "misnamed"]  # fmt: skip
    rows = []
    for p, s in summary(found).items():
        named = "–" if quick else s["named"]
        held = [s[key] for key in ("held", "held killed", "held named", "held misnamed")]
        right = [s["kernels"], s["runs"], *s["alarms"].values()]
        rows.append([f"`{p}`", s["mutants"], s["visible"], s["killed"], named, *right, *held])
    return table(head, rows)


def rule_table(found: list[Any]) -> str:
    """Each rule by preset: mutants caught on some case, caught case by case, right runs rejected, held-out faults caught."""
    rows = []
    for p in DTYPES:
        seen, a = [m for m in of(Mistake, found, p) if m.visible], alarms(found, p)
        held, pairs = [h for h in of(Held, found, p) if h.visible], sum(m.cases for m in seen)
        for who in WHO:
            if who == KIT:
                caught, rejected = sum(map(wrong, seen)), len(a.details)
                outside = sum(h.killed for h in held)
            else:
                caught, rejected = sum(m.caught[who] > 0 for m in seen), a.rules[who]
                outside = sum(who in h.caught for h in held)
            by_case = sum(m.caught[who] for m in seen) / max(pairs, 1)
            rows.append([f"`{p}`", who, f"{caught} of {len(seen)}", f"{by_case:.1%}", f"{rejected} of {a.runs}",
                         f"{outside} of {len(held)}"])  # fmt: skip
    head = ["preset", "rule", "mutants caught", "of runs with power", "right runs rejected", "held-out faults caught"]
    return table(head, rows)


def held_table(found: list[Any]) -> str:
    """Every held-out fault, and what the kit says of it under one preset."""
    said = {h.fault: h for h in of(Held, found, SHOWN)}
    rows = [[f.title, f.source or " and ".join(f.near), said[f.__name__].says] for f in FAULTS if f.__name__ in said]
    return table(["fault", "source", f"what is said under `{SHOWN}`"], rows)


def left(found: list[Any], quick: bool) -> str:
    """What was not seen, not killed or not named, by id."""
    lines = []
    for p in DTYPES:
        all_of = of(Mistake, found, p)
        parts = {
            "without power": [m.id for m in all_of if not m.visible],
            "not killed": [m.id for m in all_of if m.visible and not wrong(m)],
            "killed, but not named": [] if quick else [f"{m.id} ({m.name or 'unknown'})" for m in all_of
                                                       if m.visible and wrong(m) and not m.named],
            "held-out, not killed": [h.fault for h in of(Held, found, p) if h.visible and not h.killed],
            "held-out, misnamed": [f"{h.fault} ({h.says})" for h in of(Held, found, p) if h.name == "wrong"],
        }  # fmt: skip
        text = "; ".join(f"{what}: {', '.join(ids)}" for what, ids in parts.items() if ids)
        lines.append(f"- `{p}`: {text or 'nothing'}")
    return "\n".join(lines)


def quick_rows(found: list[Any]) -> str:
    rows = [[f"`{p}`", "quick", s["killed"], s["visible"], s["runs"]] for p, s in summary(found).items()]
    return table(["preset", "run", "killed", "with power", "right runs"], rows)


def rendered(found: list[Any], quick: bool) -> str:
    parts = ["## The kit", kit_table(found, quick), "## Beside the usual rules, on the same runs", rule_table(found),
             "## Held-out faults", held_table(found), "## What is left", left(found, quick)]  # fmt: skip
    return "\n\n".join(parts)


def write(text: str) -> None:
    """The tables between the markers of docs/power.md."""
    page = DOCS.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases, one tile size, no names")
    parser.add_argument("--write", action="store_true", help="rewrite the tables of docs/power.md")
    parser.add_argument("--json", type=Path, help="write the kit's figures there")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write needs the full run: leave --quick out")
    start = time.perf_counter()
    found = measured(options.quick, options.workers)
    text = rendered(found, options.quick)
    if options.write:
        text += "\n\n## The quick run\n\n" + quick_rows(measured(True, options.workers))
        write(text)
    print(text)
    for x in found:
        if isinstance(x, Alarms):
            print(*(f"false alarm under {x.preset}: {line}" for line in x.details), sep="\n", end="\n" if x.details else "")
    if options.json is not None:
        options.json.write_text(json.dumps(summary(found), indent=1), encoding="utf-8")
    print(f"{time.perf_counter() - start:.0f} s on {options.workers} workers", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
