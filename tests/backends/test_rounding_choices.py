"""Decisions, exactness and structure under the rounding reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.backend import load, of
from refattn.backends.rounding_array import Variance
from refattn.errors import LibraryError, OptionError
from refattn.precision import PRESETS

Array = Any
INF = float("inf")


@pytest.fixture
def reading() -> Any:
    return load("rounding", precision=PRESETS["fp32"])


def rough(reading: Any, value: Any, error: Any) -> Any:
    """An array with an error of its own."""
    x = reading.lift(np.asarray(value, float))
    x.error = np.broadcast_to(np.asarray(error, float), x.shape)
    return x


# ------------------------------------------------------------------ what is exact


def test_given_arrays_are_exact_and_truth_values_and_integers_stay_so(reading: Any) -> None:
    xp, x = reading.xp, reading.lift(np.array([0.1, 0.2]))
    i = reading.lift(range(3))
    ones = xp.cumulative_sum(xp.ones_like(x))
    for exact in (x, i + 1, i * i - 2, i[:, None] <= i[None, :], xp.sum(i), ones, -x, x * 0.25):
        assert exact.error is None
        assert not exact.bound.any()
    assert (i + 1).dtype == np.int64
    assert reading.log == []


def test_whole_numbers_are_exact_until_the_format_cannot_hold_them(reading: Any) -> None:
    xp, big = reading.xp, reading.lift(np.full(4, 2.0**23))
    assert xp.sum(reading.lift(np.arange(100.0))).error is None
    assert (big + 1.0).error is None
    assert xp.sum(big).error is not None
    assert (big * 3.0).error is not None


@pytest.mark.parametrize(
    ("constant", "exact"), [(0.5, True), (1.5, True), (0.0, True), (INF, True), (0.1, False), (1 / 3, False)]
)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_constants_that_the_format_cannot_hold_are_rounded(precision: str, constant: float, exact: bool) -> None:
    reading = load("rounding", precision=PRESETS[precision])
    assert (reading.lift(constant).error is None) == exact


def test_short_constants_are_judged_by_the_format() -> None:
    long = 1 + 2.0**-10
    assert load("rounding", precision=PRESETS["fp32"]).lift(long).error is None
    assert load("rounding", precision=PRESETS["eager-bf16"]).lift(long).error is not None


def test_exact_zeros_cost_nothing(reading: Any) -> None:
    x = rough(reading, [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]], [[1e-3, 0.0, 1e-3], [0.0, 0.0, 0.0]])
    product = reading.xp.matmul(x, reading.lift(np.ones((3, 2))))
    assert (product.bound[0] > 0).all()
    assert not product.bound[1].any()
    assert not reading.xp.sum(x, axis=-1).bound[1]
    assert not (x * x).bound[1].any()
    assert not reading.narrow(x).bound[1].any()


def test_only_terms_that_are_not_zero_are_counted(reading: Any) -> None:
    value = np.zeros((1, 400))
    few = value.copy()
    few[0, :4] = 1.0
    ones = reading.lift(np.full((400, 1), 0.3))
    bounds = [reading.xp.matmul(reading.lift(x + 0.1 * (x > 0)), ones).bound[0, 0] / 4 for x in (few, value + 0.01)]
    assert bounds[0] < 0.1 * bounds[1]


def test_a_gauge_has_no_error(reading: Any) -> None:
    x = rough(reading, [1.0, 2.0], 0.1)
    assert reading.constant(reading.xp.max(x)).error is None
    assert reading.xp.max(x).bound == pytest.approx(0.1)


def test_non_finite_values_have_no_error(reading: Any) -> None:
    x = rough(reading, [1.0, 2.0], 0.1)
    low = reading.lift(np.array([-INF, 0.0]))
    total = x + low
    assert total.value[0] == -INF
    assert total.bound[0] == 0.0
    assert reading.xp.exp(total).value[0] == 0.0
    assert reading.xp.exp(total).bound[0] == 0.0
    assert np.isfinite(reading.xp.matmul(reading.xp.exp(total)[None, :], x[:, None]).bound).all()
    assert reading.xp.max(total).bound < 0.2
    assert np.array_equal(reading.xp.maximum(total, low).bound > 0.0, [False, True])
    assert np.isfinite(reading.xp.maximum(total, low).bound).all()


def test_a_divisor_that_may_be_zero_leaves_no_bound(reading: Any) -> None:
    ratio = reading.lift(np.array([1.0, 1.0, 0.0])) / rough(reading, [0.1, 1.0, 0.05], 0.1)
    assert np.array_equal(np.isinf(ratio.bound), [True, False, False])
    assert ratio.bound[2] == 0.0
    unbounded = reading.xp.matmul(ratio[None, :], reading.lift(np.array([[0.0], [1.0], [1.0]])))
    assert np.isinf(unbounded.bound).all()


# ------------------------------------------------------------------ decisions


def test_a_comparison_within_the_errors_is_undecided(reading: Any) -> None:
    x = rough(reading, [1.0, 1.0, 1.0], [0.1, 0.3, 0.0])
    above = x > 0.8
    assert np.array_equal(above.bound, [0.0, 1.0, 0.0])
    assert reading.log == [("greater", 3, 1)]


def test_zero_without_error_is_decidedly_not_above_zero(reading: Any) -> None:
    x = rough(reading, [0.0, 0.0], [0.0, 1e-9])
    assert np.array_equal((x > 0.0).bound, [0.0, 1.0])
    assert np.array_equal((x == 0.0).bound, [0.0, 1.0])


def test_minus_infinity_is_decided(reading: Any) -> None:
    x = rough(reading, [-INF, 3.0], [0.0, 0.5])
    assert (x == -INF).error is None
    assert np.array_equal((x == -INF).value, [True, False])


def test_selection_on_an_undecided_condition_takes_the_hull(reading: Any) -> None:
    x = rough(reading, [1.0, 5.0], 0.5)
    chosen = reading.xp.where(x > 0.8, 10.0, rough(reading, 7.0, 0.25))
    assert np.array_equal(chosen.value, [10.0, 10.0])
    assert chosen.bound[0] == pytest.approx(3.25)
    assert chosen.bound[1] == 0.0


def test_logic_forgets_doubt_that_does_not_matter(reading: Any) -> None:
    doubt = rough(reading, [1.0, 1.0], 0.5) > 0.8
    sure = reading.lift(np.array([False, True]))
    assert np.array_equal((doubt & sure).bound, [0.0, 1.0])
    assert np.array_equal((doubt | sure).bound, [1.0, 0.0])
    assert np.array_equal((~doubt).bound, [1.0, 1.0])
    assert reading.xp.any(doubt | sure).bound == 0.0
    assert reading.xp.all(doubt & sure).bound == 0.0
    assert reading.xp.any(doubt).bound == 1.0


def test_an_undecided_truth_value_counts_as_one(reading: Any) -> None:
    doubt = rough(reading, [1.0, 1.0, 3.0], 0.5) > 0.8
    assert reading.xp.sum(reading.xp.astype(doubt, np.float64)).bound >= 2.0
    assert (doubt * reading.lift(np.full(3, 5.0))).bound[0] == pytest.approx(5.0)


def test_positions_are_logged_where_a_rival_is_near(reading: Any) -> None:
    x = rough(reading, [[1.0, 1.1, 0.0], [1.0, 3.0, 0.0]], 0.1)
    assert np.array_equal(reading.xp.argmax(x, axis=-1).value, [1, 1])
    assert np.array_equal(reading.xp.argmin(x, axis=-1).value, [2, 2])
    assert np.array_equal(reading.xp.argsort(x, axis=-1, descending=True).value, [[1, 0, 2], [1, 0, 2]])
    assert reading.log == [("argmax", 2, 1), ("argmin", 2, 0), ("argsort", 6, 1)]


# ------------------------------------------------------------------ structure


def test_every_component_moves_alike(reading: Any) -> None:
    xp, rng = reading.xp, np.random.default_rng(0)
    x = rough(reading, rng.normal(size=(2, 3, 4)), rng.uniform(0.1, 1, size=(2, 3, 4)))
    x = x * 1.1  # now with a variance
    moved = [
        (x[..., None, 1:, :2], np.s_[..., None, 1:, :2]),
        (x[1], np.s_[1]),
        (xp.flip(x, axis=-1), np.s_[..., ::-1]),
        (xp.take(x, reading.lift(np.array([2, 0])), axis=-2), np.s_[:, [2, 0]]),
    ]
    for got, key in moved:
        for component in ("value", "bound", "sigma"):
            assert np.array_equal(getattr(got, component), getattr(x, component)[key])
    turned = xp.reshape(xp.matrix_transpose(x), (2, 12))
    assert np.array_equal(turned.bound, np.swapaxes(x.bound, -1, -2).reshape(2, 12))
    assert np.array_equal(xp.concat([x, xp.zeros_like(x)], axis=0).bound, np.concatenate([x.bound, 0 * x.bound]))
    assert xp.stack([x, x], axis=1).bound.shape == (2, 2, 3, 4)
    assert np.array_equal(xp.moveaxis(x, 0, -1).bound, np.moveaxis(x.bound, 0, -1))
    assert np.array_equal(xp.squeeze(xp.expand_dims(x, axis=1), axis=1).sigma, x.sigma)
    assert np.array_equal(xp.permute_dims(x, (2, 0, 1)).bound, np.transpose(x.bound, (2, 0, 1)))


def test_an_error_common_to_a_row_adds_up_along_it_and_not_across(reading: Any) -> None:
    xp = reading.xp
    statistic = rough(reading, np.ones((50, 1)), 1e-3)
    statistic.variance = Variance(alone=np.full((50, 1), 1e-6))
    spread = xp.broadcast_to(statistic, (50, 60))
    along, across = xp.sum(spread, axis=-1), xp.sum(spread, axis=-2)
    assert along.sigma == pytest.approx(60 * 1e-3, rel=1e-3)
    assert across.sigma == pytest.approx(50**0.5 * 1e-3, rel=1e-3)
    assert xp.sum(across).sigma == pytest.approx(50**0.5 * 60 * 1e-3, rel=1e-3)
    turned = xp.sum(xp.matrix_transpose(spread), axis=-2)
    assert turned.sigma == pytest.approx(along.sigma)
    for shape in ((1, 50, 60), (5, 10, 1, 60), (5, 10, 60)):
        assert xp.sum(xp.reshape(spread, shape), axis=-1).sigma == pytest.approx(60 * 1e-3, rel=1e-3)
    assert xp.sum(spread[..., None], axis=-2).sigma[:, 0] == pytest.approx(along.sigma)
    assert xp.sum(spread[:, None, :][..., 0, :], axis=-1).sigma == pytest.approx(along.sigma)
    weights = reading.lift(np.full((60, 4), 0.5))
    assert xp.matmul(spread, weights).sigma == pytest.approx(30 * 1e-3, rel=1e-3)
    assert xp.matmul(xp.matrix_transpose(spread), weights[:50, :]).sigma == pytest.approx(50**0.5 * 0.5e-3, rel=1e-3)


# ------------------------------------------------------------------ the backend itself


def test_arrays_know_their_reading(reading: Any) -> None:
    x = reading.lift(np.ones(3))
    assert of(x) is reading
    assert of(x + 1.0) is reading
    assert (reading.name, reading.block) == ("rounding", None)
    assert set(reading.kernels) == {"erf", "sum_rows", "spread", "turn", "rectangle", "row_sum", "row_sums"}
    assert reading.host(x) is x.value


def test_text_cannot_branch_on_data(reading: Any) -> None:
    x = reading.lift(np.ones(3))
    with pytest.raises(TypeError, match="no truth value"):
        bool(x > 0.0)
    with pytest.raises(TypeError):
        iter(x)


def test_numpy_arrays_on_the_left_do_not_swallow_the_reading(reading: Any) -> None:
    x = reading.lift(np.ones(3))
    assert of(np.ones(3) * x) is reading
    assert of(2.0 - x) is reading


def test_what_has_no_rule_is_refused_by_name(reading: Any) -> None:
    with pytest.raises(AttributeError, match="no rule for 'erf'; it has abs, add"):
        _ = reading.xp.erf
    with pytest.raises(TypeError, match="give two axes or more"):
        reading.xp.matmul(reading.lift(np.ones(3)), reading.lift(np.ones(3)))
    with pytest.raises(TypeError, match="cannot make int64"):
        reading.xp.astype(rough(reading, [1.0], 0.1), np.int64)


def test_arrays_of_two_readings_do_not_meet(reading: Any) -> None:
    other = load("rounding", precision=PRESETS["tf32"])
    with pytest.raises(LibraryError, match="two rounding readings"):
        reading.lift(np.ones(2)) + other.lift(np.ones(2))


@pytest.mark.parametrize("precision", [None, "fp32"])
def test_a_reading_needs_a_precision(precision: Any) -> None:
    with pytest.raises(OptionError, match="needs precision=, a Precision"):
        load("rounding", precision=precision)
