"""Who sees whom, as a matrix and as lines of text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from refattn.draw import as_text, sees
from refattn.errors import OptionError, ShapeError
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer

BOTTOM = Dense(causal=True, align="bottom_right")


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 8), (8, 3)])
def test_the_matrix_is_the_one_of_the_convention(n: int, m: int) -> None:
    i, j = np.arange(n)[:, None], np.arange(m)
    np.testing.assert_array_equal(sees(Dense(), n, m), np.ones((n, m), bool))
    np.testing.assert_array_equal(sees(BOTTOM, n, m), j <= i + m - n)
    np.testing.assert_array_equal(sees(replace(BOTTOM, align="top_left"), n, m), j <= i)


@pytest.mark.parametrize("changes", [{"empty": "mean"}, {"keep_rate": 0.5}, {"scale": -3.0}, {"softcap": 2.0}])
def test_the_rest_of_the_configuration_changes_nothing(changes: dict[str, object]) -> None:
    np.testing.assert_array_equal(sees(replace(BOTTOM, **changes), 6, 3), sees(BOTTOM, 6, 3))  # type: ignore[arg-type]


def test_keys_default_to_as_many_as_queries() -> None:
    assert sees(Dense(causal=True), 4).shape == (4, 4)


def test_the_drawing_has_a_row_for_each_query_and_a_column_for_each_key() -> None:
    assert as_text(BOTTOM, 3, 7).split("\n") == [
        "    key  0         5",
        "query 0  ■ ■ ■ ■ ■ · ·",
        "      1  ■ ■ ■ ■ ■ ■ ·",
        "      2  ■ ■ ■ ■ ■ ■ ■",
    ]


def test_the_drawing_without_unicode_is_ascii() -> None:
    lines = as_text(BOTTOM, 12, 11, unicode=False).split("\n")
    assert lines[0] == "     key  0         5         10"
    assert lines[1:3] == [" query 0  . . . . . . . . . . .", "       1  # . . . . . . . . . ."]
    assert "".join(lines).isascii()


def test_a_drawing_that_is_too_wide_is_refused_with_what_fits() -> None:
    assert len(max(as_text(Dense(), 2, 35, width=80).split("\n"), key=len)) <= 80
    with pytest.raises(OptionError, match=r"m=36 keys need 81 columns and this terminal has 80: draw at most 35 keys"):
        as_text(Dense(), 2, 36, width=80)


@pytest.mark.parametrize(("n", "m", "said"), [(0, 3, "n=0"), (3, 0, "m=0"), (5000, 3, "n=5000"), (3, 5000, "m=5000")])
def test_sizes_that_make_no_picture_are_refused(n: int, m: int, said: str) -> None:
    with pytest.raises(OptionError, match=f"{said}: a picture has 1 to 4096"):
        sees(Dense(), n, m)


def test_what_the_scheme_refuses_is_refused() -> None:
    with pytest.raises(ShapeError, match="align='top_left' or 'bottom_right'"):
        sees(Dense(causal=True), 3, 4)


@pytest.mark.parametrize(
    ("scheme", "last"),
    [
        (Linformer(), 8),
        (Linformer(projection="mean", stride=3, tail="drop"), 6),
        (Linformer(projection="max", stride=3, tail="pad"), 8),
        (Linformer(projection="depthwise", tail="pad"), 8),
        (Linformer(projection="dense"), 8),
    ],
)
def test_slots_of_compressed_keys_see_all_that_is_not_dropped(scheme: Linformer, last: int) -> None:
    np.testing.assert_array_equal(sees(scheme, 2, 8), np.broadcast_to(np.arange(8) < last, (2, 8)))
