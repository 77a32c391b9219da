"""What several layers reach: the claims that are made for windows, factorised attention and powers of two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from refattn.catalogue import constructors
from refattn.errors import OptionError
from refattn.expression import parse
from refattn.patterns import Alternate, Causal, Heads, Local, LogSparse, Self, reach


def read(text: str) -> Any:
    return parse(text, constructors())


def full(n: int) -> Any:
    return np.tri(n, dtype=bool)


@pytest.mark.parametrize("layers", [0, 1, 2, 5])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_m_layers_of_a_window_of_k_reach_k_times_m(layers: int, window: int) -> None:
    """K·M keys before the query, which residual connections or a window with the query itself add to."""
    n, far = 30, window * layers
    survey = read(f"Longformer.sliding({window}, 'survey')")
    i, j = np.arange(n)[:, None], np.arange(n)
    np.testing.assert_array_equal(reach(survey, n, layers), (i - j >= layers) & (i - j <= far))
    for pattern, residual in ((survey, True), (Local(window, 0), False), (Local(window, 0), True)):
        np.testing.assert_array_equal(reach(pattern, n, layers, residual), (j <= i) & (i - j <= far))
    both = reach(Local.each_side(window), n, layers)
    np.testing.assert_array_equal(both, abs(i - j) <= far)


def test_windows_with_gaps_reach_further() -> None:
    i, j = np.arange(30)[:, None], np.arange(30)
    np.testing.assert_array_equal(reach(Local(2, 0, 3), 30, 3), (j <= i) & (i - j <= 18) & ((i - j) % 3 == 0))


@pytest.mark.parametrize("n", [12, 13, 64])
@pytest.mark.parametrize("l", [3, 8])
def test_strided_attention_covers_everything_in_two_layers(n: int, l: int) -> None:
    for convention in ("paper", "openai"):
        first, second = (read(f"SparseTransformer.strided({l}, '{convention}', '{part}')") for part in ("first", "second"))
        for order in ((first, second), (second, first)):
            for residual in (False, True):
                np.testing.assert_array_equal(reach(Alternate(order), n, 2, residual), full(n))
    survey = read(f"SparseTransformer.strided({l}, 'survey', 'alternate')")
    without = reach(survey, n, 2)
    assert not np.array_equal(without | np.eye(n, dtype=bool), full(n))
    np.testing.assert_array_equal(reach(survey, n, 2, residual=True), full(n))


@pytest.mark.parametrize("n", [12, 13, 64])
@pytest.mark.parametrize("l", [3, 8])
def test_fixed_attention_covers_everything_in_two_layers_with_residuals_or_merged(n: int, l: int) -> None:
    first, second = (read(f"SparseTransformer.fixed({l}, part='{part}')") for part in ("first", "second"))
    np.testing.assert_array_equal(reach(Alternate((first, second)), n, 2, residual=True), full(n))
    for order in ((first, second), (second, first)):
        assert not np.array_equal(reach(Alternate(order), n, 2), full(n))
    assert not reach(second, n, 1)[: l - 1].any()  # rows of A² alone that see nothing
    np.testing.assert_array_equal(reach(read(f"SparseTransformer.fixed({l})"), n, 2), full(n))
    np.testing.assert_array_equal(reach(Heads((first, second)), n, 2), full(n))


def test_empty_rows_of_the_survey() -> None:
    near, far = (read(f"SparseTransformer.strided(8, 'survey', '{part}')") for part in ("first", "second"))
    assert np.sum(~(near.dense(64, 64) > 0).any(axis=1)) == 1
    assert np.sum(~(far.dense(64, 64) > 0).any(axis=1)) == 9


@pytest.mark.parametrize("n", [2, 5, 16, 17, 100, 256])
def test_powers_of_two_reach_everything_in_logarithmic_depth(n: int) -> None:
    layers = int(math.log2(n - 1)) + 1
    np.testing.assert_array_equal(reach(LogSparse(), n, layers), full(n))
    if n == 256:
        assert layers == 8
        assert not np.array_equal(reach(LogSparse(), n, 7), full(n))  # distance 255 takes its eight powers of two


def test_criss_cross_and_axial_attention_cover_the_grid_in_two_layers() -> None:
    for text in ("CCNet.recurrent(5, 7)", "AxialTransformer.alternating((5, 7))"):
        pattern = read(text)
        assert reach(pattern, 35, 2).all()
        assert not reach(pattern, 35, 1).all()
    assert reach(read("AxialTransformer.alternating((2, 3, 4))"), 24, 3).all()


def test_diet_layers_reach_as_far_as_their_distances_add_up_to() -> None:
    i, j = np.arange(60)[:, None], np.arange(60)
    dilated = reach(read("Diet.dilated(4)"), 60, 4)
    np.testing.assert_array_equal(dilated, (j <= i) & (i - j <= 2 * (1 + 2 + 4 + 8)))
    cascade = reach(read("Diet.cascade(3)"), 60, 3)
    np.testing.assert_array_equal(cascade, (j <= i) & (i - j <= 3 + 7 + 15))


def test_the_order_of_layers_is_from_the_input_on() -> None:
    first, second = Local(1, 0) & ~Self(), Causal() & Local(0, 0)
    pattern = Alternate((Local(0, 2), first, second))
    wanted = np.eye(9)
    for r in range(4):
        wanted = (pattern.at(r).dense(9, 9) > 0) @ wanted
    np.testing.assert_array_equal(reach(pattern, 9, 4), wanted > 0)


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(OptionError, match="3 is no pattern"):
        reach(3, 4, 2)
    with pytest.raises(OptionError, match="layers=-1 must be at least 0"):
        reach(Self(), 4, -1)
