"""Reformer's attention in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.catalogue.base import Row, Sizes, Stated, Variant
from refattn.schemes.lsh import LSH

CLEAR = 0.25
"""How far the largest product of a hash is ahead of the next one: no precision and no small step decides otherwise."""


def draw_lsh(variant: Variant, seed: int) -> Any:
    """Normal tokens and values, few buckets of uneven size, or rotations under which every token's buckets are clear."""
    b, h, n, d, e, r = (variant.sizes[a] for a in "bhnder")
    draws = {name: rng.stream(seed, "lsh", name) for name in LSH.Inputs._fields}
    qk = rng.short(draws["qk"].normal(size=(32 if "rotations" in variant.given else 1, b, h, n, d)))
    inputs = {"qk": qk[0], "v": rng.short(draws["v"].normal(size=(b, h, n, e)))}
    inputs["rotations"] = rng.short(draws["rotations"].normal(size=(h, r, d, variant.sizes.get("w", 1))))
    inputs["buckets"] = draws["buckets"].integers(0, 3, (b, h, r, n)) ** 2
    inputs["positions"] = draws["positions"].random((b, n)).argsort(axis=1)
    inputs["key_valid"] = draws["key_valid"].random((b, n)) < 0.75
    if "rotations" in variant.given:
        inputs["qk"] = _clear(qk, inputs["rotations"], variant.scheme.factors)
    return LSH.Inputs(**{name: inputs[name] for name in ("qk", "v", *variant.given)})


def _clear(qk: Any, rotations: Any, factors: tuple[int, ...] | None) -> Any:
    """The first of several draws (draws, b, h, n, d) of each token whose hashes are clear in every round."""
    xp, w, start = load("numpy").xp, rotations.shape[-1], 0
    size = abs(xp.matmul(qk[:, :, :, None, :, :], rotations))
    clear = xp.ones(size.shape[:3] + size.shape[4:5], dtype=xp.bool)
    for f in factors if factors is not None and sum(factors) == 2 * w else (2 * w,):
        part = xp.sort(size[..., start : start + f // 2], axis=-1)
        rival = part[..., -2] if f > 2 else -part[..., -1]
        clear, start = clear & xp.all(part[..., -1] - rival > CLEAR, axis=3), start + f // 2
    return xp.take_along_axis(qk, xp.argmax(clear, axis=0)[None, ..., None], axis=0)[0]


def _rounds(b: int, h: int, n: int, d: int, e: int, r: int, **more: int) -> Sizes:
    return {"b": b, "h": h, "n": n, "d": d, "e": e, "r": r, **more}


HASHED = _rounds(2, 3, 10, 5, 4, 2)
THREE = _rounds(2, 2, 9, 4, 5, 3)

CHUNKS = "Kitaev et al. 2020 (arXiv:2001.04451), table 1, at a fixed length of chunks; the sort, n·log n, compares only"
LSH_ROW = Row(
    name="lsh",
    variants=(
        Variant(LSH(chunk=4), HASHED, ("buckets",)),
        Variant(LSH(chunk=4, causal=True), _rounds(2, 3, 12, 5, 4, 6), ("buckets",)),
        Variant(LSH(chunk=4, causal=True, wrap="rounds", eps=1e-6), THREE, ("buckets",)),
        Variant(LSH(chunk=4, causal=True, self_score=-5e4, scale=None), HASHED, ("buckets", "positions", "key_valid")),
        Variant(LSH(chunk=2, after=1, wrap="round", duplicates="once", self_score=None), THREE, ("buckets",)),
        Variant(LSH(chunk=4, wrap="rounds", duplicates="once", eps=1e-6), THREE, ("buckets", "key_valid")),
        Variant(LSH(chunk=4, wrap="rounds", causal=True, within_bucket=True, duplicates="2020"), HASHED, ("buckets",)),
        Variant(LSH(chunk=4, within_bucket=True, normalise=False, scale=None), THREE, ("buckets", "key_valid")),
        Variant(LSH(chunk=2, before=2, duplicates="2020", wrap="rounds"), HASHED, ("buckets",)),
        Variant(LSH(chunk=4, causal=True), _rounds(2, 2, 10, 4, 3, 2, w=3), ("rotations",)),
        Variant(LSH(chunk=4, factors=(4, 2)), _rounds(2, 2, 9, 4, 3, 2, w=3), ("rotations", "key_valid")),
    ),
    draw=draw_lsh,
    tags=frozenset({"approximates(dense)", "rows_sum_to_one"}),
    paper="Kitaev et al. 2020, arXiv:2001.04451",
    decisions=("buckets",),
    growth=(
        Stated("multiply-adds of forward", "n", CHUNKS),
        Stated("multiply-adds of vjp", "n", CHUNKS),
        Stated("exponentials of forward", "n", CHUNKS),
        Stated("elements saved", "n", CHUNKS),
        Stated("elements moved by forward", "n", CHUNKS),
        Stated("peak elements of forward", "n", CHUNKS, blocked=True),
        Stated("peak elements of vjp", "n", CHUNKS, blocked=True),
    ),
)
