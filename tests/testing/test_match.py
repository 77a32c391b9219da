"""The matched filter on errors that are known: nothing, noise, a share of a mistake, the whole of it, and classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.testing.match import CLASS_POWER, QUARTERS, match, out_of_class, quarters
from refattn.testing.verdicts import Band

Array = Any
SHAPE = (2, 3, 21, 5)
G = np.random.default_rng(7)
VALUE, DELTA = G.normal(size=SHAPE), G.normal(size=SHAPE)
SIGMA = 1e-3 * (0.5 + G.random(SHAPE))


def band(value: Array = VALUE, sigma: Array = SIGMA) -> Band:
    return Band(value, 10 * sigma, sigma)


def lse(*holes: int) -> Array:
    x = G.normal(size=(1, 2, 6))
    x[..., list(holes)] = -np.inf
    return x


def test_power_is_the_size_of_the_mistake_in_sigma_and_known_before_any_kernel_ran() -> None:
    power = float(np.sqrt(np.sum((DELTA / SIGMA) ** 2)))
    for got in (VALUE, VALUE + DELTA, VALUE + 1e-3):
        assert match({"o": got}, {"o": band()}, {"o": VALUE + DELTA}).power == pytest.approx(power)


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.3, 1.0, 2.0])
def test_amplitude_is_the_share_of_the_mistake(share: float) -> None:
    m = match({"o": VALUE + share * DELTA}, {"o": band()}, {"o": VALUE + DELTA})
    assert m.amplitude == pytest.approx(share, abs=1e-12)
    assert m.t == pytest.approx(share * m.power, abs=1e-9)
    assert m.residual == pytest.approx(0.0, abs=1e-6)
    assert m.quarters == pytest.approx([share] * QUARTERS, abs=1e-12)
    assert m.steady == (share != 0.0)
    assert m.classes is None


def test_noise_has_an_amplitude_of_one_over_the_power() -> None:
    mistake = {"o": VALUE + 1e-3 * DELTA}
    draws = [SIGMA * np.random.default_rng(s).normal(size=SHAPE) for s in range(200)]
    noise = [match({"o": VALUE + x}, {"o": band()}, mistake) for x in draws]
    t = np.array([m.t for m in noise])
    assert abs(t.mean()) < 0.3
    assert t.std() == pytest.approx(1.0, abs=0.15)
    assert max(abs(m.amplitude) for m in noise) < 5 / noise[0].power
    assert min(m.residual for m in noise) > 0.95


def test_noise_hides_little_of_a_mistake_of_power() -> None:
    noise = SIGMA * np.random.default_rng(1).normal(size=SHAPE)
    m = match({"o": VALUE + noise + 3e-3 * DELTA}, {"o": band()}, {"o": VALUE + 3e-3 * DELTA})
    assert m.power > 30
    assert m.amplitude == pytest.approx(1.0, abs=0.1)
    assert m.steady


def test_errors_in_one_quarter_of_the_rows_are_not_steady() -> None:
    got = VALUE.copy()
    got[:, :, ::QUARTERS] += 4 * DELTA[:, :, ::QUARTERS]
    m = match({"o": got}, {"o": band()}, {"o": VALUE + DELTA})
    assert 0.7 < m.amplitude < 1.4
    assert not m.steady


def test_quarters_without_their_share_of_the_power_have_no_say() -> None:
    delta = np.where(np.arange(SHAPE[2])[:, None] % QUARTERS == 2, DELTA, 1e-3 * DELTA)
    m = match({"o": VALUE + delta}, {"o": band()}, {"o": VALUE + delta})
    assert len(m.quarters) == 1
    assert m.steady


def test_a_tensor_counts_if_both_have_it_and_in_the_right_shape() -> None:
    both = {"o": VALUE + DELTA, "dq": VALUE}
    whole = match(both, {"o": band(), "dq": band()}, both)
    assert match({**both, "dq": VALUE[..., :2]}, {"o": band(), "dq": band()}, both) == whole
    assert match({"o": VALUE + DELTA}, {"o": band(), "dq": band()}, both) == whole
    assert match({"dv": VALUE}, {"o": band(), "dq": band()}, both).power == 0.0


def test_tensors_are_weighed_by_their_own_sigma() -> None:
    ref = {"o": band(), "dq": band(sigma=1e3 * SIGMA)}
    wrong = {"o": VALUE + 1e-3 * DELTA, "dq": VALUE + DELTA}
    assert match({"o": VALUE, "dq": wrong["dq"]}, ref, wrong).amplitude == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(("got", "mutant", "classes"), [
    ((), (), None), ((2,), (), False), ((), (2,), False), ((2,), (2,), True), ((2, 3), (2,), False), ((2,), (2, 3), False),
])  # fmt: skip
def test_classes_tell_whether_infinities_are_where_the_mistake_has_them(got: Any, mutant: Any, classes: bool | None) -> None:
    right = lse(0)
    def with_nan(at: Any) -> Array:
        x = right.copy()
        x[..., list(at)] = np.nan
        return x
    m = match({"lse": with_nan(got)}, {"lse": band(right, np.ones_like(right))}, {"lse": with_nan(mutant)})
    assert m.classes is classes
    assert m.power == pytest.approx(CLASS_POWER * 2 * len(mutant))


def test_a_right_infinity_is_not_out_of_class_and_adds_nothing() -> None:
    right = lse(0, 3)
    b = band(right, np.ones_like(right))
    m = match({"lse": right}, {"lse": b}, {"lse": right + 1.0})
    assert (m.classes, m.amplitude) == (None, 0.0)
    assert m.power == pytest.approx(np.sqrt(np.isfinite(right).sum()))
    assert not out_of_class(right, right).any()
    assert out_of_class(-right, right).sum() == (~np.isfinite(right)).sum()
    assert out_of_class(np.nan * right, right).all()


def test_mistakes_of_any_size_do_not_overflow() -> None:
    huge = VALUE * 1e200
    m = match({"o": huge}, {"o": band()}, {"o": huge})
    assert np.isfinite([m.power, m.t, m.amplitude, m.residual]).all()


def test_quarters_add_up_whatever_the_number_of_rows() -> None:
    for shape in ((1, 2, 1, 3), (1, 2, 7, 3), (1, 2, 8), (5,), (2, 3)):
        e, d = G.normal(size=shape), G.normal(size=shape)
        parts = quarters(e, d)
        assert parts.shape == (QUARTERS, 3)
        assert parts.sum(axis=0) == pytest.approx([np.sum(e * d), np.sum(d * d), np.sum(e * e)])
    rows = np.zeros((1, 1, 8, 2))
    rows[:, :, 1] = 1.0
    assert quarters(rows, rows)[:, 1].tolist() == [0.0, 2.0, 0.0, 0.0]
