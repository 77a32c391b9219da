"""The list of everything: one row for each scheme, read by the laws, the command line, the documentation and the kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.errors import OptionError
from refattn.expression import parse, written
from refattn.features.elu import Elu
from refattn.features.identity import Identity
from refattn.features.relu import Relu
from refattn.patterns import (
    All,
    Alternate,
    Axial,
    Blocks,
    Causal,
    Coarse,
    Cross,
    Fixed,
    Global,
    Heads,
    Local,
    LogSparse,
    Pattern,
    Random,
    Self,
    Short,
    Split,
    Strided,
)
from refattn.patterns.named import PAPERS
from refattn.schemes.dense import Dense
from refattn.schemes.linear import Linear
from refattn.schemes.linformer import Linformer
from refattn.schemes.lsh import LSH
from refattn.schemes.sparse import Sparse

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Variant:
    """One configuration of a scheme with the sizes of its inputs and the optional inputs that are drawn for it."""

    scheme: Any
    sizes: Sizes
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = {f.name: (getattr(self.scheme, f.name), f.default) for f in fields(self.scheme)}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        parts = [*(f"{n}={v}" for n, v in changed.items()), *self.given, "x".join(str(s) for s in self.sizes.values())]
        return f"{type(self.scheme).__name__}({' '.join(parts)})"


@dataclass(frozen=True)
class Row:
    """A scheme in the catalogue.

    draw(variant, seed) returns Inputs in float64 whose values are exact in float8 e4m3. certifiable: ball arithmetic can
    enclose it. decisions: names of its discrete outcomes (buckets, support), none for smooth schemes.
    """

    name: str
    variants: tuple[Variant, ...]
    draw: Callable[[Variant, int], Any]
    tags: frozenset[str]
    paper: str
    certifiable: bool = True
    decisions: tuple[str, ...] = field(default=())

    @property
    def scheme(self) -> Any:
        """The configuration that stands for the row."""
        return self.variants[0].scheme


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


def draw_linear(variant: Variant, seed: int) -> Any:
    """Normal q, k, v and uneven padding; no entry of q and k near 0, where relu has a kink."""
    b, h, g, n, m, d, e = (variant.sizes[a] for a in "bhgnmde")
    shapes = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, e)}
    inputs = {name: rng.short(rng.stream(seed, "linear", name).normal(size=shape)) for name, shape in shapes.items()}
    for name in "qk":
        x = inputs[name]
        inputs[name] = x + (abs(x) < 0.0625) * (0.0625 * (1 - 2 * (x < 0)) - x)
    inputs["key_valid"] = rng.stream(seed, "linear", "key_valid").random((b, m)) < 0.6
    return Linear.Inputs(**{name: inputs[name] for name in ("q", "k", "v", *variant.given)})


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


def _sizes(b: int, h: int, g: int, n: int, m: int, d: int, e: int) -> Sizes:
    return {"b": b, "h": h, "g": g, "n": n, "m": m, "d": d, "e": e}


ODD = _sizes(2, 6, 3, 7, 9, 5, 4)
SQUARE = _sizes(2, 4, 2, 8, 8, 4, 3)

DENSE = Row(
    name="dense",
    variants=(
        Variant(Dense(), ODD),
        Variant(Dense(causal=True), SQUARE),
        Variant(Dense(causal=True, align="bottom_right"), ODD),
        Variant(Dense(causal=True, align="bottom_right"), _sizes(1, 2, 2, 9, 4, 3, 5)),
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
)



def draw_sparse(variant: Variant, seed: int) -> Any:
    """As ``draw_dense``; as many heads as the pattern has, on two key heads, where they are no size of the variant."""
    b, n, m, d, e = (variant.sizes[a] for a in "bnmde")
    h, g = (variant.sizes["h"], variant.sizes["g"]) if "h" in variant.sizes else (len(variant.scheme.pattern.patterns), 2)
    whole = draw_dense(Variant(variant.scheme, _sizes(b, h, g, n, m, d, e), variant.given), seed)
    return Sparse.Inputs(**{name: getattr(whole, name) for name in ("q", "k", "v", *variant.given)})


SEVERAL = Heads((Local(2, 0), Local(1, 1) & ~Self(), Local(2, 0), Global(first=2, rows=False)))
SPARSE = Row(
    name="sparse",
    variants=(
        Variant(Sparse(Local(3, 0)), SQUARE),
        Variant(Sparse(Local(2, 1), align="bottom_right"), ODD),
        Variant(Sparse(Local(1, 1) | Global(first=1), align="top_left", scale=0.3, heads="tiled"), ODD, ("key_valid",)),
        Variant(Sparse(Local(1, 1) + Local(0, 2), align="bottom_right"), _sizes(1, 2, 2, 9, 4, 3, 5)),
        Variant(Sparse(SEVERAL, align="bottom_right"), {"b": 2, "n": 7, "m": 9, "d": 5, "e": 4}),
        Variant(Sparse(SEVERAL), {"b": 2, "n": 8, "m": 8, "d": 4, "e": 3}, ("mask",)),
        Variant(Sparse(Blocks(3, back=1)), SQUARE, ("segment_ids", "key_valid")),
        Variant(Sparse(Local(2, 2, dilation=2) + Self(), align="top_left"), ODD,
                ("mask", "segment_ids", "kv_segment_ids")),
    ),
    draw=draw_sparse,
    tags=frozenset({"exact", "rows_sum_to_one"}),
    paper="Child et al. 2019, arXiv:1904.10509",
)

LINEAR = Row(
    name="linear",
    variants=(
        Variant(Linear(), ODD),
        Variant(Linear(causal=True), SQUARE),
        Variant(Linear(causal=True, align="bottom_right"), ODD, ("key_valid",)),
        Variant(Linear(causal=True, align="bottom_right"), _sizes(1, 2, 2, 9, 4, 3, 5)),
        Variant(Linear(causal=True, align="top_left", heads="tiled"), ODD),
        Variant(Linear(eps=0.25), ODD, ("key_valid",)),
        Variant(Linear(causal=True, eps=0.25, eps_at="keys", scale=None), SQUARE, ("key_valid",)),
        Variant(Linear(causal=True, feature=Relu(0.125)), SQUARE),
        Variant(Linear(feature=Identity(), normalise=False, heads="tiled"), ODD),
        Variant(Linear(causal=True, feature=Identity(), normalise=False, scale=None), SQUARE, ("key_valid",)),
    ),
    draw=draw_linear,
    tags=frozenset({"rows_sum_to_one", "permutation_equivariant", "causal", "streams"}),
    paper="Katharopoulos et al. 2020, arXiv:2006.16236",
)

SLOTS: Sizes = {**ODD, "s": 4}
TAPS: Sizes = {**ODD, "c": 2}

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
)


def _rounds(b: int, h: int, n: int, d: int, e: int, r: int, **more: int) -> Sizes:
    return {"b": b, "h": h, "n": n, "d": d, "e": e, "r": r, **more}


HASHED = _rounds(2, 3, 10, 5, 4, 2)
THREE = _rounds(2, 2, 9, 4, 5, 3)

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
    tags=frozenset({"rows_sum_to_one"}),
    paper="Kitaev et al. 2020, arXiv:2001.04451",
    decisions=("buckets",),
)

ROWS: tuple[Row, ...] = (DENSE, SPARSE, LINEAR, LINFORMER, LSH_ROW)

FEATURES: tuple[type, ...] = (Elu, Relu, Identity)
"""The feature maps of linear attention."""

PATTERNS: tuple[type, ...] = (
    All, Self, Causal, Local, Strided, LogSparse, Global, Fixed, Blocks, Split, Random, Axial, Cross, Coarse, Short, Heads,
    Alternate, *PAPERS,
)  # fmt: skip
"""The classes that patterns are written with; those of papers have named constructors only."""


def constructors() -> dict[str, type]:
    """The classes that an expression may name, by name: schemes first, then feature maps and patterns."""
    return {**_schemes(), **{cls.__name__: cls for cls in (*FEATURES, *PATTERNS)}}


def _schemes() -> dict[str, type]:
    return {type(r.scheme).__name__: type(r.scheme) for r in ROWS}


def scheme(text: Any) -> Any:
    """The scheme that an expression describes, as ``"Dense(causal=True)"``; a scheme is itself.

    Raises
    ------
    OptionError
        For text that is no expression, or describes something that is not a scheme.
    """
    made = parse(text, constructors()) if isinstance(text, str) else text
    if isinstance(made, type) and hasattr(made, "forward"):
        raise OptionError(f"{made.__name__} is a class, not a scheme: write {made.__name__}()")
    if not hasattr(made, "forward"):
        raise OptionError(f"{written(made)} is not a scheme; there is {', '.join(_schemes())}")
    return made


def scheme_or_pattern(text: Any) -> Any:
    """The scheme or pattern that an expression describes, as ``"Local(2, 0) | Global(first=1)"``.

    Raises
    ------
    OptionError
        For text that is no expression, or describes something else.
    """
    made = parse(text, constructors()) if isinstance(text, str) else text
    if not hasattr(made, "forward") and not isinstance(made, Pattern | Heads | Alternate):
        raise OptionError(f"{written(made)} is neither a scheme nor a pattern; there is {', '.join(constructors())}")
    return made


def row(name: str) -> Row:
    """The row called `name`."""
    return next(r for r in ROWS if r.name == name)
