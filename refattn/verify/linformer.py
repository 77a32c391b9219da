"""Linformer's theorems as printed, with their counter-examples, what is true in their place, and a residual to measure.

P: (n, n) rows of softmax weights, w: one column of values, S: (k, n) normal entries of variance 1/k.
Theorem 1 puts P̃ = P SᵀS for P; theorem 2 (eq. 8) puts softmax(a Eᵀ) F v for softmax(a) v, a one row of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, exp, sqrt
from typing import Any

from scipy.special import softmax
from scipy.stats import beta

from refattn import rng
from refattn.errors import OptionError, ShapeError
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer
from refattn.verify import linformer_paper
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.exact_tests import ALPHA, at_most, equal, pictured
from refattn.verify.jl_laws import linformer_dimension, product_failure, rows_dimension
from refattn.verify.sketches import FAMILIES, moments

Array = Any
_FIRST = "Wang et al. 2020 (arXiv:2006.04768), theorem 1"
_SECOND = "Wang et al. 2020 (arXiv:2006.04768), theorem 2, eq. 8"
_PROOF = "Wang et al. 2020 (arXiv:2006.04768), proof of theorem 2: E = δS, F = exp(−δ)S"
_ROWS = "Wang et al. 2020 (arXiv:2006.04768), eq. 12 with ε‖x‖‖y‖ for ε|⟨x, y⟩|, over n rows"
_MOMENTS = "fourth moments of normal entries, row by row"
GAUSSIAN = FAMILIES[0]


def run(seed: int = 0) -> tuple[Claim, ...]:
    """Every claim, those that draw on draws of this seed."""
    return (
        weights_that_cancel(seed), theorem_one(seed), corrected(seed), error_identity(), what_governs(seed),
        construction(seed), nothing_at_all(seed), residuals(seed), *linformer_paper.run(),
    )  # fmt: skip


@dataclass(frozen=True)
class Residual:
    """How far Linformer is from dense attention on given data, beside what returning zeros would be.

    error, zeros: ‖õ − o‖ and ‖o‖ over ‖o‖ (so that zeros is 1, or 0 without any output). row, row_of_zeros: the largest
    |õ_ic − o_ic| and |o_ic| over ‖p_i‖‖v_c‖ (queries i, channels c): theorem 2 asks for at most ε.
    """

    error: float
    zeros: float
    row: float
    row_of_zeros: float


def residual(q: Array, k: Array, v: Array, *, scheme: Linformer | None = None, **projection: Array) -> Residual:
    """The residual of a projection, as ``residual(q, k, v, E=E, F=F)``: NumPy arrays (..., n, d), (..., m, d), (..., m, e).

    Raises
    ------
    ShapeError, OptionError, DtypeError, LibraryError
        As Linformer and Dense do; key heads must be as many as query heads, and there is no padding.
    """
    scheme = Linformer() if scheme is None else scheme
    if projection.get("key_valid") is not None:
        raise OptionError("key_valid is given: a residual is of tokens without padding; give those that are valid, with "
                          "their columns of E and F")
    dense = Dense(scale=scheme.scale)
    o, approximate = dense(q, k, v), scheme(q, k, v, **projection)
    if q.shape[:-2] != k.shape[:-2]:
        raise ShapeError(f"q has shape {q.shape} and k {k.shape}: repeat key heads so that each query head has its own")
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scheme.scale is None else scheme.scale)
    P = softmax(scores, axis=-1) if k.shape[-2] else scores
    lengths = _norm(P, -1)[..., :, None] * _norm(v, -2)[..., None, :]
    size = float((o**2).sum()) ** 0.5
    error = float(((approximate - o) ** 2).sum()) ** 0.5
    empty = lengths == 0.0  # a channel of zeros: both results are zeros, too
    rows = (float((abs(x) / (lengths + empty)).max(initial=0.0)) for x in (approximate - o, o))
    return Residual(error / size if size else error, 1.0 if size else 0.0, *rows)


def _norm(x: Array, axis: int) -> Array:
    return (x**2).sum(axis=axis) ** 0.5


def _claim(name: str, statement: str, source: str, bound: Any, measured: Any, holds: bool, trials: int = 1, **more: Any
           ) -> Claim:
    return Claim(f"linformer: {name}:", statement, source, bound, measured, trials, holds, **more)


def _drawn(name: str, statement: str, source: str, bound: float, failed: int, trials: int, stated: bool = True) -> Claim:
    """The claim that failures, so many in so many draws, have a chance of at most `bound`."""
    found = at_most(failed, trials, bound)
    return _claim(name, statement, source, bound, found.measured, found.holds, trials, false_alarm=ALPHA, stated=stated,
                  power=found.power, picture=pictured(name, found))  # fmt: skip


def _weights(seed: int, n: int, d: int = 64) -> tuple[Array, Array]:
    """P (n, n) of normal queries and keys, and normal w (n,)."""
    draws = rng.stream(seed, "linformer", "weights", n)
    return softmax(draws.normal(size=(n, d)) @ draws.normal(size=(d, n)) / sqrt(d), axis=-1), draws.normal(size=n)


def _at_cosine(row: Array, w: Array, rho: float) -> Array:
    """w turned in the plane of both so that its cosine with the row is ρ."""
    along = row / _norm(row, 0)
    across = w - (w @ along) * along
    return rho * along + sqrt(1.0 - rho**2) * across / _norm(across, 0)


def _approximations(seed: int, name: str, w: Array, k: int, trials: int) -> Any:
    """SᵀS w of so many draws of S."""
    draws = rng.stream(seed, "linformer", name)
    for _ in range(trials):
        S = GAUSSIAN.matrix(k, len(w), draws)
        yield S.T @ (S @ w)


def weights_that_cancel(seed: int, n: int = 512, eps: float = 0.5) -> Claim:
    """Equal weights and values that sum to zero: Pw = 0, so that the theorem asks for no error at all."""
    k, w = ceil(linformer_dimension(n, eps)), rng.stream(seed, "linformer", "cancel").normal(size=n)
    w -= w.mean()
    (found,) = _approximations(seed, "cancel", w, k, 1)
    error = abs(float(found.mean())) * sqrt(n)  # all rows of P are 1/n
    statement = f"‖P̃w − Pw‖ < ε‖Pw‖ for equal weights and values that sum to 0 (n = {n}, k = {k})"
    return _claim("theorem 1, Pw = 0", statement, _FIRST, 0.0, error, error < 1e-12, stated=False)


def theorem_one(seed: int, n: int = 256, eps: float = 0.5, trials: int = 400) -> Claim:
    """As it is printed, on random weights and values, with the prescribed k."""
    k, (P, w) = ceil(linformer_dimension(n, eps)), _weights(seed, n)
    exact, bound = P @ w, 2.0 * n**-0.25
    limit = eps * _norm(exact, 0)
    failed = sum(bool(_norm(P @ z - exact, 0) >= limit) for z in _approximations(seed, "printed", w, k, trials))
    statement = f"‖P̃w − Pw‖ < ε‖Pw‖ but for a chance of 2·n^(−1/4) (n = {n}, k = {k}, ε = {eps})"
    return _drawn("theorem 1 as printed", statement, _FIRST, bound, failed, trials, stated=False)


def corrected(seed: int, n: int = 512, eps: float = 0.5, delta: float = 0.05, trials: int = 400) -> Claim:
    """Row by row, in units of ‖P_i‖‖w‖; one event for each draw of S, since rows share it."""
    k, (P, w) = ceil(rows_dimension(n, eps, delta)), _weights(seed, n)
    exact, limits = P @ w, eps * _norm(P, -1) * _norm(w, 0)
    failed = sum(bool((abs(P @ z - exact) > limits).any()) for z in _approximations(seed, "corrected", w, k, trials))
    statement = (f"all |P̃_i w − P_i w| ≤ ε‖P_i‖‖w‖ but for a chance of δ, with k = 4 ln(2n/δ)/(ε² − ε³) "
                 f"(n = {n}, k = {k}, ε = {eps})")  # fmt: skip
    return _drawn("theorem 1, corrected", statement, _ROWS, delta, failed, trials)


def error_identity() -> Claim:
    """In fractions, by every outcome of entries with the normal ones' first five moments: weights in quarters."""
    rows, w, k = ((2, 1, 1), (1, 0, 3), (0, 4, 0)), (1, -2, 3), 2
    found, wanted = Fraction(0), Fraction(0)
    for row in rows:
        found += moments(GAUSSIAN.law(row, w, k))[1] / 16
        dot = sum(a * b for a, b in zip(row, w, strict=True))
        wanted += Fraction(sum(a * a for a in row) * sum(b * b for b in w) + dot * dot, 16 * k)
    statement = "E‖P̃w − Pw‖² = (‖P‖²‖w‖² + ‖Pw‖²)/k, ‖P‖ being Frobenius'"
    return _claim("error of theorem 1", statement, _MOMENTS, str(wanted), str(found), found == wanted, len(rows))


def what_governs(seed: int, k: int = 64, ratio: int = 4, rho: float = 0.1, trials: int = 1000) -> Claim:
    """One row's error in units of ‖P_i‖‖w‖: how often it is past one deviation at k, for k fixed and for n/k fixed.

    The chance is exact: n is not in it, and the cosine ρ of the row and the values, which is, is the same for every n.
    """
    sizes, eps, level = (128, 256, 512), k**-0.5, ALPHA / 6.0
    chances: dict[str, list[float]] = {f"k = {k}": [], f"k = n/{ratio}": []}
    tests = []
    for n in sizes:
        P, w = _weights(seed, n)
        row, w = P[0], _at_cosine(P[0], w, rho)
        limit = eps * _norm(row, 0) * _norm(w, 0)
        for label, slots in zip(chances, (k, n // ratio), strict=True):
            far = sum(abs(float(row @ z - row @ w)) > limit
                      for z in _approximations(seed, f"governs {label}", w, slots, trials))  # fmt: skip
            chances[label].append(product_failure(slots, eps, rho))
            tests.append(equal(far, trials, chances[label][-1], level))
    _, falling = chances.values()
    holds = all(t.holds for t in tests) and falling[-1] < 0.5 * falling[0]
    curves = [Curve(f"{label}, law", sizes, tuple(law), bound=True) for label, law in chances.items()]
    curves += [Curve(label, sizes, tuple(t.frequency for t in tests[i::2])) for i, label in enumerate(chances)]
    off = max(t.off for t in tests)
    return _claim(
        "k, not n/k",
        f"one row is off by more than ‖P_i‖‖w‖/√{k} with one chance at k = {k}, whatever n is, and ever more seldom at "
        f"k = n/{ratio} (n = {sizes[0]} to {sizes[-1]}, cosine {rho})",
        f"{_FIRST}; the product of a Gaussian projection, exactly",
        "; ".join(f"{label}: {_list(law)}" for label, law in chances.items()),
        "; ".join(f"{a}: {_list([t.frequency for t in tests[i::2]])}" for i, a in enumerate(chances)),
        holds, len(tests) * trials, false_alarm=ALPHA, power=f"a chance that is off by {off:.2f} at any n",
        picture=Picture("n", "chance to be off by more", tuple(curves), logarithmic=False),
    )  # fmt: skip


def _list(numbers: Any) -> str:
    return ", ".join(f"{x:.3f}" for x in numbers)


def construction(seed: int, n: int = 512, eps: float = 0.5, delta: float = 1e-6, trials: int = 400) -> Claim:
    """Scores 12·e₁ and the value e₁: softmax picks the first value, but E is too small to tell the slots apart."""
    k, draws, failed = ceil(linformer_dimension(n, eps)), rng.stream(seed, "linformer", "construction"), 0
    p = softmax([12.0, *[0.0] * (n - 1)])
    for _ in range(trials):
        first = GAUSSIAN.matrix(k, 1, draws)[:, 0]  # of E and F: a Eᵀ and F v read no other column
        found = float(softmax(12.0 * delta * first) @ (exp(-delta) * first))
        failed += bool(abs(found - p[0]) > eps * _norm(p, 0))
    statement = (f"keeps one row within ε‖softmax(a)‖‖v‖ more often than not (a = 12·e₁, v = e₁, n = {n}, k = {k}, "
                 f"ε = {eps}, δ = {delta})")  # fmt: skip
    return _drawn("theorem 2's construction", statement, _PROOF, 0.5, failed, trials, stated=False)


def _data(seed: int, n: int, d: int = 64, e: int = 8) -> tuple[Array, Array, Array]:
    draws = rng.stream(seed, "linformer", "data")
    return draws.normal(size=(n, d)), draws.normal(size=(n, d)), draws.normal(size=(n, e))


def nothing_at_all(seed: int, n: int = 256, eps: float = 0.5) -> Claim:
    """Eq. 8 asks for so little that zeros satisfy it. cos² of a row and a normal column is Beta(1/2, (n − 1)/2)."""
    q, k, v = _data(seed, n)
    found, many = residual(q, k, v, E=_identity(n)).row_of_zeros, n * v.shape[-1]
    chance = many * float(beta.sf(eps**2, 0.5, (n - 1) / 2.0))
    statement = f"returns zeros and satisfies eq. 8 on all rows of random q, k, v (n = {n}, ε = {eps})"
    return _claim("F = 0", statement, _SECOND, eps, found, found <= eps, many, false_alarm=chance,
                  power=f"one entry of zeros that is off by more than {eps}‖p_i‖‖v_c‖")


def residuals(seed: int, n: int = 256, eps: float = 0.5) -> Claim:
    """Of all slots, which leave none; and, measured beside it, of a random projection, of pooled pairs and of zeros."""
    k, (q, keys, v) = ceil(linformer_dimension(n, eps)), _data(seed, n)
    S = GAUSSIAN.matrix(k, n, rng.stream(seed, "linformer", "slots"))
    whole, drawn = (residual(q, keys, v, E=E).error for E in (_identity(n), S))
    pooled = residual(q, keys, v, scheme=Linformer(projection="mean", stride=2)).error
    shown = f"{whole:.1g}; E = F = S with k = {k}: {drawn:.3g}; pairs averaged: {pooled:.3g}; zeros: 1"
    statement = f"‖õ − o‖/‖o‖ is 0 for E = F = 1 on random q, k, v (n = {n})"
    return _claim("residuals", statement, "Wang et al. 2020 (arXiv:2006.04768), eq. 7", 1e-12, shown, whole <= 1e-12)


def _identity(n: int) -> Array:
    out = rng.Source(0).filled((n, n), 0.0)
    out[range(n), range(n)] = 1.0
    return out
