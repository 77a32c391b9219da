"""Linformer against exact attention as its slots k grow: theorem 1's P SᵀS, and attention itself with E = F = S or pooled.

    |P̃_i w − P_i w| ≤ ε‖P_i‖‖w‖ for all i but for a chance of δ,  P̃ = P SᵀS,  if k = 4 ln(2n/δ)/(ε² − ε³)      (corrected)
    ‖P̄F − P‖_F ≥ √Σ_{i>k} σ_i²     for any E and F, since P̄F, of k slots, has rank k             (Eckart–Young–Mirsky)

S: (k, n) normal entries of variance 1/k. P̄F is what Linformer makes of v = 1. ε² − ε³ is at most 4/27, so that the bound
says nothing for k < 27 ln(2n/δ).
"""

from __future__ import annotations

from math import log
from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.exact_tests import ALPHA, at_most
from refattn.verify.sketches import FAMILIES
from refattn.verify.spectra import singular_values
from refattn.verify.subsets import rms, weights

Array = Any
N, D, DELTA, TRIALS = 512, 16, 0.05, 100
SLOTS = (16, 32, 64, 128, 256, 288, 384, 512)
POOLED = (16, 32, 64, 128, 256, 512)
GAUSSIAN = FAMILIES[0]
_ROWS = "Wang et al. 2020 (arXiv:2006.04768), theorem 1 and eq. 12 with ε‖x‖‖y‖ for ε|⟨x, y⟩|, over n rows"
_SEVEN = "Wang et al. 2020 (arXiv:2006.04768), eq. 7 with E = F of theorem 1's proof"
_POOL = "Wang et al. 2020 (arXiv:2006.04768), §4: mean pooling with kernel and stride n/k"
_EYM = "Eckart and Young 1936 (Psychometrika 1), Mirsky 1960 (Q. J. Math. 11); P̄F has rank k"


def claims(seed: int) -> tuple[Claim, ...]:
    """On drawn tokens that lie on a path, so that neighbours are alike and pooling them loses less."""
    draws = rng.stream(seed, "attention", "slots")
    x, steps = draws.normal(size=(2, 2, D)), load("numpy").xp.arange(N)[:, None] / 40.0
    xp = load("numpy").xp
    q, k = (2.0 * (xp.sin(steps) * a + xp.cos(steps) * b) + 0.5 * draws.normal(size=(N, D)) for a, b in x)
    v = draws.normal(size=(N, 4))
    P = weights(q, k, D**-0.5)
    return bound(P, v[:, 0], seed), floor(q, k, P, seed), *attended(q, k, v, seed)


def tolerance(k: int, n: int, delta: float) -> float | None:
    """ε of the corrected bound at k, by bisection of ε² − ε³ below its top at 2/3; None where k is too small for any."""
    wanted = 4.0 * log(2.0 * n / delta) / k
    if wanted > 4.0 / 27.0:
        return None
    low, high = 0.0, 2.0 / 3.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle**2 - middle**3 < wanted else (low, middle)
    return high


def bound(P: Array, w: Array, seed: int) -> Claim:
    """The worst row of each draw of S, all rows sharing it, in units of ‖P_i‖‖w‖."""
    limits = {k: e for k in SLOTS if (e := tolerance(k, N, DELTA)) is not None}
    unit = (P**2).sum(axis=-1) ** 0.5 * float((w**2).sum()) ** 0.5
    exact, middle, tests = P @ w, [], []
    for k in SLOTS:
        draws = rng.stream(seed, "attention", "bound", k)
        worst = sorted(_worst(P, w, exact, unit, GAUSSIAN.matrix(k, N, draws)) for _ in range(TRIALS if k in limits else 9))
        middle.append(worst[len(worst) // 2])
        if k in limits:
            tests.append(at_most(sum(x > limits[k] for x in worst), TRIALS, DELTA, ALPHA / len(limits)))
    curves = (Curve("median of the worst row", SLOTS, tuple(middle)),
              Curve(f"corrected bound, δ = {DELTA}", tuple(limits), tuple(limits.values()), bound=True))  # fmt: skip
    statement = f"all |P̃_i w − P_i w| ≤ ε(k)‖P_i‖‖w‖ but for a chance of δ = {DELTA} (n = {N}, k = {_list(limits)})"
    counts = _list(t.measured.partition(";")[0] for t in tests)
    measured = f"exceeded in {counts}; medians {_row(middle)} at k = {_list(SLOTS)}"
    return _claim("slots: bound", statement, _ROWS, f"ε = {_row(limits.values())}", measured, all(t.holds for t in tests),
                  TRIALS * len(tests), false_alarm=ALPHA,
                  power=f"a chance of {DELTA + max(t.off for t in tests):.3g} at any k",
                  picture=Picture("slots k", "max_i |P̃_i w − P_i w| / ‖P_i‖‖w‖", curves))  # fmt: skip


def _worst(P: Array, w: Array, exact: Array, unit: Array, S: Array) -> float:
    return float((abs(P @ (S.T @ (S @ w)) - exact) / unit).max())


def floor(q: Array, k: Array, P: Array, seed: int) -> Claim:
    """Maps P̄F of random, pooled and cut projections, over the least distance that their rank allows."""
    values, size = singular_values(P), float((P**2).sum()) ** 0.5
    least = [float((values[s:] ** 2).sum()) ** 0.5 / size for s in POOLED[:-1]]
    one = load("numpy").xp.eye(N)
    found: dict[str, list[float]] = {"E = F normal": [], "neighbours averaged": [], "first tokens": []}
    for s in POOLED[:-1]:
        S = GAUSSIAN.matrix(s, N, rng.stream(seed, "attention", "floor", s))
        pool = Linformer(projection="mean", stride=N // s)
        made = Linformer()(q, k, one, E=S), pool(q, k, one), Linformer()(q, k, one, E=one[:s])
        for name, x in zip(found, made, strict=True):
            found[name].append(float(((x - P) ** 2).sum()) ** 0.5 / size)
    ratio = min(x / y for row in found.values() for x, y in zip(row, least, strict=True))
    curves = (Curve(name, POOLED[:-1], tuple(row)) for name, row in found.items())
    line = Curve("no projection is nearer", POOLED[:-1], tuple(least), bound=True)
    shown = "; ".join(f"{name} {_row(row)}" for name, row in found.items())
    statement = f"‖P̄F − P‖_F ≥ √Σ_(i>k) σ_i² for three kinds of E and F (n = {N}, k = {_list(POOLED[:-1])})"
    return _claim("slots: floor", statement, _EYM, f"{_row(least)} of ‖P‖",
                  f"{shown}; at least {ratio:.2f} times the bound", ratio >= 1.0, 3 * len(least),
                  picture=Picture("slots k", "‖P̄F − P‖ / ‖P‖, Frobenius", (line, *curves)))  # fmt: skip


def attended(q: Array, k: Array, v: Array, seed: int, trials: int = 40) -> tuple[Claim, Claim]:
    """Outputs: random slots do not come near, pooled ones end at exact attention."""
    o, medians, tests = Dense()(q, k, v), [], []
    for s in POOLED:
        draws = rng.stream(seed, "attention", "drawn", s)
        found = sorted(rms(Linformer()(q, k, v, E=GAUSSIAN.matrix(s, N, draws)) - o) / rms(o) for _ in range(trials))
        medians.append(found[trials // 2])
        tests.append(at_most(sum(x >= 1.0 for x in found), trials, 0.5, ALPHA / len(POOLED)))
    pooled = [rms(Linformer(projection="mean", stride=N // s)(q, k, v) - o) / rms(o) for s in POOLED]
    curves = (Curve("zeros", POOLED, (1.0,) * len(POOLED), bound=True),
              Curve("E = F normal, median", POOLED, tuple(medians)),
              Curve("neighbours averaged", POOLED[:-1], tuple(pooled[:-1])))  # fmt: skip
    at = f"(n = {N}, k = {_list(POOLED)})"
    return (
        _claim("slots: random", f"with E = F = S attention is nearer than zeros in half of all draws, at some k {at}",
               _SEVEN, 1.0, f"medians {_row(medians)}; further in {_list(t.measured.partition(';')[0] for t in tests)}",
               any(t.holds for t in tests), trials * len(POOLED), stated=False, false_alarm=ALPHA,
               power=f"{tests[0].power} to be further", picture=Picture("slots", "‖õ − o‖ / ‖o‖", curves)),
        _claim("slots: the end", f"neighbours averaged end at exact attention with k = n {at}", _POOL, 1e-13,
               f"{_row(pooled)}", pooled[-1] <= 1e-13, len(POOLED)),
    )  # fmt: skip


def _claim(name: str, statement: str, source: str, bound: Any, found: Any, holds: bool, trials: int = 1, **more: Any
           ) -> Claim:
    return Claim(f"linformer: {name}:", statement, source, bound, found, trials, holds, **more)


def _row(numbers: Any) -> str:
    return ", ".join(f"{x:.3g}" for x in numbers)


def _list(numbers: Any) -> str:
    return ", ".join(map(str, numbers))
