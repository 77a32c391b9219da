"""LSH attention against exact attention with shared queries and keys, as rounds grow.

A round hides a pair with the chance 1 − P(θ_ij) of two buckets apart; r rounds with (1 − P(θ_ij))^r, and then

    E μ_i = Σ_j p_ij (1 − P(θ_ij))^r        the weight that token i misses

if a token sees its whole bucket. With duplicates="once" what r rounds see is a subset of what more rounds see. With
"counted" (today's trax, Hugging Face) j has the weight N_ij p_ij, and in the limit P(θ_ij) p_ij, not that of exact
attention.
"""

from __future__ import annotations

from itertools import pairwise
from math import acos
from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.schemes.dense import Dense
from refattn.schemes.lsh import LSH
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.exact_tests import ALPHA, equal
from refattn.verify.lsh import meeting
from refattn.verify.subsets import SOURCE, diameter, missed, rms, weights, worst

Array = Any
ROUNDS, N, W = (1, 2, 4, 8, 16, 32, 64), 96, 2  # 2W buckets
SHARP = 4.0  # scale of the scores
_KITAEV = "Kitaev et al. 2020 (arXiv:2001.04451), §2 and appendix A: log N_ij is taken off, each key counts once"
_LAW = "Kitaev et al. 2020 (arXiv:2001.04451), §2; Andoni et al. 2015 (arXiv:1509.02897), §3, for one round"


def claims(seed: int) -> tuple[Claim, ...]:
    """On drawn tokens, unit vectors as keys."""
    draws = rng.stream(seed, "attention", "rounds")
    x, v = draws.normal(size=(N, 8)), draws.normal(size=(N, 4))
    x = x / (x**2).sum(axis=-1, keepdims=True) ** 0.5
    rotations = draws.normal(size=(ROUNDS[-1], 8, W))
    P = weights(x, x, SHARP, load("numpy").xp.eye(N))
    about_counts = counts(x, seed), counted(x, v, P, rotations)
    return *measured(x, v, P, rotations), one_bucket(x, v), hidden_weight(x, P, seed), *about_counts


def scheme(duplicates: str, chunk: int = N) -> LSH:
    """Whole buckets, each seen in its round, where chunk = n."""
    return LSH(chunk=chunk, within_bucket=True, duplicates=duplicates, scale=SHARP)


def exact(x: Array, v: Array) -> Array:
    """Dense attention of x to x, but for every token itself."""
    return Dense(scale=SHARP)(x, x, v, mask=~load("numpy").xp.eye(N, dtype=bool))


def measured(x: Array, v: Array, P: Array, rotations: Array) -> tuple[Claim, Claim]:
    """Error, bound and missed weight of nested sets of rounds, of whole buckets and of chunks of 16."""
    o, wide, size = exact(x, v), diameter(v), rms(exact(x, v))
    itself = load("numpy").xp.eye(N, dtype=bool)
    curves, ratio, masses = [], 0.0, []
    for chunk in (N, 16):
        one, shown, bounds = scheme("once", chunk), [], []
        for r in ROUNDS:
            given = (x, v, rotations[:r])
            mass = missed(P, (one.slot_counts(*given) > 0) | itself)
            error = one(*given) - o
            ratio = max(ratio, worst(error, mass * wide))
            shown.append(rms(error) / size)
            bounds.append(rms(mass[:, None]) * wide / size)
            masses += [mass] * (chunk == N)
        label = "whole buckets" if chunk == N else "chunks of 16"
        curves += [Curve(f"{label}: weight missed × diameter of the values", ROUNDS, tuple(bounds), bound=True),
                   Curve(label, ROUNDS, tuple(shown))]  # fmt: skip
    falls = all(bool((b <= a + 1e-15).all()) for a, b in pairwise(masses))
    means = [float(m.mean()) for m in masses]
    return (
        _claim("rounds: bound", f"every row is off by at most μ·diam(V), μ the weight that it misses, each key counted once "
               f"(n = {N}, r = {ROUNDS[0]} to {ROUNDS[-1]}, whole buckets and chunks of 16)", SOURCE, 1.0,
               f"{ratio:.3f} of it at most; whole buckets: ‖õ − o‖/‖o‖ = {_row(curves[1].y)}", ratio <= 1.0,
               2 * len(ROUNDS) * N, picture=Picture("rounds, each key once", "‖õ − o‖ / ‖o‖", tuple(curves))),
        _claim("rounds: weight missed", "more rounds make no token miss more, and all of them miss less at the end "
               f"(whole buckets, r = {ROUNDS[0]} to {ROUNDS[-1]})", "sets of pairs are nested", "falling", _row(means),
               falls and means[-1] < 0.01 * means[0], len(ROUNDS)),
    )  # fmt: skip


def one_bucket(x: Array, v: Array) -> Claim:
    """All tokens in one bucket and one chunk."""
    buckets = load("numpy").xp.zeros((1, N), dtype=int)
    off = rms(scheme("once")(x, v, buckets=buckets) - exact(x, v)) / rms(exact(x, v))
    statement = f"one bucket for all tokens is exact attention of every token to the others (n = {N}, one chunk)"
    return _claim("one bucket", statement, "equation of LSH", 1e-14, off, off <= 1e-14)


def hidden_weight(x: Array, P: Array, seed: int, trials: int = 4000, together: int = 100) -> Claim:
    """Token 0 draws a key by its weights and then rotations: how often it does not see that key."""
    draws, xp = rng.stream(seed, "attention", "hidden"), load("numpy").xp
    apart = [1.0 - meeting(acos(max(-1.0, min(1.0, float(c)))), W) for c in x @ x[0]]
    rounds, tests, law = (1, 4, 16), [], []
    for r in rounds:
        law.append(float(sum(p * a**r for p, a in zip(P[0], apart, strict=True))))
        keys, hidden = draws.choice(N, size=trials, p=P[0]), 0
        for start in range(0, trials, together):
            pairs = xp.stack([xp.stack([x[0], x[key]]) for key in keys[start : start + together]])  # (heads, 2, d)
            counts = scheme("once", 2).slot_counts(pairs, pairs, draws.normal(size=(len(pairs), r, pairs.shape[-1], W)))
            hidden += int((counts[:, 0, 1] == 0).sum())
        tests.append(equal(hidden, trials, law[-1], ALPHA / len(rounds)))
    seen = [t.frequency for t in tests]
    curves = Curve("Σ p (1 − P(θ))^r", rounds, tuple(law), bound=True), Curve("drawn", rounds, tuple(seen))
    statement = f"a token misses Σ_j p_j (1 − P(θ_j))^r of its weight on average (r = {', '.join(map(str, rounds))})"
    return _claim("rounds: law", statement, _LAW, _row(law), f"{_row(seen)} of {trials:,} drawn keys each",
                  all(t.holds for t in tests), trials * len(rounds), false_alarm=ALPHA,
                  power=f"a share that is off by {max(t.off for t in tests):.3f}",
                  picture=Picture("rounds r", "weight missed", curves))  # fmt: skip


def counts(x: Array, seed: int, rounds: int = 4000) -> Claim:
    """How often token 0 meets others, near and far, in one call of so many rounds."""
    draws, others = rng.stream(seed, "attention", "counts"), tuple(range(1, N, 12))
    pairs = load("numpy").xp.stack([x[[0, j]] for j in others])  # (heads, 2, d)
    met = scheme("counted", 2).slot_counts(pairs, pairs, draws.normal(size=(len(others), rounds, x.shape[-1], W)))[:, 0, 1]
    law = [meeting(acos(max(-1.0, min(1.0, float(x[0] @ x[j])))), W) for j in others]
    tests = [equal(int(m), rounds, p, ALPHA / len(others)) for m, p in zip(met, law, strict=True)]
    seen, line = tuple(t.frequency for t in tests), (min(law), max(law))
    curves = Curve("law", line, line, bound=True), Curve("drawn", tuple(law), seen)
    statement = f"N_ij of r rounds is binomial with P(θ_ij) for {len(others)} pairs (r = {rounds:,})"
    return _claim("rounds: counts", statement, _LAW, _row(law), _row(seen), all(t.holds for t in tests),
                  rounds * len(others), false_alarm=ALPHA,
                  power=f"a chance that is off by {max(t.off for t in tests):.3f} for any pair",
                  picture=Picture("P(θ)", "N / r", curves, logarithmic=False))  # fmt: skip


def counted(x: Array, v: Array, P: Array, rotations: Array) -> Claim:
    """Weights in the limit of many rounds, P(θ_ij) p_ij, and the way there."""
    xp, o = load("numpy").xp, exact(x, v)
    angles = xp.acos(xp.clip(x @ x.T, -1.0, 1.0))
    limit = P * xp.asarray([[meeting(float(a), W) for a in row] for row in angles])
    size, there = rms(o), limit @ v / limit.sum(axis=-1, keepdims=True)
    floor = rms(there - o) / size
    errors = [rms(scheme("counted")(x, v, rotations[:r]) - o) / size for r in ROUNDS]
    curves = (Curve("counted, the limit", ROUNDS, (floor,) * len(ROUNDS), bound=True),
              Curve("duplicates counted", ROUNDS, tuple(errors)))  # fmt: skip
    shown = f"{floor:.3g} in the limit; {_row(errors)} at r = {', '.join(map(str, ROUNDS))}"
    return _claim("rounds: counted", "attention with duplicates counted tends to exact attention, as with each key once",
                  _KITAEV, 0.0, shown, floor < 1e-9, len(ROUNDS), stated=False,
                  picture=Picture("rounds, duplicates counted", "‖õ − o‖ / ‖o‖", curves))  # fmt: skip


def _claim(name: str, statement: str, source: str, bound: Any, found: Any, holds: bool, trials: int = 1, **more: Any
           ) -> Claim:
    return Claim(f"lsh: {name}:", statement, source, bound, found, trials, holds, **more)


def _row(numbers: Any) -> str:
    return ", ".join(f"{x:.3g}" for x in numbers)
