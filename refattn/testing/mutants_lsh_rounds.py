"""Known mistakes of LSH kernels in how rounds are sorted, put back in order and merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.schemes.lsh import LSH
from refattn.testing.mutants import Mutant
from refattn.testing.mutants_lsh_slots import Applies, rounds
from refattn.testing.staged_lsh import LSHStaged

Array = Any
Host = Any


def of_rounds(scheme: LSH) -> list[Mutant]:
    several: Applies = lambda c, _: rounds(c)  # noqa: E731
    return [
        Mutant("L6", "sort", "the sort is not undone: rows stay where they were sorted to", patches={"combine": _moved(False), "statistic": _moved_lse(False)}),
        Mutant("L6b", "sort", "the sort is undone by the permutation itself, not by its inverse",
               patches={"combine": _moved(True), "statistic": _moved_lse(True)}),
        Mutant("L22", "sort", "values are not sorted along with the keys", patches={"combine": _unsorted_values}),
        Mutant("L7", "rounds", "the mean over rounds, not weighted by exp(lse) of each", several, patches={"combine": _mean}),
        Mutant("L7t", "rounds", "rounds are weighted by the exp of their largest score, not of their lse",
               lambda c, _: rounds(c) and not (scheme.normalise and scheme.self_score is None),  # then that of the token itself
               patches={"combine": _by_top}),
        Mutant("L7s", "rounds", "the sum over rounds, not weighted by exp(lse) of each", several,
               patches={"combine": lambda k, usual, *a: _mean(k, usual, *a) * k.times.shape[2]}),
        Mutant("L7l", "rounds", "the last round alone", several, before=_one_round(slice(-1, None))),
        Mutant("L7f", "rounds", "the first round alone", several, before=_one_round(slice(0, 1))),
        Mutant("L17", "rounds", "all rounds are sorted together: a bucket of one round stands among those of the others", several,
               patches={"cut": _together}),
    ]  # fmt: skip


def _by_round(kernel: LSHStaged, s: Array, v: Array) -> list[tuple[Array, Array, Array]]:
    """Σ exp(s − c), Σ exp(s − c) v and the gauge c of each round, (B, H, n, ·), as kernels compute them before they merge."""
    b, found = of(s), []
    for r in range(kernel.times.shape[2]):
        w = kernel.w * kernel.part(kernel.times[:, :, r])
        see = w > 0
        c = b.constant(b.xp.max(b.xp.where(see, s, -math.inf), axis=-1, keepdims=True))
        c = b.xp.where(see.any(axis=-1, keepdims=True), c, 0.0)
        e = b.xp.where(see, b.xp.exp(b.xp.where(see, s - c, 0.0)), 0.0)
        e = e if ((w == 0) | (w == 1)).all() else e * b.lift(w)
        found.append((b.xp.sum(e, axis=-1, keepdims=True), b.xp.matmul(e, v), c))
    return found


def _added(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _over(a: Array, z: Array) -> Array:
    return a / of(z).xp.where(z == 0.0, 1.0, z)


def _mean(kernel: LSHStaged, usual: Any, e: Array, z: Array, v: Array, s: Array, c: Array) -> Array:
    parts = [_over(a, z) for z, a, _ in _by_round(kernel, s, v)]
    return _added(parts) / float(len(parts))


def _by_top(kernel: LSHStaged, usual: Any, e: Array, z: Array, v: Array, s: Array, c: Array) -> Array:
    parts = _by_round(kernel, s, v)
    weights, _ = _levels(parts)
    return _over(_added([w * _over(a, z) for w, (z, a, _) in zip(weights, parts, strict=True)]), _added(weights))


def _levels(parts: list[tuple[Array, Array, Array]]) -> tuple[list[Array], Array]:
    """exp(c − top) of each round, 0 where it sees nothing, and top, the largest gauge."""
    xp, top = of(parts[0][0]).xp, None
    for z, _, c in parts:
        c = xp.where(z == 0.0, -math.inf, c)
        top = c if top is None else xp.maximum(top, c)
    top = xp.where(top == -math.inf, 0.0, top)
    return [xp.where(z == 0.0, 0.0, xp.exp(c - top)) for z, _, c in parts], top


def _gathered(x: Array, at: Host) -> Array:
    """The rows `at` (B, H, n) of x (B, H, n, ·)."""
    xp, (b, h, n, width) = of(x).xp, x.shape
    flat = (at + n * np.arange(b * h).reshape(b, h, 1)).reshape(-1)
    return xp.reshape(xp.take(xp.reshape(x, (b * h * n, width)), flat, axis=0), x.shape)


def _misplaced(kernel: LSHStaged, s: Array, v: Array, itself: bool) -> list[tuple[Array, Array, Array]]:
    """The parts of rounds, of which a token gets the row that stands in the slot of its own number, or, where the sort is
    undone by itself, in the slot that the token in that slot names."""
    out = []
    for r, part in enumerate(_by_round(kernel, s, v)):
        order = kernel.order[:, :, r]
        at = np.take_along_axis(order, order, axis=-1) if itself else order
        z, a, c = (_gathered(x, at) for x in part)
        out.append((z, a, c))
    return out


def _moved(itself: bool) -> Callable[..., Array]:
    def combine(kernel: LSHStaged, usual: Any, e: Array, z: Array, v: Array, s: Array, c: Array) -> Array:
        parts = _misplaced(kernel, s, v, itself)
        weights, _ = _levels(parts)
        pairs = list(zip(weights, parts, strict=True))
        return _over(_added([w * a for w, (_, a, _) in pairs]), _added([w * z for w, (z, _, _) in pairs]))

    return combine


def _moved_lse(itself: bool) -> Callable[..., Array]:
    def statistic(kernel: LSHStaged, usual: Any, z: Array, c: Array, s: Array) -> Array:
        parts = _misplaced(kernel, s, kernel.v, itself)
        weights, top = _levels(parts)
        return usual(_added([w * z for w, (z, _, _) in zip(weights, parts, strict=True)]), top, s)

    return statistic


def _unsorted_values(kernel: LSHStaged, usual: Any, e: Array, z: Array, v: Array, s: Array, c: Array) -> Array:
    """The value of a key is that of the token whose number is the key's slot."""
    b, found = of(s), []
    for r in range(kernel.times.shape[2]):
        place = np.argsort(kernel.order[:, :, r], axis=-1)
        found.append(b.xp.matmul(e * b.lift(kernel.part(kernel.times[:, :, r])), _gathered(v, place)))
    return _over(_added(found), z)


def _one_round(at: slice) -> Callable[..., Any]:
    def before(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
        if inputs.rotations is None:
            return scheme, inputs._replace(buckets=inputs.buckets[..., at, :])
        return scheme, inputs._replace(rotations=inputs.rotations[..., at, :, :])

    return before


def _together(kernel: LSHStaged, usual: Any, order: Host) -> Host:
    """Slots of one sort of all rounds' tokens by (padding, bucket, round, token), cut as the slots of rounds are."""
    slots = usual(order)
    b, h, r, n = kernel.buckets.shape
    rnd, token = np.broadcast_to(np.arange(r)[:, None], kernel.buckets.shape), np.broadcast_to(np.arange(n), kernel.buckets.shape)
    last = np.broadcast_to(~kernel.valid[:, :, None, :], kernel.buckets.shape)
    keys = (x.reshape(b, h, r * n) for x in (token, rnd, kernel.buckets, last))
    best = np.lexsort(tuple(keys), axis=-1) % max(n, 1)
    shown = np.where(np.take_along_axis(np.broadcast_to(kernel.valid, (b, h, n)), best, axis=-1), best, -1)
    out = np.full(slots.shape, -1).reshape(b, h, -1)
    out[..., : r * n] = shown
    return out.reshape(slots.shape)
