"""Softmax attention in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.catalogue.base import ODD, SQUARE, Row, Stated, Variant, softmax_sizes
from refattn.schemes.dense import Dense


def draw_dense(variant: Variant, seed: int) -> Any:
    """Softmax inputs: normal q, k, v; a mask with an empty row, bias that varies over heads and keys, uneven segments."""
    b, h, g, n, m, d, e = (variant.sizes[a] for a in "bhgnmde")
    shapes = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, e), "bias": (h, 1, m), "sink": (h,)}
    inputs = {name: rng.short(rng.stream(seed, "dense", name).normal(size=shape)) for name, shape in shapes.items()}
    draws = {name: rng.stream(seed, "dense", name) for name in Dense.kinds}
    inputs["mask"] = draws["mask"].random((b, h, n, m)) < 0.6
    inputs["mask"][..., : min(n, 1), :] = False
    inputs["keep"] = draws["keep"].random((b, h, n, m)) < 0.75
    inputs["segment_ids"] = draws["segment_ids"].integers(0, 3, (b, n))
    inputs["kv_segment_ids"] = draws["kv_segment_ids"].integers(0, 3, (b, m))
    inputs["key_valid"] = draws["key_valid"].random((b, m)) < 0.7
    inputs["q_positions"] = draws["q_positions"].integers(0, max(m, 1), (b, n))
    inputs["k_positions"] = draws["k_positions"].random((b, m)).argsort(axis=1)
    wanted = ("q", "k", "v", *variant.given)
    return Dense.Inputs(**{name: inputs[name] for name in wanted})


TABLE = "Vaswani et al. 2017 (arXiv:1706.03762), table 1: O(n²·d) for a layer"
SOFTMAX = "Vaswani et al. 2017 (arXiv:1706.03762), equation 1: a softmax over n keys for each of n queries"
BEYOND = "Dao et al. 2022 (arXiv:2205.14135), theorem 1: O(n) memory beyond inputs and output"
LINEAR = "Rabe and Staats 2021 (arXiv:2112.05682): self-attention does not need O(n²) memory"
MOVED = "Dao et al. 2022 (arXiv:2205.14135), theorem 2: Θ(n·d + n²) accesses where all scores are stored"
MATRIX = "Rabe and Staats 2021 (arXiv:2112.05682): O(n²) memory where all scores are stored"
DENSE = Row(
    name="dense",
    variants=(
        Variant(Dense(), ODD),
        Variant(Dense(causal=True), SQUARE),
        Variant(Dense(causal=True, align="bottom_right"), ODD),
        Variant(Dense(causal=True, align="bottom_right"), softmax_sizes(1, 2, 2, 9, 4, 3, 5)),
        Variant(Dense(causal=True, align="top_left", scale=0.3, heads="tiled"), ODD),
        Variant(Dense(causal=True, align="bottom_right"), ODD, ("mask", "key_valid")),
        Variant(Dense(causal=True), ODD, ("q_positions", "k_positions")),
        Variant(Dense(causal=True), ODD, ("q_positions", "mask")),
        Variant(Dense(softcap=2.0), ODD, ("bias", "mask")),
        Variant(Dense(), ODD, ("mask", "sink")),
        Variant(Dense(keep_rate=0.75), ODD, ("keep", "key_valid")),
        Variant(Dense(empty="mean"), ODD, ("mask", "segment_ids", "kv_segment_ids")),
        Variant(Dense(causal=True, softcap=5.0), SQUARE, ("bias", "sink", "segment_ids", "key_valid")),
    ),
    draw=draw_dense,
    tags=frozenset({"exact", "rows_sum_to_one", "permutation_equivariant", "causal"}),
    paper="Vaswani et al. 2017, arXiv:1706.03762",
    growth=(
        Stated("multiply-adds of forward", "n²", TABLE),
        Stated("multiply-adds of vjp", "n²", TABLE),
        Stated("exponentials of forward", "n²", SOFTMAX),
        Stated("elements moved by forward", "n²", MOVED),
        Stated("elements saved", "n", BEYOND),
        Stated("peak elements of forward", "n²", MATRIX),
        Stated("peak elements of forward", "n", LINEAR, blocked=True),
        Stated("peak elements of vjp", "n", LINEAR, blocked=True),
    ),
)
