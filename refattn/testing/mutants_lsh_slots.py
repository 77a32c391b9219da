"""Known mistakes of LSH kernels in what stands where: chunks, order, hashes, padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.ops.angular_hash import widths
from refattn.schemes.lsh import LSH
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant
from refattn.testing.staged_lsh import LSHStaged, plain
from refattn.testing.tolerance import exact_in

Array = Any
Host = Any
Applies = Callable[[Case, str], bool]


def many(case: Case) -> bool:
    """More than one chunk."""
    return bool(case.sizes["n"] > case.scheme.chunk)


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


def chunks(scheme: LSH) -> list[Mutant]:
    c, before = scheme.chunk, scheme.before

    def chunk(id_: str, title: str, size: int) -> Mutant:
        return neighbour(id_, "chunks", title, replace(scheme, chunk=size), lambda case, _: case.sizes["n"] > min(c, size))

    found = [chunk("L12p", f"chunks of {c + 1} slots", c + 1), chunk("L12d", f"chunks of {2 * c} slots", 2 * c)]
    found += [chunk("L12m", f"chunks of {c - 1} slots", c - 1)] if c > 1 else []
    found += [chunk("L12h", f"chunks of {c // 2} slots", c // 2)] if c > 3 else []
    looks: list[tuple[str, str, dict[str, Any]]] = [("L4", f"no look back, where {before} is asked for", {"before": 0} if before else {}),
             ("L4p", f"look back over {before + 1} chunks", {"before": before + 1}),
             ("L4a", f"look ahead over {scheme.after + 1} chunk" + "s" * (scheme.after > 0), {"after": scheme.after + 1}),
             ("L4s", f"look ahead over {before}, and back over {scheme.after}: the wrong way",
              {} if before == scheme.after else {"before": scheme.after, "after": before})]  # fmt: skip
    found += [neighbour(i, "chunks", title, replace(scheme, **fields), lambda case, _: many(case) or scheme.wrap != "none")
              for i, title, fields in looks if fields]  # fmt: skip
    found += [
        Mutant("L14", "chunks", "the tokens of a last chunk that is not full are lost as keys", _ragged, patches={"meet": _no_tail}),
        Mutant("L14p", "chunks", "empty slots of the last chunk are attended, as tokens that are zero",
               lambda case, _: _ragged(case, _) or case.given("key_valid") is not None, patches={"total": _phantoms}),
        Mutant("L26", "chunks", "the last slot of the chunk before counts twice", lambda case, _: many(case) and scheme.duplicates != "once",
               patches={"meet": _overlap}),
        Mutant("L11", "sort", "tokens of one bucket in the reverse order", patches={"sort": _reversed_ties}),
        Mutant("L11d", "sort", "buckets in descending order", patches={"sort": lambda k, usual, b: usual(-b)}),
    ]  # fmt: skip
    return found + (_causal(scheme) if scheme.causal else [neighbour("L9c", "order", "causal", replace(scheme, causal=True))])


def _causal(scheme: LSH) -> list[Mutant]:
    def no_positions(scheme: LSH, inputs: Any, tile: int) -> tuple[LSH, Any]:
        return scheme, inputs._replace(positions=None)

    return [
        Mutant("L9", "order", "causal by the place in the sort, not by position",
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
    return bool(case.sizes["n"] % case.scheme.chunk)


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


# ---- hashes
def hashes(scheme: LSH) -> list[Mutant]:
    def first(axis: int) -> Callable[..., Host]:
        def patch(kernel: LSHStaged, usual: Any, *args: Any) -> Host:
            found = usual(*args)
            return np.broadcast_to(np.take(found, [0], axis=axis), found.shape)

        return patch

    def rotations(change: Callable[[Host], Host]) -> dict[str, Callable[..., Host]]:
        return {"hash": lambda k, usual, x, turn: usual(x, change(turn))}

    return [
        Mutant("L10", "hash", "argmax of xR, where that of [xR; −xR] is asked for", lambda c, _: rotated(c) and c.sizes["w"] > 1,
               patches={"digit": lambda k, usual, part: np.argmax(part, axis=-1)}),
        Mutant("L10n", "hash", "buckets are numbered by [−xR; xR] where [xR; −xR] is asked for", lambda c, _: rotated(c),
               patches={"digit": lambda k, usual, part: usual(-part)}),
        Mutant("L10a", "hash", "argmax of |xR|: opposite tokens share a bucket", lambda c, _: rotated(c) and c.sizes["w"] > 1,
               patches={"digit": lambda k, usual, part: np.argmax(np.abs(part), axis=-1)}),
        Mutant("L10f", "hash", "factors in the other order: the first one counts most", lambda c, _: rotated(c) and len(scheme.factors or ()) > 1,
               patches={"hash": _other_order}),
        Mutant("L10p", "hash", "hashed in half precision or tf32: tokens and rotations rounded to 11 bits", _fine, patches=_hashed_in("float16")),
        Mutant("L10b", "hash", "hashed in bfloat16: tokens and rotations rounded to 8 bits", _fine, patches=_hashed_in("bfloat16")),
        Mutant("L10t", "hash", "the products of a hash are rounded to half precision: columns that are close tie, and the first is taken", _fine,
               patches=_rounded_to("float16")),
        Mutant("L10m", "hash", "hashed in float16 throughout: tokens, rotations and their products", _fine,
               patches={**_hashed_in("float16"), **_rounded_to("float16")}),
        Mutant("L10x", "hash", "hashed in bfloat16 throughout: tokens, rotations and their products", _fine,
               patches={**_hashed_in("bfloat16"), **_rounded_to("bfloat16")}),
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


def _rounded_to(dtype: str) -> dict[str, Callable[..., Host]]:
    """Products as a kernel stores them that accumulates in float32."""
    return {"digit": lambda k, usual, part: usual(exact_in(part, dtype))}


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


# ---- padding
def padding(scheme: LSH) -> list[Mutant]:
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
