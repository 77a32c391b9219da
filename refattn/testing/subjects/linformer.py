"""Linformer as the kit sees it: the families of softmax attention that speak of no keys, and those of matrices and slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.expression import written
from refattn.testing.cases import Case
from refattn.testing.families import BOTH, FAMILIES, Family, Generator, Inputs, Sizes, Want, scores_of
from refattn.testing.families import sizes as tier
from refattn.testing.mutants_linformer import mutants
from refattn.testing.staged_linformer import LinformerStaged
from refattn.testing.subjects.base import Subject

Values = Any
ALIKE = frozenset({
    "normal", "flat", "peaked", "large", "one key", "more keys", "one query", "tail", "shared heads", "widths", "strided",
    "padding", "padded item", "small", "no queries", "no keys", "poison",
})  # fmt: skip
WEIGHTS = {"linear": "sm", "depthwise": "cd", "dense": "cdd"}


def fit(scheme: Any, sizes: Sizes) -> Sizes | None:
    """Half as many slots as tokens, or segments of two; whole segments, where a rest would be refused."""
    if scheme.projection == "linear":
        return {**sizes, "s": sizes.get("s", max(sizes["m"] // 2, 1))}
    own = {} if scheme.stride is not None else {"c": sizes.get("c", 2)}
    c = own.get("c", scheme.stride)
    if scheme.tail == "drop" and 0 < sizes["m"] < c:
        return None  # without a slot every answer is zero
    m = -(-sizes["m"] // c) * c if scheme.tail == "error" else sizes["m"]
    return {**sizes, **own, "m": m}


def shape(want: Want, sizes: Sizes, name: str) -> tuple[int, ...]:
    """That of E or F, for all heads; with room for three more tokens where shorter sequences are taken."""
    letters = WEIGHTS[want.scheme.projection]
    at = {**sizes, "m": sizes["m"] + (3 if want.option("shorter") == "slice" else 0)}
    return tuple(at[a] for a in (letters if name == "E" else letters.replace("d", "e")))


def drawn(g: Generator, want: Want, sizes: Sizes, name: str, heads: tuple[int, ...] = ()) -> Values:
    """E or F under which slots are as large as tokens."""
    found = shape(want, sizes, name)
    terms = {"linear": sizes["m"], "depthwise": found[0], "dense": found[0] * found[-1]}[want.scheme.projection]
    return g.normal(size=(*heads, *found)) * max(terms, 1) ** -0.5


def learns(want: Want) -> bool:
    return want.scheme.projection in WEIGHTS


def complete(g: Generator, inputs: Inputs, sizes: Sizes, want: Want) -> None:
    """E and F for all heads, E alone if the candidate names no F, unless the family has drawn its own."""
    if not learns(want) or "E" in inputs:
        return
    if not want.takes("E"):
        raise OptionError(f"{written(want.scheme)} needs E, but the candidate's signature does not name it")
    inputs["E"] = drawn(g, want, sizes, "E")
    if want.takes("F"):
        inputs["F"] = drawn(g, want, sizes, "F")
    elif not _one_serves(want, sizes):
        raise OptionError("E of a convolution serves values of its own width alone, and the candidate's signature does not "
                          'name F: judge equal widths, --only "d=e"')


def _one_serves(want: Want, sizes: Sizes) -> bool:
    return want.scheme.projection == "linear" or sizes["d"] == sizes["e"]


def _own(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x |= {name: drawn(g, want, sizes, name, (sizes["g"],)) for name in "EF"}


def _one(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    x["E"] = drawn(g, want, sizes, "E")


def _square(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)


def _rising(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    x["k"] = x["k"] * np.linspace(0.25, 4.0, sizes["m"])[:, None]
    if want.scheme.projection == "linear":
        x["E"] = drawn(g, want, sizes, "E") * np.linspace(0.25, 2.0, sizes["s"])[:, None]
        if want.takes("F"):
            x["F"] = drawn(g, want, sizes, "F")


def _mostly_padding(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.5)
    lengths = np.maximum(sizes["m"] // (3 + 2 * np.arange(sizes["b"])), 1)
    x["key_valid"] = np.arange(sizes["m"]) < lengths[:, None]


def _chosen(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    scores_of(x, want, 1.0)
    there = g.random((sizes["g"], sizes["s"])) < 0.7
    there[:, 0] = True
    x["slot_valid"] = there


def _headless(g: Generator, x: Inputs, sizes: Sizes, want: Want) -> None:
    _chosen(g, x, sizes, want)
    x["slot_valid"][-1] = False


HEADS = {"pow2": tier(1, 4, 2, 64, 64, 64, 64), "odd": tier(2, 6, 3, 37, 37, 24, 20)}
OWN = (
    Family("own matrices", "E and F of each head taken for one of all", "heads read each other's slots", HEADS, _own,
           applies=lambda want: learns(want) and want.takes("E", "F")),
    Family("one matrix", "E that serves keys and values, and the sum of its gradient", "half of the gradient is lost",
           {**BOTH, "even": tier(2, 3, 3, 37, 37, 20, 20)}, _one,
           applies=lambda want: learns(want) and want.takes("E"), fits=_one_serves),
    Family("square", "E transposed where there are as many slots as tokens", "every slot mixes other tokens",
           {"odd": {**tier(1, 2, 2, 19, 23, 16, 12), "s": 23}}, _square,
           applies=lambda want: want.scheme.projection == "linear"),
    Family("rising", "online softmax over tiles of slots that is not rescaled", "earlier tiles weigh too much",
           {"pow2": tier(1, 2, 2, 64, 256, 64, 64), "odd": tier(1, 2, 2, 45, 201, 24, 20)}, _rising),
    Family("mostly padding", "padding hidden among slots instead of zeroed among tokens", "short sequences lose their slots",
           BOTH, _mostly_padding, applies=lambda want: want.takes("key_valid")),
    Family("fewer slots", "heads with fewer slots than others", "slots of zeros take weight, or slots of other heads", HEADS,
           _chosen, applies=lambda want: want.takes("slot_valid") and want.scheme.projection == "linear"),
    Family("headless", "a head without any slot", "NaN, or the mean of V", HEADS, _headless,
           applies=lambda want: want.takes("slot_valid") and want.scheme.projection == "linear"),
)  # fmt: skip


def nulls(case: Case) -> dict[str, Values]:
    """Zeros, the mean of the slots, and every row's predecessor, where these are other answers."""
    kernel = LinformerStaged(case.scheme, case.inputs)
    kernel.prepare()
    out = {"zeros": np.zeros(case.do.shape)}
    see = np.broadcast_to(kernel.see[..., :1, :], (1, case.sizes["h"], 1, kernel.v.shape[-2]))
    if kernel.v.shape[-2] > 1:
        total = np.matmul(see.astype(np.float64), kernel.v)
        out["mean of slots"] = np.broadcast_to(total / np.maximum(see.sum(axis=-1, keepdims=True), 1), case.do.shape)
    if case.sizes["n"] > 1:
        right, _ = case.scheme.forward(*case.inputs)
        out["previous row"] = np.roll(right, 1, axis=-2)
    return out


SUBJECT = Subject(kernel=LinformerStaged, mutants=mutants, nulls=nulls, fit=fit, complete=complete,
                  axes={"slots": "s", "taps": "c"}, families=(*(f for f in FAMILIES if f.name in ALIKE), *OWN))
