"""``refattn bench`` for the record.

    python benchmarks/speed.py [--write] [--repeats N]

--write keeps the results: all of them in benchmarks/results/speed.json, the table in docs/performance.md. A busy machine
writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # BLAS chooses its kernels by the processor
    os.environ.pop(name, None)

from refattn.bench import bench  # noqa: E402 - after the environment that it is to find
from refattn.bench.table import missed, table  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DOCS, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results" / "speed.json"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true", help="keep the results")
    p.add_argument("--repeats", type=int, default=21, help="calls of each (default 21)")
    args = p.parse_args()
    found = bench(repeats=args.repeats, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(table(found))
    if found["busy"]:
        return 3
    if args.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        page = DOCS.read_text(encoding="utf-8")
        page = page[:page.index(BEGIN) + len(BEGIN)] + "\n\n" + table(found) + "\n\n" + page[page.index(END):]
        DOCS.write_text(page, encoding="utf-8")
    lacking = missed(found)
    print(*(f"missed: {line}" for line in lacking), sep="\n")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
