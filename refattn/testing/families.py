"""The families of cases for softmax attention: what each changes in normal q, k, v, and which mistake that exposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Any
Sizes = Mapping[str, int]
Inputs = dict[str, Any]
Generator = np.random.Generator


@dataclass(frozen=True)
class Want:
    """What is asked for: the configured scheme, the candidate's dtype, the optional inputs that its signature names."""

    scheme: Any
    dtype: str
    accepts: frozenset[str]

    def takes(self, *names: str) -> bool:
        return set(names) <= self.accepts

    def option(self, name: str) -> Any:
        """A field of the scheme; None where it has none of this name."""
        return getattr(self.scheme, name, None)

    @property
    def placed(self) -> bool:
        """True if it matters where queries and keys stand: causal order, or a pattern."""
        return bool(self.option("causal")) or self.option("pattern") is not None

    @property
    def hides(self) -> bool:
        """True if some family input or the configuration can hide keys."""
        return self.placed or bool(self.accepts & {"mask", "key_valid", "segment_ids"})


def aligned(want: Want, sizes: Sizes) -> bool:
    """Causal order and patterns need n = m or an alignment."""
    return not want.placed or want.option("align") is not None or sizes["n"] == sizes["m"]


def anywhere(want: Want, sizes: Sizes) -> bool:
    """Any sizes: the inputs say where queries are."""
    return True


Change = Callable[[Generator, Inputs, Sizes, Want], None]


def _nothing(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@dataclass(frozen=True)
class Family:
    """name, flag (what it exposes), effect (what that costs a user), sizes by tier, and how the base draw is changed.

    fits: the sizes that it can have. strided, lenient, soft, exempt: see ``Case``.
    """

    name: str
    flag: str
    effect: str
    tiers: Mapping[str, Sizes]
    change: Change = _nothing
    applies: Callable[[Want], bool] = lambda want: True
    fits: Callable[[Want, Sizes], bool] = lambda want, sizes: aligned(want, sizes)
    strided: bool = False
    lenient: bool = False
    soft: bool = False
    exempt: tuple[str, ...] = ()


def sizes(b: int, h: int, g: int, n: int, m: int, d: int, e: int) -> Sizes:
    return {"b": b, "h": h, "g": g, "n": n, "m": m, "d": d, "e": e}


POW2, ODD = sizes(1, 2, 2, 64, 64, 64, 64), sizes(2, 3, 3, 37, 37, 24, 20)
BOTH = {"pow2": POW2, "odd": ODD}
NULL_ROWS = ("zeros", "mean of V", "previous row")
FAMILIES: list[Family] = []


def family(name: str, flag: str, effect: str, tiers: Mapping[str, Sizes] = BOTH, **more: Any) -> Callable[[Change], Change]:
    """Register a family whose change is the decorated function."""

    def mark(change: Change) -> Change:
        FAMILIES.append(Family(name, flag, effect, tiers, change, **more))
        return change

    return mark


def scores_of(x: Inputs, want: Want, std: float) -> None:
    """Scale q so that the scores have this standard deviation under the scheme's own scale, as far as the dtype reaches."""
    d = x["q"].shape[-1]
    scale = want.option("scale") if want.option("scale") else d**-0.5
    x["q"] = x["q"] * min(std / (abs(scale) * d**0.5), 2.0**12 if want.dtype == "float16" else 2.0**60)


@family("normal", "everyday inputs", "any gross mistake")
def _normal(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)


@family("flat", "normaliser, phantom and dropped keys", "every output is off by a common factor")
def _flat(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 0.4)
    x["v"] = x["v"] + 2.0


@family("peaked", "score arithmetic: scale, base of the exponential, precision of scores", "wrong weights where few keys matter")
def _peaked(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 4.0)


@family("large", "softmax without subtracting the row maximum", "overflow to NaN on large scores")
def _large(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 60.0)


@family(
    "far below", "a finite number for −∞ in the mask", "hidden keys are seen once visible scores lie below the number",
    applies=lambda want: want.hides and want.dtype != "float16" and want.option("softcap") is None,
)  # fmt: skip
def _far_below(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    half = -(-x["q"].shape[-1] // 2)
    scale = abs(want.option("scale") or x["q"].shape[-1] ** -0.5)
    c = (7e4 / (half * scale)) ** 0.5
    x["q"][..., :half], x["k"][..., :half] = -c, c
    hide(g, x, want)


@family("one key", "edge of length one", "o must be the value itself, lse the score", {
    "pow2": sizes(1, 2, 2, 1, 1, 64, 64), "odd": sizes(2, 3, 3, 5, 1, 24, 20)},
    exempt=("previous row",))  # fmt: skip
def _one_key(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)


@family("constant v", "weights that do not sum to one", "outputs off by a factor", exempt=("mean of V", "previous row"))
def _constant(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["v"] = np.broadcast_to(x["v"][..., :1, :], x["v"].shape)


@family("more keys", "causal alignment, lengths of query and key swapped", "decoding and chunked prefill see the wrong keys", {
    "pow2": sizes(1, 2, 2, 64, 128, 64, 64), "odd": sizes(2, 3, 3, 37, 61, 24, 20)})  # fmt: skip
def _more_keys(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


@family("more queries", "causal alignment; queries that see nothing", "NaN or stale rows for the first queries", {
    "pow2": sizes(1, 2, 2, 128, 64, 64, 64), "odd": sizes(2, 3, 3, 61, 37, 24, 20)})  # fmt: skip
def _more_queries(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


@family("one query", "decoding one token", "the first generated token is already wrong", {
    "pow2": sizes(2, 4, 4, 1, 128, 64, 64), "odd": sizes(3, 2, 2, 1, 77, 24, 20)})  # fmt: skip
def _one_query(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


@family("tail", "lengths that are no multiple of a tile", "the last keys are dropped, or padding is attended", {
    "pow2": sizes(1, 2, 2, 192, 192, 64, 64), "odd": sizes(1, 3, 3, 130, 130, 16, 12), "off": sizes(1, 2, 2, 99, 99, 16, 12)})  # fmt: skip
def _tail(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["v"] = x["v"] + 1.0


@family("rising", "online softmax whose accumulator or denominator is not rescaled", "earlier tiles weigh too much", {
    "pow2": sizes(1, 2, 2, 256, 256, 64, 64), "odd": sizes(1, 2, 2, 269, 269, 24, 20)})  # fmt: skip
def _rising(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["k"] = x["k"] * np.linspace(0.25, 4.0, sizes["m"])[:, None]


@family("shared heads", "which key head a query head reads, and the sum of its gradients", "heads read each other's keys", {
    "pow2": sizes(1, 8, 2, 64, 64, 64, 64), "odd": sizes(2, 6, 3, 37, 37, 24, 20), "one": sizes(1, 4, 1, 33, 33, 16, 12)})  # fmt: skip
def _shared(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


@family("widths", "value width in place of the key width", "wrong scale, or columns lost", {
    "wide": sizes(1, 2, 2, 33, 33, 16, 40), "narrow": sizes(2, 1, 1, 33, 33, 40, 8), "big": sizes(1, 1, 1, 64, 64, 128, 128)})  # fmt: skip
def _widths(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 2.0)


@family("strided", "strides taken for granted", "silently reads other tokens' numbers", strided=True)
def _strided(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


@family("mask", "polarity and broadcasting of a boolean mask", "attends to exactly what it must not",
        applies=lambda want: want.takes("mask"))  # fmt: skip
def _mask(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["mask"] = g.random((sizes["b"], sizes["h"], sizes["n"], sizes["m"])) < 0.7
    np.einsum("...ii->...i", x["mask"][..., : min(sizes["n"], sizes["m"]), : min(sizes["n"], sizes["m"])])[...] = True


@family("blind rows", "queries that see nothing", "NaN, the mean of V, or poisoned gradients", applies=lambda want: want.takes("mask"))
def _blind(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["mask"] = g.random((sizes["b"], 1, sizes["n"], sizes["m"])) < 0.6
    x["mask"][:, :, ::5, :] = False


@family("padding", "key validity ignored or inverted", "padding tokens are attended", applies=lambda want: want.takes("key_valid"))
def _padding(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    lengths = np.maximum(1, sizes["m"] - 3 - 7 * np.arange(sizes["b"]) % max(sizes["m"] - 3, 1))
    x["key_valid"] = np.arange(sizes["m"]) < lengths[:, None]


@family("padded item", "an item all of whose keys are padding", "NaN or the mean of V comes out of items that are empty", {
    "pow2": sizes(3, 2, 2, 64, 64, 64, 64), "odd": sizes(2, 3, 3, 37, 37, 24, 20)}, applies=lambda want: want.takes("key_valid"),
    fits=lambda want, sizes: aligned(want, sizes) and sizes["b"] > 1)  # fmt: skip
def _padded_item(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    _padding(g, x, sizes, want)
    x["key_valid"] = x["key_valid"] & (np.arange(sizes["b"]) != 1)[:, None]


@family("segments", "packed sequences", "one sequence reads its neighbour", applies=lambda want: want.takes("segment_ids"),
        fits=lambda want, sizes: aligned(want, sizes) and (want.takes("kv_segment_ids") or sizes["n"] == sizes["m"]))  # fmt: skip
def _segments(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    def ids(length: int) -> Values:
        return np.arange(length) * 3 // max(length, 1) + np.zeros((sizes["b"], 1), dtype=np.int64)
    x["segment_ids"] = ids(sizes["n"])
    if want.takes("kv_segment_ids"):
        x["kv_segment_ids"] = ids(sizes["m"])


@family("mixed segments", "segment ids that do not ascend: tiles skipped by comparing their ends", "interleaved sequences lose keys",
        applies=lambda want: want.takes("segment_ids"), fits=lambda want, sizes: aligned(want, sizes) and (want.takes("kv_segment_ids") or sizes["n"] == sizes["m"]))  # fmt: skip
def _mixed_segments(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["segment_ids"] = g.integers(0, 3, (sizes["b"], sizes["n"]))
    if want.takes("kv_segment_ids"):
        x["kv_segment_ids"] = g.integers(0, 3, (sizes["b"], sizes["m"]))


@family("bias", "an additive bias, and the sum of its gradient over broadcast axes", "wrong positional bias, or its gradient",
        applies=lambda want: want.takes("bias"))  # fmt: skip
def _bias(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["bias"] = 1.5 * g.normal(size=(1, sizes["h"], sizes["n"], sizes["m"]))


@family("bias and mask", "order of bias and mask", "hidden keys leak", applies=lambda want: want.takes("bias", "mask"))
def _bias_mask(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    _bias(g, x, sizes, want)
    _mask(g, x, sizes, want)


@family("sink", "an attention sink", "weights that sum to one where they must not", applies=lambda want: want.takes("sink"))
def _sink(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["sink"] = 2.0 + 1.5 * g.normal(size=(sizes["h"],))


@family("softcap", "the softcap, its place and its slope", "large scores are not capped",
        applies=lambda want: want.option("softcap") is not None)  # fmt: skip
def _softcap(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 0.8 * want.option("softcap"))
    hide(g, x, want)


@family("dropout", "the keep mask and its rescaling, forward and backward", "activations off by the keep rate",
        applies=lambda want: want.takes("keep") and want.option("keep_rate") is not None)  # fmt: skip
def _dropout(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["keep"] = g.random((sizes["b"], sizes["h"], sizes["n"], sizes["m"])) < want.option("keep_rate")


@family("positions", "decoding with a length per item", "an item sees another item's length", {
    "pow2": sizes(4, 2, 2, 1, 64, 64, 64), "odd": sizes(3, 2, 2, 5, 53, 24, 20)},
    applies=lambda want: want.option("causal") and want.takes("q_positions"), fits=anywhere)  # fmt: skip
def _positions(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    first = np.linspace(0, sizes["m"] - sizes["n"], sizes["b"]).astype(np.int64)
    x["q_positions"] = first[:, None] + np.arange(sizes["n"])


@family("mixed positions", "positions that do not ascend: tiles skipped by comparing their ends", "packed or permuted tokens lose keys", {
    "pow2": sizes(1, 2, 2, 128, 128, 64, 64), "odd": sizes(2, 3, 3, 45, 70, 24, 20)},
    applies=lambda want: want.option("causal") and want.takes("q_positions", "k_positions"), fits=anywhere)  # fmt: skip
def _mixed(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["q_positions"] = g.random((sizes["b"], sizes["n"])).argsort(axis=1) + max(sizes["m"] - sizes["n"], 0)
    x["k_positions"] = g.random((sizes["b"], sizes["m"])).argsort(axis=1)


@family("small", "underflow of results and operands", "gradients flushed to zero")
def _small(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["v"] = x["v"] * 2.0**-12


@family("half range", "products accumulated or scaled in half precision", "overflow at scores of ordinary size", {
    "pow2": sizes(1, 2, 2, 64, 64, 64, 64)}, applies=lambda want: want.dtype == "float16" and want.option("softcap") is None,
        exempt=("previous row",))  # fmt: skip
def _half_range(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    balanced = np.where(np.arange(x["k"].shape[-1]) % 2, 1.0, -1.0)  # no key is larger than another for every query
    x["q"], x["k"] = 33.0 + np.sign(x["q"]), 32.0 + g.permuted(np.broadcast_to(balanced, x["k"].shape), axis=-1)


@family("no queries", "an axis of length zero", "an exception or a wrong shape", {"zero": sizes(2, 3, 3, 0, 0, 16, 12)},
        lenient=True, exempt=NULL_ROWS)  # fmt: skip
def _no_queries(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("no keys", "an axis of length zero", "NaN where nothing can be seen", {"zero": sizes(2, 3, 3, 7, 0, 16, 12)},
        lenient=True, exempt=NULL_ROWS)  # fmt: skip
def _no_keys(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("poison", "NaN in keys and values that no query may see", "uninitialised padding spreads", soft=True,
        applies=lambda want: want.takes("key_valid") or want.takes("mask"))  # fmt: skip
def _poison(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    valid = np.arange(sizes["m"]) < sizes["m"] - 3
    if want.takes("key_valid"):
        x["key_valid"] = np.broadcast_to(valid, (sizes["b"], sizes["m"]))
    else:
        x["mask"] = np.broadcast_to(valid, (sizes["b"], 1, sizes["n"], sizes["m"]))
    x["k"][..., ~valid, :], x["v"][..., ~valid, :] = np.nan, np.nan


def hide(g: Generator, x: Inputs, want: Want) -> None:
    """Hide some keys by whatever the candidate takes; a causal order hides by itself."""
    b, _, n, _ = x["q"].shape
    m = x["k"].shape[-2]
    if want.takes("mask"):
        x["mask"] = g.random((b, 1, n, m)) < 0.75
        x["mask"][..., 0] = True
    elif want.takes("key_valid"):
        x["key_valid"] = np.arange(m) < np.full((b, 1), max(m - 5, 1))
