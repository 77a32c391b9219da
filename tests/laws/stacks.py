"""Layers as one table, and two blocks over every variant of every row of the catalogue. The laws of layers run over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from laws.cases import ALL
from refattn import LSH, Dense, Linear, Linformer, Local, Sparse, load, rng, tree
from refattn.catalogue import ROWS
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.checkpoint import Checkpoint
from refattn.layers.chunked_ff import ChunkedFF
from refattn.layers.embedding import Embedding
from refattn.layers.feed_forward import FeedForward
from refattn.layers.language_model import LanguageModel
from refattn.layers.linformer_sharing import LinformerSharing
from refattn.layers.micro_batches import MicroBatches
from refattn.layers.project_input import ProjectInput
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm
from refattn.ops.rms_norm import RMSNorm
from refattn.ops.scale_norm import ScaleNorm
from refattn.position.rope import Rope
from refattn.position.sinusoid import Sinusoid
from refattn.precision import PRESETS

D, C, F = 6, 5, 7  # widths of x, of the context, of the hidden layer


@dataclass(frozen=True)
class Two:
    """Two blocks, one after the other, that read one context and are given the same."""

    class Inputs(NamedTuple):
        x: Any
        first: Any
        second: Any
        context: Any = None
        others: Any = None

    class Saved(NamedTuple):
        first: Any
        second: Any

    one: Any
    two: Any

    def forward(self, x, first, second, context=None, others=None):
        more = {name: given for name, given in (("context", context), ("others", others)) if given is not None}
        y, kept = self.one.forward(x, first, **more)
        z, last = self.two.forward(y, second, **more)
        return z, self.Saved(kept, last)

    def vjp(self, saved, dy):
        last = self.two.vjp(saved.second, dy)
        first = self.one.vjp(saved.first, last.x)
        shared = (tree.add(getattr(first, name), getattr(last, name)) for name in ("context", "others"))
        return self.Inputs(first.x, first.params, last.params, *shared)

    def cost(self, shapes):
        given = shapes._asdict()
        parts = [given.pop(name) for name in ("first", "second")]
        return self.one.cost(self.one.Inputs(params=parts[0], **given)) + self.two.cost(
            self.two.Inputs(params=parts[1], **given)
        )


@dataclass(frozen=True)
class Case:
    """A layer, or two, with the name of the case and how its inputs are drawn."""

    name: str
    layer: Any
    draw: Callable[[int], Any]

    def __str__(self) -> str:
        return self.name

    def cotangent(self, inputs, seed=1):
        y, _ = self.layer.forward(*inputs)
        return rng.short(rng.stream(seed, "dy").normal(size=y.shape))

    def results(self, inputs, dy):
        """y and every gradient, by name."""
        y, saved = self.layer.forward(*inputs)
        return {"y": y} | {f"d{name}": g for name, g in tree.items(self.layer.vjp(saved, dy))}

    def read(self, reading, inputs, dy):
        return self.results(tree.map(reading.lift, inputs), reading.lift(dy))

    def bands(self, preset, inputs, dy):
        return self.read(load("rounding", precision=PRESETS[preset]), inputs, dy)


def frozen(nest):
    for x in tree.leaves(nest):
        x.flags.writeable = False
    return nest


def values(seed, *name):
    """Short numbers near the initial ones, biases and gains changed too: nothing may hide behind a 0 or a 1."""
    source = iter(range(10**6))

    def change(x):
        moved = x + 0.2 * rng.stream(seed, *name, next(source)).normal(size=np.shape(x))
        return np.asarray(rng.short(moved))

    return change


def drawn(layer, sizes, seed, **options):
    return tree.map(values(seed, "params"), layer.init(sizes, rng.Source(seed), **options))


def short(seed, name, *shape):
    return rng.short(rng.stream(seed, name).normal(size=shape))


def simple(name, layer, sizes, context=False):
    def draw(seed):
        made = {"context": short(seed, "context", 2, 4, C)} if context else {}
        return frozen(layer.Inputs(short(seed, "x", 2, 5, D), drawn(layer, sizes, seed), **made))

    return Case(name, layer, draw)


def placed(name, layer, sizes):
    def draw(seed):
        positions = np.array([[0, 1, 2, 5, 9], [3, 4, 5, 6, 7]])
        return frozen(layer.Inputs(short(seed, "x", 2, 5, D), drawn(layer, sizes, seed), positions=positions))

    return Case(name, layer, draw)


def embedding(name, layer):
    def draw(seed):
        ids = rng.stream(seed, "ids").integers(0, 4, (2, 5))
        return frozen(layer.Inputs(ids, drawn(layer, {"v": 5, "d": D, "L": 8}, seed)))

    return Case(name, layer, draw)


def pieces(variant, drawn):
    """What a scheme learns (numbers) and what it is given (the rest) of inputs that were drawn for it."""
    kinds = variant.scheme.kinds
    blank = dict.fromkeys(drawn._fields)
    extra = {n: x for n, x in tree.items(drawn) if n not in ("q", "qk", "k", "v")}
    fixed = getattr(variant.scheme, "fixed", ())
    learned = {n: x for n, x in extra.items() if kinds.get(n, "float") == "float" and n not in fixed}
    given = {n: x for n, x in extra.items() if n not in learned}
    return [type(drawn)(**{**blank, **part}) if part else None for part in (learned, given)]


def stacked(row, variant, name):
    """Two blocks of one scheme, of either order; keys come from a context where there are more or fewer of them."""
    at = variant.sizes
    heads = (at["h"], at.get("g")) if "h" in at else (x.shape[-3] for x in row.draw(variant, 1)[:2])  # as many as patterns
    attention = Attention(variant.scheme, *heads)
    sizes = {"d": D, "k": at["d"], "e": at["e"], "f": F}
    crossed = at["n"] != at.get("m", at["n"])
    two = Two(Block(attention, FeedForward("silu", gated=True)), Block(attention, FeedForward(), order="post"))

    def draw(seed):
        learned, given = pieces(variant, row.draw(variant, seed))
        params = []
        for i, part in enumerate((two.one, two.two)):
            made = drawn(part, sizes | ({"c": C} if crossed else {}), seed + 100 * i)
            params.append(made._replace(attention=made.attention._replace(scheme=learned)))
        context = short(seed, "context", at["b"], at["m"], C) if crossed else None
        return frozen(Two.Inputs(short(seed, "x", at["b"], at["n"], D), *params, context, given))

    return Case(name, two, draw)


def model(name, layer, sizes, **given):
    def draw(seed):
        ids = rng.stream(seed, "ids").integers(0, 4, (2, 5))
        return frozen(layer.Inputs(ids, drawn(layer, sizes, seed), **given))

    return Case(name, layer, draw)


def masked(name, layer, sizes):
    """A stack whose layers are given different things."""
    masks = [Dense.Inputs(None, None, None, mask=rng.stream(1, "mask", i).random((5, 5)) < 0.7) for i in range(2)]
    row = tree.row([*masks, None][: len(getattr(layer, "inner", layer).layers)])

    def draw(seed):
        return frozen(layer.Inputs(short(seed, "x", 2, 5, D), drawn(layer, sizes, seed), others=row))

    return Case(name, layer, draw)


def compressed(name, layer, sizes, learned, context=False, **given):
    """Attention to slots: what E and F are made of by shape, and what is given beside."""
    blank = Linformer.Inputs(None, None, None)

    def draw(seed):
        params = drawn(layer, sizes, seed)
        scheme = blank._replace(**{n: short(seed, n, *shape) for n, shape in learned.items()}) if learned else None
        if hasattr(layer, "attention"):
            params = params._replace(attention=params.attention._replace(scheme=scheme))
        else:
            params = params._replace(scheme=scheme)
        more = {"context": short(seed, "context", 2, 7, C), "values": short(seed, "values", 2, 7, C)} if context else {}
        others = blank._replace(**given) if given else None
        return frozen(layer.Inputs(short(seed, "x", 2, 5, D), params, others=others, **more))

    return Case(name, layer, draw)


PLAIN = Attention(Dense(), 3)
GATED = Block(Attention(Dense(causal=True), 2), FeedForward("silu", gated=True))
THREE = (Block(PLAIN, FeedForward()), GATED, Block(PLAIN, FeedForward()))
SHARED = Stack(THREE, LayerNorm(), share=(0, 1, 0))
SCHEMES = Stack(tuple(Block(Attention(f, 3), FeedForward()) for f in (Sparse(Local(2, 0)), Linear(causal=True))))
CHUNKED = Stack((Block(PLAIN, ChunkedFF(FeedForward(), 2)), GATED), RMSNorm())
MODEL = {"d": D, "f": F, "v": 5, "L": 8}
BEFORE = ProjectInput(Attention(Linformer(shorter="slice"), 3))
TAIL = np.array([True] * 3 + [False] * 2)
POOLED = ProjectInput(Attention(Linformer(projection="mean", stride=2, tail="pad", scale=0.4, heads="tiled"), 4, 2))
TAPS = ProjectInput(Attention(Linformer(projection="dense", tail="drop"), 2))
BOTH = {"E": (3, 9), "F": (3, 9)}
SINGLE = [
    compressed("project-input", BEFORE, {"d": D}, BOTH),
    compressed("project-input-one-matrix", Block(BEFORE, FeedForward()), {"d": D, "f": F}, {"E": (3, 5)}, key_valid=TAIL),
    compressed("project-input-means-padding", POOLED, {"d": D, "k": 3, "e": 2}, {}, key_valid=TAIL),
    compressed("project-input-values", TAPS, {"d": D, "c": C}, {"E": (2, C, C)}, context=True),
    compressed("project-input-fewer-slots", BEFORE, {"d": D, "c": C}, {"E": (3, 7), "F": (3, 7)}, context=True,
               slot_valid=np.array([True, True, False])),
    simple("attention", PLAIN, {"d": D}),
    simple("attention-grouped-causal-no-bias", Attention(Dense(causal=True), 4, 2, bias=False), {"d": D, "k": 3, "e": 2}),
    simple("attention-rotary", Attention(Dense(causal=True), 4, 2, rotary=Rope("halves")), {"d": D, "k": 4}),
    placed("attention-rotary-positions", Attention(Dense(), 2, rotary=Rope("neighbours", width=2)), {"d": D}),
    placed("block-rotary-positions", Block(Attention(Dense(), 3, rotary=Rope("halves")), FeedForward()), {"d": D, "f": F}),
    simple("attention-cross", Attention(Dense(), 2, 1), {"d": D, "k": 4, "e": 3, "c": C, "o": 8}, context=True),
    simple("feed-forward", FeedForward(), {"d": D, "f": F}),
    simple("feed-forward-gelu-tanh-no-bias-e", FeedForward("gelu_tanh", bias=False), {"d": D, "f": F, "e": 3}),
    simple("feed-forward-gated", FeedForward("silu", gated=True), {"d": D, "f": F}),
    simple("feed-forward-gated-no-bias", FeedForward("sigmoid", gated=True, bias=False), {"d": D, "f": F}),
    simple("block-pre", Block(PLAIN, FeedForward()), {"d": D, "f": F}),
    simple("block-post", Block(PLAIN, FeedForward(), order="post"), {"d": D, "f": F}),
    simple("block-rms-norm", Block(PLAIN, FeedForward(), norm=RMSNorm()), {"d": D, "f": F}),
    simple("block-scale-norm", Block(PLAIN, FeedForward(), norm=ScaleNorm()), {"d": D, "f": F}),
    simple("block-reads-context", Block(PLAIN, FeedForward()), {"d": D, "f": F, "c": C}, context=True),
    *(simple(f"block-cross-{order}", Block(PLAIN, FeedForward(), cross=Attention(Dense(), 2), order=order),
             {"d": D, "f": F, "c": C}, context=True) for order in ("pre", "post")),
    simple("chunked-feed-forward", ChunkedFF(FeedForward("silu", gated=True), 2), {"d": D, "f": F, "e": 3}),
    simple("micro-batches-context", MicroBatches(Stack((THREE[0],)), 2), {"d": D, "f": F, "c": C}, context=True),
    model("language-model", LanguageModel(Embedding("learned", scale=True), Stack((GATED,), RMSNorm()), bias=True), MODEL),
    embedding("embedding", Embedding()),
    embedding("embedding-learned-positions-scale", Embedding("learned", scale=True)),
    embedding("embedding-sinusoid", Embedding(Sinusoid("neighbours"), scale=True)),
    embedding("embedding-scaled-sinusoid", Embedding(Sinusoid("halves"), scaled=True)),
]
def slotted(name, sharing, wrap=lambda layer: layer, inner=lambda layer: layer):
    """Two layers of Linformer with matrices shared in one of four ways."""
    block = Block(inner(Attention(Linformer(shorter="slice"), 3)), FeedForward())
    stack = wrap(Stack((block, block), tied=sharing.tied))

    def draw(seed):
        params = sharing.placed(stack.init({"d": D, "f": F}, rng.Source(seed)), rng.Source(seed).at("E"))
        return frozen(stack.Inputs(short(seed, "x", 2, 5, D), tree.map(values(seed, "params"), params)))

    return Case(name, stack, draw)


TIED = Stack((Block(PLAIN, FeedForward()), GATED), LayerNorm(), tied=("attention.b_v", "feed_forward.w2"))
DEEP = [  # several layers: a worst-case bound grows some fivefold with each, and says nothing of float32
    simple("stack-post", Stack((Block(PLAIN, FeedForward(), order="post"),) * 2), {"d": D, "f": F}),
    simple("stack-context", Stack((THREE[0], FeedForward(), THREE[0])), {"d": D, "f": F, "c": C}, context=True),
    simple("stack-of-schemes", SCHEMES, {"d": D, "f": F}),
    simple("reversible-of-schemes", Reversible(SCHEMES), {"d": D, "f": F}),
    masked("stack-shared-masks", SHARED, {"d": D, "f": F}),
    masked("checkpoint-shared-masks", Checkpoint(SHARED, 2), {"d": D, "f": F}),
    masked("reversible-shared-masks", Reversible(Stack((THREE[0],) * 2, LayerNorm(), share=(0, 0))), {"d": D, "f": F}),
    simple("reversible-mean-chunked", Reversible(CHUNKED, "mean"), {"d": D, "f": F}),
    slotted("linformer-layerwise", LinformerSharing("layerwise", 5, 3)),
    slotted("linformer-layerwise-reversible", LinformerSharing("layerwise", 5, 3), Reversible, ProjectInput),
    model("language-model-savers", MicroBatches(LanguageModel(Embedding(), Reversible(CHUNKED), tied=False), 2),
          MODEL | {"o": 2 * D}),
]
SMOOTH = [(row, v) for row, v in ALL if "rotations" not in v.given]  # a hash of what a layer computes may turn on a rounding
STACKS = [stacked(row, v, f"{row.name}-{row.variants.index(v)}-{v}") for row, v in SMOOTH]
HASHED = [stacked(row, v, f"{row.name}-{row.variants.index(v)}-{v}") for row, v in ALL if "rotations" in v.given]
ENDS = [[v for r, v in SMOOTH if r is row] for row in ROWS]
FEW = [stacked(r, v, f"{r.name}-{v}") for r, vs in zip(ROWS, ENDS, strict=True) for v in (vs[0], *vs[1:][-1:])]  # for jax


def hashing(name, wrap, factors=None):
    """A stack of hashed attention, inside what computes it twice."""
    layer = wrap(Stack((Block(Attention(LSH(chunk=4, causal=True, factors=factors), 2), ChunkedFF(FeedForward(), 3)),) * 3))
    row = tree.row(LSH.Inputs(None, None, rotations=short(i, "rotations", 2, 2, D // 2, 3)) for i in range(3))

    def draw(seed):
        return frozen(layer.Inputs(short(seed, "x", 2, 9, D), drawn(layer, {"d": D, "f": F}, seed), others=row))

    return Case(name, layer, draw)


TWICE = [hashing("reversible-hashed", Reversible), hashing("checkpoint-hashed", lambda stack: Checkpoint(stack, 2), (2, 4))]
EACH = pytest.mark.parametrize("case_", [*SINGLE, *DEEP, *STACKS, *HASHED, *TWICE], ids=str)
ONE = pytest.mark.parametrize("case_", [*SINGLE, *DEEP], ids=str)
SHALLOW = pytest.mark.parametrize("case_", SINGLE, ids=str)
TWO = pytest.mark.parametrize("case_", [*STACKS, *HASHED], ids=str)
SEVERAL = pytest.mark.parametrize("case_", [*DEEP, *STACKS], ids=str)
