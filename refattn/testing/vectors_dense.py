"""The golden vectors of softmax attention: what each case is drawn from.

A number never changes its case, and a case never changes: new ones go to the end of their group with the next free number.
Inputs are values of float8 e4m3, so that one case serves every precision; those of RANGE are for the dtypes that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refattn.schemes.dense import Dense
from refattn.testing.vectors_cases import Draws, Recipe

Values = Any
Inputs = dict[str, Any]
Make = Callable[[Draws], Inputs]

GROUPS: dict[str, Dense] = {
    "plain": Dense(),
    "causal": Dense(causal=True),
    "causal-bottom-right": Dense(causal=True, align="bottom_right"),
    "causal-top-left": Dense(causal=True, align="top_left"),
    "heads-grouped": Dense(),
    "heads-tiled": Dense(heads="tiled"),
    "heads-causal": Dense(causal=True, align="bottom_right"),
    "scale": Dense(scale=0.3),
    "softcap": Dense(softcap=5.0),
    "softcap-causal": Dense(causal=True, softcap=2.0),
    "mask": Dense(),
    "mask-blind": Dense(),
    "mask-blind-mean": Dense(empty="mean"),
    "bias": Dense(),
    "bias-mask": Dense(),
    "sink": Dense(),
    "sink-causal": Dense(causal=True),
    "padding": Dense(),
    "segments": Dense(),
    "segments-causal": Dense(causal=True),
    "positions": Dense(causal=True),
    "dropout": Dense(keep_rate=0.75),
    "empty": Dense(),
    "everything": Dense(causal=True, softcap=5.0),
}


def plain(std: float = 1.0, q: float = 1.0, k: float = 1.0, v: float = 1.0, shift: float = 0.0) -> Make:
    """Normal q, k, v with scores of deviation `std` before the factors q and k; v times its factor plus `shift`."""

    def make(draws: Draws) -> Inputs:
        scheme, d = draws.recipe.scheme, draws.recipe.sizes["d"]
        scale = abs(d**-0.5 if scheme.scale is None else scheme.scale)
        return {
            "q": draws.normal("q", *"bhnd") * (q * std / (scale * d**0.5)),
            "k": draws.normal("k", *"bgmd") * k,
            "v": draws.normal("v", *"bgme") * v + shift,
        }

    return make


def also(make: Make, *more: Callable[[Draws, Inputs], None]) -> Make:
    """The draws of `make`, changed or added to by each of `more`."""

    def both(draws: Draws) -> Inputs:
        inputs = make(draws)
        for change in more:
            change(draws, inputs)
        return inputs

    return both


def constant(draws: Draws, x: Inputs) -> None:
    x["v"] = np.broadcast_to(x["v"][..., :1, :], x["v"].shape)


def rising(draws: Draws, x: Inputs) -> None:
    x["k"] = x["k"] * np.linspace(0.25, 4.0, draws.recipe.sizes["m"])[:, None]


def far_below(draws: Draws, x: Inputs) -> None:
    """Half of the channels add 224²·d/2·scale, some −7·10⁴ at d = 8, to every score."""
    half = draws.recipe.sizes["d"] // 2
    x["q"][..., :half], x["k"][..., :half] = -224.0, 224.0


def half_range(draws: Draws, x: Inputs) -> None:
    """32 + a and 32 + b in steps of 1/8, which bfloat16 lacks; Σa = Σb = 0, so q·k = 32²d + Σab, which float16 lacks."""
    half = draws.recipe.sizes["d"] // 2
    for name in ("q", "k"):
        step = np.round(8.0 * draws.stream(name).normal(size=x[name].shape)[..., :half]) / 8.0
        x[name] = 32.0 + np.concatenate([step, -step], axis=-1)
    x["v"] = np.round(x["v"] * 4.0) / 4.0


def beyond_half(draws: Draws, x: Inputs) -> None:
    """Values of 2⁻⁶⁰, with four bits."""
    x.update({name: np.round(y * 4) / 4 for name, y in x.items()})
    x["v"] = x["v"] * 2.0**-60


def masked(share: float, blind: int = 0, shared: bool = False) -> Callable[[Draws, Inputs], None]:
    """A random mask, the same for all heads if `shared`; every blind-th query sees nothing, if given, others something."""

    def add(draws: Draws, x: Inputs) -> None:
        b, h, n, m = (draws.recipe.sizes[a] for a in "bhnm")
        x["mask"] = draws.stream("mask").random((b, 1 if shared else h, n, m)) < share
        rows = np.arange(n)
        x["mask"][..., rows, rows % m] = True
        if blind:
            x["mask"][..., ::blind, :] = False

    return add


def biased(*axes: str) -> Callable[[Draws, Inputs], None]:
    """A bias with these axes, "1" where it is repeated."""

    def add(draws: Draws, x: Inputs) -> None:
        shape = tuple(1 if a == "1" else draws.recipe.sizes[a] for a in axes)
        x["bias"] = 1.5 * draws.stream("bias").normal(size=shape)

    return add


def sunk(draws: Draws, x: Inputs) -> None:
    x["sink"] = 2.0 + 1.5 * draws.normal("sink", "h")


def padded(draws: Draws, x: Inputs) -> None:
    """The items' lengths are m − 3, m − 8, …"""
    b, m = (draws.recipe.sizes[a] for a in "bm")
    x["key_valid"] = np.arange(m) < np.maximum(1, m - 3 - 5 * np.arange(b))[:, None]


def scattered(draws: Draws, x: Inputs) -> None:
    """Valid keys that are no prefix."""
    b, m = (draws.recipe.sizes[a] for a in "bm")
    x["key_valid"] = draws.stream("key_valid").random((b, m)) < 0.6
    x["key_valid"][:, 0] = True


def segments(other: bool) -> Callable[[Draws, Inputs], None]:
    """Three segments of unequal lengths; if `other`, keys have ids of their own, and one query a segment without keys."""

    def add(draws: Draws, x: Inputs) -> None:
        b, n, m = (draws.recipe.sizes[a] for a in "bnm")
        x["segment_ids"] = np.minimum(np.arange(n) * 4 // n, 2).astype(np.int32) + np.zeros((b, 1), np.int32)
        if other:
            x["kv_segment_ids"] = np.minimum(np.arange(m) * 5 // m, 2).astype(np.int32) + np.zeros((b, 1), np.int32)
            x["segment_ids"][-1, -1] = 7

    return add


def placed(draws: Draws, x: Inputs) -> None:
    """Each item's queries stand at the end of a prefix of its own length."""
    b, n, m = (draws.recipe.sizes[a] for a in "bnm")
    first = np.linspace(0, m - n, b).astype(np.int32)
    x["q_positions"] = first[:, None] + np.arange(n, dtype=np.int32)


def permuted(draws: Draws, x: Inputs) -> None:
    b, n, m = (draws.recipe.sizes[a] for a in "bnm")
    x["q_positions"] = draws.stream("q_positions").random((b, n)).argsort(axis=1).astype(np.int32) + np.int32(m - n)
    x["k_positions"] = draws.stream("k_positions").random((b, m)).argsort(axis=1).astype(np.int32)


def kept(draws: Draws, x: Inputs) -> None:
    b, h, n, m = (draws.recipe.sizes[a] for a in "bhnm")
    x["keep"] = draws.stream("keep").random((b, h, n, m)) < draws.recipe.scheme.keep_rate


RECIPES: list[Recipe] = []
_NULLS: dict[str, tuple[str, ...]] = {
    "ConstantValues": ("mean of V", "previous row"),
    "OneKey": ("mean of V", "previous row"),
    "ZeroLength": ("zeros", "mean of V", "previous row"),
}
_FAMILIES = {"LargeScores": "large", "RisingKeys": "rising", "HalfRange": "half range"}


def add(group: str, *rows: tuple[int, str, str, tuple[int, ...], Make]) -> None:
    """Enter rows (id, name, flags, sizes b h g n m d e, draws); the flag LseCotangent gives lse a cotangent."""
    for number, name, words, sizes, make in rows:
        flags = tuple(words.split())
        family = next((_FAMILIES[f] for f in flags if f in _FAMILIES), "")
        exempt = next((_NULLS[f] for f in flags if f in _NULLS), ())
        known: Mapping[str, int] = dict(zip("bhgnmde", sizes, strict=True))
        RECIPES.append(Recipe(
            number, "dense", group, name, flags, GROUPS[group], known, make, "LseCotangent" in flags,
            bool({"HalfRange", "BeyondHalf"} & set(flags)), family, exempt,
        ))  # fmt: skip


add("plain",
    (1, "everyday", "EverydayInputs", (1, 2, 2, 33, 33, 8, 8), plain(1.0)),
    (2, "unequal-sizes", "EverydayInputs LseCotangent", (2, 3, 3, 17, 13, 5, 7), plain(1.0)),
    (3, "flat", "Normaliser LseCotangent", (1, 1, 1, 33, 33, 8, 8), plain(0.4, shift=2.0)),
    (4, "peaked", "PeakedScores", (1, 2, 2, 24, 40, 8, 8), plain(4.0)),
    (5, "large", "LargeScores", (1, 1, 1, 33, 33, 8, 8), plain(60.0)),
    (6, "constant-values", "ConstantValues", (1, 2, 2, 17, 17, 8, 8), also(plain(1.0), constant)),
    (7, "one-key", "OneKey LseCotangent", (2, 2, 2, 5, 1, 8, 6), plain(1.0)),
    (8, "one-query-one-key", "OneKey OneQuery", (1, 1, 1, 1, 1, 8, 8), plain(1.0)),
    (9, "decode", "OneQuery LseCotangent", (2, 1, 1, 1, 77, 8, 8), plain(1.5)),
    (10, "tail-1", "Tail", (1, 1, 1, 9, 65, 8, 8), plain(1.0, shift=1.0)),
    (11, "tail-3", "Tail LseCotangent", (1, 1, 1, 9, 131, 4, 4), plain(1.0, shift=1.0)),
    (12, "tail-35", "Tail", (1, 1, 1, 7, 99, 4, 4), plain(1.0, shift=1.0)),
    (13, "tail-of-queries", "Tail", (1, 1, 1, 70, 19, 4, 4), plain(1.5)),
    (14, "wide-values", "Widths", (1, 1, 1, 17, 17, 8, 24), plain(2.0)),
    (15, "narrow-values", "Widths LseCotangent", (1, 1, 1, 17, 17, 24, 4), plain(2.0)),
    (16, "rising-keys", "RisingKeys LseCotangent", (1, 1, 1, 16, 140, 4, 4), also(plain(1.0), rising)),
    (17, "width-one", "Widths", (1, 1, 1, 5, 6, 1, 1), plain(1.0)),
    (18, "whole-tiles", "EverydayInputs LseCotangent", (1, 1, 1, 64, 64, 8, 8), plain(1.5)),
    (19, "small-values", "SmallValues", (1, 1, 1, 17, 17, 8, 8), plain(1.0, v=2.0**-6)),
    (20, "large-values", "LargeValues", (1, 1, 1, 17, 17, 8, 8), plain(1.0, v=150.0)),
    (21, "beyond-half", "BeyondHalf", (1, 1, 1, 17, 17, 8, 8), also(plain(1.0), beyond_half)),
    (22, "half-range", "HalfRange", (1, 1, 1, 17, 17, 64, 8), also(plain(1.0), half_range)),
)  # fmt: skip
add("causal",
    (23, "everyday", "CausalOrder", (1, 2, 2, 33, 33, 8, 8), plain(1.0)),
    (24, "unequal-sizes", "CausalOrder LseCotangent", (2, 3, 3, 17, 17, 5, 7), plain(1.0)),
    (25, "tail", "CausalOrder Tail LseCotangent", (1, 1, 1, 65, 65, 4, 4), plain(1.5)),
    (26, "far-below", "FarBelow CausalOrder", (1, 1, 1, 17, 17, 8, 8), also(plain(1.0), far_below)),
    (27, "one-token", "OneKey OneQuery", (1, 1, 1, 1, 1, 8, 8), plain(1.0)),
    (28, "constant-values", "ConstantValues", (1, 1, 1, 17, 17, 8, 8), also(plain(1.0), constant)),
)  # fmt: skip
add("causal-bottom-right",
    (29, "more-keys", "MoreKeys", (1, 2, 2, 17, 40, 8, 8), plain(1.5)),
    (30, "unequal-sizes", "MoreKeys LseCotangent", (2, 3, 3, 9, 21, 5, 7), plain(1.5)),
    (31, "more-queries", "MoreQueries BlindRows LseCotangent", (1, 2, 2, 21, 9, 8, 8), plain(1.5)),
    (32, "decode", "OneQuery MoreKeys", (1, 2, 2, 1, 37, 8, 8), plain(1.5)),
    (33, "chunk", "MoreKeys Tail LseCotangent", (1, 1, 1, 20, 75, 4, 4), plain(1.5)),
    (34, "square", "CausalOrder", (1, 2, 2, 19, 19, 8, 8), plain(1.0)),
    (76, "two-large-tiles", "MoreKeys Tail LseCotangent", (1, 1, 1, 130, 141, 2, 2), plain(1.5)),
)  # fmt: skip
add("causal-top-left",
    (35, "more-keys", "MoreKeys", (1, 2, 2, 17, 40, 8, 8), plain(1.5)),
    (36, "more-queries", "MoreQueries LseCotangent", (1, 2, 2, 21, 9, 8, 8), plain(1.5)),
)  # fmt: skip
add("heads-grouped",
    (37, "six-over-three", "SharedHeads LseCotangent", (2, 6, 3, 9, 11, 8, 6), plain(1.5)),
    (38, "one-key-head", "SharedHeads", (1, 4, 1, 17, 17, 8, 8), plain(1.5)),
)  # fmt: skip
add("heads-tiled",
    (39, "six-over-three", "TiledHeads SharedHeads LseCotangent", (1, 6, 3, 9, 11, 8, 6), plain(1.5)),
    (40, "six-over-two", "TiledHeads SharedHeads", (1, 6, 2, 9, 9, 8, 8), plain(1.5)),
)  # fmt: skip
add("heads-causal",
    (41, "six-over-two", "SharedHeads MoreKeys LseCotangent", (1, 6, 2, 9, 14, 8, 8), plain(1.5)),
    (42, "more-queries", "SharedHeads MoreQueries BlindRows", (1, 4, 2, 14, 9, 8, 8), plain(1.5)),
)  # fmt: skip
add("scale",
    (43, "everyday", "OwnScale", (1, 2, 2, 17, 17, 8, 8), plain(1.5)),
    (44, "unequal-sizes", "OwnScale LseCotangent", (2, 1, 1, 13, 17, 5, 7), plain(1.5)),
)  # fmt: skip
add("softcap",
    (45, "everyday", "Softcap", (1, 2, 2, 17, 17, 8, 8), plain(4.0)),
    (46, "unequal-sizes", "Softcap LseCotangent", (2, 1, 1, 13, 17, 5, 7), plain(4.0)),
)  # fmt: skip
add("softcap-causal",
    (47, "everyday", "Softcap CausalOrder LseCotangent", (1, 2, 2, 17, 17, 8, 8), plain(2.0)),
    (48, "tail", "Softcap CausalOrder Tail", (1, 1, 1, 35, 35, 8, 8), plain(2.0)),
)  # fmt: skip
add("mask",
    (49, "each-head", "Mask", (1, 2, 2, 17, 19, 8, 8), also(plain(1.5), masked(0.7))),
    (50, "shared", "Mask LseCotangent", (2, 3, 3, 13, 17, 5, 7), also(plain(1.5), masked(0.7, shared=True))),
    (51, "far-below", "FarBelow Mask", (1, 1, 1, 17, 17, 8, 8), also(plain(1.0), far_below, masked(0.7))),
)  # fmt: skip
add("mask-blind",
    (52, "some-rows", "BlindRows Mask", (1, 2, 2, 17, 19, 8, 8), also(plain(1.0), masked(0.6, blind=5))),
    (53, "unequal-sizes", "BlindRows Mask LseCotangent", (2, 3, 3, 13, 17, 5, 7),
     also(plain(1.0), masked(0.6, 4, shared=True))),
)  # fmt: skip
add("mask-blind-mean",
    (54, "some-rows", "MeanOfBlindRows BlindRows LseCotangent", (1, 2, 2, 13, 17, 8, 8), also(plain(1.0), masked(0.6, 4))),
)  # fmt: skip
add("bias",
    (55, "each-pair", "Bias", (1, 2, 2, 17, 17, 8, 8), also(plain(1.0), biased(*"1hnm"))),
    (56, "shared-by-items", "Bias LseCotangent", (2, 3, 3, 9, 13, 5, 7), also(plain(1.0), biased(*"h1m"))),
    (57, "full", "Bias LseCotangent", (2, 2, 2, 9, 9, 8, 8), also(plain(1.0), biased(*"bhnm"))),
)  # fmt: skip
add("bias-mask",
    (58, "each-pair", "BiasAndMask Bias Mask LseCotangent", (1, 2, 2, 17, 17, 8, 8),
     also(plain(1.0), biased(*"1hnm"), masked(0.7, shared=True))),
)  # fmt: skip
add("sink",
    (59, "everyday", "Sink", (1, 2, 2, 17, 17, 8, 8), also(plain(1.5), sunk)),
    (60, "unequal-sizes", "Sink LseCotangent", (2, 3, 3, 9, 13, 5, 7), also(plain(1.5), sunk)),
    (61, "blind-rows", "Sink BlindRows Mask LseCotangent", (1, 2, 2, 13, 17, 8, 8), also(plain(1.0), sunk, masked(0.6, 4))),
)  # fmt: skip
add("sink-causal",
    (62, "shared-heads", "Sink CausalOrder SharedHeads LseCotangent", (1, 4, 2, 13, 13, 8, 8), also(plain(1.5), sunk)),
)  # fmt: skip
add("padding",
    (63, "lengths", "KeyPadding LseCotangent", (3, 1, 1, 13, 19, 8, 6), also(plain(1.5), padded)),
    (64, "scattered", "KeyPadding", (2, 1, 1, 17, 17, 8, 8), also(plain(1.5), scattered)),
)  # fmt: skip
add("segments",
    (65, "square", "Segments", (2, 1, 1, 21, 21, 8, 8), also(plain(1.5), segments(False))),
    (66, "own-key-ids", "Segments BlindRows LseCotangent", (2, 2, 2, 13, 19, 8, 6), also(plain(1.5), segments(True))),
)  # fmt: skip
add("segments-causal",
    (67, "square", "Segments CausalOrder LseCotangent", (1, 2, 2, 25, 25, 8, 8), also(plain(1.5), segments(False))),
)  # fmt: skip
add("positions",
    (68, "decode", "Positions OneQuery", (4, 1, 1, 1, 23, 8, 8), also(plain(1.5), placed)),
    (69, "chunk", "Positions LseCotangent", (3, 1, 1, 5, 27, 8, 6), also(plain(1.5), placed)),
    (70, "permuted", "MixedPositions LseCotangent", (2, 1, 1, 15, 26, 8, 6), also(plain(1.5), permuted)),
)  # fmt: skip
add("dropout",
    (71, "everyday", "Dropout", (1, 2, 2, 17, 17, 8, 8), also(plain(1.5), kept)),
    (72, "padding", "Dropout KeyPadding LseCotangent", (2, 2, 2, 9, 17, 8, 6), also(plain(1.5), kept, padded)),
)  # fmt: skip
add("empty",
    (73, "no-queries", "ZeroLength", (2, 3, 3, 0, 5, 8, 6), plain(1.0)),
    (74, "no-keys", "ZeroLength BlindRows LseCotangent", (2, 3, 3, 7, 0, 8, 6), plain(1.0)),
)  # fmt: skip
add("everything",
    (75, "square", "Everything Softcap Bias Sink Segments KeyPadding LseCotangent", (2, 4, 2, 13, 13, 8, 6),
     also(plain(4.0), biased(*"h1m"), sunk, segments(False), padded)),
)  # fmt: skip
