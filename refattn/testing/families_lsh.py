"""The families of cases for LSH attention: what each changes in normal qk and v, and which mistake that exposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.ops.angular_hash import widths
from refattn.testing.families import Change, Family, Generator, Inputs, Sizes, Values, Want, anywhere

WHOLE, RAGGED, FEW, ONE_MORE, FIXED = 0, -1, -2, -3, -4
"""How n follows the chunk of the scheme, where sizes have no chunk yet: a multiple of two chunks, none of one, fewer tokens
than a chunk has slots, one more than those, and as it stands."""
CLEAR = 0.05
"""How far the largest product of a hash is ahead of the next, in units of |x|·|longest column|: more than formats err."""
CLOSE = 1.5e-5
"""Between what float32 may err by and what half precision does, in units of |x|·|difference of columns|."""
FAMILIES: list[Family] = []


def tier(b: int, h: int, n: int, d: int, e: int, r: int, w: int, c: int) -> Sizes:
    return {"b": b, "h": h, "n": n, "d": d, "e": e, "r": r, "w": w, "c": c}


POW2, ODD = tier(1, 2, 64, 64, 64, 2, 4, WHOLE), tier(2, 3, 37, 24, 20, 3, 3, RAGGED)
BOTH, USUAL = {"pow2": POW2, "odd": ODD}, {"odd": ODD}
NULL_ROWS = ("zeros", "mean of V", "previous row", "own value")


def fit(scheme: Any, sizes: Sizes) -> Sizes:
    """Lengths in chunks of the scheme, and as many columns as its factors need; sizes that have a chunk stay as they are.

    Where chunks are long, there are fewer items, heads and rounds: weights are n² for each.
    """
    rule, c = sizes["c"], scheme.chunk
    if rule > 0:
        return sizes
    n, two = sizes["n"], 2 * c
    n = {
        WHOLE: -(-max(n, 4 * c if c <= 64 else 0) // two) * two,
        RAGGED: max(n, 5 * c // 2 + 1) + (c > 1 and max(n, 5 * c // 2 + 1) % c == 0),
        FEW: max(c - 1, 2), ONE_MORE: c + 1, FIXED: n,
    }[rule]  # fmt: skip
    w = sizes["w"] if scheme.factors is None else sum(scheme.factors) // 2
    few = {"b": min(sizes["b"], 1), "h": min(sizes["h"], 2), "r": min(sizes["r"], 2)} if c > 32 and n > 128 else {}
    return {**sizes, **few, "n": n, "w": w, "c": c}


def family(name: str, flag: str, effect: str, tiers: Mapping[str, Sizes] = BOTH, **more: Any) -> Callable[[Change], Change]:
    """Register a family whose change is the decorated function."""

    def mark(change: Change) -> Change:
        FAMILIES.append(Family(name, flag, effect, tiers, change, **{"fits": anywhere, **more}))
        return change

    return mark


def hashes(want: Want) -> bool:
    """Whether cases have rotations where a family does not say what it needs: in half precision buckets are safer."""
    return want.takes("rotations") and not (given(want) and want.dtype in ("float16", "bfloat16"))


def given(want: Want) -> bool:
    """Whether cases may have buckets: a factorised hash is nothing without rotations."""
    return want.takes("buckets") and want.option("factors") is None


def complete(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    """Rotations under which every hash is clear, or buckets of uneven size."""
    if "buckets" in x or "rotations" in x:
        return
    if not given(want) and not want.takes("rotations"):
        lacks = f"no `rotations`, which factors={want.option('factors')} need" if want.takes("buckets") \
            else "neither `rotations` nor `buckets`: it must take one of them"
        raise OptionError(f"the candidate's signature names {lacks}; call it as function(qk, v, rotations=...) or "
                          "function(qk, v, buckets=...), so that they attend in the same buckets as the reference")
    if not hashes(want):
        x["buckets"] = uneven(g, sizes)
        return
    x["rotations"] = g.normal(size=tuple(sizes[a] for a in "hrdw"))
    x["qk"] = cleared(g, x["qk"], x["rotations"], want.option("factors"))


def between(want: Want) -> bool:
    """Whether the first two columns of rotations are of one digit."""
    return want.option("factors") is None or want.option("factors")[0] > 2


def unseen_last(want: Want) -> bool:
    """Whether no gradient reaches the last token's key: no other token sees it, and its own score is set."""
    return bool(want.option("causal")) and want.option("self_score") is not None


def uneven(g: Generator, sizes: Sizes) -> Values:
    """Whole numbers 0 … 8 of which small ones come most often, in rounds that are independent."""
    return np.floor(9.0 * g.random(tuple(sizes[a] for a in "bhrn")) ** 2).astype(np.int64)


def cleared(g: Generator, x: Values, rotations: Values, factors: Any) -> Values:
    """x (B, H, n, d), each token pushed along the columns that it already points to most, until all its hashes are clear.

    Now and then a token is caught between two columns: it is drawn anew.
    """
    x = x.copy()
    for step in range(1, 401):
        push = _push(x, rotations, factors)
        if not push.any():
            return x
        size = np.linalg.norm(x, axis=-1, keepdims=True)
        x = x + 0.06 * size * push
        if step % 25 == 0:
            other = g.normal(size=x.shape)
            other *= size / np.linalg.norm(other, axis=-1, keepdims=True)
            x = np.where(push.any(axis=-1, keepdims=True), other, x)
    raise OptionError(f"rotations of shape {rotations.shape}: no tokens were found whose hashes are clear in all rounds; "
                      "choose fewer rounds or more dimensions")


def _push(x: Values, rotations: Values, factors: Any) -> Values:
    """Unit vectors along the columns that are ahead by too little, added up; 0 for tokens whose hashes are clear."""
    turned, push, at = np.matmul(x[:, :, None], rotations), np.zeros_like(x), 0
    room = np.linalg.norm(x, axis=-1)[:, :, None] * np.linalg.norm(rotations, axis=-2).max(axis=-1)[:, :, None]
    for f in widths(rotations.shape[-1], factors):
        part, columns = turned[..., at : at + f // 2], rotations[..., at : at + f // 2]
        best, order = np.argmax(np.abs(part), axis=-1), np.sort(np.abs(part), axis=-1)
        close = order[..., -1] - (order[..., -2] if f > 2 else -order[..., -1]) < CLEAR * room
        chosen = np.take_along_axis(columns[None], best[..., None, :], axis=-1)
        sign = np.sign(np.take_along_axis(part, best[..., None], axis=-1)[..., 0])
        toward = np.swapaxes(chosen, -1, -2) * (sign * close)[..., None]
        push = push + (toward / np.linalg.norm(toward, axis=-1, keepdims=True).clip(1e-300)).sum(axis=2)
        at += f // 2
    return push


@family("normal", "everyday inputs", "any gross mistake")
def _normal(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("buckets", "buckets that are given, and differ from what a hash would find", "the sort is not by the buckets", USUAL,
        applies=lambda want: given(want) and hashes(want))  # fmt: skip
def _buckets(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["buckets"] = uneven(g, sizes)


@family("flat", "how often each key counts, phantom and dropped keys", "every output is off by a common factor")
def _flat(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"], x["v"] = x["qk"] * 0.125, x["v"] + 2.0


@family("peaked", "score arithmetic: scale, length of keys, merge of rounds", "wrong weights where few keys matter")
def _peaked(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 3.0


@family("large", "range of the exponential", "overflow: NaN where weights should be one-hot", USUAL)
def _large(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 512.0


@family("short tokens", "what is added to the squared length of a key", "keys of short tokens are too short", USUAL)
def _short(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 2.0**-9


@family("long tokens among short ones", "keys that are not divided by their length, and the gradient of that",
        "long tokens draw all attention", USUAL)  # fmt: skip
def _lengths(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 2.0 ** g.integers(-2, 3, size=(*x["qk"].shape[:-1], 1))


@family("one bucket", "the order of ties, and look back alone", "tokens that are equally good change chunks", USUAL)
def _one_bucket(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    if given(want):
        x["buckets"] = np.zeros(tuple(sizes[a] for a in "bhrn"), dtype=np.int64)
    else:
        x["qk"] = 0.5 * x["qk"] + g.normal(size=(sizes["b"], sizes["h"], 1, sizes["d"]))


@family("own buckets", "a bucket for each token", "numbers of buckets beyond what a table holds", USUAL,
        applies=given)  # fmt: skip
def _own_buckets(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["buckets"] = g.random(tuple(sizes[a] for a in "bhrn")).argsort(axis=-1)


@family("rounds alike", "keys that are met in every round", "duplicates count once, or too often", USUAL,
        applies=given)  # fmt: skip
def _alike(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["buckets"] = np.repeat(uneven(g, {**sizes, "r": 1}), sizes["r"], axis=2)
    x["qk"] = x["qk"] * 0.5


@family("one round", "rounds that are taken for granted", "an axis is lost", {"odd": {**ODD, "r": 1}})
def _one_round(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("many rounds", "how rounds are merged", "rounds that found nothing weigh as much as the others",
        {"odd": tier(2, 2, 29, 24, 20, 8, 3, RAGGED)})  # fmt: skip
def _many_rounds(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 2.0


@family("few tokens", "fewer tokens than a chunk has slots", "empty slots are attended", {"few": {**ODD, "c": FEW}})
def _few_tokens(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["v"] = x["v"] + 2.0


@family("one token more", "a last chunk that has one token", "the rest of a chunk is lost, or empty slots are attended",
        {"more": {**ODD, "c": ONE_MORE}})  # fmt: skip
def _one_more(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["v"] = x["v"] + 2.0


@family("one token", "a token that is alone", "NaN, or the score of a token with itself",
        {"one": {**ODD, "n": 1, "c": FIXED}}, exempt=("mean of V", "own value"))  # fmt: skip
def _one_token(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("widths", "value width in place of the key width", "wrong scale, or columns lost", {
    "wide": tier(1, 2, 33, 16, 40, 2, 3, RAGGED), "narrow": tier(2, 1, 33, 40, 8, 2, 3, RAGGED)})  # fmt: skip
def _widths(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 2.0


@family("strided", "strides taken for granted", "silently reads other tokens' numbers", USUAL, strided=True)
def _strided(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["qk"] = x["qk"] * 1.5


@family("padding", "padding anywhere in the sequence", "padding is attended, or takes slots of tokens", USUAL,
        applies=lambda want: want.takes("key_valid"))  # fmt: skip
def _padding(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["key_valid"] = g.random((sizes["b"], sizes["n"])) < 0.7
    x["key_valid"][:, -1] = True


@family("padded item", "an item that is nothing but padding, and one with a single token",
        "NaN or the mean of V in empty items", {"odd": {**ODD, "b": 3}}, applies=lambda want: want.takes("key_valid"),
        fits=lambda want, sizes: sizes["b"] > 2)  # fmt: skip
def _padded_item(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["key_valid"] = np.arange(sizes["n"]) < np.array([sizes["n"] - 3, 0, 1])[: sizes["b"], None]


@family("positions", "positions that do not ascend", "the order is taken from the place in memory", USUAL,
        applies=lambda want: want.option("causal") and want.takes("positions"))  # fmt: skip
def _positions(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    x["positions"] = g.random((sizes["b"], sizes["n"])).argsort(axis=1) // 2


@family("open hashes", "a hash that rounding may turn: hand `buckets` back to have this judged", "values of other buckets",
        {"odd": tier(1, 2, 37, 24, 20, 2, 4, RAGGED)},
        applies=lambda want: want.takes("rotations") and between(want))  # fmt: skip
def _open(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    _between(g, x, sizes, want, 0.0)


@family("close hashes", "a hash that is computed in half precision", "tokens of other buckets than the reference's",
        {"odd": tier(1, 2, 37, 24, 20, 2, 4, RAGGED)},
        applies=lambda want: want.takes("rotations") and between(want) and want.dtype in ("float32", "float64"))  # fmt: skip
def _close(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    _between(g, x, sizes, want, CLOSE)


def _between(g: Generator, x: Inputs, sizes: Sizes, want: Want, apart: float) -> None:
    """Every fifth token points between two columns of a round, and that far to either side; the other tokens are clear."""
    turn = g.normal(size=tuple(sizes[a] for a in "hrdw"))
    x["rotations"], x["qk"] = turn, cleared(g, x["qk"], turn, want.option("factors"))
    for r in range(sizes["r"]):
        one, other = turn[:, r, :, 0], turn[:, r, :, 1]
        way = ((one - other) / np.linalg.norm(one - other, axis=-1, keepdims=True).clip(1e-300))[:, None]
        some = x["qk"][:, :, r :: 5 * sizes["r"]] + 8.0 * (one + other)[:, None] / sizes["d"] ** 0.5
        side = apart * np.linalg.norm(some, axis=-1, keepdims=True) * g.choice([-1.0, 1.0], size=(*some.shape[:-1], 1))
        x["qk"][:, :, r :: 5 * sizes["r"]] = some + (side - (some * way).sum(axis=-1, keepdims=True)) * way


@family("no tokens", "an axis of length zero", "an exception or a wrong shape",
        {"zero": {**ODD, "n": 0, "c": FIXED}}, lenient=True, exempt=NULL_ROWS)  # fmt: skip
def _no_tokens(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    return None


@family("zero tokens", "tokens that are zero and have no direction", "NaN from a length of zero", USUAL,
        applies=lambda want: given(want) and (want.option("eps") > 0 or unseen_last(want)))  # fmt: skip
def _zero_tokens(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    """Where eps is 0, what others see of such a key has no gradient: then the last token alone, which no other sees."""
    x["buckets"] = uneven(g, sizes)
    x["qk"][:, :, slice(None, None, 4) if want.option("eps") > 0 else slice(-1, None)] = 0.0


@family("poison", "NaN in tokens that are padding", "uninitialised padding spreads", USUAL, soft=True,
        applies=lambda want: want.takes("key_valid") and given(want))  # fmt: skip
def _poison(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    valid = np.arange(sizes["n"]) < sizes["n"] - 3
    x["key_valid"], x["buckets"] = np.broadcast_to(valid, (sizes["b"], sizes["n"])), uneven(g, sizes)
    x["qk"][..., ~valid, :], x["v"][..., ~valid, :] = np.nan, np.nan
