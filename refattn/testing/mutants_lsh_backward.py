"""Known mistakes of LSH kernels in the backward, given a right forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant
from refattn.testing.staged_lsh import LSHStaged, plain
from refattn.testing.tolerance import exact_in

Array = Any
Host = Any


def backward(scheme: Any) -> list[Mutant]:
    """What backwards of this configuration do instead."""
    return [*_gradients_of_keys(scheme), *_weights(scheme), *_buckets(scheme)]


def normalises(case: Case, dtype: str) -> bool:
    return bool(case.option("normalise"))


def _gradients_of_keys(scheme: Any) -> list[Mutant]:
    return [
        Mutant("B1", "keys", "dqk is that of queries alone: the gradient of keys is not added",
               patches={"join": lambda k, usual, dq, dk: dq + 0.0 * dk}),
        Mutant("B2", "keys", "dqk is that of keys alone: the gradient of queries is not added",
               patches={"join": lambda k, usual, dq, dk: dk + 0.0 * dq}),
        Mutant("B3", "keys", "the gradient of the division by length is left out: dk as if keys were not divided", normalises,
               patches={"pull_keys": lambda k, usual, dk: dk}),
        Mutant("B3r", "keys", "keys' lengths are taken for constants: what lies along a key is not removed from dk", normalises,
               patches={"pull_keys": lambda k, usual, dk: dk / k.root}),
        Mutant("B3p", "keys", "dk is not divided by the length of the key", normalises,
               patches={"pull_keys": lambda k, usual, dk: usual(dk) * k.root}),
        Mutant("B3e", "keys", "eps is left out of the gradient of the division by length", lambda c, _: normalises(c, _) and c.option("eps") > 0,
               patches={"pull_keys": _without_eps}),
        Mutant("B7q", "scores", "dq lacks the scale", _scales, patches={"pull_q": lambda k, usual, *a: usual(*a) / k.scale}),
        Mutant("B7k", "scores", "dk lacks the scale", _scales, patches={"pull_k": lambda k, usual, *a: usual(*a) / k.scale}),
        Mutant("B15", "keys", "dk from keys in place of queries: Σ dS k_i", normalises,
               patches={"pull_k": lambda k, usual, ds, x: usual(ds, k.k)}),
        Mutant("B16", "keys", "dq from queries in place of keys: Σ dS x_j", normalises,
               patches={"pull_q": lambda k, usual, ds, keys: usual(ds, k.x)}),
    ]  # fmt: skip


def _scales(case: Case, dtype: str) -> bool:
    d = case.sizes["d"]
    return (d**-0.5 if case.option("scale") is None else case.option("scale")) not in (0.0, 1.0)


def _without_eps(kernel: LSHStaged, usual: Any, dk: Array) -> Array:
    xp, x = of(dk).xp, kernel.x
    size = xp.sum(x * x, axis=-1, keepdims=True)
    root = xp.sqrt(xp.where(size == 0.0, 1.0, size))
    k = x / root
    return (dk - k * xp.sum(k * dk, axis=-1, keepdims=True)) / root


def _weights(scheme: Any) -> list[Mutant]:
    found = [
        Mutant("B4", "self", "the score of a token with itself, which is set, is given a gradient: it shows with dlse alone",
               lambda c, _: c.option("self_score") is not None and c.dlse is not None, patches={"pull_own": lambda k, usual, ds: ds}),
        Mutant("B5", "rounds", "the weights of rounds, exp(lse) of each, are taken for constants", lambda c, _: c.sizes["r"] > 1,
               patches={"soften": _constant_merge}),
        Mutant("B6", "softmax", "D = do·o is left out", patches={"delta": lambda k, usual, do, o, dlse, lse: usual(0.0 * do, o, dlse, lse)}),
        Mutant("B6l", "lse", "dlse is ignored", lambda c, _: c.dlse is not None,
               patches={"delta": lambda k, usual, do, o, dlse, lse: usual(do, o, None, lse)}),
        Mutant("B6s", "lse", "dlse has the wrong sign", lambda c, _: c.dlse is not None,
               patches={"delta": lambda k, usual, do, o, dlse, lse: usual(do, o, -1.0 * dlse, lse)}),
        Mutant("B17", "softmax", "dv from weights that are not divided by their sum", patches={"pull_v": _whole_weights}),
    ]  # fmt: skip
    if scheme.duplicates != "counted":
        found.append(Mutant("B12", "rounds", "duplicates are corrected in the forward alone", patches={"recompute": _all_times}))
    else:
        found.append(Mutant("B12c", "rounds", "a key met several times has the gradient of one that is met once",
                            patches={"recompute": _each_once}))  # fmt: skip
    return found


def _constant_merge(kernel: LSHStaged, usual: Any, p: Array, dp: Array, delta: Array, do: Array) -> Array:
    """dS_r = P_r (dP − do·o_r): softmax within each round, and no gradient through the weights of rounds."""
    b, total = of(p), None
    for r in range(kernel.times.shape[2]):
        part = p * b.lift(kernel.part(kernel.times[:, :, r]))
        z = b.xp.sum(part, axis=-1, keepdims=True)
        own = b.xp.sum(part * dp, axis=-1, keepdims=True) / b.xp.where(z == 0.0, 1.0, z)
        ds = part * (dp - own)
        total = ds if total is None else total + ds
    return total


def _whole_weights(kernel: LSHStaged, usual: Any, p: Array, do: Array) -> Array:
    return usual(p * kernel.z, do)


def _all_times(kernel: LSHStaged, usual: Any, s: Array, top: Array, z: Array, lse: Array) -> Array:
    return kernel.exponentials(s, top) * of(s).lift(kernel.met * 1.0) / of(z).xp.where(z == 0.0, 1.0, z)


def _each_once(kernel: LSHStaged, usual: Any, s: Array, top: Array, z: Array, lse: Array) -> Array:
    return kernel.exponentials(s, top) / of(z).xp.where(z == 0.0, 1.0, z)


def _buckets(scheme: Any) -> list[Mutant]:
    """The forward's decisions, forgotten or half used."""
    several, looks = (lambda c, _: c.sizes["r"] > 1), (lambda c, _: c.sizes["n"] > c.scheme.chunk)
    found = [
        Mutant("B8k", "rounds", "dqk of the last round alone", several, patches={"soften": _some_rounds(-1)}),
        Mutant("B8v", "rounds", "dv of the last round alone", several, patches={"pull_v": _some_values(-1)}),
        Mutant("B9", "sort", "dv is left in the order of the last round's sort", patches={"pull_v": _unsorted}),
        *(Mutant(f"B10{name}", "hash", f"the backward hashes anew, from tokens rounded to {dtype}: other buckets than the forward's",
                 lambda c, dtype: c.given("rotations") is not None and dtype in ("float32", "float64"),
                 patches={"recompute": _with(_hashed_anew(dtype))}) for name, dtype in (("", "float16"), ("b", "bfloat16"))),
        Mutant("B10f", "hash", "the backward has the buckets of the first round alone, in every round", several,
               patches={"recompute": _first_buckets}),
        Mutant("B10h", "hash", "the backward has the buckets of the first head in every head", lambda c, _: c.sizes["h"] > 1,
               patches={"recompute": _head_buckets}),
    ]  # fmt: skip
    if scheme.before or scheme.after:
        found.append(Mutant("B8l", "chunks", "keys get no gradient from other chunks than their own", looks, patches={
            "pull_k": lambda k, usual, ds, x: usual(ds * _own_part(k, ds), x), "pull_v": lambda k, usual, p, do: usual(p * _own_part(k, p), do)}))
    if scheme.causal:
        found.append(Mutant("B11", "order", "the backward is not causal", patches={"recompute": _not_causal}))
    return found


def _some_rounds(at: int) -> Any:
    def soften(kernel: LSHStaged, usual: Any, p: Array, dp: Array, delta: Array, do: Array) -> Array:
        return usual(p, dp, delta, do) * of(p).lift(kernel.part(kernel.times[:, :, at]))

    return soften


def _some_values(at: int) -> Any:
    def pull_v(kernel: LSHStaged, usual: Any, p: Array, do: Array) -> Array:
        return usual(p * of(p).lift(kernel.part(kernel.times[:, :, at])), do)

    return pull_v


def _unsorted(kernel: LSHStaged, usual: Any, p: Array, do: Array) -> Array:
    """Row t has the gradient of the token in slot t."""
    x = usual(p, do)
    xp, (b, h, n, width) = of(x).xp, x.shape
    flat = (kernel.order[:, :, -1] + n * np.arange(b * h).reshape(b, h, 1)).reshape(-1)
    return xp.reshape(xp.take(xp.reshape(x, (b * h * n, width)), flat, axis=0), x.shape)


def _own_part(kernel: LSHStaged, like: Array) -> Array:
    """What part of each pair's meetings is within one chunk."""
    return of(like).lift(kernel.part(kernel.count(kernel.slots, kernel.slots, (0,)).sum(axis=2)))


def _with(change: Any) -> Any:
    """P as in a kernel whose decisions are others, with the forward's statistics."""

    def recompute(kernel: LSHStaged, usual: Any, s: Array, top: Array, z: Array, lse: Array) -> Array:
        other = kernel.again({}, kernel.dtype, kernel.tile)
        change(other)
        other.slots = other.cut(other.order)
        other.met = other.meet(other.slots).sum(axis=2)
        other.w = other.tally(other.met)
        other.see = other.w > 0
        xp = of(s).xp
        near = xp.minimum(s, top + 80.0)  # what the forward did not see may be larger than all that it saw
        return other.weights(near, top) / xp.where(z == 0.0, 1.0, z)

    return recompute


def _hashed_anew(dtype: str) -> Any:
    """As from activations that were computed again, and came out a little different."""

    def change(kernel: LSHStaged) -> None:
        kernel.buckets = np.broadcast_to(kernel.hash(exact_in(plain(kernel.x), dtype), plain(kernel.inputs.rotations)), kernel.buckets.shape)
        kernel.order = kernel.sort(kernel.buckets)

    return change


def _take_first(axis: int) -> Any:
    def change(kernel: LSHStaged) -> None:
        kernel.buckets = np.broadcast_to(np.take(kernel.buckets, [0], axis=axis), kernel.buckets.shape)
        kernel.order = kernel.sort(kernel.buckets)

    return change


def _free(kernel: LSHStaged) -> None:
    kernel.scheme = replace(kernel.scheme, causal=False)


_first_buckets, _head_buckets, _not_causal = map(_with, (_take_first(2), _take_first(1), _free))
