"""Verdicts on one tensor: each rule at its edge, one step inside and one step outside."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn import Dense, rng
from refattn.precision import PRESETS, for_dtype
from refattn.testing.cases import cases
from refattn.testing.judge import BIAS_Z, ENOUGH, RMS, SIGMAS, STATISTICAL, floor, judge, ratios, spread
from refattn.testing.only import parse
from refattn.testing.tolerance import exact_in, expect, largest, storage
from refattn.testing.verdicts import Band, Level

Array = Any
SHAPE = (1, 2, 8, 4)


def band(value: Any, bound: Any = 1e-3, sigma: Any = 1e-4) -> Band:
    value = np.asarray(value, np.float64)
    return Band(value, np.broadcast_to(np.asarray(bound, np.float64), value.shape), np.broadcast_to(sigma, value.shape))


@pytest.fixture
def want() -> Array:
    return np.random.default_rng(1).normal(size=SHAPE) + 3.0


def off(want: Array, by: float, at: tuple[int, ...] = (0, 1, 2, 3)) -> Array:
    got = want.copy()
    got[at] += by
    return got


def test_the_reference_itself_is_ok(want: Array) -> None:
    v = judge("o", want, band(want), "float64")
    assert (v.level, v.reason, v.max_ratio, v.rms, v.share, v.where) == (Level.OK, "", 0.0, 0.0, 0.0, "")


@pytest.mark.parametrize(("factor", "level"), [(0.999, Level.OK), (1.001, Level.FAIL)])
def test_the_bound_is_the_edge(want: Array, factor: float, level: Level) -> None:
    v = judge("o", off(want, 1e-3 * factor), band(want, sigma=1e-3), "float64")
    assert v.level == level
    assert v.max_ratio == pytest.approx(factor, rel=1e-9)
    assert v.worst is not None
    assert (v.worst.index, v.worst.bound) == ((0, 1, 2, 3), 1e-3)
    assert v.worst.got - v.worst.want == pytest.approx(1e-3 * factor)
    assert (v.reason, v.share) == (("bound", 1 / want.size) if level == Level.FAIL else ("", 0.0))
    assert ("head 1 (the last) of 2, row 2 of 8, channel 3 (the last) of 4" in v.where) == (level == Level.FAIL)


def test_a_shape_or_dtype_that_is_not_asked_for_fails_and_is_shown(want: Array) -> None:
    v = judge("o", want[..., :3], band(want), "float64")
    assert (v.level, v.reason, v.where) == (Level.FAIL, "shape", "shape (1, 2, 8, 3) instead of (1, 2, 8, 4)")
    assert judge("o", want[None], band(want), "float64").reason == "shape"
    v = judge("o", want.astype(np.float32), band(want), "float64")
    assert (v.level, v.reason, v.where) == (Level.FAIL, "dtype", "dtype float32 instead of float64")
    assert judge("o", want, band(want), "bfloat16").reason == "dtype"


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_lse_may_come_in_any_float_dtype_but_in_no_other(kind: str) -> None:
    lse = np.ones((1, 2, 8))
    assert judge("lse", lse.astype(storage(kind)), band(lse), "bfloat16").level == Level.OK
    assert judge("lse", lse.astype(np.int64), band(lse), "bfloat16").reason == "dtype"
    assert judge("lse", lse.astype(np.complex128), band(lse), "bfloat16").reason == "dtype"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_where_a_number_belongs_fail(want: Array, value: float) -> None:
    v = judge("o", np.where(want == want[0, 1, 2, 3], value, want), band(want), "float64")
    assert (v.level, v.reason, v.max_ratio, v.share) == (Level.FAIL, "class", np.inf, 1 / want.size)
    assert v.worst is not None
    assert v.worst.index == (0, 1, 2, 3)


@pytest.mark.parametrize("value", [np.inf, np.nan, -1e38, 0.0])
def test_lse_of_a_query_that_sees_nothing_is_minus_infinity_and_nothing_else(value: float) -> None:
    lse = np.array([[[0.5, -np.inf, 2.0]]])
    assert judge("lse", lse, band(lse), "float64").level == Level.OK
    v = judge("lse", np.where(np.isfinite(lse), lse, value), band(lse), "float64")
    assert (v.level, v.reason) == (Level.FAIL, "class")
    assert "row 1 of 3" in v.where


def test_an_infinite_bound_takes_any_number_but_no_nan(want: Array) -> None:
    wide = band(want, bound=np.where(want == want.max(), np.inf, 1.0), sigma=1.0)
    at = np.unravel_index(np.argmax(want), want.shape)
    assert judge("o", off(want, 1e200, at), wide, "float64").level <= Level.WARN
    assert judge("o", off(want, np.nan, at), wide, "float64").reason == "class"


def test_where_the_bound_is_zero_only_the_value_itself_passes(want: Array) -> None:
    exact = band(want, bound=np.where(want == want[0, 1, 2, 3], 0.0, 1e-3))
    assert judge("o", want, exact, "float64").level == Level.OK
    v = judge("o", off(want, 1e-12), exact, "float64")
    assert (v.level, v.reason, v.max_ratio) == (Level.FAIL, "bound", np.inf)
    assert judge("o", off(want, 1e-12, (0, 0, 0, 0)), exact, "float64").level == Level.OK


def test_zero_sized_tensors_are_ok_in_the_right_shape_alone() -> None:
    empty = np.zeros((2, 3, 0, 4))
    assert judge("o", empty, band(empty), "float64").level == Level.OK
    assert judge("o", np.zeros((2, 3, 1, 4)), band(empty), "float64").reason == "shape"
    assert judge("o", empty.astype(np.float32), band(empty), "float64").reason == "dtype"


@pytest.mark.parametrize(("size", "level"), [(SIGMAS - 0.1, Level.OK), (SIGMAS + 0.1, Level.WARN)])
def test_one_element_beyond_six_sigma_warns(size: float, level: Level) -> None:
    want = np.ones((1, 1, 64, 64))
    v = judge("o", off(want, 1e-4 * size, (0, 0, 5, 5)), band(want), "float64")
    assert (v.level, v.reason) == (level, "sigma" if level == Level.WARN else "")


@pytest.mark.parametrize(("factor", "level"), [(0.97, Level.OK), (1.03, Level.WARN)])
def test_a_spread_that_is_too_large_warns(factor: float, level: Level) -> None:
    want = np.ones((1, 1, 64, 64))
    signs = np.where(np.random.default_rng(0).random(want.shape) < 0.5, -1.0, 1.0)
    v = judge("o", want + signs * 1e-4 * RMS * factor, band(want), "float64")
    assert (v.level, v.reason) == (level, "rms" if level == Level.WARN else "")
    assert v.rms == pytest.approx(RMS * factor)


@pytest.mark.parametrize(("size", "level"), [(4, Level.OK), (4096, Level.WARN)])
def test_the_spread_of_a_few_elements_says_little(size: int, level: Level) -> None:
    """Two sigma in each of the four sinks' gradients is nothing; in each of thousands of elements it is."""
    want = np.ones(size)
    assert judge("dsink", want + 2e-4, band(want), "float64").level == level


def test_lse_has_more_room_for_errors_that_are_common_to_a_row() -> None:
    want = np.ones((1, 2, 64))
    assert judge("lse", want + 2.5e-4, band(want), "float64").level == Level.OK
    assert judge("lse", want + 3.5e-4, band(want), "float64").reason == "rms"


@pytest.mark.parametrize(("factor", "size", "level"), [
    (1.1, ENOUGH, Level.FAIL), (0.9, ENOUGH, Level.WARN), (1.1, ENOUGH - 1, Level.WARN),
])  # fmt: skip
def test_where_the_bound_is_wider_than_the_values_the_judgement_is_statistical(
    factor: float, size: int, level: Level
) -> None:
    want = np.ones((1, 1, size, 1))
    got = want + 1e-2 * STATISTICAL * factor * np.where(np.arange(size)[:, None] % 2, 1.0, -1.0)
    v = judge("dq", got, band(want, bound=2.0, sigma=1e-2), "float64")
    assert (v.level, v.reason) == (level, "statistical" if level == Level.FAIL else "rms")
    assert judge("dq", got, band(want, bound=0.9, sigma=1e-2), "float64").level == Level.WARN, "the bound is narrow enough"


def test_truncation_of_the_result_warns_as_bias() -> None:
    """What kit.md calls an RZ store: inside every bound, and always towards zero."""
    g = np.random.default_rng(0)
    x = {name: exact_in(g.normal(size=(1, 2, 64, 32)), "bfloat16") for name in "qkv"}
    x["v"] = exact_in(x["v"] + 1.0, "bfloat16")
    ref = expect(Dense(), Dense.Inputs(**x), PRESETS["flash-bf16"])["o"]
    near = ref.value.astype(ml_dtypes.bfloat16)
    toward = np.where(np.abs(near.astype(float)) > np.abs(ref.value), np.nextafter(near, np.zeros_like(near)), near)
    assert judge("o", near, ref, "bfloat16").level == Level.OK
    v = judge("o", toward, ref, "bfloat16")
    assert (v.level, v.reason) == (Level.WARN, "bias")
    away = np.where(np.abs(near.astype(float)) < np.abs(ref.value), np.nextafter(near, near * 2), near)
    assert judge("o", away, ref, "bfloat16").reason == "bias"


def test_a_bias_of_few_elements_or_of_float32_is_not_remarked() -> None:
    want = np.ones((1, 1, int(BIAS_Z**2) + 2, 1))
    few = want[:, :, : int(BIAS_Z**2) - 2]
    for x, dtype, level in ((want, "float16", Level.WARN), (few, "float16", Level.OK), (want, "float32", Level.OK)):
        got = (x * 0.999).astype(dtype)
        assert judge("o", got, band(x, bound=1e-2, sigma=1e-2), dtype).level == level
    assert judge("lse", (want * 0.999)[..., 0], band(want[..., 0], bound=1e-2, sigma=1e-2), "float16").level == Level.OK


def test_an_unbiased_error_of_the_same_size_is_ok() -> None:
    want = np.ones((1, 1, 400, 1))
    got = (want + np.where(np.arange(400)[:, None] % 2, 1e-3, -1e-3)).astype(np.float16)
    assert judge("o", got, band(want, bound=1e-2, sigma=1e-2), "float16").level == Level.OK


def test_sigma_has_a_floor_so_that_exact_elements_do_not_weigh_infinitely() -> None:
    sigma = np.array([1.0, 1.0, 1.0, 1e-9])
    assert floor(sigma).min() == pytest.approx(1e-2)
    assert floor(np.zeros(3)).min() > 0
    got = np.array([0.0, 0.0, 0.0, 1e-3])
    assert spread(got, Band(np.zeros(4), np.ones(4), sigma)) < 0.1
    assert spread(got, Band(np.zeros(4), np.ones(4), np.zeros(4))) == 0.0


def test_ratios_are_zero_where_nothing_can_be_compared() -> None:
    b = Band(np.array([1.0, -np.inf, 2.0, 0.0]), np.array([0.5, 0.0, 0.0, 0.0]), np.ones(4))
    assert ratios(np.array([1.25, -np.inf, 2.0, 1.0]), b).tolist() == [0.5, 0.0, 0.0, np.inf]
    assert ratios(np.array([np.nan, np.nan, 2.0, 0.0]), b).tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_infinity_is_how_a_number_beyond_the_dtype_is_stored(kind: str) -> None:
    most = float(ml_dtypes.finfo(storage(kind)).max)
    assert largest(kind) == most
    beyond, near = most * 1.5, most * 0.9999
    for value, got, level in ((beyond, np.inf, Level.OK), (-beyond, -np.inf, Level.OK), (near, np.inf, Level.OK),
                              (beyond, -np.inf, Level.FAIL), (most / 2, np.inf, Level.FAIL), (beyond, np.nan, Level.FAIL)):
        want = np.full((1, 1, 1, 1), value)
        v = judge("dq", np.full_like(want, got).astype(storage(kind)), band(want, bound=most * 1e-3, sigma=1.0), kind)
        assert v.level == level, (value, got)


def test_values_near_the_largest_number_do_not_overflow_the_verdict() -> None:
    want = np.full((1, 1, 4, 4), 1e308)
    v = judge("o", -want, band(want, bound=1e290, sigma=1e280), "float64")
    assert (v.level, v.reason) == (Level.FAIL, "bound")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_errors_that_a_row_shares_are_no_bias(dtype: str) -> None:
    """With one query and one key all of a row of dq and of dk has the error of its one dS, of D = do·o from a stored o."""
    found = list(cases(Dense(keep_rate=0.75), dtype, frozenset({"keep"}), parse("family=one key,normal")))
    kept = (c for c in found if c.sizes["m"] == 1)
    for case in kept:
        for number in range(24):
            do = exact_in(rng.stream(number, case.id).normal(size=case.do.shape), dtype)
            given = [x.astype(storage(dtype)) if x is not None and x.dtype.kind == "f" else x for x in case.inputs]
            _, saved = case.scheme.forward(*given)
            grads = case.scheme.vjp(saved, do.astype(storage(dtype)), dlse=case.dlse.astype(saved.lse.dtype))
            ref = expect(case.scheme, case.inputs, for_dtype(dtype)[0], do, case.dlse)
            for name in ("dq", "dk", "dv"):
                verdict = judge(name, getattr(grads, name[1:]), ref[name], dtype)
                assert (verdict.level, verdict.reason) == (Level.OK, ""), (case.id, number, name)
