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
from refattn.schemes.lsh import LSH
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant, reading
from refattn.testing.mutants_lsh_backward import backward
from refattn.testing.mutants_lsh_rounds import of_rounds
from refattn.testing.mutants_lsh_slots import chunks, hashes, neighbour, padding, rounds
from refattn.testing.staged_lsh import LSHStaged

Array = Any
PUBLISHED = {
    "Cpaper": ("paper", "as the paper's equations: the union of all rounds, scores q·k̂, no look back around the end"),
    "Ctrax": ("trax", "as trax and Hugging Face: the look back runs through all rounds, keys met twice count twice, eps = 1e-6"),
    "C2020": ("trax2020", "as trax of February 2020: its own count of duplicates, other buckets hidden"),
    "Clucid": ("lucidrains", "as reformer-pytorch: scores q·k̂/√d, −5e4 for a token with itself, the look back through all rounds"),
}


@functools.cache
def known(scheme: LSH) -> tuple[Mutant, ...]:
    """What kernels of this configuration do instead."""
    return (*_conventions(scheme), *_keys_and_scores(scheme), *chunks(scheme), *hashes(scheme),
            *of_rounds(scheme), *padding(scheme), *_results(scheme), *backward(scheme))  # fmt: skip


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
    wraps = {"none": "no chunk before the first, where its round's last chunk or that of another round should stand",
             "round": "the last chunk of a round stands before its first", "rounds": "the look back runs through all rounds, around the end"}
    counts = {"counted": "duplicates are not corrected: a key met several times counts as often",
              "once": "every key counts once, however often it is met", "2020": "duplicates are counted as in trax of February 2020"}
    found = [(f"L5{w}", title, replace(scheme, wrap=w)) for w, title in wraps.items()]
    found += [(f"L8{d}", title, replace(scheme, duplicates=d)) for d, title in counts.items()]
    if scheme.scale in (None, 1.0):
        title = "scores are divided by √d" if scheme.scale else "scores are not divided by √d"
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
    what = "keys are not divided by their length" if scheme.normalise else "keys are divided by their length"
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
        neighbour("L3", "self", "a token sees itself as any other", replace(scheme, self_score=None)),
        Mutant("L3i", "self", "a token never sees itself (−∞ for its own score): one that is alone sees nothing",
               patches={"admits": lambda k, usual, i, j, *at: usual(i, j, *at) & (i != j)}),
        Mutant("L3a", "self", "the score of a token with itself is lowered by a constant, not set to it, as in trax: o is the same, "
               "lse of a token that is alone is not", patches={"own": _lowered}, after=_lse_alone),
    ]  # fmt: skip


def _lse_alone(out: Any, case: Case, dtype: str, tile: int) -> Any:
    """What shows in lse is looked for there."""
    return {"lse": out["lse"]}


def _lowered(kernel: LSHStaged, usual: Any, s: Array) -> Array:
    return of(s).xp.where(np.eye(s.shape[-1], dtype=bool), s + kernel.scheme.self_score, s)


# ---- results
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
