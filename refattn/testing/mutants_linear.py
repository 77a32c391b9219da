"""Known mistakes of linear attention: the feature map, the normaliser, the running state and its chunks, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.features.elu import Elu
from refattn.features.identity import Identity
from refattn.features.relu import Relu
from refattn.testing.cases import Case
from refattn.testing.mutants import TILES, Mutant, _tiled, everything, reading
from refattn.testing.mutants_forward import lower, rounded, tiles
from refattn.testing.mutants_linear_published import BEFORE, PUBLISHED
from refattn.testing.staged_linear import LinearStaged

Array = Any
SHARED = ("F22", "F56", "F57", "F31", "F31i", "F31f", "F37", "F38", "F39", "F39t", "F40", "F40k", "F41", "F41t", "F17", "B7")
"""Mistakes of softmax attention that are mistakes here too: they change the configuration, the inputs or the results."""


def _plain(case: Case) -> bool:
    """True if ε shows: without one, a common factor of the weights cancels."""
    return not case.scheme.normalise or (case.scheme.eps > 0 and case.scheme.eps_at == "sum")


def _causal(case: Case, dtype: str) -> bool:
    return bool(case.scheme.causal) and case.sizes["n"] > 1


def _square(case: Case, dtype: str) -> bool:
    return _causal(case, dtype) and case.sizes["n"] == case.sizes["m"]


def _long(case: Case, dtype: str) -> bool:
    return case.sizes["m"] > 16


def _chunked(case: Case, dtype: str) -> bool:
    return _square(case, dtype) and case.sizes["n"] > 16


def _grouped(case: Case, dtype: str) -> bool:
    return case.sizes["g"] != case.sizes["h"]


def _padded(case: Case, dtype: str) -> bool:
    return case.given("key_valid") is not None


def _normalised(case: Case, dtype: str) -> bool:
    return bool(case.scheme.normalise)


def _option(**changed: Any) -> tuple[Callable[[Any, Any, int], tuple[Any, Any]], Callable[[Any], Any]]:
    """(before, instead) of a neighbour of the configuration."""
    return (lambda s, x, t: (replace(s, **changed), x)), (lambda s: replace(s, **changed))


def _times(rule: Callable[[LinearStaged, Any, Any], Any]) -> dict[str, Any]:
    """A patch by which pairs count rule(kernel, i (n, 1) positions, j (1, m)) times."""

    def hide(kernel: LinearStaged, usual: Any, w: Array) -> Array:
        n, m = w.shape[-2:]
        times = rule(kernel, np.arange(n)[:, None] + kernel.offset, np.arange(m)[None, :])
        return usual(w) * of(w).lift(np.asarray(np.broadcast_to(times, (n, m)), dtype=np.float64), w)

    return {"hide": hide}


def _seen(rule: Callable[[LinearStaged, Any, Any], Any]) -> dict[str, Any]:
    """A patch by which the pairs rule(kernel, i, j) are seen, whatever the scheme says."""

    def hide(kernel: LinearStaged, usual: Any, w: Array) -> Array:
        n, m = w.shape[-2:]
        see = rule(kernel, np.arange(n)[:, None] + kernel.offset, np.arange(m)[None, :])
        return of(w).xp.where(see, w, 0.0)

    return {"hide": hide}


def _valid(kernel: LinearStaged) -> Any:
    """(B | 1, 1, 1, m): keys that are no padding."""
    valid = kernel.given("key_valid")
    return np.ones((1, 1, 1, 1), dtype=bool) if valid is None else np.asarray(of(valid).host(valid))[..., None, None, :]


def _phi(change: Callable[[Any, Array], Array], which: str = "qk") -> dict[str, Any]:
    """A patch of the feature map of queries, keys or both."""
    return {"phi": lambda kernel, usual, x, name: change(kernel, x) if name in which else usual(x, name)}


def _over_heads(kernel: LinearStaged, values: Array) -> Array:
    """Σ over heads up to a query's own, where the sum over tokens belongs: Σ_h' (φ(q_hi)·φ(k_h'i)) values_h'i."""
    xp = of(values).xp
    parts = [[xp.sum(kernel.fq[:, h, ...] * kernel.fk[:, g, ...], axis=-1, keepdims=True) * kernel.scale * values[:, g, ...]
              for g in range(h + 1)] for h in range(kernel.heads)]
    return xp.stack([sum(row[1:], row[0]) for row in parts], axis=1)


def _heads_total(kernel: LinearStaged, usual: Any, w: Array) -> Array:
    return None if usual(w) is None else _over_heads(kernel, kernel.v[..., :1] * 0.0 + 1.0)


def _whole_total(kernel: LinearStaged, usual: Any, w: Array) -> Array:
    """The sum of the weights of all keys, those of later tokens too, but padding."""
    whole = kernel.pairs(kernel.fq, kernel.scheme.feature(_all_keys(kernel)))
    return usual(of(w).xp.where(_valid(kernel), whole, 0.0))


def _number_of_keys(kernel: LinearStaged, usual: Any, w: Array) -> Array:
    keys = np.broadcast_to(kernel.see.sum(axis=-1)[..., None], (*w.shape[:-1], 1))
    return of(w).lift(keys.astype(np.float64), w)


def _all_keys(kernel: LinearStaged) -> Array:
    """Keys before what nobody sees was selected to 0."""
    xp, k = of(kernel.inputs.k).xp, kernel.inputs.k
    return k if kernel.few == kernel.heads else xp.take(k, np.array(kernel.source, dtype=np.int64), axis=1)


def _padding_total(kernel: LinearStaged, usual: Any, keys: Array) -> Array:
    """z with the padded keys in it, as `keys` has them."""
    xp = of(keys).xp
    w = kernel.pairs(kernel.fq, kernel.scheme.feature(keys))
    see = (np.arange(w.shape[-2])[:, None] + kernel.offset >= np.arange(w.shape[-1])) if kernel.scheme.causal else True
    return usual(xp.where(np.broadcast_to(see, w.shape[-2:]), w, 0.0))


def _half_state(kernel: LinearStaged, usual: Any, w: Array, v: Array) -> Array:
    """Σ w v with the sum over earlier chunks rounded to half precision each time one is added."""
    if reading():
        return usual(w, v)
    xp, out = of(v).xp, np.zeros((*w.shape[:-1], v.shape[-1]))  # padded values are 0 already
    state = np.zeros((*v.shape[:-2], kernel.fk.shape[-1], v.shape[-1]))
    for at in tiles(v.shape[-2], kernel.tile):
        out[..., at, :] = w[..., at, at] @ v[..., at, :] + kernel.fq[..., at, :] @ state * kernel.scale
        state = rounded(state + xp.matrix_transpose(kernel.fk[..., at, :]) @ v[..., at, :], lower(kernel.dtype))
    return out


def _undivided(kernel: LinearStaged, usual: Any, u: Array, z: Array | None) -> Array:
    return u if z is None else u / z


def _only_in(rule: Callable[[LinearStaged, Any, Any], Any], position: int = 0) -> Any:
    """A stage of the backward whose pairs count rule(kernel, i, j) times."""

    def patch(kernel: LinearStaged, usual: Any, *args: Any) -> Array:
        x = args[position]
        n, m = x.shape[-2:]
        times = rule(kernel, np.arange(n)[:, None] + kernel.offset, np.arange(m)[None, :])
        return usual(x * of(x).lift(np.asarray(np.broadcast_to(times, (n, m)), dtype=np.float64), x), *args[1:])

    return patch


def _own_chunk(kernel: LinearStaged, i: Any, j: Any) -> Any:
    return i // kernel.tile == j // kernel.tile


FORWARD = (
    Mutant("R5", "normaliser", "not divided by the sum of weights", _normalised, *_option(normalise=False, eps=0.0)[:1],
           instead=_option(normalise=False, eps=0.0)[1]),
    Mutant("R5n", "normaliser", "divided by the sum of weights, where the sum itself is asked for", lambda c, _: not c.scheme.normalise,
           _option(normalise=True)[0], instead=_option(normalise=True)[1]),
    Mutant("R1s", "scale", "weights scaled by 1/√d", lambda c, _: c.scheme.scale is not None and _plain(c) and c.sizes["d"] > 1,
           _option(scale=None)[0], instead=_option(scale=None)[1]),
    Mutant("R1u", "scale", "weights not scaled by 1/√d", lambda c, _: c.scheme.scale is None and _plain(c) and c.sizes["d"] > 1,
           _option(scale=1.0)[0], instead=_option(scale=1.0)[1]),
    Mutant("R8r", "feature map", "φ = relu", lambda c, _: not isinstance(c.scheme.feature, Relu),
           _option(feature=Relu())[0], instead=_option(feature=Relu())[1]),
    Mutant("R8l", "feature map", "φ = elu + 1", lambda c, _: not isinstance(c.scheme.feature, Elu),
           _option(feature=Elu())[0], instead=_option(feature=Elu())[1]),
    Mutant("R8i", "feature map", "no feature map: φ(x) = x", lambda c, _: not isinstance(c.scheme.feature, Identity),
           _option(feature=Identity())[0], instead=_option(feature=Identity())[1]),
    Mutant("R12", "normaliser", "ε is left out", lambda c, _: c.scheme.eps > 0, _option(eps=0.0)[0], instead=_option(eps=0.0)[1]),
    Mutant("R12k", "normaliser", "ε is added to the sum of keys, where the sum of weights is asked for",
           lambda c, _: c.scheme.eps > 0 and c.scheme.eps_at == "sum", _option(eps_at="keys")[0], instead=_option(eps_at="keys")[1]),
    Mutant("R12s", "normaliser", "ε is added to the sum of weights, where the sum of keys is asked for",
           lambda c, _: c.scheme.eps > 0 and c.scheme.eps_at == "keys", _option(eps_at="sum")[0], instead=_option(eps_at="sum")[1]),
    Mutant("R12e", "normaliser", "ε = 1e-6 is added to the sum of weights", lambda c, _: c.scheme.normalise and c.scheme.eps == 0,
           _option(eps=1e-6)[0], instead=_option(eps=1e-6)[1]),
    Mutant("R8", "feature map", "φ = elu, without the 1", lambda c, _: isinstance(c.scheme.feature, Elu),
           patches=_phi(lambda k, x: k.scheme.feature(x) - 1.0)),
    Mutant("R8x", "feature map", "φ = exp", lambda c, _: isinstance(c.scheme.feature, Elu), patches=_phi(lambda k, x: of(x).xp.exp(x))),
    Mutant("R8q", "feature map", "queries are not mapped", lambda c, _: not isinstance(c.scheme.feature, Identity),
           patches=_phi(lambda k, x: x, "q")),
    Mutant("R8k", "feature map", "keys are not mapped", lambda c, _: not isinstance(c.scheme.feature, Identity),
           patches=_phi(lambda k, x: x, "k")),
    Mutant("R5a", "normaliser", "every query is divided by the sum over all keys, later ones too",
           lambda c, _: _causal(c, _) and c.scheme.normalise, patches={"total": _whole_total}),
    Mutant("R5c", "normaliser", "divided by the number of keys, not by the sum of weights", _normalised,
           patches={"total": _number_of_keys}),
    Mutant("R5z", "normaliser", "0/0 = NaN for a query whose weights sum to 0", lambda c, _: c.scheme.normalise and empty(c),
           patches={"combine": _undivided}),
    Mutant("R6", "running state", "the running sum goes over heads, not over tokens",
           lambda c, _: _square(c, _) and c.sizes["h"] > 1 and c.given("key_valid") is None,
           patches={"mix": lambda kernel, usual, w, v: _over_heads(kernel, v), "total": _heads_total}),
    Mutant("R7", "causal", "the state is exclusive: a query does not see its own position", _causal,
           patches=_seen(lambda k, i, j: k.see & (j < i))),
    Mutant("R7i", "causal", "a query sees one key beyond the diagonal", _causal,
           patches=_seen(lambda k, i, j: (j <= i + 1) & _valid(k))),
    Mutant("R23", "causal", "not causal", _causal, _option(causal=False, align=None)[0]),
    Mutant("R4z", "padding", "padded keys are set to 0 before the feature map, whose value there still counts in the sum of weights",
           lambda c, _: _padded(c, _) and c.scheme.normalise and not (isinstance(c.scheme.feature, Identity) or (
               isinstance(c.scheme.feature, Relu) and c.scheme.feature.epsilon == 0)),
           patches={"total": lambda k, usual, w: _padding_total(k, usual, of(k.k).xp.where(
               np.swapaxes(_valid(k), -1, -2), _all_keys(k), 0.0))}),
    Mutant("R4v", "padding", "values of padded keys are hidden, their weights still count in the sum of weights",
           lambda c, _: _padded(c, _) and c.scheme.normalise,
           patches={"total": lambda k, usual, w: _padding_total(k, usual, _all_keys(k))}),
    Mutant("R30", "tail", "the first key is dropped", lambda c, _: c.sizes["m"] > 1, patches=_times(lambda k, i, j: j > 0)),
    Mutant("R30l", "tail", "the last key is dropped", lambda c, _: c.sizes["m"] > 1, patches=_times(lambda k, i, j: j < j.size - 1)),
)  # fmt: skip
CHUNKS = (
    Mutant("R11", "chunks", "the first token of every chunk of {tile} counts twice within it", _chunked,
           patches=_times(lambda k, i, j: 1 + ((j % k.tile == 0) & _own_chunk(k, i, j)))),
    Mutant("R11b", "chunks", "the last token of every chunk of {tile} counts twice in later chunks", _chunked,
           patches=_times(lambda k, i, j: 1 + ((j % k.tile == k.tile - 1) & ~_own_chunk(k, i, j)))),
    Mutant("R11l", "chunks", "the last token of every chunk of {tile} is missing from the state", _chunked,
           patches=_times(lambda k, i, j: (j % k.tile != k.tile - 1) | _own_chunk(k, i, j))),
    Mutant("R11s", "chunks", "the state of earlier chunks of {tile} is lost: each chunk is alone", _chunked,
           patches=_times(_own_chunk)),
    Mutant("R11d", "chunks", "the state is one chunk of {tile} late: the chunk before is missing", _chunked,
           patches=_times(lambda k, i, j: (i // k.tile != j // k.tile + 1))),
    Mutant("R11o", "chunks", "the state is that of the chunk of {tile} before alone, not of all", _chunked,
           patches=_times(lambda k, i, j: (i // k.tile <= j // k.tile + 1))),
    Mutant("R11m", "chunks", "inside a chunk of {tile} nothing is hidden: a query sees the whole chunk", _chunked,
           patches=_seen(lambda k, i, j: (j // k.tile <= i // k.tile) & _valid(k))),
    Mutant("R28", "tail", "tokens behind the last full chunk of {tile} are dropped",
           lambda c, _: _long(c, _) and c.sizes["m"] % 128 != 0, patches=_times(lambda k, i, j: j < j.size // k.tile * k.tile)),
    Mutant("R28l", "tail", "the last chunk of {tile} keys is dropped, full or not",
           lambda c, _: _long(c, _) and not c.scheme.causal, patches=_times(lambda k, i, j: j < (j.size - 1) // k.tile * k.tile)),
    Mutant("R15", "precision", "the state is rounded to half precision after each chunk of {tile}", _chunked,
           patches={"mix": _half_state}, rounds=True),
)  # fmt: skip
BACKWARD = (
    Mutant("BR1", "normaliser", "no gradient through the sum of weights", _normalised,
           patches={"delta": lambda k, usual, do, o, z: usual(do, o, z) * 0.0}),
    Mutant("BR1s", "normaliser", "the gradient through the sum of weights has the wrong sign", _normalised,
           patches={"delta": lambda k, usual, do, o, z: usual(do, o, z) * -1.0}),
    Mutant("BR1v", "normaliser", "dv is not divided by the sum of weights", _normalised,
           patches={"pull_v": lambda k, usual, w, du: usual(w, k.cotangent)}),
    Mutant("BR2q", "feature map", "dq without the slope of φ", lambda c, _: not isinstance(c.scheme.feature, Identity),
           patches={"slope": lambda k, usual, x, fx, dfx, name: dfx if name == "q" else usual(x, fx, dfx, name)}),
    Mutant("BR2k", "feature map", "dk without the slope of φ", lambda c, _: not isinstance(c.scheme.feature, Identity),
           patches={"slope": lambda k, usual, x, fx, dfx, name: dfx if name == "k" else usual(x, fx, dfx, name)}),
    Mutant("BR2b", "feature map", "dq and dk without the slope of φ", lambda c, _: not isinstance(c.scheme.feature, Identity),
           patches={"slope": lambda k, usual, x, fx, dfx, name: dfx}),
    Mutant("BR3", "running state", "dk and dv from a sum that runs forward, over earlier queries", _square,
           patches={"pull_k": lambda k, usual, dw, fq: usual(_other_way(k, dw, False), fq),
                    "pull_v": lambda k, usual, w, du: usual(_other_way(k, w, True), du)}),
    Mutant("BR3o", "running state", "dk and dv without the query at the key's own position", _square,
           patches={"pull_k": _only_in(lambda k, i, j: i != j), "pull_v": _only_in(lambda k, i, j: i != j)}),
    Mutant("BR3q", "running state", "dq without the key at the query's own position", _square,
           patches={"pull_q": _only_in(lambda k, i, j: i != j)}),
    Mutant("BR4", "scale", "dq and dk without the scale", lambda c, _: c.scheme.scale is None and c.sizes["d"] > 1,
           patches={"pull_q": lambda k, usual, dw, f: usual(dw, f) / k.scale, "pull_k": lambda k, usual, dw, f: usual(dw, f) / k.scale}),
    Mutant("BR8", "normaliser", "dq without what ε adds to the sum of keys",
           lambda c, _: c.scheme.eps > 0 and c.scheme.eps_at == "keys", patches={"through_eps": lambda k, usual, dfq, dz: dfq}),
    Mutant("BR5", "heads", "dk and dv of a shared key head from its last query head alone", _grouped,
           patches={"gather": lambda k, usual, dx: of(dx).xp.stack([dx[:, k.readers(g)[-1], ...] for g in range(k.few)], axis=1)}),
    Mutant("BR5m", "heads", "dk and dv of a shared key head averaged, not summed", _grouped,
           patches={"gather": lambda k, usual, dx: usual(dx) * (k.few / k.heads)}),
)  # fmt: skip
BACK_CHUNKS = (
    Mutant("BR7", "chunks", "dk and dv from the queries of their own chunk of {tile} alone", _chunked,
           patches={"pull_k": _only_in(_own_chunk), "pull_v": _only_in(_own_chunk)}),
    Mutant("BR7q", "chunks", "dq from the keys of its own chunk of {tile} alone", _chunked, patches={"pull_q": _only_in(_own_chunk)}),
    Mutant("BR7l", "chunks", "dk and dv without the first query of every later chunk of {tile}", _chunked,
           patches={name: _only_in(lambda k, i, j: (i % k.tile != 0) | _own_chunk(k, i, j)) for name in ("pull_k", "pull_v")}),
)  # fmt: skip


def _other_way(kernel: LinearStaged, x: Array, values: bool) -> Array:
    """The weights, or their cotangents, of the pairs on the other side of the diagonal, the diagonal included."""
    xp, n = of(x).xp, x.shape[-1]
    whole = kernel.pairs(kernel.fq, kernel.fk) if values else kernel.pull_weights(*kernel.pulled) * kernel.scale
    later = np.arange(n)[:, None] <= np.arange(n)[None, :]
    return xp.where(later & _valid(kernel), whole, 0.0)


def empty(case: Case) -> bool:
    """True if the weights of some query sum to 0."""
    kernel = LinearStaged(case.scheme, case.inputs)
    kernel.run()
    return kernel.z is not None and bool((np.asarray(kernel.z) == 0.0).any())


def linear() -> tuple[Mutant, ...]:
    """The dictionary of linear attention; conventions first."""
    several = [_tiled(m, t) for m in (*CHUNKS, *BACK_CHUNKS) for t in TILES]
    shared = [m for m in everything() if m.id.partition("@")[0] in SHARED]
    found = (*FORWARD, *PUBLISHED, *BEFORE, *shared, *several, *BACKWARD)
    return tuple(sorted(found, key=lambda m: (m.backward, math.inf if m.instead is None else 0)))
