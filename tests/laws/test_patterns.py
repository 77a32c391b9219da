"""Patterns: lists, counts and tiles say what `count` says, for every leaf and for what the operators make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refattn.catalogue import constructors
from refattn.expression import parse, written
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
    counting,
    listing,
)

LEAVES = (
    All(), Self(), Causal(), Local(2, 1), Local(1, 2, 3), Local(0, 0), Local(20, 20), Strided(1), Strided(3), Strided(50),
    LogSparse(), Global(first=2), Global(first=1, last=2, at=(3, 4, 7)), Global(at=(2,), rows=False),
    Global(last=1, columns=False), Global(at=(0, 5, 90)), Fixed(4), Fixed(5, 2, 1), Fixed(3, 3), Blocks(3), Blocks(3, 1),
    Blocks(4, -1, 1, 2), Blocks(3, margin=2), Blocks(30), Split(3, 1), Split(4), Split(5, 4), Random(2), Random(3, seed=5),
    Random(40), Coarse(Local(1, 1) | Global(first=1), 2), Coarse(Random(1, seed=3), 3), Coarse(Strided(2) + Random(2), 3),
    Coarse(LogSparse(), 2), Coarse(Fixed(3, 2), 2), Axial((3, 4)), Axial((3, 4), 0), Axial((2, 3, 2), 1), Cross((3, 4)),
    Cross((2, 2, 3)), Short(5, All(), Local(1, 0)),
)  # fmt: skip
SIZES = ((0, 0, 0), (0, 5, 0), (5, 0, 0), (1, 1, 0), (1, 7, 6), (7, 1, -6), (12, 12, 0), (13, 13, 0), (9, 14, 5), (9, 14, 0),
         (14, 9, -5), (14, 9, 0), (30, 31, 1), (3, 40, 37), (40, 4, -36))  # fmt: skip
"""n, m and the offset: both alignments, more queries than keys, windows and blocks longer than the sequence."""

leaves = st.sampled_from(LEAVES)
joined = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("|&+"), inner, inner).map(lambda x: _joined(*x)),
        inner.map(lambda a: ~a),
        st.tuples(inner, st.integers(1, 4)).map(lambda x: Coarse(*x)),
    ),
    max_leaves=5,
)
lengths = st.tuples(st.integers(0, 25), st.integers(0, 25), st.sampled_from(("top_left", "bottom_right", 3, -2)))
drawn = settings(max_examples=120, deadline=None, derandomize=True)


def _joined(sign: str, a: Pattern, b: Pattern) -> Pattern:
    return {"|": a.__or__, "&": a.__and__, "+": a.__add__}[sign](b)


def at(lengths: Any) -> tuple[int, int, int]:
    n, m, where = lengths
    return n, m, {"top_left": 0, "bottom_right": m - n}.get(where, where)


@pytest.fixture(params=["as it is", "in small slices, everything taken apart"])
def cut(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the shortcuts for what is small are off, so that small sizes test the closed forms."""
    if request.param != "as it is":
        monkeypatch.setattr(counting, "SMALL", 0)
        monkeypatch.setattr(counting, "SLICE", 7)
        monkeypatch.setattr(listing, "SLICE", 20)


def check_entries(pattern: Pattern, n: int, m: int, offset: int) -> None:
    dense = pattern.dense(n, m, offset)
    start, col, count = pattern.entries(n, m, offset)
    assert {x.dtype for x in (start, col, count) if x is not None} == {np.dtype(np.int64)}
    assert start.shape == (n + 1,)
    row = np.repeat(np.arange(n), np.diff(start))
    assert len(row) == len(col) == np.count_nonzero(dense)
    assert np.all(np.diff(row * m + col) > 0)
    found = np.zeros_like(dense)
    found[row, col] = 1 if count is None else count
    np.testing.assert_array_equal(found, dense)


def check_sums(pattern: Pattern, n: int, m: int, offset: int) -> None:
    dense = pattern.dense(n, m, offset)
    for found, wanted in ((pattern.nnz(n, m, offset), np.count_nonzero(dense)), (pattern.weight(n, m, offset), dense.sum())):
        assert type(found) is int
        assert found == wanted


def check_tiles(pattern: Pattern, n: int, m: int, offset: int, rows: int) -> None:
    dense, found = pattern.dense(n, m, offset), np.zeros((n, m), dtype=np.int64)
    for q0, q1, k0, k1, seen in pattern.tiles(n, m, offset, rows):
        assert 0 <= q0 < q1 <= min(q0 + rows, n)
        assert 0 <= k0 < k1 <= m
        if seen is not None:
            assert seen.shape == (q1 - q0, k1 - k0)
            assert seen.dtype == bool
            assert seen.any(axis=0)[[0, -1]].all()
            assert not seen.all()
        found[q0:q1, k0:k1] += 1 if seen is None else seen
    np.testing.assert_array_equal(found, dense)


@pytest.mark.parametrize("pattern", LEAVES, ids=repr)
def test_the_entries_of_a_leaf_are_its_counts(pattern: Pattern, cut: None) -> None:
    for sizes in SIZES:
        check_entries(pattern, *sizes)


@pytest.mark.parametrize("pattern", LEAVES, ids=repr)
def test_the_closed_forms_of_a_leaf_are_sums_of_its_counts(pattern: Pattern, cut: None) -> None:
    for sizes in SIZES:
        check_sums(pattern, *sizes)


@pytest.mark.parametrize("pattern", LEAVES, ids=repr)
def test_the_tiles_of_a_leaf_are_a_partition(pattern: Pattern) -> None:
    for sizes in SIZES:
        for rows in (1, 3, 5, 64):
            check_tiles(pattern, *sizes, rows)


@drawn
@given(joined, lengths, st.integers(1, 9))
@example((Fixed(3, 3) + Local(0, 0)) & Cross((2, 2, 3)), (21, 19, "top_left"), 4)
@example((Random(2) + Random(3, seed=5)) & (Local(2, 1) + Local(3, 3)), (14, 9, "bottom_right"), 3)
@example((Coarse(Random(2) + Local(1, 0), 2) | Causal()) & ~Self() & Global(first=2), (13, 13, 0), 5)
def test_lists_sums_and_tiles_of_joined_patterns_are_their_counts(pattern: Pattern, lengths: Any, rows: int) -> None:
    check_entries(pattern, *at(lengths))
    check_sums(pattern, *at(lengths))
    check_tiles(pattern, *at(lengths), rows)


@pytest.mark.parametrize("examples", [20, pytest.param(50, marks=pytest.mark.sweep)])
def test_closed_forms_of_joined_patterns_taken_apart(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SMALL", 0)

    @settings(drawn, max_examples=examples)
    @given(leaves, leaves, leaves, lengths)
    def hold(a: Pattern, b: Pattern, c: Pattern, lengths: Any) -> None:
        for pattern in (a & b & c, (a | b) & ~c, (a + b) & c):
            check_sums(pattern, *at(lengths))

    hold()


@drawn
@given(joined, joined, joined, lengths)
def test_the_operators_are_max_min_sum_and_complement(a: Pattern, b: Pattern, c: Pattern, lengths: Any) -> None:
    n, m, offset = at(lengths)
    x, y, z = (p.dense(n, m, offset) for p in (a, b, c))
    made = {
        "max": (a | b, np.maximum(x, y)),
        "min": (a & b, np.minimum(x, y)),
        "sum": (a + b, x + y),
        "complement": (~a, x == 0),
        "distributive": (a & (b | c), np.maximum(np.minimum(x, y), np.minimum(x, z))),
        "absorbing": (a | a & b, x),
        "de Morgan": (~(a | b), (x == 0) & (y == 0)),
        "of three": (a + b + c, x + y + z),
    }
    for pattern, wanted in made.values():
        np.testing.assert_array_equal(pattern.dense(n, m, offset), wanted)
    assert (a | b) | c == a | (b | c)
    assert a.weight(n, m, offset) + b.weight(n, m, offset) == (a + b).weight(n, m, offset)
    assert a.nnz(n, m, offset) + (~a).nnz(n, m, offset) == n * m


@drawn
@given(joined)
def test_what_is_written_is_read_again(pattern: Pattern) -> None:
    for value in (pattern, Heads((pattern, All())), Alternate((Heads((pattern,)), pattern))):
        assert written(value) == repr(value)
        again = parse(repr(value), constructors())
        assert again == value
        assert hash(again) == hash(value)


LONG = (
    Local(300, 20), Local(30, 30, 7), Strided(97), Fixed(130, 16, 2), Blocks(100, 1, 2, 0, 13), Split(7, 3), Blocks(4000),
    LogSparse(), Global(first=3, last=2, at=(50, 900)), Random(5), Axial((40, 50), 0), Cross((30, 70)),
    (Local(90, 0) | Strided(90)) & Causal(), (Blocks(64) | Fixed(64, 8, 1)) & Causal() & ~Self(),
    Local(20, 20, 2) | Global(first=2, at=(77,)), (LogSparse() | Local(9, 0)) & Blocks(1000), Strided(60) & Fixed(90, 3),
    Coarse(Global(first=1, last=1) | Local(1, 1) | Random(3), 64), Strided(7) & Strided(11) | Fixed(13) & Blocks(1700),
    Random(4) | Local(2, 2), Strided(2500) & Causal(), Fixed(3000, 100) & ~Causal(), Coarse(Strided(5) & Causal(), 40),
)  # fmt: skip


@pytest.mark.parametrize("pattern", LONG, ids=repr)
@pytest.mark.parametrize("sizes", [(9000, 9000, 0), (5003, 6007, 1004), (7000, 5000, -2000)])
def test_closed_forms_are_lengths_of_lists_at_sizes_with_many_periods(pattern: Pattern, sizes: Any) -> None:
    start, col, count = pattern.entries(*sizes)
    assert pattern.nnz(*sizes) == start[-1] == len(col)
    assert pattern.weight(*sizes) == (len(col) if count is None else count.sum())


@pytest.mark.parametrize("pattern", [Local(2, 2), Strided(50_000), Fixed(60_000, 2) & Causal(), Blocks(4), LogSparse(),
                                     Global(first=1), Random(3), Local(1, 0) | Strided(70_000), Local(4, 0) & ~Self(),
                                     Coarse(Local(0, 0) + Random(1), 2)], ids=repr)  # fmt: skip
def test_few_pairs_of_many_are_listed_without_the_square(pattern: Pattern) -> None:
    n = 200_000  # n² counts would take 320 GB
    start, col, _ = pattern.entries(n, n)
    assert len(col) == pattern.nnz(n, n)
    for i in (0, 1, n // 2, n - 1):
        keys = np.flatnonzero(pattern.contains(i, np.arange(n), n))
        np.testing.assert_array_equal(col[start[i] : start[i + 1]], keys)


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12])
def test_counts_of_sequences_that_nobody_could_list(n: int) -> None:
    l = round(n**0.5)
    assert Causal().nnz(n, n) == n * (n + 1) // 2
    assert Local(5, 7).nnz(n, n) == 13 * n - 15 - 28
    m, rest = divmod(n, l)
    assert (Strided(l) & Causal()).nnz(n, n) == l * m * (m + 1) // 2 + rest * (m + 1)
    fixed = (Blocks(l) | Fixed(l, 3)) & Causal()
    assert fixed.nnz(n, n) == m * l * (l + 1) // 2 + 3 * l * m * (m - 1) // 2 + rest * (rest + 1) // 2 + 3 * rest * m


def test_keys_that_do_not_exist_are_not_seen() -> None:
    for pattern in (*LEAVES, *(~leaf for leaf in LEAVES)):
        counts = pattern.count(np.arange(-5, 20)[:, None], np.arange(-9, 30), 11)
        assert counts.dtype == np.int64
        assert not counts[:, :9].any()
        assert not counts[:, 20:].any()
