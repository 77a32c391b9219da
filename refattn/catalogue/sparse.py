"""Attention over patterns in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.catalogue.base import ODD, SQUARE, Row, Stated, Variant, softmax_sizes
from refattn.catalogue.dense import draw_dense
from refattn.patterns import Blocks, Causal, Global, Heads, Local, Self
from refattn.schemes.sparse import Sparse


def draw_sparse(variant: Variant, seed: int) -> Any:
    """As ``draw_dense``; as many heads as the pattern has, on two key heads, where they are no size of the variant."""
    b, n, m, d, e = (variant.sizes[a] for a in "bnmde")
    h, g = (variant.sizes["h"], variant.sizes["g"]) if "h" in variant.sizes else (len(variant.scheme.pattern.patterns), 2)
    others = tuple(name for name in variant.given if name != "is_global")
    whole = draw_dense(Variant(variant.scheme, softmax_sizes(b, h, g, n, m, d, e), others), seed)
    drawn = {**whole._asdict(), "is_global": rng.stream(seed, "sparse", "is_global").random((b, m)) < 0.25}
    return Sparse.Inputs(**{name: drawn[name] for name in ("q", "k", "v", *variant.given)})


SEVERAL = Heads((Local(2, 0), Local(1, 1) & ~Self(), Local(2, 0), Global(first=2, rows=False)))
WINDOW = "Beltagy et al. 2020 (arXiv:2004.05150), §3.1: a window of w keys for each of n queries is O(n·w)"
SPARSE = Row(
    name="sparse",
    variants=(
        Variant(Sparse(Local(3, 0)), SQUARE),
        Variant(Sparse(Local(2, 1), align="bottom_right"), ODD),
        Variant(Sparse(Local(1, 1) | Global(first=1), align="top_left", scale=0.3, heads="tiled"), ODD, ("key_valid",)),
        Variant(Sparse(Local(1, 1) + Local(0, 2), align="bottom_right"), softmax_sizes(1, 2, 2, 9, 4, 3, 5)),
        Variant(Sparse(SEVERAL, align="bottom_right"), {"b": 2, "n": 7, "m": 9, "d": 5, "e": 4}),
        Variant(Sparse(SEVERAL), {"b": 2, "n": 8, "m": 8, "d": 4, "e": 3}, ("mask",)),
        Variant(Sparse(Blocks(3, back=1)), SQUARE, ("segment_ids", "key_valid")),
        Variant(Sparse(Local(2, 2, dilation=2) + Self(), align="top_left"), ODD,
                ("mask", "segment_ids", "kv_segment_ids")),
        Variant(Sparse(Local(1, 1)), SQUARE, ("is_global",)),
        Variant(Sparse(Local(2, 0) + Self(), align="bottom_right", within=Causal()), ODD, ("is_global", "mask")),
        Variant(Sparse(SEVERAL, align="top_left"), {"b": 2, "n": 9, "m": 7, "d": 5, "e": 4}, ("is_global", "key_valid")),
    ),
    draw=draw_sparse,
    tags=frozenset({"approximates(dense)", "exact", "rows_sum_to_one"}),
    paper="Child et al. 2019, arXiv:1904.10509",
    growth=(
        Stated("multiply-adds of forward", "n", WINDOW),
        Stated("multiply-adds of vjp", "n", WINDOW),
        Stated("exponentials of forward", "n", WINDOW),
        Stated("elements moved by forward", "n", WINDOW),
        Stated("elements saved", "n", WINDOW),
        Stated("peak elements of forward", "n", WINDOW),
        Stated("peak elements of vjp", "n", WINDOW),
    ),
)
