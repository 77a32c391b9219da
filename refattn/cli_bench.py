"""The command ``refattn bench``: schemes timed beside other people's code, as ratios within one run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from refattn.arguments import refuse_files, seconds, size
from refattn.errors import UsageError

EPILOG = """\
Processor time on one thread, the functions called in turn, medians; a fresh process for each problem. Ratios to the
yardsticks (for dense: torch's attention, and the rate of matrix products of the same shapes) hold within one run. A tenth
is granted to every bound. linformer-layer and linformer-layer-written have no bounds and are timed if they are named: a
BERT-base layer with k slots beside dense attention, with its memory: the peak of a forward beyond inputs and parameters.

exit status: 0 every bound that must hold does, 1 some do not, 2 usage, 3 the machine is too busy to conclude anything
"""


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--scheme", metavar="NAMES", help="what to time (default: all that has bounds to keep)")
    p.add_argument("--dtype", metavar="NAMES", default="float32,float64", help="among float32, float64 (default: both)")
    p.add_argument("--n", metavar="LENGTHS", type=_lengths, help="lengths (default: each subject's own)")
    p.add_argument("--with", dest="who", metavar="NAMES", help="who takes part (default: everyone who is installed)")
    p.add_argument("--repeats", type=size, default=15, help="calls of each (default 15)")
    p.add_argument("--limit", metavar="SECONDS", type=seconds, help="fewer calls where they would take longer")
    p.add_argument("--no-processes", action="store_true", help="leave out imports, first calls, memory and threads")
    p.add_argument("--json", metavar="FILE", type=Path, help="write everything as JSON")


def run(args: argparse.Namespace) -> int:
    from refattn.bench import bench
    from refattn.bench.run import DTYPES
    from refattn.bench.subjects import HELD, SUBJECTS
    from refattn.bench.table import missed, table

    refuse_files({"--json": args.json})
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats}: give at least one call")
    subjects = list(HELD) if args.scheme is None else _among("--scheme", args.scheme, SUBJECTS)
    dtypes = _among("--dtype", args.dtype, DTYPES)
    everyone = list(dict.fromkeys(x for name in subjects for x in SUBJECTS[name].contenders))
    who = None if args.who is None else _among("--with", args.who, everyone)
    found = bench(subjects, dtypes, args.n, who, args.repeats, not args.no_processes, _tell, limit=args.limit)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lacking = missed(found)
    if found["busy"]:
        return 3
    print("", *(f"missed: {line}" for line in lacking), sep="\n")
    return 1 if lacking else 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _lengths(text: str) -> list[int]:
    found = [size(x.strip()) for x in text.split(",")]
    if min(found) < 64:
        raise argparse.ArgumentTypeError(f"{text}: give lengths from 64 on")
    return found


def _among(option: str, given: str, known: Iterable[str]) -> list[str]:
    names, there = [x.strip() for x in given.split(",")], list(known)
    for name in names:
        if name not in there:
            raise UsageError(f"{option} {given}: there is no {name!r} among {', '.join(there)}")
    return names
