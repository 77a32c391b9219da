"""Tests whose chance of a false alarm is known exactly: binomial tails, and Kolmogorov–Smirnov with known parameters.

A test says whether a statement stands, and its power: the deviation that it would have caught in 99 of 100 runs. A true
statement fails with a chance of at most `level`, whatever the truth within it is; nothing rests on large numbers. Several
tests behind one statement share ALPHA among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.stats import binom, kstest, kstwo

from refattn.errors import OptionError
from refattn.verify.claim import Curve, Picture

ALPHA, CAUGHT = 1e-6, 0.99
Cdf = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """holds; measured: what was found, in words; power: what would have been caught, in words.

    off: how far from the stated chance a chance would have been caught. frequency: what was found, as a number. chances,
    caught: the chance to be caught over the true chance, a curve.
    """

    holds: bool
    measured: str
    power: str
    off: float = 0.0
    frequency: float = 0.0
    chances: tuple[float, ...] = ()
    caught: tuple[float, ...] = ()


def at_most(count: int, trials: int, p: float, level: float = ALPHA) -> Outcome:
    """Whether events whose chance is said to be at most p, `count` of them in `trials`, leave that possible.

    Fails if the lower Clopper–Pearson bound of this level lies above p, which is P(X ≥ count | p) < level.

    Raises
    ------
    OptionError
        If so few trials leave any count possible.
    """
    limit = int(binom.isf(level, trials, p)) + 1  # P(X ≥ limit) ≤ level
    _refutable(limit <= trials, trials, p, level)
    caught = _root(lambda chance: binom.sf(limit - 1, trials, chance) - CAUGHT, p, 1.0)
    measured = f"{count} of {trials:,}; up to {limit - 1} are possible"
    curve = _curve(lambda chance: float(binom.sf(limit - 1, trials, chance)), p, p, caught)
    return Outcome(count < limit, measured, f"a chance of {caught:.3g}", caught - p, count / trials, *curve)


def equal(count: int, trials: int, p: float, level: float = ALPHA) -> Outcome:
    """Whether events of chance p, `count` of them in `trials`, leave that possible: half of the level at either side.

    Where p is so small, or so large, that no count at one side refutes it, only the other side has power.

    Raises
    ------
    OptionError
        If so few trials leave any count possible.
    """
    low, high = int(binom.ppf(level / 2.0, trials, p)), int(binom.isf(level / 2.0, trials, p))
    _refutable(low > 0 or high < trials, trials, p, level)
    found = []
    if low > 0:
        found.append(_root(lambda chance: CAUGHT - binom.cdf(low - 1, trials, chance), 0.0, p))
    if high < trials:
        found.append(_root(lambda chance: binom.sf(high, trials, chance) - CAUGHT, p, 1.0))
    curve = _curve(lambda chance: float(binom.cdf(low - 1, trials, chance) + binom.sf(high, trials, chance)), p, *found)
    power = "a chance of " + " or ".join(f"{x:.4g}" for x in found)
    measured = f"{count} of {trials:,}; {low} to {high} are possible"
    return Outcome(low <= count <= high, measured, power, max(abs(x - p) for x in found), count / trials, *curve)


def _refutable(yes: bool, trials: int, p: float, level: float) -> None:
    if not yes:
        raise OptionError(f"no count of {trials} trials refutes a chance of {p:.3g} at the level {level:.0e}: make more")


def _curve(caught: Callable[[float], float], p: float, *ends: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The chance to be caught over true chances around p, a little further than the ends."""
    low, high = min(p, *ends), max(p, *ends)
    low, high = max(low - 0.2 * (high - low), 0.0), min(high + 0.2 * (high - low), 1.0)
    chances = tuple(low + (high - low) * i / 60.0 for i in range(61))
    return chances, tuple(map(caught, chances))


def pictured(label: str, found: Outcome) -> Picture | None:
    """The power of a binomial test as a picture, marked at the frequency that was found."""
    if not found.chances:
        return None
    at = min(range(len(found.chances)), key=lambda i: abs(found.chances[i] - found.frequency))
    mark = Curve("_", (found.frequency,), (found.caught[at],))
    line = Curve(label, found.chances, found.caught, bound=True)
    return Picture("true chance; mark: frequency found", "chance to be caught", (line, mark), logarithmic=False)


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
