"""Linformer's table 3: what the paper measured, what is counted, and what one thread of this machine takes.

    python benchmarks/linformer_table.py [--lengths 512,1024,2048,4096] [--repeats N] [--counts]

Each cell is how many times as much dense attention takes as Linformer with k slots. Measured is the forward of a BERT-base
layer (12 heads of 64, feed-forward 3072, E for keys and values, float32, one item), by the processor time of one thread,
in turn; the medians' ratio. --counts leaves it out. A busy machine is told, and its times are not worth much.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # BLAS chooses its kernels by the processor
    os.environ.pop(name, None)
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "REFATTN_THREADS"):
    os.environ[name] = "1"

from refattn import Dense, Linformer, rng, tree  # noqa: E402 - after the environment that it is to find
from refattn.bench.measure import busy, interleaved  # noqa: E402
from refattn.layers.attention import Attention  # noqa: E402
from refattn.layers.block import Block  # noqa: E402
from refattn.layers.feed_forward import FeedForward  # noqa: E402
from refattn.verify.linformer_paper import HEADS, TIME, D, F, table  # noqa: E402

HEAD = ("n", "k", "MACs, attention", "MACs, layer", "time, paper", "time, here", "peak, attention", "memory, paper")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lengths", default="512,1024,2048,4096", help="n, those of table 3 (default %(default)s)")
    p.add_argument("--repeats", type=int, default=5, help="calls of each layer (default 5)")
    p.add_argument("--counts", action="store_true", help="measure nothing")
    args = p.parse_args()
    lengths = tuple(int(n) for n in args.lengths.split(","))
    if wrong := [n for n in lengths if n not in TIME]:
        p.error(f"--lengths: table 3 has no n = {wrong[0]}, but {', '.join(map(str, TIME))}")
    if not args.counts and (why := busy()) is not None:
        print(f"the machine is busy: {why}", file=sys.stderr)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for n in lengths:
        cells = table((n,))
        here = {} if args.counts else measured(n, tuple(cell.k for cell in cells), args.repeats)
        for c in cells:
            time = f"{here[c.k]:.2f}" if here else ""
            counts = (f"{float(c.attention):.1f}", f"{float(c.layer):.2f}", f"{c.time:g}", time, f"{float(c.peak):.1f}")
            print(f"| {n} | {c.k} | {' | '.join(counts)} | {c.memory:g} |", flush=True)
    return 0


def measured(n: int, slots: tuple[int, ...], repeats: int) -> dict[int, float]:
    """By k, the processor time of a dense layer's forward over that of a layer with k slots."""
    x = rng.Source(0).at("x").normal((1, n, D), 1.0).astype("float32")
    runs = {str(k): run for k, run in layers(n, slots, x)}
    times = interleaved(runs, repeats)
    return {k: times["None"].median / times[str(k)].median for k in slots}


def layers(n: int, slots: tuple[int, ...], x: Any) -> Iterator[tuple[int | None, Callable[[], object]]]:
    """The forward of the dense layer (k = None), and of one for each k."""
    for k in (None, *slots):
        block = Block(Attention(Dense() if k is None else Linformer(), HEADS), FeedForward("gelu"))
        params = block.init({"d": D, "f": F}, rng.Source(1))
        if k is not None:
            E = rng.Source(2).at(k).normal((k, n), k**-0.5)
            scheme = Linformer.Inputs(None, None, None, E=E)
            params = params._replace(attention=params.attention._replace(scheme=scheme))
        single = tree.map(lambda a: a.astype("float32"), params)
        yield k, lambda block=block, single=single: block.forward(x, single)  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
