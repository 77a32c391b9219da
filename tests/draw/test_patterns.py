"""Patterns, heads and layers as matrices, as text and as an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.catalogue import constructors
from refattn.draw import as_text, panels, save
from refattn.errors import OptionError, ShapeError
from refattn.expression import parse
from refattn.patterns import All, Alternate, Causal, Heads, Local, Self, reach
from refattn.patterns.named import NAMED, BlockBERT, SparseTransformer
from refattn.schemes.dense import Dense


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_a_pattern_is_one_matrix_under_either_alignment(align: str) -> None:
    (panel,) = panels(Local(1, 1) + Self(), 3, 5, align=align)
    assert panel.label == ""
    np.testing.assert_array_equal(panel.counts, (Local(1, 1) + Self()).dense(3, 5, 2 if align == "bottom_right" else 0))


def test_equal_heads_and_layers_share_a_matrix() -> None:
    assert [p.label for p in panels(BlockBERT.heads(3, (8, 2, 1)))] == ["heads 0–7", "heads 8–9", "head 10"]
    some = Heads((All(), Self(), All(), All()))
    assert [p.label for p in panels(some)] == ["heads 0, 2–3", "head 1"]
    assert [p.label for p in panels(Alternate((some, Causal())))] == ["layer 0, heads 0, 2–3", "layer 0, head 1", "layer 1"]
    assert as_text(Alternate((All(), Self())), 2).split("\n") == [
        "layer 0", "    key  0", "query 0  ■ ■", "      1  ■ ■", "", "layer 1", "    key  0", "query 0  ■ ·", "      1  · ■",
    ]  # fmt: skip


def test_what_is_seen_again_is_a_digit() -> None:
    pattern = Causal() + Self() + Self()
    assert as_text(pattern, 2).split("\n")[1:] == ["query 0  3 ·", "      1  ■ 3"]
    many = pattern + pattern + pattern + pattern
    assert as_text(many, 2, unicode=False).split("\n")[1:] == ["query 0  + .", "      1  4 +"]


def test_several_layers_of_patterns_and_of_schemes() -> None:
    pattern = SparseTransformer.strided(3, "survey", "alternate")
    for residual in (False, True):
        (panel,) = panels(pattern, 9, hops=2, residual=residual)
        np.testing.assert_array_equal(panel.counts, reach(pattern, 9, 2, residual))
    (panel,) = panels(Dense(causal=True), 5, hops=3)
    np.testing.assert_array_equal(panel.counts, np.tri(5))


@pytest.mark.parametrize(
    ("value", "options", "error", "said"),
    [
        (All(), {"m": 3}, ShapeError, "n=12 queries and m=3 keys: a pattern needs align="),
        (All(), {"align": "left"}, OptionError, "align='left': choose None, 'top_left' or 'bottom_right'"),
        (Dense(), {"align": "top_left"}, OptionError, "align='top_left' is for patterns"),
        (All(), {"hops": 1, "m": 3, "align": "top_left"}, ShapeError, "hops=1: layers follow each other where n = m"),
        (All(), {"residual": True}, OptionError, "give hops, the number of layers, too"),
        (All(), {"n": 5000}, OptionError, "n=5000: a picture has 1 to 4096"),
        (All(), {"hops": -1}, OptionError, "layers=-1 must be at least 0"),
    ],
)
def test_what_can_not_be_drawn_is_refused(value: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        panels(value, **options)


def test_every_named_pattern_has_a_drawing() -> None:
    from refattn.catalogue import scheme_or_pattern

    for named in NAMED.values():
        for text in named.examples:
            assert as_text(scheme_or_pattern(text)).count("■") > 0


@pytest.mark.parametrize(("value", "across"), [(Causal() + Self(), 1), (Heads((All(), Causal(), Self())), 3)])
def test_panels_stand_side_by_side_and_cells_have_their_colors(tmp_path: Path, value: Any, across: int) -> None:
    image = pytest.importorskip("matplotlib.image")
    n = 8
    pixels = image.imread(save(value, tmp_path / "picture.png", n, title="A title"))[..., :3]

    def colored(rgb: tuple[int, int, int]) -> Any:
        return np.all(np.abs(pixels - np.array(rgb) / 255) < 0.01, axis=-1)

    unseen, once, twice = colored((0xEE, 0xF1, 0xF4)), colored((0x2F, 0x5D, 0x8C)), colored((0xC2, 0x57, 0x1A))
    cells = unseen | once | twice
    rows, columns = np.flatnonzero(cells.sum(axis=1) > 40), np.flatnonzero(cells.sum(axis=0) > 40)
    splits = np.split(columns, np.flatnonzero(np.diff(columns) > 20) + 1)
    assert len(splits) == across
    y = rows[0] + (np.arange(n) + 0.5) * (rows[-1] + 1 - rows[0]) / n
    for panel, place in zip(panels(value, n), splits, strict=True):
        x = place[0] + (np.arange(n) + 0.5) * (place[-1] + 1 - place[0]) / n
        at = np.ix_(y.astype(int), x.astype(int))
        np.testing.assert_array_equal(once[at] + 2 * twice[at], panel.counts)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Causal() & ~Self()", {1: [], 2: [1], 3: [1, 2]}),
        ("SparseTransformer.strided(3, 'survey', 'first')", {1: [], 12: [9, 10, 11]}),
        ("SparseTransformer.strided(3, 'survey', 'second')", {4: [], 12: [4, 8]}),
        ("SparseTransformer.fixed(3, convention='survey', part='first')", {3: [1, 2], 4: [3], 12: [9, 10, 11]}),
        ("SparseTransformer.fixed(3, convention='survey', part='second')", {3: [], 4: [3], 12: [3, 6, 9]}),
        ("BlockBERT.every_shift(3, 3).at(0)", {1: [5, 6, 7, 8], 5: [9, 10, 11, 12], 9: [1, 2, 3, 4]}),
        ("Longformer.sliding(3, 'survey')", {1: [], 12: [9, 10, 11]}),
        ("Longformer.with_global(3, (4, 6), 'survey')", {5: [1, 2, 3, 4], 12: [5, 7, 9, 10, 11]}),
        ("Longformer.dilated(22, 3, 'paper', causal=True) & ~Self()", {4: [], 11: [3, 7], 12: [4, 8]}),
        ("LocalBlocks.own(3)", {4: [4], 5: [4, 5], 6: [4, 5, 6]}),
    ],
)
def test_the_figures_of_the_survey(text: str, rows: dict[int, list[int]]) -> None:
    """For n = 12, rows and columns counted from 1 as there; the drawings of blocks alone have the query among its keys."""
    name, _, head = text.partition(".at(")
    pattern = parse(name, constructors())
    lines = as_text(pattern.at(int(head[:-1])) if head else pattern, 12).split("\n")
    drawn = {at: line.split()[-12:] for at, line in enumerate(lines[1:13], start=1)}
    assert {at: [j for j, cell in enumerate(drawn[at], start=1) if cell == "■"] for at in rows} == rows
