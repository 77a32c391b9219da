"""Loops over rows beside the generic texts: patterns, counts, hidden entries, special values, workers, what is left."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import refattn
from laws.bounds import case as make
from laws.bounds import outside, results, rounded
from laws.stand_in import computing_in
from refattn import load, threads, tree
from refattn.backends.rows_engine import RowsEngine
from refattn.patterns import Heads
from refattn.rows import row_scores, row_sums, rows_of, turn
from refattn.schemes.sparse import Sparse
from tabled import Band, Table

Array = Any
RNG = np.random.default_rng(11)
NAMES = ("attend_rows", "attend_rows_vjp", "row_scores", "row_sums")
PATTERNS = {
    "band": (Band(9, 2), 60, 60),
    "random, with empty rows and columns": (Table.of(RNG.random((40, 50)) < 0.05), 40, 50),
    "long rows and columns": (Table.of((np.arange(70)[:, None] % 30 == 0) | (np.arange(80) % 27 == 0)), 70, 80),
    "counts": (Table.of(RNG.integers(0, 4, (30, 40)) * (RNG.random((30, 40)) < 0.4)), 30, 40),
    "everything": (Band(90, 90), 40, 70),
    "nothing": (Table.of(np.zeros((5, 4))), 5, 4),
    "heads": (Heads((Band(5), Band(2, 2), Band(5), Band(0, 30), Band(1), Band(1))), 33, 33),
}


@contextmanager
def engine(names: tuple[str, ...] = NAMES, **options: Any) -> Iterator[list[str]]:
    """NumPy with these loops alone; a list of what they did not leave to the generic texts."""
    ran: list[str] = []

    def noted(name: str, kernel: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            out = kernel(*args, **named)
            ran.extend([] if out is NotImplemented else [name])
            return out

        return call

    whole = RowsEngine(**{"short": 0, **options}).kernels()
    with computing_in(replace(load("numpy"), kernels={name: noted(name, whole[name]) for name in names})):
        yield ran


def draw(n: int, m: int, dtype: str = "float64", hidden: str = "", d: int = 19, e: int = 8) -> Sparse.Inputs:
    rng = np.random.default_rng([n, m])
    shapes = ((2, 6, n, d), (2, 3, m, d), (2, 3, m, e))
    more = {"key_valid": rng.random((2, m)) < 0.6, "mask": rng.random((2, 6, n, m)) < 0.5}
    q, k, v = (rng.normal(size=s).astype(dtype) for s in shapes)
    return Sparse.Inputs(q, k, v, **{name: x for name, x in more.items() if name == hidden})


@pytest.mark.parametrize("names", [NAMES[:2], NAMES[2:]], ids=["kernels", "words"])
@pytest.mark.parametrize("hidden", ["", "key_valid", "mask"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_loops_are_within_the_bound_of_the_text(pattern: str, hidden: str, names: tuple[str, ...], dtype: str) -> None:
    scheme, args, bands = banded(pattern, hidden, dtype)
    with engine(names, parts=3) as ran:
        got = results(scheme, *args)
    assert set(ran) == set(names)
    assert {str(x.dtype) for x in got.values()} == {dtype}
    assert outside(got, bands) == {}


@functools.cache
def banded(pattern: str, hidden: str, dtype: str) -> tuple[Sparse, tuple[Any, Any], Any]:
    """The scheme, its inputs and cotangents in a dtype, and the bands of the results in it."""
    p, n, m = PATTERNS[pattern]
    if dtype == "float64":
        case = make(Sparse(p, align="bottom_right"), draw(n, m, hidden=hidden))
        return case.scheme, (case.inputs, case.cotangents), case.bands
    scheme, args, _ = banded(pattern, hidden, "float64")
    small = _single(*args)
    return scheme, small, rounded("fp32", scheme, *small)


def _single(inputs: Any, cotangents: Any) -> tuple[Any, Any]:
    small = tree.map(lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x, inputs)
    return small, {name: x.astype(np.float32) for name, x in cotangents.items()}


@pytest.mark.parametrize(("relative", "absolute"), [(1e-5, 0.0), (0.0, 1e-6)])
def test_a_kernel_that_is_slightly_off_is_outside(relative: float, absolute: float) -> None:
    p, n, m = PATTERNS["random, with empty rows and columns"]
    case = make(Sparse(p, align="top_left"), draw(n, m))
    right = RowsEngine(short=0).attend_rows

    def wrong(*args: Any, **named: Any) -> Any:
        o, lse = right(*args, **named)
        return o * (1 + relative) + absolute, lse

    with computing_in(replace(load("numpy"), kernels={"attend_rows": wrong})):
        assert "o" in outside(case.run(), case.bands)


SPECIAL = {
    "nothing": ([], [], 0.0),
    "NaN in the first key of a row": (2, 0, np.nan),
    "NaN later": (5, 3, np.nan),
    "a row of NaN": (7, slice(None), np.nan),
    "inf": (4, 2, np.inf),
    "-inf": (4, 2, -np.inf),
    "a row of -inf": (9, slice(None), -np.inf),
    "-inf and NaN": (9, slice(None), [-np.inf, np.nan] * 10),
}


@pytest.mark.parametrize("what", SPECIAL)
@pytest.mark.parametrize("hidden", [False, True])
def test_infinite_and_undefined_scores_end_as_in_the_generic_text(what: str, hidden: bool) -> None:
    """One query at a time, whose keys are its scores."""
    i, j, value = SPECIAL[what]
    s, v = np.random.default_rng(0).standard_normal((20, 20)), np.random.default_rng(1).standard_normal((20, 3))
    s[i, j] = value
    found = []
    for names in (NAMES[:2], ()):
        rows = []
        with engine(names), np.errstate(invalid="ignore"):
            for row in s:
                mask = (np.arange(20) % 3 > 0)[None] if hidden else None
                scheme = Sparse(Band(90, 90), align="top_left", scale=1.0)
                o, saved = scheme.forward(np.ones((1, 1)), row[:, None], v, mask)
                grads = scheme.vjp(saved, np.ones_like(o))
                rows.append([o, saved.lse, *grads[:3]])
        found.append([np.concatenate([x[a] for x in rows]) for a in range(5)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)  # NaN and ±inf in the same places


def test_layouts_and_copied_heads_give_the_same_bits() -> None:
    scheme, x = Sparse(Band(9, 2)), draw(60, 60, "float32")

    def bits(inputs: Sparse.Inputs) -> list[bytes]:
        with engine():
            o, saved = scheme.forward(*inputs)
            return [a.tobytes() for a in (o, saved.lse, *scheme.vjp(saved, o)[:1])]

    want = bits(x)
    inside = [np.ascontiguousarray(y.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for y in x[:3]]
    assert bits(Sparse.Inputs(*inside)) == want
    assert bits(Sparse.Inputs(x.q, *(np.repeat(y, 2, axis=1) for y in x[1:3]))) == want


@pytest.mark.parametrize("hidden", ["", "key_valid"])
def test_the_same_bits_for_any_number_of_workers_in_any_order(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, n, m = PATTERNS["long rows and columns"]
    scheme, x = Sparse(p, align="top_left"), draw(n, m, "float32", hidden)
    order, before, pooled = random.Random(0), threads._state.chosen, threads.run

    def shuffled(tasks: Any) -> None:
        todo = list(tasks)
        order.shuffle(todo)
        pooled(todo)

    def bits(**options: Any) -> list[bytes]:
        with engine(**options) as ran:
            o, saved = scheme.forward(*x)
            found = [o, saved.lse, *scheme.vjp(saved, o)[:3]]
        assert len(ran) >= 2
        return [a.tobytes() for a in found]

    want = bits(parts=1)
    monkeypatch.setattr(threads, "run", shuffled)
    try:
        for number in range(1, 9):
            refattn.set_threads(number)
            assert bits(parts=number) == want
        assert bits() == want
    finally:
        refattn.set_threads(before)


def test_tasks_have_about_equally_many_entries_and_cover_every_query() -> None:
    p, n, m = PATTERNS["long rows and columns"]
    rows = rows_of(p, n, m)
    for parts in (1, 2, 5, 1000):
        cuts = list(RowsEngine(parts=parts)._cuts(rows, ()))
        assert [a for a, _ in cuts] + [n] == [0, *(b for _, b in cuts)]
        longest = int(np.diff(rows.start).max())
        assert all(rows.start[b] - rows.start[a] <= rows.nnz / parts + 2 * longest for a, b in cuts)
    assert list(RowsEngine()._cuts(rows_of(Band(0), 0, 5), ())) == []


def test_the_rest_is_left_to_the_generic_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    p, n, m = PATTERNS["band"]
    scheme, x = Sparse(p), draw(n, m)

    def runs(**options: Any) -> list[str]:
        with engine(**options) as ran:
            o, saved = scheme.forward(*x)
            scheme.vjp(saved, o)
        return ran

    assert runs() == ["attend_rows", "attend_rows_vjp"]
    assert runs(short=rows_of(p, n, m).nnz) == ["attend_rows", "attend_rows_vjp"]
    assert runs(short=rows_of(p, n, m).nnz + 1) == []
    monkeypatch.setenv("REFATTN_NUMBA", "0")
    assert runs() == []


def test_half_precision_meets_the_loops_in_float32() -> None:
    scheme, x = Sparse(Band(9, 2)), draw(60, 60, "float16")
    with engine() as ran:
        o, saved = scheme.forward(*x)
        assert (o.dtype, saved.lse.dtype) == (np.float16, np.float32)
    assert ran == ["attend_rows"]


@pytest.mark.parametrize("d", [1, 3, 64])
def test_words_by_loops_are_those_of_matrices(d: int) -> None:
    p, n, m = PATTERNS["long rows and columns"]
    rows, rng = rows_of(p, n, m), np.random.default_rng(d)
    q, k, x = rng.normal(size=(2, 3, n, d)), rng.normal(size=(2, 1, m, d)), rng.normal(size=(2, 3, rows.nnz))
    matrix = np.zeros((2, 3, n, m))
    matrix[..., rows.row, rows.col] = x
    with engine() as ran:
        found = row_scores(q, k, rows), row_sums(x, k, rows), row_sums(turn(x, rows), q, rows.T)
    assert ran == ["row_scores", "row_sums", "row_sums"]
    want = (q @ k.swapaxes(-1, -2))[..., rows.row, rows.col], matrix @ k, matrix.swapaxes(-1, -2) @ q
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
