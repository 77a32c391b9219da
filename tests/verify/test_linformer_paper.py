"""Linformer's figures beside counts: claims come out as stated, and do not where a count or a figure is wrong."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from refattn import Dense, Linformer
from refattn.layers.linformer_sharing import LinformerSharing
from refattn.schemes.lsh import LSH
from refattn.verify import linformer_paper as paper


def test_a_cell_by_hand() -> None:
    """n = 1024, k = 256 in a layer of width 768: 12·768²·n for its matrices, 2·768·n² or 4·768·n·k for attention."""
    cell = next(c for c in paper.table((1024,)) if c.k == 256)
    assert cell.attention == 2
    assert cell.layer == Fraction(12 * 768 + 2 * 1024, 12 * 768 + 4 * 256)
    assert (cell.time, cell.memory) == (1.6, 2.9)
    assert 3.0 < cell.peak < 3.5


def test_the_peak_of_a_layer_by_hand() -> None:
    """Dense: three arrays of n² for each of 12 heads, beside N(x), q, k, v. Few slots: four arrays of 3072 columns in the
    feed-forward part, beside eight of 768. Statistics of rows come on top."""
    for n in (4096, 65536):
        dense, few = (paper.counted(n, k).layer_peak for k in (None, 128))
        assert 0 <= dense - (3 * 12 * n * n + 4 * 768 * n) < 50 * n
        assert 0 <= few - (4 * 3072 + 8 * 768) * n < 50 * n
        assert paper.table((n,))[0].layer_peak == Fraction(dense, few)


@pytest.mark.parametrize("table", [paper.TIME, paper.MEMORY])
def test_figures_fall_with_slots_and_do_not_fall_with_tokens(table: dict[int, tuple[float, ...]]) -> None:
    """Those of table 3 do; a figure that is copied wrong seldom would."""
    for row in table.values():
        assert all(more > fewer for more, fewer in pairwise(row))
    for short, long in pairwise(table.values()):
        assert len(short) <= len(long)
        assert all(a <= b for a, b in zip(short, long, strict=False))


def test_a_count_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Linformer.cost

    def more(self: Any, shapes: Any, block: Any = 256) -> Any:
        cost = usual(self, shapes, block)
        return replace(cost, forward=replace(cost.forward, macs=cost.forward.macs + 1))

    monkeypatch.setattr(Linformer, "cost", more)
    assert not paper.cells().as_stated


def test_figures_that_are_off_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(paper.TIME, 65536, (10.0, 9.0, 8.0, 7.0, 4.0))
    assert not paper.time_and_counts().as_stated
    monkeypatch.setitem(paper.AT_128, "", "92.245")
    assert not paper.accuracy().as_stated


def test_a_matrix_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinformerSharing, "tied", property(lambda self: ()))
    monkeypatch.setattr(LinformerSharing, "shapes", lambda self, layer: {"E": (self.slots, self.tokens)})
    assert not paper.matrices().as_stated


def test_where_reformer_pays_by_hand() -> None:
    """8 rounds in chunks of 128 that see one more: 2·128·8 keys for each query; the hash to 2n/128 buckets adds n²·8/128."""
    x, n = (1, 1, 2048, 64), 2048
    lsh = LSH(chunk=128).cost(LSH.Inputs(x, x, buckets=(1, 1, 8, n))).forward.macs
    assert lsh == Dense().cost(Dense.Inputs(x, x, x)).forward.macs
    assert paper.breaks_even(8, 128, 1, True) == Fraction(2048) / (1 - Fraction(8, 2 * 128))
    assert paper.breaks_even(256, 128, 1, True) is None


def test_a_chunk_that_is_seen_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "LSH", type("Twice", (LSH,), {"__init__": lambda self, chunk, before: LSH.__init__(
        self, chunk=chunk, before=before + 1)}))
    assert not paper.reformer().as_stated
