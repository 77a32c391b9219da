"""Draws: named, independent, and short enough for every format."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from refattn import rng


def test_streams_are_named_and_independent():
    a, again, other = (rng.stream(0, *path).normal(size=4) for path in (("q",), ("q",), ("k",)))
    np.testing.assert_array_equal(a, again)
    assert not np.array_equal(a, other)
    assert not np.array_equal(a, rng.stream(1, "q").normal(size=4))


def test_short_values_are_those_of_e4m3_and_exact_in_every_format():
    x = np.concatenate([rng.stream(0, "x").normal(size=2000) * 10.0**p for p in (-4, -2, 0, 2, 3)])
    got = rng.short(x)
    np.testing.assert_array_equal(got, np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64))
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        np.testing.assert_array_equal(got.astype(dtype).astype(np.float64), got)


def test_shapes_of_what_would_be_drawn() -> None:
    source = rng.Shapes(0).at("layer", 3)
    assert (source.normal((2, 3), 1.0), source.filled((4,), 0.0)) == ((2, 3), (4,))
