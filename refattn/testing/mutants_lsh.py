"""Known mistakes of LSH kernels, forward, as changes of one thing; conventions of published code first, which break ties.

Ids L1 … L11 are mistakes in circulation, with letters for their neighbours; C… are conventions, B… the backward's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.ops.angular_hash import widths
from refattn.schemes.lsh import LSH
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant, reading
from refattn.testing.mutants_lsh_backward import backward
from refattn.testing.staged_lsh import LSHStaged, plain
from refattn.testing.tolerance import exact_in

Array = Any
Host = Any
Applies = Callable[[Case, str], bool]
PUBLISHED = {
    "Cpaper": ("paper", "as the paper's equations: the union of all rounds, scores q·k̂, no look back around the end"),
    "Ctrax": ("trax", "as trax and Hugging Face: the look back runs through all rounds, keys met twice count twice, eps = 1e-6"),
    "C2020": ("trax2020", "as trax of February 2020: its own count of duplicates, other buckets hidden"),
    "Clucid": ("lucidrains", "as reformer-pytorch: scores q·k̂/√d, −5e4 for a token with itself, the look back through all rounds"),
}


@functools.cache
def known(scheme: LSH) -> tuple[Mutant, ...]:
    """What kernels of this configuration do instead."""
    return (*_conventions(scheme), *_keys_and_scores(scheme), *_chunks(scheme), *_hashes(scheme),
            *_rounds(scheme), *_padding(scheme), *_results(scheme), *backward(scheme))  # fmt: skip


def many(case: Case) -> bool:
    """More than one chunk."""
    return case.sizes["n"] > case.scheme.chunk


def rotated(case: Case) -> bool:
    return case.given("rotations") is not None


def rounds(case: Case) -> bool:
    return case.sizes["r"] > 1


def neighbour(id_: str, family: str, title: str, other: LSH, applies: Applies = lambda c, _: True, convention: bool = False) -> Mutant:
    """The scheme with some fields changed."""
    fields = {k: v for k, v in vars(other).items() if k != "factors"}

    def before(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
        return replace(scheme, **fields), inputs

    return Mutant(id_, family, title, applies, before, instead=(lambda scheme: other) if convention else None)


# ---- configurations
def _conventions(scheme: LSH) -> list[Mutant]:
    """One field changed, then published code with the chunk, the order and the factors of the scheme that is asked for."""
    kept = {name: getattr(scheme, name) for name in ("chunk", "causal", "factors")}
    published = [(i, title, replace(LSH.conventions[name], **kept)) for i, (name, title) in PUBLISHED.items()]
    seen, out = {_same(scheme)}, []
    for i, title, other in (*_neighbours(scheme), *published):
        if _same(other) not in seen:
            seen.add(_same(other))
            out.append(neighbour(i, "conventions", title, other, convention=True))
    return out


def _same(scheme: LSH) -> LSH:
    """Where nothing is met twice in another way than in 2020's count, that count is the union of all rounds."""
    plain_ = scheme.wrap == "none" or (scheme.wrap == "rounds" and scheme.within_bucket)
    alike = scheme.duplicates == "2020" and (scheme.before, scheme.after) == (1, 0) and plain_
    return replace(scheme, duplicates="once") if alike else scheme


def _neighbours(scheme: LSH) -> list[tuple[str, str, LSH]]:
    """One field changed, where published code or papers differ."""
    wraps = {"none": "L5: no chunk before the first, where its round's last chunk or that of another round should stand",
             "round": "the last chunk of a round stands before its first", "rounds": "the look back runs through all rounds, around the end"}
    counts = {"counted": "L8: duplicates are not corrected: a key met several times counts as often",
              "once": "every key counts once, however often it is met", "2020": "duplicates are counted as in trax of February 2020"}
    found = [(f"L5{w}", title, replace(scheme, wrap=w)) for w, title in wraps.items()]
    found += [(f"L8{d}", title, replace(scheme, duplicates=d)) for d, title in counts.items()]
    if scheme.scale in (None, 1.0):
        title = "L2: scores are divided by √d" if scheme.scale else "L2: scores are not divided by √d"
        found.append(("L2", title, replace(scheme, scale=None if scheme.scale else 1.0)))
    hidden = "what lies in other buckets is " + ("seen" if scheme.within_bucket else "hidden")
    found.append(("L15", hidden, replace(scheme, within_bucket=not scheme.within_bucket)))
    if scheme.normalise:
        eps = 0.0 if scheme.eps else 1e-6
        found.append(("L23", f"eps is {eps:g} under the root of a key's length", replace(scheme, eps=eps)))
    if scheme.self_score is not None:
        found += [(f"L3{name}", f"{value:g} for the score of a token with itself: it shows in lse of tokens that are alone",
                   replace(scheme, self_score=value))
                  for name, value in (("e3", -1e3), ("e4", -1e4), ("5e4", -5e4), ("e5", -1e5), ("e9", -1e9))]  # fmt: skip
    return found


def _keys_and_scores(scheme: LSH) -> list[Mutant]:
    what = "L1: keys are not divided by their length" if scheme.normalise else "keys are divided by their length"
    found = [
        neighbour("L1", "keys", what, replace(scheme, normalise=not scheme.normalise)),
        Mutant("L1q", "keys", "queries are divided by their length too", lambda c, _: c.option("normalise"),
               patches={"scores": lambda k, usual, x, keys: usual(keys, keys)}),
        Mutant("L2k", "keys", "keys are divided by their root mean square, not by their length: scores √d times too large",
               lambda c, _: c.option("normalise") and c.option("scale") is not None,
               patches={"scores": lambda k, usual, *a: usual(*a) * a[0].shape[-1] ** 0.5}),
        Mutant("L2t", "scores", "scores are divided by √d twice", lambda c, _: c.option("scale") is None,
               patches={"scores": lambda k, usual, *a: usual(*a) * a[0].shape[-1] ** -0.5}),
    ]  # fmt: skip
    if scheme.self_score is None:
        return [*found, neighbour("L3p", "self", "−1e5 stands for the score of a token with itself", replace(scheme, self_score=-1e5))]
    return [
        *found,
        neighbour("L3", "self", "L3: a token sees itself as any other", replace(scheme, self_score=None)),
        Mutant("L3i", "self", "L3: a token never sees itself (−∞ for its own score): one that is alone sees nothing",
               patches={"admits": lambda k, usual, i, j, *at: usual(i, j, *at) & (i != j)}),
        Mutant("L3a", "self", "the score of a token with itself is lowered by a constant, not set to it, as in trax: o is the same, "
               "lse of a token that is alone is not", patches={"own": _lowered}),
    ]  # fmt: skip


def _lowered(kernel: LSHStaged, usual: Any, s: Array) -> Array:
    return of(s).xp.where(np.eye(s.shape[-1], dtype=bool), s + kernel.scheme.self_score, s)


# ---- chunks and order
def _chunks(scheme: LSH) -> list[Mutant]:
    c, before = scheme.chunk, scheme.before

    def chunk(id_: str, title: str, size: int) -> Mutant:
        return neighbour(id_, "chunks", title, replace(scheme, chunk=size), lambda case, _: case.sizes["n"] > min(c, size))

    found = [chunk("L12p", f"chunks of {c + 1} slots", c + 1), chunk("L12d", f"chunks of {2 * c} slots", 2 * c)]
    found += [chunk("L12m", f"chunks of {c - 1} slots", c - 1)] if c > 1 else []
    found += [chunk("L12h", f"chunks of {c // 2} slots", c // 2)] if c > 3 else []
    looks = [("L4", f"L4: no look back, where {before} is asked for", before and {"before": 0}),
             ("L4p", f"look back over {before + 1} chunks", {"before": before + 1}),
             ("L4a", f"look ahead over {scheme.after + 1} chunk" + "s" * (scheme.after > 0), {"after": scheme.after + 1}),
             ("L4s", f"look ahead over {before}, and back over {scheme.after}: the wrong way",
              before != scheme.after and {"before": scheme.after, "after": before})]  # fmt: skip
    found += [neighbour(i, "chunks", title, replace(scheme, **fields), lambda case, _: many(case) or scheme.wrap != "none")
              for i, title, fields in looks if fields]  # fmt: skip
    found += [
        Mutant("L14", "chunks", "the tokens of a last chunk that is not full are lost as keys", _ragged, patches={"meet": _no_tail}),
        Mutant("L14p", "chunks", "empty slots of the last chunk are attended, as tokens that are zero",
               lambda case, _: _ragged(case, _) or case.given("key_valid") is not None, patches={"total": _phantoms}),
        Mutant("L26", "chunks", "the last slot of the chunk before counts twice", lambda case, _: many(case) and scheme.duplicates != "once",
               patches={"meet": _overlap}),
        Mutant("L11", "sort", "L11: tokens of one bucket in the reverse order", patches={"sort": _reversed_ties}),
        Mutant("L11d", "sort", "buckets in descending order", patches={"sort": lambda k, usual, b: usual(-b)}),
    ]  # fmt: skip
    return found + (_causal(scheme) if scheme.causal else [neighbour("L9c", "order", "causal", replace(scheme, causal=True))])


def _causal(scheme: LSH) -> list[Mutant]:
    def no_positions(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
        return scheme, inputs._replace(positions=None)

    return [
        Mutant("L9", "order", "L9: causal by the place in the sort, not by position",
               lambda c, _: not scheme.within_bucket,  # in one bucket that is the place in memory
               patches={"precedes": lambda k, usual, i, j, at_i, at_j: at_i >= at_j}),
        Mutant("L9n", "order", "not causal", before=lambda s, x, t: (replace(s, causal=False), x._replace(positions=None))),
        Mutant("L9m", "order", "causal the wrong way: later positions are seen, earlier ones are not",
               patches={"precedes": lambda k, usual, i, j, at_i, at_j: usual(j, i, at_j, at_i)}),
        Mutant("L9p", "order", "positions are ignored: causal by the place in memory", lambda c, _: c.given("positions") is not None,
               no_positions),
        Mutant("L9q", "order", "tokens at the same position do not see each other",
               lambda c, _: c.given("positions") is not None, patches={"precedes": _strictly}),
    ]  # fmt: skip


def _strictly(kernel: LSHStaged, usual: Any, i: Host, j: Host, at_i: Host, at_j: Host) -> Host:
    return (i == j) | ~usual(j, i, at_j, at_i)


def _ragged(case: Case, dtype: str) -> bool:
    return case.sizes["n"] % case.scheme.chunk != 0


def _no_tail(kernel: LSHStaged, usual: Any, slots: Host) -> Host:
    keys = slots.copy()
    keys[..., -1, :] = -1
    return kernel.count(slots, keys, range(-kernel.scheme.before, kernel.scheme.after + 1))


def _overlap(kernel: LSHStaged, usual: Any, slots: Host) -> Host:
    keys = np.where(np.arange(slots.shape[-1]) == slots.shape[-1] - 1, slots, -1)
    return usual(slots) + kernel.count(slots, keys, (-1,))


def _phantoms(kernel: LSHStaged, usual: Any, e: Array, s: Array, c: Array) -> Array:
    """Empty slots that each token sees, with score 0: padding that is not masked, and is not seen in causal order."""
    b, h, r, chunks, size = kernel.slots.shape
    empty = (kernel.slots < 0).sum(axis=-1).reshape(b, h, r * chunks)
    seen = sum(empty[:, :, to] * there for to, there in (kernel.turn(o, r, chunks) for o in _offsets(kernel.scheme)))
    count = np.zeros(kernel.order.shape[:2] + kernel.order.shape[-1:])
    for rnd in range(r):
        place = np.argsort(kernel.order[:, :, rnd], axis=-1) // size + rnd * chunks
        count += np.take_along_axis(seen, place, axis=-1)
    xp = of(e).xp
    return usual(e, s, c) + xp.exp(0.0 - xp.maximum(c, -80.0)) * of(e).lift((count * kernel.valid)[..., None])


def _offsets(scheme: LSH) -> range:
    return range(-scheme.before, scheme.after + 1)


def _reversed_ties(kernel: LSHStaged, usual: Any, buckets: Host) -> Host:
    """Equal buckets in the order from the last token to the first."""
    token = np.broadcast_to(-np.arange(buckets.shape[-1]), buckets.shape)
    return np.lexsort((token, buckets, np.broadcast_to(~kernel.valid[:, :, None, :], buckets.shape)), axis=-1)


# ---- hashes and rounds
def _hashes(scheme: LSH) -> list[Mutant]:
    def first(axis: int) -> Callable[..., Host]:
        def patch(kernel: LSHStaged, usual: Any, *args: Any) -> Host:
            found = usual(*args)
            return np.broadcast_to(np.take(found, [0], axis=axis), found.shape)

        return patch

    def rotations(change: Callable[[Host], Host]) -> dict[str, Callable[..., Host]]:
        return {"hash": lambda k, usual, x, turn: usual(x, change(turn))}

    return [
        Mutant("L10", "hash", "L10: argmax of xR, where that of [xR; −xR] is asked for", lambda c, _: rotated(c) and c.sizes["w"] > 1,
               patches={"digit": lambda k, usual, part: np.argmax(part, axis=-1)}),
        Mutant("L10n", "hash", "buckets are numbered by [−xR; xR] where [xR; −xR] is asked for", lambda c, _: rotated(c),
               patches={"digit": lambda k, usual, part: usual(-part)}),
        Mutant("L10a", "hash", "argmax of |xR|: opposite tokens share a bucket", lambda c, _: rotated(c) and c.sizes["w"] > 1,
               patches={"digit": lambda k, usual, part: np.argmax(np.abs(part), axis=-1)}),
        Mutant("L10f", "hash", "factors in the other order: the first one counts most", lambda c, _: rotated(c) and len(scheme.factors or ()) > 1,
               patches={"hash": _other_order}),
        Mutant("L10p", "hash", "hashed in half precision or tf32: tokens and rotations rounded to 11 bits", _fine, patches=_hashed_in("float16")),
        Mutant("L10b", "hash", "hashed in bfloat16: tokens and rotations rounded to 8 bits", _fine, patches=_hashed_in("bfloat16")),
        Mutant("L10w", "hash", "a column of the rotations is left out: two buckets too few",
               lambda c, _: rotated(c) and c.sizes["w"] > 1 and scheme.factors is None, patches=rotations(lambda turn: turn[..., :-1])),
        Mutant("L10r", "hash", "the rotations of the first round in every round", lambda c, _: rotated(c) and rounds(c),
               patches=rotations(lambda turn: turn[..., :1, :, :] + 0.0 * turn)),
        Mutant("L10h", "hash", "the rotations of the first head in every head", lambda c, _: rotated(c) and c.sizes["h"] > 1,
               patches=rotations(lambda turn: turn[:1] + 0.0 * turn)),
        Mutant("L13", "hash", "the last bucket is taken for the first: numbers modulo one bucket too few", patches={"decide": _modulo}),
        Mutant("L19h", "heads", "the buckets of the first head in every head", lambda c, _: not rotated(c) and c.sizes["h"] > 1,
               patches={"decide": first(1)}),
        Mutant("L19b", "heads", "the buckets of the first item in every item", lambda c, _: c.sizes["b"] > 1, patches={"decide": first(0)}),
        Mutant("L19r", "rounds", "the buckets of the first round in every round", lambda c, _: not rotated(c) and rounds(c),
               patches={"decide": first(2)}),
    ]  # fmt: skip


def _fine(case: Case, dtype: str) -> bool:
    return rotated(case) and dtype in ("float32", "float64")


def _hashed_in(dtype: str) -> dict[str, Callable[..., Host]]:
    return {"hash": lambda k, usual, x, turn: usual(exact_in(x, dtype), exact_in(turn, dtype))}


def _other_order(kernel: LSHStaged, usual: Any, x: Host, turn: Host) -> Host:
    """The same digits, of which the last is the least significant."""
    found, out, factors = usual(x, turn), np.int64(0), widths(turn.shape[-1], kernel.scheme.factors)
    for f in factors:
        out, found = out * f + found % f, found // f
    return out


def _modulo(kernel: LSHStaged, usual: Any) -> Host:
    found = usual()
    last = found.max(initial=0) if kernel.inputs.rotations is None else math.prod(
        widths(kernel.inputs.rotations.shape[-1], kernel.scheme.factors)) - 1
    return found % max(last, 1)


def _rounds(scheme: LSH) -> list[Mutant]:
    several: Applies = lambda c, _: rounds(c)  # noqa: E731
    return [
        Mutant("L6", "sort", "L6: the sort is not undone: rows stay where they were sorted to", patches={"combine": _moved(False), "statistic": _moved_lse(False)}),
        Mutant("L6b", "sort", "L6: the sort is undone by the permutation itself, not by its inverse",
               patches={"combine": _moved(True), "statistic": _moved_lse(True)}),
        Mutant("L22", "sort", "values are not sorted along with the keys", patches={"combine": _unsorted_values}),
        Mutant("L7", "rounds", "L7: the mean over rounds, not weighted by exp(lse) of each", several, patches={"combine": _mean}),
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


# ---- padding and results
def _padding(scheme: LSH) -> list[Mutant]:
    padded: Applies = lambda c, _: c.given("key_valid") is not None  # noqa: E731
    return [
        Mutant("L16", "padding", "key_valid is ignored: padding is attended, and attends", padded, before=_all_valid),
        Mutant("L16s", "padding", "padding stands in the buckets of tokens: hidden, but it takes their slots", padded, patches={"sort": _among}),
        Mutant("L16i", "padding", "key_valid is inverted", padded,
               before=lambda s, x, t: (s, x._replace(key_valid=~plain(x.key_valid)))),
        Mutant("L16n", "padding", "NaN for a token that sees nothing", padded, after=_nan_rows),
    ]  # fmt: skip


def _all_valid(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
    return scheme, inputs._replace(key_valid=None)


def _among(kernel: LSHStaged, usual: Any, buckets: Host) -> Host:
    return np.argsort(buckets, axis=-1, kind="stable")


def _nan_rows(out: Any, case: Case, dtype: str, tile: int) -> Any:
    xp = of(out["o"]).xp
    return {**out, "o": xp.where((out["lse"] == -math.inf)[..., None], math.nan, out["o"])}


def _results(scheme: LSH) -> list[Mutant]:
    return [
        Mutant("L21", "softmax", "no largest score is subtracted: exp overflows", lambda c, _: c.family == "large", rounds=True,
               patches={"gauge": lambda k, usual, s: of(s).xp.zeros_like(usual(s))}, after=_burst),
        Mutant("L25", "softmax", "never divided by the sum of weights", patches={"combine": lambda k, usual, e, z, v, s, c: of(e, v).xp.matmul(e, v)}),
        Mutant("L20", "lse", "lse to base 2", after=lambda out, case, dtype, tile: {**out, "lse": out["lse"] / math.log(2.0)}),
        Mutant("L20m", "lse", "lse is the mean over rounds: log r too small", lambda c, _: rounds(c),
               after=lambda out, case, dtype, tile: {**out, "lse": out["lse"] - math.log(case.sizes["r"])}),
        Mutant("L20z", "lse", "lse without the largest score: the log of the sum alone",
               patches={"statistic": lambda k, usual, z, c, s: usual(z, 0.0 * c, s)}),
        Mutant("L38", "heads", "the last head repeats the first", lambda c, _: c.sizes["h"] > 1, after=_head),
        Mutant("L41", "layout", "the last query is not stored", lambda c, _: c.sizes["n"] > 1, after=_last_row),
        Mutant("L40", "layout", "v is taken for contiguous", lambda c, _: c.strided, before=_contiguous("v")),
        Mutant("L40q", "layout", "qk is taken for contiguous", lambda c, _: c.strided, before=_contiguous("qk")),
    ]  # fmt: skip


def _burst(out: Any, case: Case, dtype: str, tile: int) -> Any:
    """exp(s) leaves the accumulator's range where lse does: ∞/∞ is NaN, log ∞ is ∞."""
    if reading():
        return out
    beyond = np.asarray(out["lse"]) > (709.7 if dtype == "float64" else 88.7)
    return {"o": np.where(beyond[..., None], np.nan, out["o"]), "lse": np.where(beyond, np.inf, out["lse"])}


def _head(out: Any, case: Case, dtype: str, tile: int) -> Any:
    xp = of(out["o"]).xp
    return {name: xp.concat([x[:, :-1, ...], x[:, :1, ...]], axis=1) for name, x in out.items()}


def _last_row(out: Any, case: Case, dtype: str, tile: int) -> Any:
    keep = np.arange(case.sizes["n"])[:, None] < case.sizes["n"] - 1
    return {**out, "o": of(out["o"]).xp.where(keep, out["o"], 0.0)}


def _contiguous(name: str) -> Callable[..., Any]:
    """What lies in the memory of a view transposed from (B, n, H, d), read in order."""

    def before(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
        x = getattr(inputs, name)
        xp = of(x).xp
        return scheme, inputs._replace(**{name: xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), x.shape)})

    return before
