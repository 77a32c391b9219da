"""Sparse attention by tiles and a list at once: when it is chosen, and that both together give what the text gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import outside
from laws.stand_in import computing_in
from refattn import load
from refattn.backends.mixed_rows import MixedRows
from refattn.backends.numpy_backend import ROWS, TILED, WORDS
from refattn.backends.rows_engine import RowsEngine
from refattn.backends.tile_engine import Engine
from refattn.backends.tiled_rows import TiledRows
from refattn.patterns import All, Blocks, Causal, Global, Local, LogSparse, Pattern, Random, Self, Strided
from refattn.patterns.named import Longformer, SparseTransformer
from refattn.rows import rows_of
from refattn.schemes.sparse import Sparse

MIXED = MixedRows(TiledRows(Engine(short=0, rows=8, keys=6, back=5, corner=4), short=0, entry=2.0, tile=0.0),
                  RowsEngine(short=0, parts=2), gain=1e9, each=0, heights=(4,))  # fmt: skip


@contextmanager
def mixed(how: MixedRows = MIXED) -> Iterator[list[str]]:
    """NumPy with these overrides alone; a list of what they took."""
    ran: list[str] = []

    def noted(name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            out = getattr(how, name)(*args, **named)
            ran.extend([] if out is NotImplemented else [name])
            return out

        return call

    names = ("attend_rows", "attend_rows_vjp")
    with computing_in(replace(load("numpy"), kernels={**WORDS, **{name: noted(name) for name in names}})):
        yield ran


def draw(n: int, m: int, kv: int = 3) -> Sparse.Inputs:
    rng = np.random.default_rng(n)
    shapes = ((2, 6, n, 5), (2, kv, m, 5), (2, kv, m, 4))
    return Sparse.Inputs(*(rng.standard_normal(shape) for shape in shapes))


@pytest.mark.parametrize("pattern", [
    SparseTransformer.strided(6), Local(3, 3) | Global(at=(1, 20)), Local(4, 0) | LogSparse(),
    Blocks(4) + Random(2) + Self(),
    (Local(5, 0) | Strided(7)) & Causal() & ~Self(), Blocks(4, shift=1) | Random(1),
], ids=repr)  # fmt: skip
def test_both_together_give_what_the_text_gives(pattern: Pattern) -> None:
    """Multisets, queries that see nothing, and those that see in one of the two only are among them."""
    other = Sparse(pattern, align="top_left", heads="tiled")
    for scheme, inputs in ((Sparse(pattern), draw(30, 30)), (other, draw(33, 22))):
        case = make(scheme, inputs)
        with mixed() as ran:
            got = case.run()
        assert ran == ["attend_rows", "attend_rows_vjp"]
        assert outside(got, case.bands) == {}


def test_every_pair_lies_in_the_tiles_or_in_the_list_as_often_as_it_counts() -> None:
    pattern = Blocks(4) + Random(2) + Self()
    rows = rows_of(pattern, 30, 25)
    found = MIXED._split(rows, 4)
    assert found is not None
    tiles, rest = found
    counts = np.zeros((30, 25), dtype=np.int64)
    for tile, (q0, q1, k0, k1, _) in enumerate(tiles.at):
        mask = tiles.mask(tile)
        counts[q0:q1, k0:k1] += 1 if mask is None else mask
    assert 0 < counts.sum() < pattern.weight(30, 25)
    np.add.at(counts, (rest.row, rest.col), rest.count)
    np.testing.assert_array_equal(counts, pattern.dense(30, 25))


@pytest.mark.parametrize(("pattern", "chosen"), [
    (SparseTransformer.strided(128, "openai"), True), (Longformer.with_global(64, (0, 700)), True),
    (LogSparse() | Local(64, 0), True), (Longformer.sliding(256), False), (Blocks(64), False), (LogSparse(), False),
    (All(), False), (Random(16), False), (Strided(64) & Causal(), False),
], ids=repr)  # fmt: skip
def test_both_are_taken_where_neither_alone_is_better(pattern: Pattern, chosen: bool) -> None:
    how = MixedRows(TILED, ROWS)
    assert (how.height(rows_of(pattern, 2048, 2048)) is not None) == chosen


def test_nothing_is_taken_that_hides_entries() -> None:
    case = make(Sparse(Local(3, 3) | Global(at=(1,))), draw(30, 30)._replace(key_valid=np.arange(30) != 4))
    with mixed() as ran:
        assert outside(case.run(), case.bands) == {}
    assert ran == []


def test_not_a_number_reaches_who_sees_it() -> None:
    """In the list or in a tile; queries of other tiles keep what they had."""
    pattern = Local(3, 0) | Strided(12) & Causal()
    inputs = draw(36, 36)
    with mixed():
        want = Sparse(pattern).forward(*inputs)[0]
        k = inputs.k.copy()
        k[..., 1, 0] = np.nan
        got = Sparse(pattern).forward(inputs.q, k, inputs.v)[0]
    seen = pattern.dense(36, 36)[:, 1] > 0
    assert np.isnan(got[..., seen, :]).all()
    np.testing.assert_array_equal(got[..., 4:, :][..., ~seen[4:], :], want[..., 4:, :][..., ~seen[4:], :])
