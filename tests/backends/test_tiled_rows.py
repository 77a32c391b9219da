"""Sparse attention by tiles: when it is chosen, multisets, queries and keys that nobody looks at, and long sequences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import outside, results
from laws.stand_in import computing_in
from refattn import load
from refattn.backends.numpy_backend import WORDS
from refattn.backends.tile_engine import Engine
from refattn.backends.tiled_rows import TiledRows
from refattn.patterns import All, Blocks, Causal, Global, Local, LogSparse, Pattern, Random, Strided
from refattn.rows import Rows, rows_of
from refattn.schemes.sparse import Sparse

Array = Any
SMALL = Engine(short=0, rows=8, keys=6, back=5, corner=4)


@contextmanager
def tiled(**options: Any) -> Iterator[list[str]]:
    """NumPy with these overrides alone; a list of what they took."""
    ran: list[str] = []
    how = TiledRows(**{"engine": SMALL, "short": 0, **options})

    def noted(name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            out = getattr(how, name)(*args, **named)
            ran.extend([] if out is NotImplemented else [name])
            return out

        return call

    names = ("attend_rows", "attend_rows_vjp")
    with computing_in(replace(load("numpy"), kernels={**WORDS, **{name: noted(name) for name in names}})):
        yield ran


def draw(n: int, m: int | None = None, kv: int = 3, **more: Any) -> Sparse.Inputs:
    rng, keys = np.random.default_rng(n), n if m is None else m
    shapes = ((2, 6, n, 5), (2, kv, keys, 5), (2, kv, keys, 4))
    return Sparse.Inputs(*(rng.standard_normal(shape) for shape in shapes), **more)


@pytest.mark.parametrize("pattern", [
    Local(9, 2), Blocks(7), Local(3, 3) | Global(first=2), Strided(5) & Causal(), Local(2, 0) + Local(0, 3), ~Local(4, 4),
    Random(3, seed=1), All(),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("height", [3, 16])
def test_tiles_give_what_the_text_gives(pattern: Pattern, height: int) -> None:
    other = Sparse(pattern, align="bottom_right", heads="tiled")
    for scheme, inputs in ((Sparse(pattern), draw(40)), (other, draw(20, 33))):
        case = make(scheme, inputs)
        with tiled(heights=(height,), entry=1e9) as ran:
            got = results(scheme, inputs, case.cotangents)
        assert ran == ["attend_rows", "attend_rows_vjp"]
        assert not outside(got, case.bands)


DENSE = (Local(256, 256), Local(64, 0), Blocks(64), All(), Local(128, 128) | Global(first=16))
SCATTERED = (Strided(128) & Causal(), Random(64), LogSparse(), Local(2, 2))


@pytest.mark.parametrize("pattern", DENSE + SCATTERED, ids=str)
def test_what_is_dense_in_blocks_goes_by_tiles(pattern: Pattern) -> None:
    for n in (2048, 4096):
        assert (TiledRows().height(rows_of(pattern, n, n)) is not None) == (pattern in DENSE)


def test_blocks_of_64_make_tiles_of_64() -> None:
    assert TiledRows().height(rows_of(Blocks(64), 4096, 4096)) == 64


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_queries_and_keys_that_nobody_looks_at_may_be_anything(poison: float) -> None:
    pattern = Blocks(8) & ~Global(first=3, last=2)  # queries and keys at both ends see nothing and are seen by nobody
    clean, do = draw(32), np.random.default_rng(0).standard_normal((2, 6, 32, 4))
    dirty = Sparse.Inputs(*(x.copy() for x in clean[:3]))
    for x in dirty[:3]:
        x[..., :3, :], x[..., -2:, :] = poison, poison
    wild = do.copy()
    wild[..., :3, :] = poison
    with tiled(heights=(8,), entry=1e9) as ran:
        found = []
        for inputs, cotangent in ((clean, do), (dirty, wild)):
            _, saved = Sparse(pattern).forward(*inputs)
            found.append((saved.o, saved.lse, *Sparse(pattern).vjp(saved, cotangent)[:3]))
    assert len(ran) == 4
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_hidden_further_and_other_dtypes_are_left() -> None:
    with tiled(heights=(8,), entry=1e9) as ran:
        for inputs in (draw(32, key_valid=np.ones((2, 32), bool)), draw(32, mask=np.ones((32, 32), bool))):
            o, saved = Sparse(Local(9, 2)).forward(*inputs)
            Sparse(Local(9, 2)).vjp(saved, o)
    assert ran == []


def test_no_list_of_entries_is_made() -> None:
    n, made = 20_000, list[int]()
    rows = rows_of(Local(512, 0), n, n)

    def build() -> Any:
        made.append(1)
        return rows.build()

    counted = Rows(n, n, rows.nnz, build, rectangles=rows.rectangles)
    q = np.random.default_rng(0).standard_normal((n, 8)).astype("float32")
    how, D = TiledRows(), np.zeros((n, 1), "float32")
    o, lse = how.attend_rows(q, q, q, None, counted, scale=0.3)
    how.attend_rows_vjp(q, q, q, None, counted, lse, o, D, scale=0.3)
    assert made == []
