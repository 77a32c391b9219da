"""Rounding to the formats of kernels: by ml_dtypes and by bits alike."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from refattn import rng
from refattn.testing.tolerance import exact_in, storage, toward_zero

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 3.39e38, 3.3961775e38, 1e39, 1e-45, 1e-40, 9.2e-41, 5e-324]


def everywhere() -> np.ndarray:
    """Numbers of every exponent of float32: random ones, those of bfloat16, the middles between them, and near either."""
    bits = rng.stream(0, "bits").integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    parts = [bits, upper, upper | 0x8000, upper | 0x8001, upper | 0x7FFF, upper | 1]
    with np.errstate(invalid="ignore"):  # NaN of all kinds among them
        return np.concatenate([*(p.view(np.float32).astype(np.float64) for p in parts), SPECIAL])


@pytest.mark.parametrize("shape", ["flat", "scalar", "strided", "empty"])
def test_bfloat16_by_bits_is_that_of_ml_dtypes(shape: str) -> None:
    x = everywhere()
    x = {"flat": x, "scalar": x[5], "strided": x[::-3], "empty": x[:0]}[shape]
    with np.errstate(over="ignore", invalid="ignore"):
        want = np.asarray(x, np.float64).astype(ml_dtypes.bfloat16).astype(np.float64)
    got = exact_in(x, "bfloat16")
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(want[~np.isnan(want)]))


def test_numbers_between_those_of_float32_are_rounded_as_ml_dtypes_does() -> None:
    """By float32, as compilers and GPUs have it: twice, where a number lies next to a middle."""
    middle = 1.0 + 2.0**-8
    x = np.array([middle, middle + 2.0**-40, middle - 2.0**-40, middle * (1 + 2.0**-24)])
    np.testing.assert_array_equal(exact_in(x, "bfloat16"), x.astype(ml_dtypes.bfloat16).astype(np.float64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_cut_off_is_the_nearest_number_that_is_not_larger(dtype: str) -> None:
    x, kind = everywhere(), storage(dtype)
    x = x[np.abs(x) < float(ml_dtypes.finfo(kind).max)]
    got = toward_zero(x, dtype)
    np.testing.assert_array_equal(got, exact_in(got, dtype))
    assert np.all(np.abs(got) <= np.abs(x))
    assert np.all((np.sign(got) == np.sign(x)) | (got == 0))
    above = np.nextafter(got.astype(kind), np.copysign(np.inf, x).astype(kind)).astype(np.float64)
    assert np.all(np.abs(above) > np.abs(x))
