"""A BERT-base layer, forward, with dense attention, the yardstick, and with k slots: table 3 of the Linformer paper.

Twice: as refattn computes it, whose kernels never write the scores of more than a tile; and with all scores of all heads
written, as attention was mostly computed when the paper was: by the generic text, every query at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np  # problems are drawn on the host

from refattn import rng, tree
from refattn.backend import of
from refattn.bench.subject import Contender, Pair, Problem, Subject, compiled
from refattn.kernels import text
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer
from refattn.verify.linformer_paper import HEADS, SLOTS, D, F

Array = Any
DENSE, LAYER, WRITTEN = "dense", "linformer-layer", "linformer-layer-written"


class Inputs(NamedTuple):
    x: Array  # (1, n, 768)
    params: Any  # of the layer with dense attention
    E: Array  # (slots, n) of normal numbers: k of its rows over √k make E, which serves values, too


@dataclass(frozen=True)
class Layer:
    """The layer with slots or dense attention. written: all scores are."""

    written: bool

    def of(self, inputs: Inputs, k: int | None) -> tuple[Block, Any]:
        """The block with k slots, with dense attention for None, and its inputs."""
        block, params = Block(Attention(Dense() if k is None else Linformer(), HEADS), FeedForward("gelu")), inputs.params
        if k is not None:
            E = inputs.E[:k] * inputs.E.dtype.type(k**-0.5)
            params = params._replace(attention=params.attention._replace(scheme=Linformer.Inputs(None, None, None, E=E)))
        return block, block.Inputs(inputs.x, params)


def problem(n: int, dtype: str, written: bool = False) -> Problem:
    """Normal inputs of one item, and parameters as the layer starts with; no more slots than half of the tokens."""
    draw: Any = np.random.default_rng(0)
    x, E = (draw.standard_normal(shape, dtype) for shape in ((1, n, D), (min(SLOTS[-1], n // 2), n)))
    params = Layer(written).of(Inputs(x, None, E), None)[0].init({"d": D, "f": F}, rng.Source(0))
    return Problem(Layer(written), Inputs(x, tree.map(lambda a: a.astype(dtype), params), E), x)


def writing(n: int, dtype: str) -> Problem:
    """The same with all scores written."""
    return problem(n, dtype, True)


@contextmanager
def all_at_once() -> Iterator[None]:
    """Attention by its generic text, which has the scores of all heads and queries at once; for a process of its own."""
    kernels: Any = of(np.zeros(1)).kernels
    before = kernels["attend"]
    kernels["attend"] = text("attend")
    try:
        yield
    finally:
        kernels["attend"] = before


def with_slots(k: int | None) -> Callable[[Problem], Pair | None]:
    """The forward with k slots, of which table 3 has no more than n/2; None: with dense attention."""
    def make(p: Problem) -> Pair | None:
        if k is not None and 2 * k > p.inputs.x.shape[1]:
            return None
        block, inputs = p.scheme.of(p.inputs, k)

        def forward() -> object:
            if not p.scheme.written:
                with compiled(True):
                    return block.forward(*inputs)
            with all_at_once():
                return block.forward(*inputs, block=None)

        return forward, None

    return make


def slots(who: str) -> int | None:
    """k of a contender."""
    return None if who == DENSE else int(who.removeprefix("k="))


def work(p: Problem, kind: str, who: str) -> float:
    """Two for each multiply-add that the layer states."""
    block, inputs = p.scheme.of(p.inputs, slots(who))
    return float(2 * block.cost(inputs).forward.macs)


def contenders(library: str) -> Mapping[str, Contender]:
    """Dense attention, and every k of table 3."""
    return {who: Contender(library, with_slots(slots(who))) for who in (DENSE, *(f"k={k}" for k in SLOTS))}


SHAPE = f"a BERT-base layer: b = 1, h = {HEADS}, d = 64, feed-forward {F}; E = F"
SUBJECTS = (
    Subject(LAYER, SHAPE, problem, contenders("numba"), work, (DENSE,), lengths=(512, 1024, 2048), memory=True, warm=1024),
    Subject(WRITTEN, f"{SHAPE}; all scores written", writing, contenders("numpy"), work, (DENSE,), lengths=(512, 1024, 2048),
            memory=True, warm=1024),
)  # fmt: skip
