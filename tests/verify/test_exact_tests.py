"""Exact tests: their limits, their chance of a false alarm and their power, against SciPy's and against a table."""

from __future__ import annotations

import re

import pytest
from scipy.stats import beta, binom, binomtest, kstest, norm

from refattn import OptionError, rng
from refattn.verify.exact_tests import ALPHA, CAUGHT, at_most, distributed, equal, pictured

# chance, trials, the smallest count that fails, the chance that 99 of 100 runs catch
TABLE = [(0.001, 1000, 10, 0.019), (0.001, 5000, 20, 0.0064), (0.01, 1000, 29, 0.043), (0.01, 5000, 88, 0.022),
         (0.05, 1000, 87, 0.109), (0.05, 5000, 327, 0.074), (0.1, 1000, 149, 0.176), (0.1, 5000, 605, 0.132)]  # fmt: skip


def number(text: str) -> float:
    """The last number in words."""
    return float(re.findall(r"[\d.]+(?:e-?\d+)?", text)[-1])


@pytest.mark.parametrize(("p", "trials", "limit", "caught"), TABLE)
def test_at_most_fails_where_the_clopper_pearson_bound_leaves_the_statement(
    p: float, trials: int, limit: int, caught: float
) -> None:
    assert at_most(limit - 1, trials, p).holds
    assert not at_most(limit, trials, p).holds
    for count in (limit - 1, limit):
        assert (binomtest(count, trials, p, alternative="greater").pvalue < ALPHA) == (count == limit)
        assert (beta.ppf(ALPHA, count, trials - count + 1) > p) == (count == limit)
    power = number(at_most(0, trials, p).power)
    assert power == pytest.approx(caught, rel=0.05)
    assert binom.sf(limit - 1, trials, power) == pytest.approx(CAUGHT, abs=0.003)


@pytest.mark.parametrize(("p", "trials"), [(0.125, 4000), (0.5, 100), (0.2295, 4000), (0.02, 2000)])
def test_equal_fails_at_either_side_and_seldom(p: float, trials: int) -> None:
    low, high = (int(x) for x in re.findall(r"; (\d+) to (\d+) are", equal(0, trials, p).measured)[0])
    for count, holds in ((low - 1, False), (low, True), (high, True), (high + 1, False)):
        assert equal(count, trials, p).holds is holds
    assert binom.cdf(low - 1, trials, p) < ALPHA / 2 <= binom.cdf(low, trials, p)
    assert binom.sf(high, trials, p) <= ALPHA / 2 < binom.sf(high - 1, trials, p)
    less, more = (float(x) for x in re.findall(r"[\d.]+", equal(0, trials, p).power))
    assert binom.sf(high, trials, more) == pytest.approx(CAUGHT, abs=0.003)
    assert binom.cdf(low - 1, trials, less) == pytest.approx(CAUGHT, abs=0.003) or less < 1e-3


def shifted(size: float) -> float:
    """How far the distribution functions of N(0, 1) and N(size, 1) are apart."""
    return float(norm.cdf(size / 2) - norm.cdf(-size / 2))


def test_distributed_is_kolmogorov_smirnov_with_known_parameters() -> None:
    drawn = rng.stream(5, "normal").normal(size=2000)
    for size, holds in ((0.0, True), (0.1, True), (0.3, False), (-0.3, False)):
        found = distributed(drawn + size, norm.cdf, "a shift of", shifted, 5.0)
        assert found.holds is holds
        assert bool(kstest(drawn + size, norm.cdf, method="exact").pvalue >= ALPHA) is holds


def test_the_power_of_distributed_is_a_deviation_that_is_caught() -> None:
    drawn = rng.stream(6, "normal").normal(size=(50, 2000))
    size = number(distributed(drawn[0], norm.cdf, "a shift of", shifted, 5.0).power)
    assert 0.1 < size < 0.5
    assert not any(distributed(row + 1.005 * size, norm.cdf, "", shifted, 5.0).holds for row in drawn)


def test_tests_that_share_a_level_are_stricter_and_weaker() -> None:
    for test in (at_most, equal):
        alone, shared = test(600, 4000, 0.125), test(600, 4000, 0.125, ALPHA / 10.0)
        assert shared.off > alone.off > 0.0
    low, high = (int(x) for x in re.findall(r"; (\d+) to (\d+) are", equal(0, 4000, 0.125, 1e-3).measured)[0])
    assert binom.cdf(low - 1, 4000, 0.125) + binom.sf(high, 4000, 0.125) <= 1e-3
    assert binom.cdf(low, 4000, 0.125) > 5e-4
    assert binom.sf(high - 1, 4000, 0.125) > 5e-4


def test_a_test_that_no_count_could_fail_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no count of 10 trials refutes a chance of 0\.5 at the level 1e-06: make more"):
        at_most(10, 10, 0.5)
    assert not at_most(20, 20, 0.5).holds
    with pytest.raises(OptionError, match="no count of 20 trials refutes"):
        equal(20, 20, 0.5)
    assert not equal(21, 21, 0.5).holds


def test_a_chance_that_no_small_count_refutes_has_power_at_the_other_side_only() -> None:
    """0 of 1,000 is possible at a chance of 0.005, and so is no chance at all."""
    found = equal(0, 1000, 0.005)
    assert found.holds
    assert " or " not in found.power
    assert number(found.power) > 0.02
    assert found.off == pytest.approx(number(found.power) - 0.005, rel=1e-3)


def test_the_picture_of_a_test_is_its_power() -> None:
    found = equal(520, 4000, 0.125)
    picture = pictured("a chance", found)
    assert picture is not None
    line, mark = picture.curves
    assert line.label == "a chance"
    for chance, caught in zip(line.x, line.y, strict=True):
        low, high = (int(x) for x in re.findall(r"; (\d+) to (\d+) are", found.measured)[0])
        assert caught == pytest.approx(1.0 - sum(binom.pmf(range(low, high + 1), 4000, chance)), abs=1e-9)
    assert min(line.y) < 2.0 * ALPHA  # the grid need not meet the stated chance itself
    assert max(line.y) > CAUGHT
    assert mark.x == (0.13,)
    drawn = rng.stream(7, "normal").normal(size=200)
    assert pictured("", distributed(drawn, norm.cdf, "a shift of", shifted, 5.0)) is None
