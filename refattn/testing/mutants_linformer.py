"""Known mistakes of Linformer kernels: of the projection, of slots and padding, and of their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant, everything, host
from refattn.testing.mutants_masks import seen
from refattn.testing.staged_linformer import LinformerStaged, laid

Array = Any
Before = Callable[[Any, Any, int], tuple[Any, Any]]
TILES = (16, 32)
ALIKE = ("scores", "softmax", "lse", "heads", "layout", "scale", "precision")
ELSEWHERE = ("F39t", "F46i")
"""Mistakes of these families that say nothing here, or that have a name of their own."""


@functools.cache
def mutants(scheme: Any) -> tuple[Mutant, ...]:
    """Those of softmax attention that do not speak of keys, and Linformer's own."""
    own = [*OWN, *(m for tile in TILES for m in _in_tiles(tile))]
    known = [m for m in everything() if m.family in ALIKE and m.id not in ELSEWHERE and m.tile <= max(TILES)]
    return (*(m for m in own if m.instead is not None), *known, *(m for m in own if m.instead is None))


def kind(*kinds: str) -> Callable[[Case, str], bool]:
    return lambda case, dtype: case.scheme.projection in kinds


def both(case: Case, dtype: str) -> bool:
    """E and F are given, and one could stand for the other."""
    i = case.inputs
    return i.F is not None and i.E.shape[-2:] == i.F.shape[-2:] and i.E.shape[1 - i.E.ndim :] == i.F.shape[1 - i.F.ndim :]


def alone(case: Case, dtype: str) -> bool:
    return case.inputs.E is not None and case.inputs.F is None


def padded(case: Case, dtype: str) -> bool:
    return case.given("key_valid") is not None


def chosen(case: Case, dtype: str) -> bool:
    return case.given("slot_valid") is not None


def slots(case: Case) -> int:
    return int(case.scheme.slots(case.inputs))


def many(case: Case, dtype: str) -> bool:
    """Several slots, whose number may change."""
    return case.given("slot_valid") is None and slots(case) > 1


def taps(case: Case) -> int:
    """Tokens of a segment."""
    w = case.inputs.E
    return int(case.scheme.stride or (1 if w is None else w.shape[-2 if case.scheme.projection == "depthwise" else -3]))


def rest(case: Case, dtype: str) -> bool:
    """Some tokens fill no segment."""
    return case.scheme.projection != "linear" and case.sizes["m"] % taps(case) != 0


def own_heads(case: Case, dtype: str) -> bool:
    w, axes = case.inputs.E, {"dense": 3}.get(case.scheme.projection, 2)
    return w is not None and w.ndim > axes and w.shape[0] > 1


def inputs(change: Callable[[Any], dict[str, Any]]) -> Before:
    """A mistake that reads other inputs."""
    return lambda scheme, i, tile: (scheme, i._replace(**change(i)))


def weights(change: Callable[[Any], Any]) -> Before:
    """A mistake that reads E and F otherwise."""
    return inputs(lambda i: {n: None if (w := getattr(i, n)) is None else change(w) for n in ("E", "F")})


def to_slots(change: Callable[[LinformerStaged, Array], Array]) -> dict[str, Any]:
    """A patch of the slots of keys and values."""
    def patch(kernel: LinformerStaged, usual: Any, x: Array, w: Array) -> Array:
        return change(kernel, usual(x, w))

    return {"slots_k": patch, "slots_v": patch}


def of_tokens(change: Callable[[LinformerStaged, Array, Array], Array]) -> dict[str, Any]:
    """A patch that compresses other tokens: change(kernel, x, w)."""
    def patch(kernel: LinformerStaged, usual: Any, x: Array, w: Array) -> Array:
        return usual(change(kernel, x, w), w)

    return {"slots_k": patch, "slots_v": patch}


def as_they_are(*names: str) -> dict[str, Any]:
    """Padding of keys, of values, or of both is compressed."""
    return {f"there_{name}": lambda kernel, usual, x: x for name in names}


def valid(kernel: Any) -> Any:
    return np.asarray(host(kernel.inputs.key_valid))


# ---- the matrices
def _read_across(w: Array) -> Array:
    """The buffer of an (s, M) matrix read as (M, s)."""
    xp, (*lead, s, m) = of(w).xp, w.shape
    return xp.matrix_transpose(xp.reshape(w, (*lead, m, s)))


def _oblong(case: Case, dtype: str) -> bool:
    w = case.inputs.E
    return kind("linear")(case, dtype) and min(w.shape[-2:]) > 1 and w.shape[-1] != w.shape[-2]


def _square(case: Case, dtype: str) -> bool:
    w = case.inputs.E
    return kind("linear")(case, dtype) and w.shape[-1] == w.shape[-2] > 1


def _by_slots(scheme: Any, i: Any, tile: int) -> tuple[Any, Any]:
    return replace(scheme, scale=scheme.slots(i) ** -0.5), i


def _wider(case: Case, dtype: str) -> bool:
    return kind("linear")(case, dtype) and case.inputs.E.shape[-1] > case.sizes["m"]


def _last_columns(scheme: Any, i: Any, tile: int) -> tuple[Any, Any]:
    m = i.k.shape[-2]
    return scheme, i._replace(**{n: w[..., w.shape[-1] - m :] for n in "EF" if (w := getattr(i, n)) is not None})


# ---- slots
def _more_zeros(y: Array, count: int) -> Array:
    xp = of(y).xp
    return xp.concat([y, *[xp.zeros_like(y[..., :1, :])] * count], axis=-2)


def _whole_tiles(kernel: Any, y: Array) -> Array:
    return y[..., : y.shape[-2] // kernel.tile * kernel.tile, :]


def _filled_tile(kernel: Any, y: Array) -> Array:
    return _more_zeros(y, -y.shape[-2] % kernel.tile)


def _hidden_by_tokens(kernel: Any, usual: Any, s: Array) -> Array:
    """Slot t is hidden where token t is padding."""
    there = valid(kernel)[:, None, None, : s.shape[-1]]
    short = s.shape[-1] - there.shape[-1]
    there = np.concatenate([there, np.ones((*there.shape[:-1], short), bool)], axis=-1) if short > 0 else there
    return of(s).xp.where(kernel.see & there, s, -math.inf)


def _other_slots(change: Callable[[Any], Any]) -> Before:
    return inputs(lambda i: {"slot_valid": change(np.asarray(host(i.slot_valid)))})


def _scores_zero(kernel: Any, usual: Any, s: Array) -> Array:
    return of(s).xp.where(kernel.see, s, 0.0)


# ---- segments
def _own_length(kernel: Any, y: Array) -> Array:
    """The mean of the last segment over the tokens that there are."""
    c, m = kernel.scheme.stride, kernel.inputs.k.shape[-2]
    count = np.minimum(c, m - c * np.arange(y.shape[-2]))[:, None]
    return y * of(y).lift(c / count)


def _across(kernel: Any, x: Array, w: Array) -> Array:
    """Token j goes to slot j mod s."""
    xp, c = of(x).xp, kernel.taps(w)
    s = x.shape[-2] // c
    *lead, _, d = x.shape
    return xp.reshape(xp.moveaxis(xp.reshape(x[..., : s * c, :], (*lead, c, s, d)), -3, -2), (*lead, s * c, d))


def _later(kernel: Any, x: Array, w: Array) -> Array:
    """Segments begin one token late; the last one ends with the first token."""
    return of(x).xp.concat([x[..., 1:, :], x[..., :1, :]], axis=-2)


def _over_there(kernel: Any, usual: Any, x: Array, w: Array) -> Array:
    """The mean over the tokens that are no padding."""
    c, there = kernel.taps(w), valid(kernel)
    s, m = usual(x, w).shape[-2], there.shape[-1]
    whole = np.concatenate([there, np.zeros((*there.shape[:-1], max(s * c - m, 0)), bool)], axis=-1)[..., : s * c]
    count = np.maximum(whole.reshape(*there.shape[:-1], s, c).sum(axis=-1), 1)
    return usual(x, w) * of(x).lift((c / count)[:, None, :, None])


def _whole_segments(case: Case, dtype: str) -> bool:
    return case.scheme.projection != "linear" and case.sizes["m"] % taps(case) == 0 and taps(case) > 1 and slots(case) > 1


def _switched(name: str, old: str, new: str) -> Callable[[Any], Any]:
    def instead(scheme: Any) -> Any:
        return replace(scheme, **{name: new if getattr(scheme, name) == old else old})

    return instead


def _as(instead: Callable[[Any], Any]) -> Before:
    return lambda scheme, i, tile: (instead(scheme), i)


_tail, _pool = _switched("tail", "drop", "pad"), _switched("projection", "mean", "max")


# ---- the backward
def _of_part(part: Callable[[Array], Array], cut: Callable[[Array], Array] = lambda w: w) -> dict[str, Any]:
    def patch(kernel: Any, usual: Any, x: Array, dy: Array, w: Array) -> Array:
        return usual(part(x), part(dy), cut(w))

    return {"weights_k": patch, "weights_v": patch}


def _unzeroed(name: str) -> Any:
    return lambda kernel, usual, dy, w: kernel.spread_out(dy, w, kernel.there[name])


def _raw(name: str) -> Any:
    return lambda kernel, usual, x, dy, w: usual(getattr(kernel.inputs, name), dy, w)


def _everywhere(name: str) -> Any:
    """Every token of a segment has its slot's gradient."""
    return lambda kernel, usual, dy, w: kernel.zeroed(laid([dy] * kernel.scheme.stride, kernel.there[name]))


def _undivided(kernel: Any, usual: Any, dy: Array, w: Array) -> Array:
    return usual(dy * kernel.scheme.stride, w)


def _shares_heads(case: Case, dtype: str) -> bool:
    return case.inputs.E is not None and case.sizes["g"] > 1 and not own_heads(case, dtype)


def _m(id: str, family: str, title: str, applies: Any, **how: Any) -> Mutant:
    return Mutant(id, family, title, applies, **how)


OWN = (
    _m("R1", "projection", "E and F are read as (tokens, slots), transposed", _oblong, before=weights(_read_across)),
    _m("R1q", "projection", "E and F are transposed (as many slots as tokens)", _square,
       before=weights(lambda w: of(w).xp.matrix_transpose(w))),
    _m("R1s", "projection", "scale 1/√k of the slots, for 1/√d", lambda c, _: slots(c) not in (0, c.sizes["d"]), before=_by_slots),
    _m("R1e", "projection", "E and F are divided by √k", kind("linear"), before=weights(lambda w: w * max(w.shape[-2], 1) ** -0.5)),
    _m("R2", "projection", "E compresses the values, too: F is ignored", both, before=inputs(lambda i: {"F": None})),
    _m("R2f", "projection", "F compresses the keys, too: E is ignored", both, before=inputs(lambda i: {"E": i.F})),
    _m("R2x", "projection", "E and F are exchanged", both, before=inputs(lambda i: {"E": i.F, "F": i.E})),
    _m("R7", "projection", "of E for longer sequences the last columns are read, not the first", _wider, before=_last_columns),
    _m("R5", "projection", "E and F of the first head serve all heads", own_heads, before=weights(lambda w: w[0, ...])),
    _m("R5n", "projection", "a head is compressed by E and F of the next one", own_heads,
       before=weights(lambda w: of(w).xp.concat([w[1:, ...], w[:1, ...]], axis=0))),
    _m("R3l", "slots", "one slot less: the last is missing", many, patches=to_slots(lambda k, y: y[..., :-1, :])),
    _m("R3f", "slots", "one slot less: the first is missing", many, patches=to_slots(lambda k, y: y[..., 1:, :])),
    _m("R3z", "slots", "one slot more, of zeros", many, patches=to_slots(lambda k, y: _more_zeros(y, 1))),
    _m("R3d", "slots", "one slot more: the last counts twice", many,
       patches=to_slots(lambda k, y: of(y).xp.concat([y, y[..., -1:, :]], axis=-2))),
    _m("R10", "slots", "causal over slots: query i sees slots 0 … i alone", many, patches=seen(lambda k, i, j: k.see & (j <= i))),
    _m("R6", "slots", "slot_valid is ignored: all heads have all slots", chosen, before=inputs(lambda i: {"slot_valid": None})),
    _m("R6i", "slots", "slot_valid is inverted", chosen, before=_other_slots(lambda there: ~there)),
    _m("R6f", "slots", "all heads have the slots of the first", lambda c, _: chosen(c, _) and c.inputs.slot_valid.ndim == 2,
       before=_other_slots(lambda there: there[0])),
    _m("R6z", "slots", "slots that a head has not score 0: they are zeros and take weight", chosen, patches={"hide": _scores_zero}),
    _m("R4", "padding", "padding is compressed: key_valid is ignored", padded, patches=as_they_are("k", "v")),
    _m("R4k", "padding", "padding of the keys alone is compressed", padded, patches=as_they_are("k")),
    _m("R4v", "padding", "padding of the values alone is compressed", padded, patches=as_they_are("v")),
    _m("R4i", "padding", "key validity is inverted", padded, before=inputs(lambda i: {"key_valid": ~np.asarray(host(i.key_valid))})),
    _m("R4f", "padding", "the length of the first item is used for every item", lambda c, _: padded(c, _) and c.sizes["b"] > 1,
       before=inputs(lambda i: {"key_valid": np.broadcast_to(np.asarray(host(i.key_valid))[:1], i.key_valid.shape)})),
    _m("R4s", "padding", "padding is compressed, and slots are hidden by key_valid of the tokens with their numbers",
       lambda c, _: padded(c, _) and many(c, _) and not valid(c)[:, : slots(c)].all(),
       patches={**as_they_are("k", "v"), "hide": _hidden_by_tokens}),
    _m("R4q", "padding", "padding of the queries is zeros, too, as tatp22 has it",
       lambda c, _: padded(c, _) and c.sizes["n"] == c.sizes["m"], patches={
           "scores": lambda kernel, usual, q, k: usual(kernel.zeroed(q), k)}),
    _m("R4m", "padding", "the mean is taken over tokens that are no padding", lambda c, _: padded(c, _) and kind("mean")(c, _),
       patches={"slots_k": _over_there, "slots_v": _over_there}),
    _m("R8t", "segments", "the other tail: dropped where zeros are asked for, or the reverse",
       lambda c, _: rest(c, _) and c.scheme.tail != "error", before=_as(_tail), instead=_tail),
    _m("R8x", "segments", "the maximum in place of the mean, or the reverse", kind("mean", "max"), before=_as(_pool), instead=_pool),
    _m("R8s", "segments", "the sum in place of the mean", kind("mean"), patches=to_slots(lambda k, y: y * k.scheme.stride)),
    _m("R8m", "segments", "the mean of the last segment is over the tokens that it has", lambda c, _: kind("mean")(c, _) and
       rest(c, _) and c.scheme.tail == "pad", patches=to_slots(_own_length)),
    _m("R8a", "segments", "token j goes to slot j mod k, for j // c", _whole_segments, patches=of_tokens(_across)),
    _m("R8l", "segments", "segments begin one token late", _whole_segments, patches=of_tokens(_later)),
    _m("R9", "segments", "the taps of the convolution in reverse order", lambda c, _: kind("depthwise", "dense")(c, _) and
       taps(c) > 1, before=lambda s, i, t: weights(lambda w: of(w).xp.flip(w, axis=-2 if s.projection == "depthwise" else -3))(s, i, t)),
    _m("R9d", "segments", "each tap of the convolution is transposed", kind("dense"),
       before=weights(lambda w: of(w).xp.matrix_transpose(w))),
    _m("BR1", "projection", "dE of an E that serves both lacks what the values do", alone,
       patches={"serve": lambda kernel, usual, dE, dF: {"dE": dE}}),
    _m("BR1v", "projection", "dE of an E that serves both lacks what the keys do", alone,
       patches={"serve": lambda kernel, usual, dE, dF: {"dE": dF}}),
    _m("BR2", "projection", "dE and dF of the last item alone", lambda c, _: c.inputs.E is not None and c.sizes["b"] > 1,
       patches=_of_part(lambda x: x[-1:, ...])),
    _m("BR3", "projection", "dE and dF of the last key head alone", _shares_heads, patches=_of_part(lambda x: x[:, -1:, ...])),
    _m("BR4", "projection", "dE and dF are exchanged", lambda c, _: both(c, _) and c.inputs.E.shape == c.inputs.F.shape,
       patches={"serve": lambda kernel, usual, dE, dF: {"dE": dF, "dF": dE}}),
    _m("BR6", "projection", "dv comes back through E", both, patches={
        "tokens_v": lambda kernel, usual, dy, w: usual(dy, kernel.inputs.E)}),
    _m("BR5", "padding", "padding has gradients", padded, patches={"tokens_k": _unzeroed("k"), "tokens_v": _unzeroed("v")}),
    _m("BR5w", "padding", "dE and dF read padding", lambda c, _: padded(c, _) and c.inputs.E is not None,
       patches={"weights_k": _raw("k"), "weights_v": _raw("v")}),
    _m("BR8", "segments", "all tokens of a segment have the gradient of its maximum", lambda c, _: kind("max")(c, _) and taps(c) > 1,
       patches={"tokens_k": _everywhere("k"), "tokens_v": _everywhere("v")}),
    _m("BR8m", "segments", "the gradient of a mean is not divided by its tokens", lambda c, _: kind("mean")(c, _) and taps(c) > 1,
       patches={"tokens_k": _undivided, "tokens_v": _undivided}),
)  # fmt: skip


def _in_tiles(tile: int) -> tuple[Mutant, ...]:
    """Mistakes of a loop over tiles of slots."""
    def cut(least: int) -> Callable[[Case, str], bool]:
        return lambda case, dtype: many(case, dtype) and slots(case) > least and slots(case) % tile != 0

    return (
        _m(f"R3t@{tile}", "slots", f"slots behind the last full tile of {tile} are dropped", cut(tile),
           patches=to_slots(_whole_tiles), tile=tile),
        _m(f"R3p@{tile}", "slots", f"slots of zeros that fill the last tile of {tile} take weight", cut(0),
           patches=to_slots(_filled_tile), tile=tile),
    )  # fmt: skip
