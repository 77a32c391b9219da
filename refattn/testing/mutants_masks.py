"""Mistakes of who sees whom: causal order, alignment, masks, padding, tails and tile boundaries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import active, of
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant, add, host
from refattn.testing.mutants_forward import blind, hides, placed
from refattn.testing.staged import Staged

Array = Any
SENTINEL = -1e4


def seen(rule: Callable[[Staged, Any, Any], Any]) -> dict[str, Any]:
    """A patch that changes who is seen: rule(kernel, i (n, 1), j (1, m)) → the new boolean array."""

    def hide(kernel: Staged, usual: Any, s: Array) -> Array:
        n, m = s.shape[-2:]
        return of(s).xp.where(rule(kernel, np.arange(n)[:, None], np.arange(m)[None, :]), s, -math.inf)

    return {"hide": hide}


def filled(fill: Callable[[Any, Array], Any]) -> dict[str, Any]:
    """A patch that puts fill(xp, s) where −∞ belongs."""
    return {"hide": lambda kernel, usual, s: of(s).xp.where(kernel.see, s, fill(of(s).xp, s))}


def shifted(by: int) -> Any:
    """Every query looks `by` keys further."""

    def before(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
        n, m = inputs.q.shape[-2], inputs.k.shape[-2]
        start = m - n if scheme.align == "bottom_right" else 0
        q = np.arange(n) + start if inputs.q_positions is None else host(inputs.q_positions)
        k = np.arange(m) if inputs.k_positions is None else inputs.k_positions
        return replace(scheme, align=None), inputs._replace(q_positions=q + by, k_positions=k)

    return before


def causal(case: Case, dtype: str) -> bool:
    return bool(case.option("causal"))


def unordered(case: Case, dtype: str) -> bool:
    return case.option("causal") is False and case.sizes["m"] > 1


def rectangular(case: Case, dtype: str) -> bool:
    return placed(case) and case.option("align") is not None and case.sizes["n"] != case.sizes["m"]


def _other_corner(scheme: Any) -> Any:
    return replace(scheme, align="top_left" if scheme.align == "bottom_right" else "bottom_right")


def tiles_that_see(kernel: Any, i: Any, j: Any) -> Any:
    """A tile is computed whole if any of its pairs is visible."""
    t, see = kernel.tile, np.broadcast_to(kernel.see, (*kernel.see.shape[:-2], i.shape[0], j.shape[1]))
    pad = [(0, 0)] * (see.ndim - 2) + [(0, -see.shape[-2] % t), (0, -see.shape[-1] % t)]
    whole = np.pad(see, pad)
    tiles = whole.reshape(*whole.shape[:-2], whole.shape[-2] // t, t, whole.shape[-1] // t, t).any(axis=(-3, -1))
    return np.repeat(np.repeat(tiles, t, axis=-2), t, axis=-1)[..., : i.shape[0], : j.shape[1]]


def uneven(case: Case, tile: int) -> bool:
    return case.sizes["m"] % tile != 0 and case.sizes["m"] > tile


def _offset(kernel: Staged, i: Any, j: Any) -> int:
    return int(j.size - i.size) if kernel.option("align") == "bottom_right" else 0


def _clamped(kernel: Staged, usual: Any, s: Array) -> Array:
    """Keys m − tile … are counted again in place of the last m mod tile keys."""
    m, tile = s.shape[-1], kernel.tile
    rest, j = m % tile, np.arange(s.shape[-1])
    if rest == 0 or m < tile:
        return usual(s)
    times = (j < m - rest).astype(int) + ((j >= m - tile) & (j < m - tile + rest))
    return of(s).xp.where(times > 0, usual(s) + np.log(np.maximum(times, 1)), -math.inf)


def _phantoms(count: Callable[[Staged], int]) -> dict[str, Any]:
    """Keys of zeros behind the last one: score 0, value 0."""
    return {"total": lambda k, usual, e, c, s: usual(e, c, s) + count(k) * of(c).xp.exp(c * -1.0)}


def _only(name: str, out: dict[str, Array]) -> dict[str, Array]:
    return {name: out[name]}


def _blind_rows(value: Callable[[Any, Case], Array]) -> Any:
    """o with other contents in the rows that see nothing; lse is left out, since fills differ."""

    def after(out: Any, case: Case, dtype: str, tile: int) -> Any:
        xp = of(out["o"]).xp
        return {"o": xp.where((out["lse"] == -math.inf)[..., None], value(xp, case), out["o"])}

    return after


def _mean_of_all(scheme: Any) -> Any:
    """The scheme that asks for the mean; None if it has no such option."""
    return replace(scheme, empty="mean") if hasattr(scheme, "empty") else None


def _mean(xp: Any, case: Case) -> Array:
    """The mean of each head's values, computed in the reading that is on."""
    b, few = active(), case.sizes["g"]
    v = case.inputs.v if b is None else b.lift(case.inputs.v)
    mean = xp.sum(v, axis=-2, keepdims=True) / case.sizes["m"]
    heads, ratio = range(case.sizes["h"]), case.sizes["h"] // few
    return xp.take(mean, np.array([h % few if case.scheme.heads == "tiled" else h // ratio for h in heads]), axis=1)


add(
    Mutant("F8", "mask", "hidden scores are replaced by −1e4, not −∞", lambda c, _: hides(c), patches=filled(lambda xp, s: SENTINEL)),
    Mutant("F36", "mask", "−1e4 is added to hidden scores, for −∞", lambda c, _: hides(c), patches=filled(lambda xp, s: s + SENTINEL)),
    Mutant("F35", "mask", "scores are multiplied by the mask, so hidden keys score 0", lambda c, _: hides(c),
           patches=filled(lambda xp, s: 0.0)),
    Mutant("F20", "causal", "strictly causal: a query does not see its own position", causal, shifted(-1)),
    Mutant("F21", "causal", "a query sees one key beyond the diagonal", causal, shifted(1)),
    Mutant("F22", "causal", "the diagonal starts in the other corner (top_left where bottom_right is asked, or the reverse)",
           rectangular, lambda s, x, t: (_other_corner(s), x), instead=_other_corner),
    Mutant("F23c", "causal", "not causal", causal,
           lambda s, x, t: (replace(s, causal=False, align=None), x._replace(q_positions=None, k_positions=None))),
    Mutant("F56", "causal", "causal, aligned top_left, where every query may see every key", unordered,
           lambda s, x, t: (replace(s, causal=True, align="top_left"), x)),
    Mutant("F57", "causal", "causal, aligned bottom_right, where every query may see every key", unordered,
           lambda s, x, t: (replace(s, causal=True, align="bottom_right"), x)),
    Mutant("F23", "mask", "the mask is ignored", lambda c, _: c.given("mask") is not None, lambda s, x, t: (s, x._replace(mask=None))),
    Mutant("F61", "mask", "the mask is inverted (True taken for hidden)", lambda c, _: c.given("mask") is not None,
           lambda s, x, t: (s, x._replace(mask=~host(x.mask)))),
    Mutant("F23s", "mask", "segments are ignored", lambda c, _: c.given("segment_ids") is not None,
           lambda s, x, t: (s, x._replace(segment_ids=None, kv_segment_ids=None))),
    Mutant("F62", "mask", "the mask of the first item is used for every item",
           lambda c, _: c.given("mask") is not None and c.given("mask").ndim == 4 and c.given("mask").shape[0] > 1,
           lambda s, x, t: (s, x._replace(mask=host(x.mask)[:1]))),
    Mutant("F27", "causal", "in tiles of {tile} that the diagonal crosses nothing is hidden", tile=-1, several=False,
           applies=lambda c, _: c.option("causal") and c.sizes["m"] > 1, patches=seen(tiles_that_see)),
    Mutant("F60", "causal", "the loop over tiles of {tile} keys ends at the query's own index, without the offset m − n", tile=-1,
           applies=lambda c, _: c.option("causal") and c.sizes["m"] > c.sizes["n"] and c.given("q_positions") is None,
           patches=seen(lambda k, i, j: k.see & (j < (i // k.tile + 1) * k.tile))),
    Mutant("F60f", "causal", "the keys of a tile of {tile} queries end with the tile that its first query sees last", tile=-1,
           applies=lambda c, _: c.option("causal") and c.sizes["n"] > 1 and c.given("q_positions") is None,
           patches=seen(lambda k, i, j: k.see & (j < ((i // k.tile * k.tile + _offset(k, i, j)) // k.tile + 1) * k.tile))),
    Mutant("F55", "tail", "the last tile of {tile} keys is read from m − {tile} on, its mask from its true start", tile=-1,
           applies=lambda c, _: uneven(c, 16) or uneven(c, 32) or uneven(c, 64), patches={"hide": _clamped}),
    Mutant("F28", "tail", "keys behind the last full tile of {tile} are dropped", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16 and c.sizes["m"] % 128 != 0,
           patches=seen(lambda k, i, j: k.see & (j < j.size // k.tile * k.tile))),
    Mutant("F28l", "tail", "the last tile of {tile} keys is dropped, full or not", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16, patches=seen(lambda k, i, j: k.see & (j < (j.size - 1) // k.tile * k.tile))),
    Mutant("F29", "tail", "keys of zeros that pad the last tile of {tile} are attended", tile=-1, several=False,
           applies=lambda c, _: not c.option("causal") and c.sizes["m"] % 128 != 0 and c.sizes["m"] > 1,
           patches=_phantoms(lambda k: -k.inputs.k.shape[-2] % k.tile)),
    Mutant("F29p", "tail", "one key of zeros is attended that is not there", patches=_phantoms(lambda k: 1)),
    Mutant("F30", "tail", "the first key is dropped", lambda c, _: c.sizes["m"] > 1, patches=seen(lambda k, i, j: k.see & (j > 0))),
    Mutant("F30l", "tail", "the last key is dropped", lambda c, _: c.sizes["m"] > 1,
           patches=seen(lambda k, i, j: k.see & (j < j.size - 1))),
    Mutant("F53", "tail", "the first key of every tile of {tile} but the first is dropped", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16, patches=seen(lambda k, i, j: k.see & ((j % k.tile > 0) | (j == 0)))),
    Mutant("F54", "tail", "the key before each boundary of tiles of {tile} counts twice", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16,
           patches={"hide": lambda k, usual, s: usual(s) + _twice(s.shape[-1], k.tile)}),
    Mutant("F31", "padding", "key validity is ignored", lambda c, _: c.given("key_valid") is not None,
           lambda s, x, t: (s, x._replace(key_valid=None))),
    Mutant("F31i", "padding", "key validity is inverted", lambda c, _: c.given("key_valid") is not None,
           lambda s, x, t: (s, x._replace(key_valid=~host(x.key_valid)))),
    Mutant("F31f", "padding", "the length of the first item is used for every item",
           lambda c, _: c.given("key_valid") is not None and c.sizes["b"] > 1,
           lambda s, x, t: (s, x._replace(key_valid=host(x.key_valid)[:1]))),
    Mutant("F32", "padding", "queries are masked by key validity, keys are not",
           lambda c, _: c.given("key_valid") is not None and c.sizes["n"] == c.sizes["m"],
           patches={"hide": lambda k, usual, s: of(s).xp.where(host(k.given("key_valid"))[..., None, :, None], s, -math.inf)}),
    Mutant("F33n", "blind rows", "NaN for a query that sees nothing", lambda c, _: blind(c),
           after=_blind_rows(lambda xp, c: math.nan)),
    Mutant("F33m", "blind rows", "the mean of V for a query that sees nothing", lambda c, _: blind(c) and c.option("empty") in ("zero", None),
           after=_blind_rows(_mean), instead=_mean_of_all),
    Mutant("F33z", "blind rows", "0 for a query that sees nothing, where the mean of V is asked",
           lambda c, _: blind(c) and c.option("empty") == "mean",
           after=_blind_rows(lambda xp, c: 0.0), instead=lambda s: replace(s, empty="zero")),
    Mutant("F34", "segments", "sequence boundaries are one position late", lambda c, _: c.given("segment_ids") is not None,
           lambda s, x, t: (s, x._replace(segment_ids=_late(x.segment_ids), kv_segment_ids=_late(x.kv_segment_ids)))),
    Mutant("F34p", "positions", "the positions of the first item are used for every item",
           lambda c, _: c.given("q_positions") is not None and c.given("q_positions").ndim > 1 and c.sizes["b"] > 1,
           lambda s, x, t: (s, x._replace(q_positions=host(x.q_positions)[:1]))),
)  # fmt: skip


def _twice(m: int, tile: int) -> Any:
    j = np.arange(m)
    return np.where((j % tile == tile - 1) & (j < m - 1), math.log(2.0), 0.0)


def _late(ids: Array | None) -> Any:
    if ids is None:
        return None
    ids = host(ids)
    return np.concatenate([ids[..., :1], ids[..., :-1]], axis=-1)
