"""Mistakes of single terms: a sink in split sums, the row term under dropout, the softcap's slope, rows read twice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.mutants import Mutant, add
from refattn.testing.staged import Staged, sum_of

Array = Any


def _sink_in_every_part(kernel: Staged, usual: Any, e: Array, c: Array, s: Array) -> Array:
    """`tile` parts of the keys each add the sink to their sum."""
    return usual(e, c, s) + (kernel.tile - 1) * of(c).xp.exp(kernel.sinks() - c)


def _undropped_delta(kernel: Staged, usual: Any, do: Array, o: Array, dlse: Array | None, lse: Array) -> Array:
    """D = Σ P·(do·v) with weights that dropout has not touched."""
    xp = of(do, o).xp
    p = kernel.recompute(kernel.q, kernel.k, lse)
    dp = xp.matmul(do, xp.matrix_transpose(kernel.v))
    d = xp.sum(p * dp, axis=-1, keepdims=True)
    return d if dlse is None else d - xp.where(lse == -math.inf, 0.0, dlse)


def _biased_slope(kernel: Staged, usual: Any, ds: Array) -> Array:
    """1 − ((s + bias) / softcap)² where the capped score alone belongs."""
    s = kernel.add_bias(kernel.bend(kernel.scores(kernel.q, kernel.k))) / kernel.option("softcap")
    return ds * (1.0 - s * s) * kernel.scale


def _last_row_again(kernel: Staged, usual: Any, x: Array, y: Array) -> Array:
    """The rows that a last tile lacks are read as its last row: that row counts once more for each."""
    n = x.shape[-2]
    times = np.where(np.arange(n) == n - 1, 1 + -n % kernel.tile, 1).astype(float)
    return usual(x * times[:, None], y)


def _last_item_sink(kernel: Staged, usual: Any, delta: Array, lse: Array) -> Array:
    return usual(delta[-1:, ...], lse[-1:, ...])


def _other_readers(kernel: Staged, usual: Any, dx: Array) -> Array:
    """dk and dv of a key head from the query heads that read it under the other head map."""
    group = kernel.heads // kernel.few
    tiled = kernel.scheme.heads == "tiled"
    readers = [[h for h in range(kernel.heads) if (h // group if tiled else h % kernel.few) == g] for g in range(kernel.few)]
    return of(dx).xp.stack([sum_of([dx[:, h, ...] for h in heads]) for heads in readers], axis=1)


add(
    Mutant("B15b", "sink", "dsink of the last item alone, not summed over items",
           lambda c, _: c.given("sink") is not None and c.sizes["b"] > 1, patches={"pull_sink": _last_item_sink}),
    Mutant("B8t", "heads", "dk and dv summed over the query heads of the other head map (h mod H_kv for h // (H / H_kv), or the reverse)",
           lambda c, _: 1 < c.sizes["g"] < c.sizes["h"], patches={"gather": _other_readers}),
    *(Mutant(f"F18s@{t}", "softmax", f"the sink is counted in each of {text} parts of the keys", tile=t,
             applies=lambda c, _: c.given("sink") is not None and c.sizes["m"] > 2, patches={"total": _sink_in_every_part})
      for t, text in ((2, "two"), (3, "three"), (4, "four"), (8, "eight"))),
    Mutant("B16d", "dropout", "D from weights before dropout", lambda c, _: c.given("keep") is not None,
           patches={"delta": _undropped_delta}),
    Mutant("B12b", "scores", "the slope of the softcap is taken after the bias was added",
           lambda c, _: c.option("softcap") is not None and c.given("bias") is not None, patches={"pull_scores": _biased_slope}),
    Mutant("B26", "tail", "the last query is read again for each query that its tile of {tile} lacks, in dk and dv", tile=-1,
           several=False, applies=lambda c, _: c.sizes["n"] > 1 and c.sizes["n"] % 128 != 0,
           patches={"pull_k": _last_row_again, "pull_v": _last_row_again}),
)  # fmt: skip
