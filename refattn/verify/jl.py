"""Johnson–Lindenstrauss: what random matrices do to lengths and products, and which dimension which formula asks for.

Laws that are known are tested as laws, outcome by outcome where there are few. Bounds on chances are tested with one event
for each draw of S, and against the exact chance where there is a formula for it (refattn.verify.jl_laws). A false alarm has
a chance of 10⁻⁶ for each claim that draws.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, sqrt
from typing import Any

from scipy.stats import binom, chi2

from refattn import rng
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.exact_tests import ALPHA, Outcome, at_most, distributed, equal, pictured
from refattn.verify.jl_laws import (
    arriaga_vempala,
    chebyshev,
    dasgupta_gupta,
    length_failure,
    linformer_dimension,
    points_dimension,
    points_failure,
    product_failure,
    rows_dimension,
)
from refattn.verify.sketches import FAMILIES, Sketch, moments

GAUSSIAN, RADEMACHER, ACHLIOPTAS, _, COUNTSKETCH = FAMILIES
_DG = "Dasgupta and Gupta 2003 (Random Struct. Algorithms 22)"
_AV = "Arriaga and Vempala 2006 (Mach. Learn. 63)"
_SIGNS = "Achlioptas 2003 (J. Comput. Syst. Sci. 66), theorem 1.1 and its proof"
_CW = "Clarkson and Woodruff 2013 (arXiv:1207.6365); scipy.linalg.clarkson_woodruff_transform: k ≥ 2/(ε²δ)"
_LEMMA = "Wang et al. 2020 (arXiv:2006.04768), eq. 12"
_THEOREM = "Wang et al. 2020 (arXiv:2006.04768), theorem 1 and its proof"
_SECOND = "moments of independent entries up to the fourth; Li, Hastie and Church 2006 (KDD) for sparse ones"
X, Y, FEW = (2, -1, 3), (1, 2, 1), 2  # laws are written out for these vectors, and k = FEW
DOT = sum(a * b for a, b in zip(X, Y, strict=True))


def run(seed: int = 0) -> tuple[Claim, ...]:
    """Every claim, those that draw on draws of this seed."""
    lengths = (length(s, seed) for s in (RADEMACHER, ACHLIOPTAS, COUNTSKETCH))
    laws = (law_of_products(s, seed) for s in FAMILIES)
    bounds = bound_of_products(), relative_bound(seed), all_distances(seed)
    return (*norm_law(seed), bounds_of_lengths(), *lengths, too_sparse(), *map(variance, FAMILIES), *laws,
            tail_of_products(seed), *bounds, *dimensions())  # fmt: skip


def _drawn(name: str, statement: str, source: str, bound: Any, found: Outcome, trials: int, **more: Any) -> Claim:
    """The claim that a test of draws makes."""
    more = {"picture": pictured(name, found), **more, "false_alarm": ALPHA, "power": found.power}
    return Claim(f"jl: {name}:", statement, source, bound, found.measured, trials, found.holds, **more)


def _known(
    name: str, statement: str, source: str, bound: Any, measured: Any, holds: bool, trials: int = 1, **more: Any
) -> Claim:
    """The claim of a calculation."""
    return Claim(f"jl: {name}:", statement, source, bound, measured, trials, holds, **more)


def _squares(sketch: Sketch, seed: int, what: str, trials: int, k: int, x: Any) -> list[Any]:
    """(Sx)ᵀ Sx of the columns of x (n, 2), for so many draws of S."""
    draws = rng.stream(seed, "jl", what, str(sketch))
    return [y.T @ y for y in (sketch.apply(x, k, draws) for _ in range(trials))]


def _columns(seed: int, n: int, rho: float) -> Any:
    """(n, 2): two unit vectors of cosine ρ."""
    x = rng.stream(seed, "jl", "columns").normal(size=(n, 2))
    x[:, 0] /= sqrt(x[:, 0] @ x[:, 0])
    x[:, 1] -= (x[:, 1] @ x[:, 0]) * x[:, 0]
    x[:, 1] *= sqrt(1.0 - rho**2) / sqrt(x[:, 1] @ x[:, 1])
    x[:, 1] += rho * x[:, 0]
    return x


def norm_law(seed: int, k: int = 16, n: int = 40, trials: int = 4000) -> tuple[Claim, Claim]:
    """The law of lengths, and a published initialisation that is off by √k."""
    law, grid = chi2(k), [i / 400.0 for i in range(1, 400)]
    points = law.ppf(grid)
    squares = _squares(GAUSSIAN, seed, "norm", trials, k, _columns(seed, n, 0.0))
    lengths = [k * float(square[0, 0]) for square in squares]

    def off(size: float) -> float:
        return float(abs(law.cdf(points) - law.cdf(points / (1.0 + size))).max())

    right, wrong = (
        distributed(z, law.cdf, "entries whose variance is too large by a share of", off, 1.0)
        for z in (lengths, [z / k for z in lengths])
    )
    shown = sorted(lengths)[trials // 80 :: trials // 40]
    line = Curve("χ² of k degrees", tuple(points.tolist()), tuple(grid), bound=True)
    marks = Curve("drawn", tuple(shown), tuple((i + 0.5) / len(shown) for i in range(len(shown))))
    picture = Picture("k‖Sx‖²/‖x‖²", "share of draws below", (line, marks), logarithmic=False)
    sizes, bound = f"(k = {k}, n = {n})", f"χ² of {k} degrees"
    return (
        _drawn("lengths, gaussian", f"k‖Sx‖²/‖x‖² is χ² of k degrees {sizes}", _DG, bound, right, trials, picture=picture),
        _drawn("entries of deviation 1/k", f"keep lengths as those of deviation 1/√k do {sizes}",
               "tatp22/linformer-pytorch 3ecfc0e, method='no_params'", bound, wrong, trials, stated=False),
    )  # fmt: skip


def bounds_of_lengths() -> Claim:
    """exact ≤ Dasgupta–Gupta ≤ Arriaga–Vempala."""
    kinds = (length_failure, dasgupta_gupta, arriaga_vempala)
    grid = [(k, i / 20.0) for k in (10, 50, 100, 250, 1000) for i in range(1, 20)]
    exact, better, weaker = ([f(k, e) for k, e in grid] for f in kinds)
    holds = all(a <= b <= c for a, b, c in zip(exact, better, weaker, strict=True))
    ratio, at = max(a / b for a, b in zip(exact, better, strict=True)), ", ".join(f"{f(250, 0.5):.2g}" for f in kinds)
    ks, labels = tuple(range(20, 401, 20)), ("exact, ε = 0.5", "Dasgupta–Gupta", "Arriaga–Vempala")
    curves = [Curve(label, ks, tuple(f(k, 0.5) for k in ks), bound=f is not length_failure)
              for label, f in zip(labels, kinds, strict=True)]  # fmt: skip
    statement = "exact chance ≤ 2·exp(−k(ε²/4 − ε³/6)) ≤ 2·exp(−k(ε² − ε³)/4)"
    measured = f"at most {ratio:.3f} of the first bound; at k = 250, ε = 0.5: {at}"
    return _known("bounds of lengths", statement, f"{_DG}; {_AV}", "≤ 1", measured, holds, len(grid),
                  picture=Picture("k", "chance of failure", tuple(curves)))  # fmt: skip


def length(sketch: Sketch, seed: int, k: int = 100, n: int = 64, eps: float = 0.5, trials: int = 2000) -> Claim:
    """The bound of a family whose law is not known, one event for each draw."""
    bound, source = (chebyshev(k, eps), _CW) if sketch == COUNTSKETCH else (dasgupta_gupta(k, eps), _SIGNS)
    squares = _squares(sketch, seed, "length", trials, k, _columns(seed, n, 0.0))
    failed = sum(abs(float(square[0, 0]) - 1.0) > eps for square in squares)
    statement = f"‖Sx‖² leaves ‖x‖²(1 ± {eps}) with a chance of at most the bound (k = {k}, n = {n})"
    return _drawn(f"lengths, {sketch}", statement, source, bound, at_most(failed, trials, bound), trials)


def too_sparse(q: int = 64, k: int = 100, eps: float = 0.5) -> Claim:
    """One coordinate under entries ±√(q/k) of probability 1/q: ‖Sx‖² is q/k times a binomial number."""
    kept = sum(float(binom.pmf(i, k, 1.0 / q)) for i in range(k + 1) if abs(q * i / k - 1.0) <= eps)
    bound = dasgupta_gupta(k, eps)
    statement = f"the bound of q ≤ 3 holds for sparser entries too (k = {k}, ε = {eps})"
    return _known(f"lengths, sparse(q = {q})", statement, _SIGNS, bound, 1.0 - kept, 1.0 - kept <= bound, stated=False)


def variance(sketch: Sketch) -> Claim:
    """In fractions: every outcome of S for vectors of three whole numbers."""
    law = sketch.law(X, Y, FEW)
    (mean, found), wanted = moments(law), sketch.variance(X, Y, FEW)
    statement = "Var⟨Sx, Sy⟩ = (‖x‖²‖y‖² + ⟨x, y⟩² + (κ − 3) Σ x_i² y_i²)/k, and the mean is ⟨x, y⟩"
    measured, holds = f"{found}, mean {mean}", (mean, found) == (Fraction(DOT), wanted)
    return _known(f"variance, {sketch}", statement, _SECOND, f"{wanted}, mean {DOT}", measured, holds, len(law))


def law_of_products(sketch: Sketch, seed: int, trials: int = 4000) -> Claim:
    """How often ⟨Sx, Sy⟩ of drawn matrices is a deviation or more from ⟨x, y⟩; its chance is known."""
    squares = _squares(sketch, seed, "products", trials, FEW, rng.short([X, Y]).T)
    wanted = sketch.variance(X, Y, FEW)
    if sketch == GAUSSIAN:
        size = sqrt(sum(a * a for a in X) * sum(b * b for b in Y))
        chance = product_failure(FEW, sqrt(wanted) / size, DOT / size)
    else:
        chance = float(sum(p for value, p in sketch.law(X, Y, FEW).items() if (value - DOT) ** 2 > wanted))
    far = sum((float(square[0, 1]) - DOT) ** 2 > float(wanted) * (1.0 + 1e-9) for square in squares)
    statement = f"drawn ⟨Sx, Sy⟩ are more than a deviation off as often as their law says (k = {FEW})"
    return _drawn(f"products, {sketch}", statement, _SECOND, chance, equal(far, trials, chance), trials)


def tail_of_products(
    seed: int, k: int = 40, n: int = 64, rho: float = 0.6, eps: float = 0.25, trials: int = 4000
) -> Claim:
    """The exact chance of the Gaussian against drawn matrices."""
    chance = product_failure(k, eps, rho)
    squares = _squares(GAUSSIAN, seed, "tail", trials, k, _columns(seed, n, rho))
    far = sum(abs(float(square[0, 1]) - rho) > eps for square in squares)
    statement = f"⟨Sx, Sy⟩ leaves ⟨x, y⟩ ± {eps}‖x‖‖y‖ as often as the integral says (k = {k}, cosine {rho})"
    source = "⟨Sx, Sy⟩ as a difference of two independent χ² of k degrees"
    return _drawn("tails of products, gaussian", statement, source, chance, equal(far, trials, chance), trials)


def bound_of_products() -> Claim:
    """The corrected lemma: absolute, in units of the lengths."""
    epsilons, cosines = (0.1, 0.3, 0.5, 0.8), (0.0, 0.1, 0.5, 0.9, 0.99)
    grid = [(k, e, r) for k in (20, 100, 250) for e in epsilons for r in cosines]
    ratio = max(product_failure(k, e, r) / arriaga_vempala(k, e) for k, e, r in grid)
    statement, source = "P(|⟨Sx, Sy⟩ − ⟨x, y⟩| > ε‖x‖‖y‖) ≤ 2·exp(−k(ε² − ε³)/4)", f"{_LEMMA}, with ε‖x‖‖y‖ for ε|⟨x, y⟩|"
    return _known("bound of products", statement, source, "≤ 1", f"at most {ratio:.3f} of it", ratio <= 1.0, len(grid))


def relative_bound(
    seed: int, k: int = 222, n: int = 256, rho: float = 0.1, eps: float = 0.5, trials: int = 1000
) -> Claim:
    """The lemma as it is printed, relative to the product, which may be small beside the lengths."""
    bound = arriaga_vempala(k, eps)
    squares = _squares(GAUSSIAN, seed, "relative", trials, k, _columns(seed, n, rho))
    far = sum(abs(float(square[0, 1]) - rho) > eps * rho for square in squares)
    statement = f"P(|⟨Sx, Sy⟩ − ⟨x, y⟩| > ε|⟨x, y⟩|) ≤ 2·exp(−k(ε² − ε³)/4) (k = {k}, ε = {eps}, cosine {rho})"
    found = at_most(far, trials, bound)
    return _drawn("relative bound of products", statement, _LEMMA, bound, found, trials, stated=False)


def all_distances(
    seed: int, points: int = 16, n: int = 256, eps: float = 0.5, delta: float = 0.05, trials: int = 400
) -> Claim:
    """All pairs of a set at once: one event for each draw of S, since all pairs share it."""
    k = next(k for k in range(1, n) if points_failure(points, k, eps) <= delta)
    bound = points_failure(points, k, eps)
    draws, failed = rng.stream(seed, "jl", "distances"), 0
    x = draws.normal(size=(n, points))
    first, second = zip(*((i, j) for i in range(points) for j in range(i)), strict=True)
    apart = ((x[:, first] - x[:, second]) ** 2).sum(axis=0)
    for _ in range(trials):
        y = GAUSSIAN.apply(x, k, draws)
        ratio = ((y[:, first] - y[:, second]) ** 2).sum(axis=0) / apart
        failed += bool((abs(ratio - 1.0) > eps).any())
    statement = (f"some distance of {points} points leaves 1 ± {eps} (squared) with a chance of at most "
                 f"N(N − 1)·exp(−k(ε²/4 − ε³/6)) (k = {k} < n = {n})")  # fmt: skip
    return _drawn("all distances of a set", statement, _DG, bound, at_most(failed, trials, bound), trials)


def dimensions(n: int = 512, eps: float = 0.5, delta: float = 0.05) -> tuple[Claim, ...]:
    """Three formulas that are taken for one another, at one n, and what is left of each."""
    found = linformer_dimension(n, eps), points_dimension(n, eps), rows_dimension(n, eps, delta)
    left, small = 2.0 * n**-0.25, linformer_dimension(n, 0.1)
    cut, whole = (points_failure(n, k, eps) for k in (int(found[1]), ceil(found[1])))
    ns = tuple(2**i for i in range(4, 21))
    curves = (
        Curve(f"theorem 1: 5 ln n/(ε² − ε³), ε = {eps}", ns, tuple(linformer_dimension(x, eps) for x in ns), bound=True),
        Curve("distances of N points: 4 ln N/(ε²/2 − ε³/3)", ns, tuple(points_dimension(x, eps) for x in ns), bound=True),
        Curve(f"n products but for δ = {delta}", ns, tuple(rows_dimension(x, eps, delta) for x in ns), bound=True),
        Curve("n rows: no compression", ns[:8], ns[:8], bound=True),
    )
    same = f"theorem 1, all distances of n points, and n products but for δ ask for one k (n = {n}, ε = {eps}, δ = {delta})"
    vanishing = f"5 ln n/(ε² − ε³) rows fail with a chance of at most {delta}, by the proof's own 2·n^(−1/4) (n = {n})"
    rounded = f"int(4 ln N/(ε²/2 − ε³/3)) rows leave a chance of success, pairs added up (N = {n}, ε = {eps})"
    return (
        _known("least dimensions", same, f"{_THEOREM}; {_DG}; the bound of products above", "equal",
               ", ".join(f"{x:.1f}" for x in found), len({ceil(x) for x in found}) == 1, stated=False,
               picture=Picture("n tokens, or N points", "dimension asked for", curves)),
        _known("what theorem 1 leaves", vanishing, _THEOREM, delta,
               f"{left:.3f}; {delta} from n = {(2.0 / delta) ** 4:,.0f} on", left <= delta, stated=False),
        _known("theorem 1 compresses", f"5 ln n/(ε² − ε³) < n (n = {n}, ε = 0.1)", _THEOREM, n, f"{small:.0f}", small < n,
               stated=False),
        _known("a dimension rounded down", rounded, "scikit-learn, johnson_lindenstrauss_min_dim", 1.0,
               f"{cut:.4f}; rounded up {whole:.4f}", cut < 1.0, stated=False),
    )  # fmt: skip
