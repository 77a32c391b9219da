"""A long sequence for real: hashed attention, two streams, chunked feed-forward, forward and backward in one process.

    python benchmarks/long.py [--n N] [--layers L] [--width D] [--hidden F] [--limit GB]

float32 on NumPy, one example: the blocks of the Reformer's enwik8 configuration for 64 Ki characters, each with hashed
attention. Prints time and the most memory that the process ever held (VmHWM of Linux), and fails if that is over the limit
or if a gradient is missing, zero or not finite.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refattn import LSH, get_threads, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.chunked_ff import ChunkedFF
from refattn.layers.feed_forward import FeedForward
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm

HEADS, KEY, ROUNDS, FACTORS = 8, 64, 2, (16, 32)
ATTENTION = replace(LSH.conventions["trax"], chunk=256, factors=FACTORS)


def model(layers: int, rows: int) -> Any:
    """Blocks of hashed attention and feed-forward of `rows` positions at a time, in two streams."""
    block = Block(Attention(ATTENTION, HEADS, bias=False), ChunkedFF(FeedForward("relu"), rows))
    return Reversible(Stack((block,) * layers, LayerNorm()), "concat")


def peak() -> float:
    """GB of memory that this process held when it held most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9


class Clock:
    """Says what was done, in how many seconds of the clock and of all threads, and the peak so far."""

    def __init__(self) -> None:
        self.at = time.perf_counter(), time.process_time()

    def __call__(self, what: str) -> None:
        now = time.perf_counter(), time.process_time()
        wall, cpu = (b - a for a, b in zip(self.at, now, strict=True))
        print(f"{what:<9} {wall:7.1f} s, {cpu:7.1f} s of CPU, peak {peak():5.2f} GB", flush=True)
        self.at = now


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("n", 65_536), ("layers", 3), ("width", 1024), ("hidden", 4096), ("rows", 4096)):
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--limit", type=float, default=6.0, help="most memory, in GB of 10⁹ bytes (default 6)")
    args = p.parse_args()
    layer = model(args.layers, args.rows)
    sizes = {"d": args.width, "f": args.hidden, "k": KEY}
    print(f"n = {args.n}, {args.layers} layers, {sizes}, {HEADS} heads, {ROUNDS} rounds, {ATTENTION}, "
          f"{layer.parameters(sizes) / 1e6:.1f} million parameters, {get_threads()} threads on {os.cpu_count()} cores")
    clock = Clock()
    params = tree.map(np.float32, layer.init(sizes, rng.Source(0)))
    turns = rng.stream(0, "rotations").normal(size=(ROUNDS, KEY, sum(FACTORS) // 2)).astype(np.float32)
    others = tree.row([LSH.Inputs(None, None, rotations=turns)] * args.layers)
    x = rng.stream(0, "x").standard_normal((1, args.n, args.width), np.float32)
    clock("inputs")
    y, saved = layer.forward(x, params, others=others)
    clock("forward")
    grads = layer.vjp(saved, y)  # of Σ y²/2
    clock("backward")
    wrong = [name for name, g in tree.items(grads) if not (np.isfinite(g).all() and g.any())]
    wrong += sorted({"x", *(f"params.{name}" for name in tree.names(params))} - set(tree.names(grads)))
    for name in wrong:
        print(f"{name} has a gradient that is missing, zero or not finite")
    over = peak() > args.limit
    print(f"peak {peak():.2f} GB, {'over' if over else 'within'} the limit of {args.limit:g} GB")
    return int(over or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
