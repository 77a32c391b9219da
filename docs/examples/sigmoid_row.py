"""Sigmoid attention in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.catalogue.base import Row, Stated, Variant
from refattn.schemes.sigmoid import Sigmoid


def draw_sigmoid(variant: Variant, seed: int) -> Any:
    """Normal q, k, v, of values that every precision holds."""
    b, h, n, m, d, e = (variant.sizes[a] for a in "bhnmde")
    shapes = {"q": (b, h, n, d), "k": (b, h, m, d), "v": (b, h, m, e)}
    return Sigmoid.Inputs(**{x: rng.short(rng.stream(seed, "sigmoid", x).normal(size=shape)) for x, shape in shapes.items()})


ODD = {"b": 2, "h": 3, "n": 7, "m": 9, "d": 5, "e": 4}
PAIRS = "Ramapuram et al. 2024 (arXiv:2409.04431): a weight for each pair"
SIGMOID = Row(
    name="sigmoid",
    variants=(Variant(Sigmoid(), ODD), Variant(Sigmoid(scale=0.3, b=0.5), ODD)),
    draw=draw_sigmoid,
    tags=frozenset({"permutation_equivariant"}),
    growth=(Stated("multiply-adds of forward", "n²", PAIRS), Stated("peak elements of vjp", "n", PAIRS, blocked=True)),
    paper="Ramapuram et al. 2024, arXiv:2409.04431",
)
