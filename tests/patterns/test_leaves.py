"""Single patterns: hand-written rows, named constructors, what is refused, how random keys are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import refattn
from refattn.catalogue import PATTERNS, constructors
from refattn.errors import DtypeError, OptionError
from refattn.patterns import (
    All,
    Alternate,
    Axial,
    Blocks,
    Causal,
    Coarse,
    Cross,
    Fixed,
    Global,
    Heads,
    Local,
    LogSparse,
    Pattern,
    Random,
    Self,
    Short,
    Split,
    Strided,
)


def row(pattern: Pattern, i: int, n: int) -> list[int]:
    return np.flatnonzero(pattern.contains(i, np.arange(n), n)).tolist()


@pytest.mark.parametrize(
    ("pattern", "i", "n", "keys"),
    [
        (Local(2, 1), 5, 12, [3, 4, 5, 6]),
        (Local(2, 1), 0, 12, [0, 1]),
        (Local(2, 2, 3), 7, 12, [1, 4, 7, 10]),
        (Local.total(5), 6, 12, [4, 5, 6, 7, 8]),
        (Local.each_side(2), 6, 12, [4, 5, 6, 7, 8]),
        (Local(3, 0) & ~Self(), 11, 12, [8, 9, 10]),
        (Self(), 3, 4, [3]),
        (Causal(), 3, 12, [0, 1, 2, 3]),
        (Strided(3), 4, 12, [1, 4, 7, 10]),
        (Strided(3) & Causal(), 11, 12, [2, 5, 8, 11]),
        (LogSparse(), 31, 32, [15, 23, 27, 29, 30, 31]),
        (LogSparse(), 0, 32, [0]),
        (LogSparse(), 1, 32, [0, 1]),
        (Global(first=1, last=2, at=(4,)), 3, 8, [0, 4, 6, 7]),
        (Global(first=1), 0, 4, [0, 1, 2, 3]),
        (Global(first=1, rows=False), 0, 4, [0]),
        (Global(first=1, columns=False), 2, 4, []),
        (Global(at=(9,)), 2, 4, []),
        (Fixed(4), 0, 12, [3, 7, 11]),
        (Fixed(4, 2), 0, 12, [2, 3, 6, 7, 10, 11]),
        (Fixed(4, 1, 1), 0, 12, [2, 6, 10]),
        (Blocks(4), 5, 12, [4, 5, 6, 7]),
        (Blocks(4, 1), 5, 12, [8, 9, 10, 11]),
        (Blocks(4, back=1), 8, 10, [4, 5, 6, 7, 8, 9]),
        (Blocks(4, margin=1), 5, 12, [3, 4, 5, 6, 7, 8]),
        (Split(3), 5, 12, [4, 5, 6, 7]),
        (Split(3, 1), 5, 12, [8, 9, 10, 11]),
        (Split(3, 2), 5, 12, [0, 1, 2, 3]),
        (Split(3, 1), 5, 7, [6]),
        (Split(4, 1), 4, 5, []),
        (Split(4, 1), 0, 5, [2, 3]),
        (Axial((3, 4)), 6, 12, [4, 5, 6, 7]),
        (Axial((3, 4), 0), 6, 12, [2, 6, 10]),
        (Axial((3, 4), 0), 13, 24, [13, 17, 21]),
        (Cross((3, 4)), 6, 12, [2, 4, 5, 6, 7, 10]),
        (Coarse(Local(1, 0), 3), 7, 12, [3, 4, 5, 6, 7, 8]),
        (Short(5, All(), Self()), 1, 4, [0, 1, 2, 3]),
        (Short(5, All(), Self()), 1, 5, [1]),
    ],
    ids=repr,
)
def test_a_row_written_by_hand(pattern: Pattern, i: int, n: int, keys: list[int]) -> None:
    assert row(pattern, i, n) == keys
    start, col, _ = pattern.entries(1, n, i)
    assert col[start[0] : start[1]].tolist() == keys


def test_positions_before_the_first_key_see_what_the_rule_says() -> None:
    assert row(Causal(), -1, 4) == []
    assert row(LogSparse(), -1, 4) == []
    assert row(Local(0, 2), -1, 4) == [0, 1]
    assert row(Split(2, 1), -1, 4) == []
    assert row(Global(first=1), -1, 4) == [0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Local(-1, 0), "Local: left=-1 must be at least 0"),
        (lambda: Local(0, -3), "Local: right=-3 must be at least 0"),
        (lambda: Local(1, 1, 0), "Local: dilation=0 must be at least 1"),
        (lambda: Local(1.5, 0), "Local: left=1.5 must be a whole number"),
        (lambda: Local(True, 0), "Local: left=True must be a whole number"),
        (lambda: Local.total(4), r"width=4 is even.*write Local\(2, 1\) or Local\(1, 2\)"),
        (lambda: Local.total(0), "width=0 must be at least 1"),
        (lambda: Strided(0), "Strided: period=0 must be at least 1"),
        (lambda: Global(), r"Global\(\) chooses no position: give first, last or at"),
        (lambda: Global(first=-1), "first=-1 must be at least 0"),
        (lambda: Global(at=[1]), r"at=\[1\] must be a tuple"),
        (lambda: Global(at=(1, -2)), r"at\[1\]=-2 must be at least 0"),
        (lambda: Global(1, rows=False, columns=False), "nothing is seen"),
        (lambda: Fixed(0), "Fixed: l=0 must be at least 1"),
        (lambda: Fixed(4, 5), "c=5 must be at most 4: a block has l=4 positions"),
        (lambda: Fixed(4, 0), "c=0 must be at least 1"),
        (lambda: Fixed(4, 2, 2), "slot=2 must be at most 1: a block of l=4 holds 2 slots of c=2"),
        (lambda: Blocks(0), "Blocks: size=0 must be at least 1"),
        (lambda: Blocks(3, back=-1), "back=-1 must be at least 0"),
        (lambda: Blocks(3, 0.5), "shift=0.5 must be a whole number of blocks"),
        (lambda: Split(0), "n_blocks=0 must be at least 1"),
        (lambda: Split(3, 3), "shift=3 must be at most 2: there are n_blocks=3 blocks"),
        (lambda: Split(3, -1), "shift=-1 must be at least 0"),
        (lambda: Random(0), "keys=0 must be at least 1"),
        (lambda: Random(2, -1), "seed=-1 must be at least 0"),
        (lambda: Axial(()), r"shape=\(\) must have at least one axis"),
        (lambda: Axial((3, 0)), r"shape\[1\]=0 must be at least 1"),
        (lambda: Axial((3, 4), 2), "axis=2 must be a whole number from -2 to 1"),
        (lambda: Cross((3, -4)), r"shape\[1\]=-4 must be at least 1"),
        (lambda: Coarse(3, 2), "pattern=3 must be a pattern"),
        (lambda: Coarse(All(), 0), "size=0 must be at least 1"),
        (lambda: Short(0, All(), All()), "below=0 must be at least 1"),
        (lambda: Short(3, All(), 1), "must be a tuple of at least one pattern"),
        (lambda: Heads(()), r"Heads: patterns=\(\) must be a tuple of at least one pattern"),
        (lambda: Heads((All(), 3)), "must be a tuple of at least one pattern"),
        (lambda: Alternate((3,)), "must be a tuple of at least one pattern or Heads"),
        (lambda: Heads((All(),)).at(1), "head=1 must be at most 0: there are 1 heads"),
        (lambda: Alternate((All(),)).at(-1), "layer=-1 must be at least 0"),
        (lambda: Heads((All(),)) | Heads((All(), Self())), "Heads of 1 and Heads of 2 patterns do not fit together"),
        (lambda: All().nnz(-1, 3), "n=-1 must be at least 0"),
        (lambda: All().entries(2, 1.5), "m=1.5 must be a whole number"),
        (lambda: list(All().tiles(2, 2, 0, 0)), "rows=0 must be at least 1"),
    ],
)
def test_what_means_nothing_is_refused_with_its_value(make: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


def test_positions_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(DtypeError, match="i has dtype float64: positions are whole numbers"):
        All().count(0.5, 1, 3)


def test_what_is_no_pattern_does_not_join() -> None:
    for value in (3, True, np.ones((2, 2))):
        with pytest.raises(TypeError):
            Local(1, 1) | value  # type: ignore[operator]


def test_patterns_are_values_that_show_how_they_are_made() -> None:
    assert Local(1, 2) == Local(1, 2, 1)
    assert repr((Local(3, 0) | Strided(4)) & Causal() & ~Self()) == (
        "(Local(left=3, right=0) | Strided(period=4)) & Causal() & ~Self()"
    )
    assert repr(~(Self() + Causal()) | Global(at=(3,))) == "~(Self() + Causal()) | Global(at=(3,))"
    assert repr(Heads((All(), Local(1, 1)))) == "Heads((All(), Local(left=1, right=1)))"


def test_operators_go_to_every_head_and_layer() -> None:
    heads = Heads((Local(1, 1), All()))
    assert (heads & Causal()).patterns == (Local(1, 1) & Causal(), All() & Causal())
    assert (Causal() & heads).patterns == (Causal() & Local(1, 1), Causal() & All())
    assert (~heads).at(1) == ~All()
    assert (heads | heads).at(0) == Local(1, 1) | Local(1, 1)
    layers = Alternate((Self(), heads)) + Causal()
    assert layers.at(0) == layers.at(2) == Self() + Causal()
    assert layers.at(3) == heads + Causal()


def test_heads_count_on_the_third_axis_from_the_right() -> None:
    heads = Heads((Local(1, 0), Causal() + Self()))
    i, j = np.arange(5)[:, None], np.arange(6)
    assert heads.count(i, j, 6).shape == heads.dense(5, 6).shape == (2, 5, 6)
    np.testing.assert_array_equal(heads.count(np.broadcast_to(i, (4, 5, 1)), j, 6)[3], heads.dense(5, 6))
    assert heads.count(3, 2, 6).tolist() == [1, 1]
    assert heads.nnz(5, 6) == np.count_nonzero(heads.dense(5, 6))
    assert heads.weight(5, 6) == heads.dense(5, 6).sum() == heads.nnz(5, 6) + 5


def test_every_class_is_exported_and_can_be_named_in_expressions() -> None:
    for cls in PATTERNS:
        assert constructors()[cls.__name__] is cls
        assert getattr(refattn, cls.__name__) is cls


def test_random_keys_are_distinct_uniform_and_repeat() -> None:
    n, keys = 2000, 7
    start, col, _ = Random(keys, 3).entries(n, n)
    assert np.array_equal(start, np.arange(n + 1) * keys)
    again = Random(keys, 3).entries(500, n, 700)[1]
    np.testing.assert_array_equal(again, col[700 * keys : 1200 * keys])
    times = np.bincount(col, minlength=n)
    # columns are seen Binomial(n, keys/n) times: χ² of 2,000 cells stays below 2,000 + 6·√4,000 but for 1 in 10⁸
    assert ((times - keys) ** 2 / keys).sum() < 2000 + 6 * 4000**0.5
    assert times.max() < 30
    rows = np.sort(col.reshape(n, keys), axis=1)
    assert len(np.unique(rows, axis=0)) == n
    assert np.mean(Random(keys, 4).entries(n, n)[1] == col) < 0.02


@pytest.mark.parametrize("n", [3, 5, 8, 13, 32, 64, 70])
def test_every_set_of_random_keys_occurs(n: int) -> None:
    """Pairs of keys in 20,000 rows: each of the n(n − 1)/2 pairs near its share, also where there are few bits."""
    rows = 20_000
    pairs = Random(2, 1).entries(rows, n)[1].reshape(rows, 2)
    times = np.unique(pairs[:, 0] * n + pairs[:, 1], return_counts=True)[1]
    share = rows / (n * (n - 1) / 2)
    assert len(times) == n * (n - 1) // 2
    assert np.abs(times - share).max() < 7 * share**0.5


def test_random_draws_do_not_change() -> None:
    """What a seed means is kept from version to version."""
    assert Random(3, 0).entries(3, 100)[1].tolist() == [25, 39, 43, 27, 53, 56, 57, 66, 94]
