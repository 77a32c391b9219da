"""Linformer in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.catalogue.base import ODD, Row, Sizes, Stated, Variant
from refattn.schemes.linformer import Linformer


def draw_linformer(variant: Variant, seed: int) -> Any:
    """Normal q, k, v and projections, E for all heads, F for each; what "max" compares is apart by 1/4, and not near 0."""
    at, kind = variant.sizes, variant.scheme.projection
    b, h, g, n, m, d, e = (at[a] for a in "bhgnmde")
    shapes: dict[str, tuple[int, ...]] = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, e)}
    weights = {"linear": "sm", "depthwise": "cd", "dense": "cdd"}.get(kind, "")
    if weights:
        shapes |= {"E": tuple(at[a] for a in weights), "F": (g, *(at[a] for a in weights.replace("d", "e")))}
    inputs = {name: rng.short(rng.stream(seed, "linformer", name).normal(size=shape)) for name, shape in shapes.items()}
    if kind == "max":
        inputs |= {name: _apart(seed, name, shapes[name]) for name in ("k", "v")}
    inputs["key_valid"] = rng.stream(seed, "linformer", "key_valid").random((b, m)) < 0.7
    inputs["slot_valid"] = rng.stream(seed, "linformer", "slot_valid").random((g, at.get("s", 0))) < 0.7
    wanted = ("q", "k", "v", *variant.given)
    return Linformer.Inputs(**{name: inputs[name] for name in wanted})


def _apart(seed: int, name: str, shape: tuple[int, ...]) -> Any:
    """Odd multiples of 1/8 below 2, of which any 16 tokens in turn, counted from a multiple of 16, have different ones."""
    *lead, m, d = shape
    ranks = rng.stream(seed, "linformer", name).random((*lead, -(-m // 16), 16, d)).argsort(axis=-2)
    return (2 * ranks.reshape(*lead, -(-m // 16) * 16, d)[..., :m, :] - 15) / 8.0


SLOTS: Sizes = {**ODD, "s": 4}
TAPS: Sizes = {**ODD, "c": 2}

FEW_SLOTS = "Wang et al. 2020 (arXiv:2006.04768), §4: O(n·k) time and space, k slots fixed"
LINFORMER = Row(
    name="linformer",
    variants=(
        Variant(Linformer(), SLOTS, ("E", "F")),
        Variant(Linformer(scale=0.3, heads="tiled"), SLOTS, ("E", "key_valid")),
        Variant(Linformer(), SLOTS, ("E", "F", "slot_valid", "key_valid")),
        Variant(Linformer(projection="mean", stride=2, tail="drop"), ODD),
        Variant(Linformer(projection="max", stride=4, tail="pad"), ODD, ("key_valid",)),
        Variant(Linformer(projection="depthwise", tail="pad"), TAPS, ("E", "F", "key_valid")),
        Variant(Linformer(projection="dense", tail="drop"), TAPS, ("E", "F")),
    ),
    draw=draw_linformer,
    tags=frozenset({"approximates(dense)", "permutation_equivariant"}),
    paper="Wang et al. 2020, arXiv:2006.04768",
    growth=(
        Stated("multiply-adds of forward", "n", FEW_SLOTS),
        Stated("multiply-adds of vjp", "n", FEW_SLOTS),
        Stated("exponentials of forward", "n", FEW_SLOTS),
        Stated("elements moved by forward", "n", FEW_SLOTS),
        Stated("elements saved", "n", FEW_SLOTS),
        Stated("peak elements of forward", "n", FEW_SLOTS),
        Stated("peak elements of vjp", "n", FEW_SLOTS),
    ),
)
