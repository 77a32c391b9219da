"""Random projections: every claim comes out as stated, and does not where a law, a sketch or a formula is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import log
from typing import Any

import pytest
from scipy.stats import chi2

from refattn import rng
from refattn.verify import jl, jl_laws, sketches
from refattn.verify.claim import Claim
from refattn.verify.sketches import FAMILIES, Sketch, moments


def test_every_claim_comes_out_as_stated_and_says_what_it_would_have_caught(undocumented: Any) -> None:
    claims = jl.run()
    assert undocumented(claims, "jl: ") == []
    for claim in claims:
        print(claim)
        assert claim.as_stated
        assert bool(claim.power) == (claim.false_alarm > 0.0)
    assert len({claim.name for claim in claims}) == len(claims) == 25
    assert sum(not claim.stated for claim in claims) == 7
    assert {claim.false_alarm for claim in claims} == {0.0, 1e-6}


def test_a_seed_is_what_is_drawn() -> None:
    one, again, other = (jl.law_of_products(FAMILIES[1], seed).measured for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("sketch", FAMILIES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_written_out_law_has_the_mean_and_variance_of_the_formula(sketch: Sketch, k: int) -> None:
    for x, y in (((2, -1, 3), (1, 2, 1)), ((1, 1, 0), (0, 1, 5)), ((3, 3, 3), (1, -1, 1))):
        law = sketch.law(x, y, k)
        dot = sum(a * b for a, b in zip(x, y, strict=True))
        assert sum(law.values()) == 1
        assert moments(law) == (Fraction(dot), sketch.variance(x, y, k))


@pytest.mark.parametrize("sketch", FAMILIES, ids=str)
def test_entries_are_those_of_the_family(sketch: Sketch) -> None:
    drawn = sketch.apply(rng.short([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), 4, rng.stream(1, "one"))
    assert drawn.shape == (4, 2)
    if sketch.name == "countsketch":
        assert [sorted(abs(column).tolist()) for column in drawn.T] == [[0.0, 0.0, 0.0, 1.0]] * 2
    elif sketch.name != "gaussian":
        assert {round(abs(float(x)), 12) for x in drawn.ravel()} <= {0.0, round((sketch.q / 4) ** 0.5, 12)}


def test_chances_of_the_gaussian_are_those_of_other_formulas() -> None:
    """At ρ → 1 the product is a length; at k = 2, ρ = 0 it has Laplace's law, ⟨Sx, Sy⟩ ~ (A − B)/4 of exponential A, B."""
    for k, eps in ((5, 0.4), (40, 0.25), (250, 0.1)):
        near = jl_laws.product_failure(k, eps, 1.0 - 1e-9)
        assert near == pytest.approx(jl_laws.length_failure(k, eps), rel=1e-5)
        assert jl_laws.length_failure(k, eps) == pytest.approx(1.0 - chi2.cdf(k + k * eps, k) + chi2.cdf(k - k * eps, k))
    for eps in (0.1, 0.5, 1.5):
        assert jl_laws.product_failure(2, eps, 0.0) == pytest.approx(2.718281828459045 ** (-2.0 * eps), rel=1e-7)


def test_bounds_and_dimensions_by_hand() -> None:
    assert jl_laws.length_failure(250, 0.5) == pytest.approx(5.0e-7, rel=0.02)
    assert jl_laws.dasgupta_gupta(250, 0.5) == pytest.approx(6.0e-5, rel=0.02)
    assert jl_laws.arriaga_vempala(250, 0.5) == pytest.approx(8.1e-4, rel=0.02)
    assert jl_laws.linformer_dimension(512, 0.1) == pytest.approx(3465.7, abs=0.1)
    least = min(jl_laws.linformer_dimension(4096, i / 300.0) for i in range(1, 300))
    assert least == pytest.approx(33.75 * log(4096), rel=1e-4)
    assert jl_laws.rows_dimension(512, 0.5, 0.05) == pytest.approx(317.7, abs=0.1)
    for points, eps, rounded in ((1e6, 0.5, 663), (1e6, 0.1, 11_841), (1e4, 0.1, 7_894)):  # scikit-learn's own examples
        assert int(jl_laws.points_dimension(points, eps)) == rounded


class Wrong(Sketch):
    """A family whose matrices are off, and which goes by the name of the right one."""

    def matrix(self, k: int, n: int, draws: Any) -> Any:
        right = super().matrix(k, n, draws)
        if self.name == "rademacher":
            return right * (draws.integers(0, 2, (k, n)) * 2 - 1).cumsum(axis=0).clip(-1, 1)
        return right * (1.05 if self.name == "gaussian" else (self.q / (self.q - 1)) ** 0.5)


@pytest.mark.parametrize("sketch", FAMILIES[:4], ids=str)
def test_products_of_wrong_matrices_are_found(sketch: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Wrong(sketch.name, sketch.q)
    if sketch.name == "gaussian":
        monkeypatch.setattr(jl, "GAUSSIAN", wrong)
        assert not jl.norm_law(0)[0].as_stated
        return
    assert not jl.law_of_products(wrong, 0).as_stated


def test_hashes_that_are_not_uniform_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = sketches.clarkson_woodruff_transform

    def one_row(x: Any, k: int, draws: Any) -> Any:
        y = transform(x, k, draws)
        y[0] += y[1]
        y[1] = 0.0
        return y

    monkeypatch.setattr(sketches, "clarkson_woodruff_transform", one_row)
    assert not jl.law_of_products(FAMILIES[4], 0).as_stated


BROKEN: list[tuple[str, str, Any, Callable[[], Claim]]] = [
    ("a bound without its cube", "dasgupta_gupta", lambda k, e: 2.0 * 2.718281828 ** (-k * e**2 / 4), jl.bounds_of_lengths),
    ("a bound that is too small", "arriaga_vempala", lambda k, e: 2.718281828 ** (-k * e**2 / 2), jl.bound_of_products),
    ("a chance of half the events", "product_failure", lambda k, e, r: jl_laws.product_failure(k, e, r) / 2,
     lambda: jl.tail_of_products(0)),
    ("a bound for one pair", "points_failure", lambda n, k, e: 0.0 if k > 20 else 1.0, lambda: jl.all_distances(0)),
    ("one formula for three", "points_dimension", lambda n, e: jl_laws.rows_dimension(n, e, 0.05),
     lambda: jl.dimensions()[3]),
    ("a bound that everything keeps", "chebyshev", lambda k, e: 1e-6, lambda: jl.length(FAMILIES[4], 0)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "wrong", "claim"), [
    pytest.param(*row, marks=[pytest.mark.sweep] if row[0] == "a bound that is too small" else [], id=row[0])
    for row in BROKEN
])  # fmt: skip
def test_a_wrong_formula_is_found(
    what: str, name: str, wrong: Any, claim: Callable[[], Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jl, name, wrong)
    assert not claim().as_stated


def test_a_wrong_kurtosis_is_found() -> None:
    class Off(Sketch):
        @property
        def kappa(self) -> int:
            return self.q + 1

    assert not jl.variance(Off("sparse", 3)).as_stated
    assert jl.variance(Sketch("sparse", 3)).as_stated
    assert replace(jl.variance(Sketch("sparse", 3)), stated=False).as_stated is False
