"""The spectrum of attention maps: what low rank can do at best, a map that has none, and maps of a pretrained model.

    P = softmax(s): (n, n), rows sum to one     σ_1 ≥ … ≥ σ_n its singular values     P_k: its k leading terms, rank k
    ‖P − P_k‖₂ = σ_{k+1},   ‖P − P_k‖_F² = Σ_{i>k} σ_i²,   and no matrix of rank k is nearer          (Eckart–Young–Mirsky)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scipy.linalg import eigvalsh, svd
from scipy.special import softmax

from refattn import rng
from refattn.backend import load
from refattn.verify import maps
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.spectra import cumulative, singular_values

Array = Any
_EYM = "Eckart and Young 1936 (Psychometrika 1), Mirsky 1960 (Q. J. Math. 11); used by Wang et al. 2020, §3"
_LOW = "Wang et al. 2020 (arXiv:2006.04768), theorem 1: self-attention is low rank"
_ONE = "P·1 = 1, and ‖p‖² ≤ 1 for a row of weights"
BETAS, N, RANKS = (0.0, 1.0, 4.0, 8.0), 48, (3, 6, 12, 24)


def run(seed: int = 0, passages: int = 40) -> tuple[Claim, ...]:
    """Every claim; those about real maps on so many passages drawn by `seed`."""
    P = _map(seed)
    return *best(P), nothing_nearer(P, seed), largest(P), identity_maps(), every_map(), *maps.claims(seed, passages)


def _claim(name: str, statement: str, source: str, bound: Any, measured: Any, holds: bool, trials: int = 1, **more: Any
           ) -> Claim:
    return Claim(f"spectrum: {name}:", statement, source, bound, measured, trials, holds, **more)


def _map(seed: int, n: int = N, d: int = 16) -> Array:
    """P of normal queries and keys."""
    draws = rng.stream(seed, "spectrum", "map")
    return softmax(draws.normal(size=(n, d)) @ draws.normal(size=(d, n)) / d**0.5, axis=-1)


def leading(P: Array, k: int) -> Array:
    """P_k."""
    u, values, v = svd(P)
    return (u[:, :k] * values[:k]) @ v[:k]


def operator(x: Array) -> float:
    """‖x‖₂ without singular values: the root of the largest eigenvalue of xᵀx."""
    return math.sqrt(max(float(eigvalsh(x.T @ x)[-1]), 0.0))


def frobenius(x: Array) -> float:
    """‖x‖_F."""
    return math.sqrt(float((x**2).sum()))


def tail(values: Array, k: int) -> float:
    """√Σ_{i>k} σ_i²."""
    return math.sqrt(float((values[k:] ** 2).sum()))


def best(P: Array) -> tuple[Claim, Claim]:
    """The two equalities at every rank, each side computed in its own way."""
    n, values = len(P), singular_values(P)
    left = [P - leading(P, k) for k in range(n)]
    wide = max(abs(operator(x) ** 2 - float(values[k]) ** 2) for k, x in enumerate(left))
    whole = max(abs(frobenius(x) ** 2 - tail(values, k) ** 2) for k, x in enumerate(left))
    sizes, limit = f"(n = {n}, all k < n)", 1e-14 * n
    return (
        _claim("distance in operator norm", f"‖P − P_k‖₂² = σ²_(k+1) {sizes}", _EYM, limit, wide, wide <= limit, n),
        _claim("distance in Frobenius norm", f"‖P − P_k‖_F² = Σ_(i>k) σ_i² {sizes}", _EYM, limit, whole, whole <= limit, n),
    )


def others(P: Array, k: int, draws: Any) -> Iterator[tuple[str, Array]]:
    """Matrices of rank k that might be near P: projected, pooled, cut, drawn, and P_k slightly turned."""
    n, S = len(P), draws.normal(size=(k, len(P))) / k**0.5
    yield "P SᵀS", P @ S.T @ S
    yield "neighbours averaged", P.reshape(n, k, n // k).mean(axis=-1).repeat(n // k, axis=1)
    yield "first columns", P * [float(j < k) for j in range(n)]
    yield "drawn", draws.normal(size=(n, k)) @ S / n
    yield "P_k turned", leading(P + 1e-3 * draws.normal(size=(n, n)) / n, k)


def nothing_nearer(P: Array, seed: int) -> Claim:
    """Other matrices of rank k against the bound, in both norms."""
    n, draws, values = len(P), rng.stream(seed, "spectrum", "others"), singular_values(P)
    least: dict[str, float] = {}
    far: dict[str, list[float]] = {}
    for k in RANKS:
        for name, other in others(P, k, draws):
            norms = operator(P - other) / float(values[k]), frobenius(P - other) / tail(values, k)
            least[name] = min(*norms, least.get(name, norms[0]))
            far.setdefault(name, []).append(frobenius(P - other) / frobenius(P))
    ks = tuple(range(1, n))
    floor = Curve("P_k: no matrix of rank k is nearer", ks, tuple(tail(values, k) / frobenius(P) for k in ks), bound=True)
    curves = (Curve(name, RANKS, tuple(far[name])) for name in far)
    statement = f"no matrix of rank k is nearer than P_k, in either norm (n = {n}, k = {', '.join(map(str, RANKS))})"
    shown = ", ".join(f"{name} {ratio:.7g}" for name, ratio in least.items())
    picture = Picture("rank k", "‖P − ·‖ / ‖P‖, Frobenius", (floor, *curves))
    return _claim("nothing is nearer", statement, _EYM, "a ratio of 1 or more", shown, min(least.values()) >= 1.0 - 1e-12,
                  len(RANKS) * len(least), picture=picture)  # fmt: skip


def largest(P: Array) -> Claim:
    """σ_1 ≥ 1 since P·1 = 1; = 1 where columns sum to one too, as Sinkhorn's scaling of a symmetric softmax makes them."""
    n, values, K = len(P), singular_values(P), P + P.T
    for _ in range(2000):
        sums = K.sum(axis=0) ** 0.5
        K = K / sums / sums[:, None]
    first, squares, both = float(values[0]), float((values**2).sum()), float(singular_values(K)[0])
    statement = f"σ_1 ≥ 1 and Σσ² ≤ n where rows sum to one; σ_1 = 1 where columns do too (n = {n})"
    holds = first >= 1.0 - 1e-12 and squares <= n and abs(both - 1.0) <= 1e-9
    return _claim("largest value", statement, _ONE, f"1, {n}, 1", f"{first:.6f}, {squares:.3f}, {both:.12f}", holds, 2)


def flat(beta: float, n: int) -> list[float]:
    """σ of softmax(βI), n: 1, and n − 1 times (e^β − 1)/(e^β + n − 1)."""
    return [1.0, *[(math.exp(beta) - 1.0) / (math.exp(beta) + n - 1.0)] * (n - 1)]


def identity_maps(n: int = 64) -> Claim:
    """The adversary: a softmax whose spectrum is the flatter the larger β is."""
    found, off, curves = [], 0.0, []
    xp, js, limit = load("numpy").xp, tuple(range(1, n + 1)), 1e-14 * n
    for beta in BETAS:
        values, law = singular_values(softmax(beta * xp.eye(n), axis=-1)), xp.asarray(flat(beta, n))
        off = max(off, float(abs(values - law).max()))
        c = cumulative(values)
        found.append(f"{float(c[n // 4 - 1]):.3f} (β = {beta:g})")
        curves += [Curve(f"softmax({beta:g}·I), law", js, tuple(cumulative(law).tolist()), bound=True),
                   Curve(f"softmax({beta:g}·I)", js[3::8], tuple(c[3::8].tolist()))]  # fmt: skip
    statement = f"σ_1 = 1 and σ_2 … σ_n = (e^β − 1)/(e^β + n − 1) for softmax(βI) (n = {n})"
    return _claim("softmax(βI)", statement, "softmax(βI) is a sum of multiples of I and of the matrix of ones", limit,
                  f"off by {off:.1g}; c at n/4: {', '.join(found)}", off <= limit, len(BETAS),
                  picture=Picture("j", "c_j", tuple(curves), logarithmic=False))  # fmt: skip


def every_map(n: int = 64, size: float = 80.0) -> Claim:
    """Tokens on a circle that is large enough: each attends to itself, though scores have rank 2."""
    xp = load("numpy").xp
    angles = xp.arange(n) * (2.0 * math.pi / n)
    x = size * xp.stack([xp.cos(angles), xp.sin(angles)], axis=-1)
    past = float(singular_values(softmax(x @ x.T / 2**0.5, axis=-1))[n // 4])
    statement = f"a matrix of rank n/4 is within 1/2 of softmax(q kᵀ/√d) in operator norm, for any q and k (n = {n}, d = 2)"
    return _claim("every map is low rank", statement, _LOW, 0.5, past, past <= 0.5, stated=False)
