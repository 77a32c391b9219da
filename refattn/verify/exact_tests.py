"""Tests whose chance of a false alarm is known exactly: binomial tails, and Kolmogorov–Smirnov with known parameters.

A test says whether a statement stands, and its power: the deviation that it would have caught in 99 of 100 runs. A true
statement fails with a chance of at most ALPHA, whatever the truth within it is; nothing rests on large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.stats import binom, kstest, kstwo

ALPHA, CAUGHT = 1e-6, 0.99
Cdf = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """holds; measured: what was found, in words; power: what would have been caught."""

    holds: bool
    measured: str
    power: str


def at_most(count: int, trials: int, p: float) -> Outcome:
    """Whether events whose chance is said to be at most p, `count` of them in `trials`, leave that possible.

    Fails if the lower Clopper–Pearson bound of level ALPHA lies above p, which is P(X ≥ count | p) < ALPHA.
    """
    limit = int(binom.isf(ALPHA, trials, p)) + 1  # P(X ≥ limit) ≤ ALPHA
    caught = _root(lambda chance: binom.sf(limit - 1, trials, chance) - CAUGHT, p, 1.0)
    return Outcome(count < limit, f"{count} of {trials:,}; up to {limit - 1} are possible", f"a chance of {caught:.3g}")


def equal(count: int, trials: int, p: float) -> Outcome:
    """Whether events of chance p, `count` of them in `trials`, leave that possible: half of ALPHA at either side."""
    low, high = int(binom.ppf(ALPHA / 2.0, trials, p)), int(binom.isf(ALPHA / 2.0, trials, p))
    more = _root(lambda chance: binom.sf(high, trials, chance) - CAUGHT, p, 1.0)
    less = _root(lambda chance: CAUGHT - binom.cdf(low - 1, trials, chance), 0.0, p)
    power = f"a chance of {less:.4g} or {more:.4g}"
    return Outcome(low <= count <= high, f"{count} of {trials:,}; {low} to {high} are possible", power)


def distributed(sample: Any, cdf: Cdf, deviation: str, wrong: Callable[[float], float], largest: float) -> Outcome:
    """Whether independent numbers are distributed by `cdf`, of which nothing is fitted.

    deviation, wrong: a kind of deviation in words, and how far apart the two distribution functions are at most where it
    is so large. It is caught where this exceeds both the test's limit and what the sample is off from its own.
    """
    trials = len(sample)
    limit = float(kstwo.isf(ALPHA, trials))
    found = float(kstest(sample, cdf).statistic)
    enough = limit + float(kstwo.isf(1.0 - CAUGHT, trials))
    caught = _root(lambda size: wrong(size) - enough, 0.0, largest)
    measured = f"distance {found:.4f} of the distribution functions; up to {limit:.4f} are possible"
    return Outcome(found <= limit, measured, f"{deviation} {caught:.3g}")


def _root(f: Callable[[float], Any], low: float, high: float) -> float:
    """Where f, which increases, crosses 0; `high` if it does not."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if f(middle) < 0.0 else (low, middle)
    return high
