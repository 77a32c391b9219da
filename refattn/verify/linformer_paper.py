"""Linformer's own figures beside counts: time and memory against n and k, matrices by who shares them, accuracy, Reformer.

Counts are exact and of the texts' shapes alone: a layer is BERT-base's (12 heads of 64, feed-forward 3072), one item.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from refattn import rng, tree
from refattn.backend import load, using
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward
from refattn.layers.linformer_sharing import SHARING, LinformerSharing
from refattn.layers.stack import Stack
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer
from refattn.schemes.lsh import LSH
from refattn.shapes import product
from refattn.verify.claim import Claim, Curve, Picture

SLOTS = (128, 256, 512, 1024, 2048)
PAPER = "Wang et al. 2020 (arXiv:2006.04768)"
TIME = {
    512: (1.5, 1.3), 1024: (1.7, 1.6, 1.3), 2048: (2.6, 2.4, 2.1, 1.3), 4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1), 16384: (8.6, 7.8, 7.0, 5.6, 3.3), 32768: (13.0, 12.0, 11.0, 8.8, 5.0),
    65536: (20.0, 18.0, 16.0, 14.0, 7.9),
}  # fmt: skip
"""Table 3, left: how many times faster inference is than the Transformer's, on a V100 of 16 GB; n → one for each k."""
MEMORY = {
    512: (1.7, 1.5), 1024: (3.0, 2.9, 1.8), 2048: (6.1, 5.6, 3.6, 2.0), 4096: (14.0, 13.0, 8.3, 4.3, 2.3),
    8192: (28.0, 26.0, 17.0, 8.5, 4.5), 16384: (56.0, 48.0, 32.0, 16.0, 8.0), 32768: (56.0, 48.0, 36.0, 18.0, 16.0),
    65536: (60.0, 52.0, 40.0, 20.0, 18.0),
}  # fmt: skip
"""Table 3, right: how many times as many items fit into its memory."""
ROBERTA = "92.25"
AT_128 = {"": "91.75", " with E = F": "91.85", " with one E": "91.83"}
"""Table 2, means over SST-2, IMDB, QNLI and QQP: RoBERTa-base, and Linformer at n = 512, k = 128."""
HEADS, D, F = 12, 768, 3072


def run() -> tuple[Claim, ...]:
    """Every claim; nothing is drawn."""
    return matrices(), cells(), time_and_counts(), accuracy(), reformer()


class Cell(NamedTuple):
    """How many times as much dense attention takes as Linformer, at n tokens and k slots, as the paper measured and counted.

    attention: multiply-adds of the core; layer: of a whole layer; peak: elements alive in the core's forward, its inputs
    among them, scores of all heads at once; layer_peak: those in the layer's forward beyond its inputs and parameters.
    """

    n: int
    k: int
    attention: Fraction
    layer: Fraction
    peak: Fraction
    layer_peak: Fraction
    time: float
    memory: float


def table(lengths: tuple[int, ...] = tuple(TIME)) -> tuple[Cell, ...]:
    """The cells of table 3."""
    found = []
    for n in lengths:
        dense = counted(n, None)
        for k, time, memory in zip(SLOTS, TIME[n], MEMORY[n], strict=False):
            few = counted(n, k)
            attention, layer, peak, layer_peak = (Fraction(a, b) for a, b in zip(dense, few, strict=True))
            found.append(Cell(n, k, attention, layer, peak, layer_peak, time, memory))
    return tuple(found)


class Counts(NamedTuple):
    """What the ratios of a cell are of."""

    attention: int
    layer: int
    peak: int
    layer_peak: int


def counted(n: int, k: int | None) -> Counts:
    """Multiply-adds and elements alive, of attention and of a layer, for k slots, or dense."""
    x = (1, HEADS, n, D // HEADS)
    scheme, given = (Dense(), Dense.Inputs(x, x, x)) if k is None else (Linformer(), Linformer.Inputs(x, x, x, E=(k, n)))
    block = Block(Attention(scheme, HEADS), FeedForward("gelu"))
    params = block.init({"d": D, "f": F}, rng.Shapes(0))
    if k is not None:
        learned = Linformer.Inputs(None, None, None, E=(k, n))
        params = params._replace(attention=params.attention._replace(scheme=learned))
    whole = block.Inputs((1, n, D), params)
    peak = _peak(scheme, given) + sum(product(shape) for shape in tree.leaves(given))
    return Counts(scheme.cost(given, None).forward.macs, block.cost(whole).forward.macs, peak, _peak(block, whole))


def _peak(f: Any, shapes: Any) -> int:
    """Elements alive in a forward of all queries at once, its inputs not counted."""
    reading: Any = load("counting")
    with using(reading):
        arrays = reading.shaped(shapes)
        with reading.counted() as tally:
            f.forward(*arrays, block=None)
    return int(tally.peak)


def _claim(name: str, statement: str, source: str, bound: object, measured: object, holds: bool, trials: int = 1,
           stated: bool = True, picture: Picture | None = None) -> Claim:
    return Claim(f"linformer: {name}:", statement, source, str(bound), str(measured), trials, holds, stated=stated,
                 picture=picture)  # fmt: skip


def matrices() -> Claim:
    """Counted in the parameters of a stack, where what is shared stands once."""
    found, s, m = [], 2, 3
    for name in SHARING:
        sharing = LinformerSharing(name, m, s, HEADS)
        stack = Stack((Block(Attention(Linformer(), HEADS), FeedForward()),) * 12, tied=sharing.tied)
        params = sharing.placed(stack.init({"d": HEADS, "f": 1}, rng.Shapes(0)), rng.Source(0))
        held = [leaf for path, leaf in tree.items(params) if path.endswith((".E", ".F"))]
        found.append(sum(leaf.size for leaf in held) // (s * m))
    statement = f"12 layers of 12 heads have so many matrices E, F: {', '.join(SHARING)}"
    return _claim("matrices", statement, f"{PAPER}, §4", "288, 24, 12, 1", ", ".join(map(str, found)),
                  found == [288, 24, 12, 1])  # fmt: skip


def cells() -> Claim:
    """The multiply-adds of attention, E and F applied to heads among them: 2nkd of 4nkd are those of E and F."""
    found = table()
    wrong = [(cell.n, cell.k) for cell in found if cell.attention != Fraction(cell.n, 2 * cell.k)]
    statement = "attention takes n/(2k) times fewer multiply-adds than dense attention, in every cell of table 3"
    return _claim("counts", statement, "the scheme's cost", "n/(2k)", f"not at {wrong}" if wrong else "n/(2k) in all",
                  not wrong, len(found))  # fmt: skip


def time_and_counts() -> Claim:
    """Speed-up of a whole model on one machine, and what the work of its layers lets expect."""
    found = table()
    ratios = [cell.time / float(cell.layer) for cell in found]
    row = [cell for cell in found if cell.k == SLOTS[0]]
    x = tuple(cell.n for cell in row)
    picture = Picture("n", "times less than dense attention", (
        Curve(f"k = {SLOTS[0]}, time in table 3", x, tuple(cell.time for cell in row)),
        Curve(f"k = {SLOTS[0]}, multiply-adds of a layer", x, tuple(float(cell.layer) for cell in row), bound=True)))
    statement = "speed-ups of table 3 are no smaller, but for a tenth, than what a BERT-base layer saves in multiply-adds"
    shown = f"{min(ratios):.2f} to {max(ratios):.2f} times that"
    return _claim("time", statement, f"{PAPER}, table 3", "0.9 times that, or more", shown,
                  all(r >= 0.9 for r in ratios), len(found), picture=picture)  # fmt: skip


def accuracy() -> Claim:
    """What a text about the paper says of its table 2: "the average difference is below 0.01 %" at k = 128."""
    gaps = {name: Fraction(ROBERTA) - Fraction(mean) for name, mean in AT_128.items()}
    shown = "; ".join(f"{float(gap):.2f} points{name}" for name, gap in gaps.items())
    statement = "at k = 128 Linformer is less than 0.01 % behind RoBERTa-base, in the mean over four tasks (n = 512)"
    holds = any(gap < Fraction("0.01") and gap / Fraction(ROBERTA) < Fraction("0.0001") for gap in gaps.values())
    return _claim("accuracy", statement, f"{PAPER}, table 2", "0.01 %", shown, holds, len(gaps), stated=False)


def breaks_even(rounds: int, chunk: int, before: int, hashed: bool) -> Fraction | None:
    """The n from which on LSH takes no more multiply-adds than dense attention, by their costs; None if there is none.

    hashed: with 2n/chunk buckets whose hash is counted, too. Costs are a·n² for Dense, b·n + c·n² for LSH: two lengths say
    which.
    """
    d, scheme = 64, LSH(chunk=chunk, before=before)

    def both(n: int) -> tuple[int, int]:
        x = (1, 1, n, d)
        more = {"rotations": (rounds, d, n // chunk)} if hashed else {"buckets": (1, 1, rounds, n)}
        return Dense().cost(Dense.Inputs(x, x, x)).forward.macs, scheme.cost(LSH.Inputs(x, x, **more)).forward.macs

    n = 8 * chunk * (before + 1)
    (dense, one), (_, two) = both(n), both(2 * n)
    square = Fraction(two - 2 * one, 2 * n * n)
    line, own = Fraction(one, n) - square * n, Fraction(dense, n * n)
    return line / (own - square) if own > square else None


def reformer() -> Claim:
    """R rounds in chunks of c tokens, each seeing `before` chunks and its own: every query meets R·c·(1 + before) keys."""
    cases = [(r, c, before) for r in (1, 4, 8) for c in (64, 128) for before in (0, 1, 2)]
    wrong = [case for case in cases if breaks_even(*case, hashed=False) != case[0] * case[1] * (1 + case[2])]
    found, more = breaks_even(8, 128, 1, False), breaks_even(8, 128, 1, True)
    shown = f"{found} for 8 rounds, chunks of 128 and before = 1; {float(more or 0):.0f} with its hash"
    statement = "Reformer's attention takes fewer multiply-adds than dense attention beyond n* = R·c·(1 + before)"
    return _claim("Reformer", statement, "the schemes' costs", "R·c·(1 + before)", f"not at {wrong}" if wrong else shown,
                  not wrong, len(cases))  # fmt: skip
