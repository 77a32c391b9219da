"""Johnson–Lindenstrauss in formulas: bounds on chances, chances of the Gaussian exactly, and three least dimensions.

S: (k, n) of independent normal entries of variance 1/k, unless a bound says that it is for others. Logarithms are natural.
"""

from __future__ import annotations

from math import exp, log, sqrt

from scipy.integrate import quad
from scipy.stats import chi2


def dasgupta_gupta(k: float, eps: float) -> float:
    """P(|‖Sx‖²/‖x‖² − 1| > ε) is at most 2·exp(−k(ε²/4 − ε³/6)), for signs and Achlioptas' entries too."""
    return 2.0 * exp(-k * (eps**2 / 4.0 - eps**3 / 6.0))


def arriaga_vempala(k: float, eps: float) -> float:
    """The same is at most 2·exp(−k(ε² − ε³)/4), which is weaker."""
    return 2.0 * exp(-k * (eps**2 - eps**3) / 4.0)


def chebyshev(k: float, eps: float) -> float:
    """The same is at most 2/(kε²) for one sign in each column, whose fourth moments are all that is known."""
    return 2.0 / (k * eps**2)


def length_failure(k: int, eps: float) -> float:
    """The same exactly: k‖Sx‖²/‖x‖² is χ² of k degrees."""
    return float(chi2.sf(k * (1.0 + eps), k) + chi2.cdf(k * (1.0 - eps), k))


def product_failure(k: int, eps: float, rho: float) -> float:
    """P(|⟨Sx, Sy⟩ − ⟨x, y⟩| > ε‖x‖‖y‖) at the cosine ρ, |ρ| < 1, by one integral.

    ⟨Sx, Sy⟩/(‖x‖‖y‖) = ((1 + ρ) A − (1 − ρ) B)/(2k) with A, B independent χ² of k degrees.
    """

    def given(a: float) -> float:
        low, high = (((1.0 + rho) * a - 2.0 * k * (rho + t)) / (1.0 - rho) for t in (eps, -eps))
        return float(chi2.pdf(a, k) * (chi2.cdf(low, k) + chi2.sf(high, k)))

    wide = 14.0 * sqrt(2.0 * k)
    return float(quad(given, max(k - wide, 0.0), k + 2.0 * wide, limit=400, points=[k], epsabs=1e-14)[0])


def points_failure(points: int, k: float, eps: float) -> float:
    """Some distance of so many points leaves 1 ± ε: at most N(N − 1)·exp(−k(ε²/4 − ε³/6)), pairs added up."""
    return points * (points - 1) / 2.0 * dasgupta_gupta(k, eps)


def linformer_dimension(n: float, eps: float) -> float:
    """k of Linformer's theorem 1 for a sequence of n tokens, 5 ln n/(ε² − ε³); its proof leaves 2·n^(−1/4) of chance."""
    return 5.0 * log(n) / (eps**2 - eps**3)


def points_dimension(points: float, eps: float) -> float:
    """k for all distances of N points, whatever their own dimension is: 4 ln N/(ε²/2 − ε³/3)."""
    return 4.0 * log(points) / (eps**2 / 2.0 - eps**3 / 3.0)


def rows_dimension(n: float, eps: float, delta: float) -> float:
    """k for n products P_i·w within ε‖P_i‖‖w‖, all of them but for a chance of δ: 4 ln(2n/δ)/(ε² − ε³)."""
    return 4.0 * log(2.0 * n / delta) / (eps**2 - eps**3)
