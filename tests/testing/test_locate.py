"""Where errors sit, in words: each axis, each pattern that tiles and strides leave behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.testing.locate import indices, locate, ordinal

SHAPE = (2, 4, 130, 6)


def wrong(*index: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    out = np.zeros(shape, dtype=bool)
    out[index] = True
    return out


@pytest.mark.parametrize(("out", "text"), [
    (wrong(slice(None)), "all of the elements, spread over every axis"),
    (wrong(0, 1, 2, 3), "1 of 6240 elements: item 0 of 2, head 1 of 4, row 2 of 130, channel 3 of 6"),
    (wrong(slice(None), 3), "25.0% of the elements: head 3 (the last) of 4"),
    (wrong(1), "50.0% of the elements: item 1 (the last) of 2"),
    (wrong(..., slice(128, None), slice(None)),
     "1.5% of the elements: rows 128…129 (the tail behind a multiple of 128) of 130"),
    (wrong(..., slice(96, None), slice(None)),
     "26.2% of the elements: rows 96…129 (the tail behind a multiple of 32) of 130"),
    (wrong(..., slice(100, None), slice(None)), "23.1% of the elements: rows 100…129 (the tail) of 130"),
    (wrong(..., slice(32, 64), slice(None)), "24.6% of the elements: rows 32…63 of 130"),
    (wrong(..., slice(0, None, 5), slice(None)), "20.0% of the elements: rows 0, 5, … (every 5th) of 130"),
    (wrong(..., slice(0, None, 2)), "50.0% of the elements: channels 0, 2, … (every 2nd) of 6"),
    (wrong(..., [1, 2, 5], slice(None)), "2.3% of the elements: rows 1, 2, 5 of 130"),
    (wrong(..., [0, 1, 3, 7, 9, 20, 21, 40], slice(None)), "6.2% of the elements: rows 0, 1, 3, 7, 9, 20, … (8) of 130"),
])  # fmt: skip
def test_a_pattern_is_said(out: Any, text: str) -> None:
    assert locate(out) == text


def test_nothing_wrong_is_nowhere() -> None:
    assert locate(wrong(slice(0, 0))) == "nowhere"


def test_statistics_and_sinks_have_axes_of_their_own() -> None:
    assert locate(wrong(0, 1, 2, shape=(2, 3, 4))) == "4.2% of the elements: item 0 of 2, head 1 of 3, row 2 of 4"
    assert locate(wrong(2, shape=(3,))) == "33.3% of the elements: head 2 (the last) of 3"
    assert locate(wrong(0, 1, shape=(3, 4))) == "8.3% of the elements: axis 0 0 of 3, axis 1 1 of 4"


def test_rows_of_one_tile_are_told_by_its_ends() -> None:
    assert indices(np.arange(16, 32), 64) == "16…31"
    assert indices(np.array([63]), 64) == "63 (the last)"
    assert indices(np.array([3, 5]), 64) == "3, 5"


def test_ordinals_are_english() -> None:
    assert [ordinal(i) for i in (2, 3, 4, 11, 12, 13, 21, 32, 103, 111)] == [
        "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "32nd", "103rd", "111th"]
