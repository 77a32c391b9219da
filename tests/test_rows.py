"""Rows and their words: lists beside a matrix of counts, adjoints, cuts, libraries, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.stand_in import computing_in
from refattn import OptionError, ShapeError, load, rows
from refattn.backend import of
from refattn.kernels import GENERIC
from refattn.rows import (
    Rows,
    filled,
    index,
    numbers,
    row_max,
    row_scores,
    row_sum,
    row_sums,
    rows_of,
    spread,
    turn,
    weigh,
)
from tabled import Band, Table

Array = Any


def random_counts(n: int, m: int, share: float, most: int = 1) -> Array:
    rng = np.random.default_rng([n, m])
    return (rng.random((n, m)) < share) * rng.integers(1, most + 1, (n, m))


COUNTS = {
    "band": Band(3, 1).dense(9, 9),
    "random, with empty rows and columns": random_counts(20, 15, 0.1),
    "long rows and columns": np.maximum(Band(1).dense(12, 12), np.eye(12)[:, :1] + np.eye(12)[5:6, :]),
    "counts": random_counts(8, 11, 0.5, most=3),
    "everything": np.ones((4, 6)),
    "nothing": np.zeros((5, 4)),
    "no query": np.zeros((0, 4)),
    "no key": np.zeros((3, 0)),
}


@pytest.fixture(autouse=True)
def generic() -> Any:
    """NumPy without kernels."""
    with computing_in(replace(load("numpy"), kernels={})):
        yield


@pytest.fixture(params=COUNTS.values(), ids=COUNTS)
def counts(request: Any) -> Array:
    return np.asarray(request.param, dtype=np.int64)


def made(counts: Array) -> Rows:
    return rows_of(Table.of(counts) if counts.size else Band(0), *counts.shape)


def dense(r: Rows) -> Array:
    out = np.zeros((r.n, r.m), dtype=np.int64)
    np.add.at(out, (r.row, r.col), r.count)
    return out


def arrays(r: Rows, lead: tuple[int, ...], d: int = 4) -> tuple[Array, Array, Array]:
    """Queries, keys and numbers of entries."""
    rng = np.random.default_rng(5)
    return rng.normal(size=(*lead, r.n, d)), rng.normal(size=(*lead, r.m, d)), rng.normal(size=(*lead, r.nnz))


def matrix(x: Array, r: Rows) -> Array:
    """Entries as a matrix, each once."""
    out = np.zeros((*x.shape[:-1], r.n, r.m))
    out[..., r.row, r.col] = x
    return out


def test_lists_are_the_matrix(counts: Array) -> None:
    r = made(counts)
    assert (r.n, r.m, r.nnz) == (*counts.shape, np.count_nonzero(counts))
    np.testing.assert_array_equal(dense(r), counts)
    np.testing.assert_array_equal(dense(r.T), counts.T)
    np.testing.assert_array_equal(r.T.row, r.col[r.turn])
    np.testing.assert_array_equal(r.T.col, r.row[r.turn])
    assert all((np.diff(r.T.col[a:b]) > 0).all() for a, b in zip(r.T.start[:-1], r.T.start[1:], strict=True))
    assert {x.dtype for x in (r.start, r.col, r.count, r.row, r.turn, r.entry, r.key, r.place)} == {np.dtype(np.int64)}


def test_slabs_hold_every_entry_once_and_every_length_once(counts: Array) -> None:
    r = made(counts)
    np.testing.assert_array_equal(np.sort(r.entry), np.arange(r.nnz))
    lengths = [length for _, _, length in r.slabs]
    assert len(set(lengths)) == len(lengths) <= (2 * r.nnz) ** 0.5 + 1e-9
    queries = []
    for first, many, length in r.slabs:
        rectangle = r.row[r.entry[first : first + many * length]].reshape(many, length)
        assert (rectangle == rectangle[:, :1]).all()
        queries += rectangle[:, 0].tolist()
    seeing = np.flatnonzero((counts > 0).any(axis=1))
    assert sorted(queries) == seeing.tolist()
    np.testing.assert_array_equal(r.place[queries], np.arange(len(queries)))
    assert (np.delete(r.place, queries) == len(queries)).all()


def cuttings(m: int, width: int) -> Iterator[list[int]]:
    """Every way to cut m keys into tiles of `width` or more, the first and the last of any length: where they begin."""
    for first in range(1, m + 1):
        yield from _cuttings([0, first], m, width)


def _cuttings(begin: list[int], m: int, width: int) -> Iterator[list[int]]:
    yield begin
    for at in range(begin[-1] + width, m):
        yield from _cuttings([*begin, at], m, width)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 100])
def test_tiles_that_a_row_can_meet(counts: Array, width: int) -> None:
    r = made(counts)
    if r.m > 12 and width < 3:
        pytest.skip("too many ways to cut")
    met = [np.add.reduceat(counts > 0, begin, axis=1).astype(bool).sum(axis=1).max(initial=0)
           for begin in cuttings(r.m, width) if begin[-1] < r.m]  # fmt: skip
    assert r.tiles(width) == max(met, default=int(counts.any()))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_words_are_their_matrices(counts: Array, lead: tuple[int, ...]) -> None:
    r = made(counts)
    q, k, p = arrays(r, lead)
    seen = counts > 0
    close = {"rtol": 0, "atol": 1e-13}
    np.testing.assert_allclose(row_scores(q, k, r), (q @ k.swapaxes(-1, -2))[..., r.row, r.col], **close)
    np.testing.assert_allclose(row_sums(p, k, r), matrix(p, r) @ k, **close)
    np.testing.assert_allclose(row_sums(turn(p, r), q, r.T), matrix(p, r).swapaxes(-1, -2) @ q, **close)
    np.testing.assert_allclose(row_sum(p, r), matrix(p, r).sum(-1, keepdims=True), **close)
    full = np.where(seen, matrix(p, r), -np.inf)
    np.testing.assert_array_equal(row_max(p, r), np.max(full, axis=-1, keepdims=True, initial=-np.inf))
    x = q[..., :1]
    np.testing.assert_array_equal(spread(x, r), np.broadcast_to(x, (*lead, r.n, r.m))[..., r.row, r.col])
    np.testing.assert_array_equal(turn(p, r), p[..., r.turn])
    np.testing.assert_array_equal(weigh(p, r), p * r.count)


def test_row_scores_and_row_sums_are_adjoint(counts: Array) -> None:
    r = made(counts)
    q, k, p = arrays(r, (2,))
    pulled = np.sum(p * row_scores(q, k, r))
    assert abs(pulled - np.sum(q * row_sums(p, k, r))) < 1e-12
    assert abs(pulled - np.sum(k * row_sums(turn(p, r), q, r.T))) < 1e-12
    x = q[..., :1]
    assert abs(np.sum(p * spread(x, r)) - np.sum(x * row_sum(p, r))) < 1e-12


def test_leading_axes_broadcast(counts: Array) -> None:
    r = made(counts)
    q, k, p = arrays(r, (2, 3))
    few = k[:, :1]
    copied = np.broadcast_to(few, k.shape)
    np.testing.assert_array_equal(row_scores(q, few, r), row_scores(q, copied, r))
    np.testing.assert_array_equal(row_sums(p, few, r), row_sums(p, copied, r))
    np.testing.assert_array_equal(row_sums(p[:, :1], k, r), row_sums(np.broadcast_to(p[:, :1], p.shape), k, r))
    if counts.size:
        with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 2\) do not broadcast"):
            row_scores(q, k[:, :2], r)


@pytest.mark.parametrize("limit", [1, 7, 40])
def test_cuts_change_nothing_but_the_order_of_work(counts: Array, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is never cut, so that each of its sums is one sum."""
    r = made(counts)
    q, k, p = arrays(r, (2,))
    want = row_scores(q, k, r), row_sums(p, k, r), row_sum(p, r), row_max(p, r)
    monkeypatch.setattr(rows, "LIMIT", limit)
    got = row_scores(q, k, r), row_sums(p, k, r), row_sum(p, r), row_max(p, r)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-14)


def test_what_is_gathered_at_a_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    r = rows_of(Band(5), 200, 200)
    q, k, p = arrays(r, (2,))
    taken: list[int] = []
    numpy = load("numpy")

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(numpy.xp, name)

        def take(self, x: Array, indices: Array, axis: int) -> Array:
            out = numpy.xp.take(x, indices, axis=axis)
            taken.append(out.size)
            return out

    monkeypatch.setattr(rows, "LIMIT", 100)
    with computing_in(replace(numpy, xp=Watched(), kernels={})):
        row_scores(q, k, r)
        assert len(taken) > 2
        assert max(taken) <= 100
        taken.clear()
        row_sums(p, k, r)
    *cuts, ordered = taken
    assert ordered == q.size
    assert max(cuts) <= 100


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_word_keeps_its_dtype(dtype: str) -> None:
    """Integer counts times float32 would be float64."""
    r = made(COUNTS["counts"])
    q, k, p = (x.astype(dtype) for x in arrays(r, (2,)))
    found = (row_scores(q, k, r), row_sums(p, k, r), row_sum(p, r), row_max(p, r), spread(q[..., :1], r), turn(p, r),
             weigh(p, r), numbers(p, [1, 2]), filled(p, (2, 3)))
    assert {x.dtype for x in found} == {np.dtype(dtype)}


def test_words_on_the_strict_device_are_those_of_numpy() -> None:
    xp = pytest.importorskip("array_api_strict")
    xp.set_array_api_strict_flags(api_version="2024.12", boolean_indexing=False, data_dependent_shapes=False)
    device = xp.Device("device1")
    r = made(COUNTS["counts"])
    q, k, p = arrays(r, (2,))
    far = [xp.asarray(x, device=device) for x in (q, k, p)]

    def run(q: Array, k: Array, p: Array) -> list[Array]:
        return [row_scores(q, k, r), row_sums(p, k, r), row_sum(p, r), row_max(p, r), spread(q[..., :1], r), turn(p, r),
                weigh(p, r), index(q, [3, 1]), filled(q, (2,), 1.5)]

    for x, y in zip(run(*far), run(q, k, p), strict=True):
        assert x.device == device
        np.testing.assert_array_equal(np.asarray(x.to_device(xp.Device("CPU_DEVICE"))), y)


def test_indices_that_were_moved_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """For libraries that may compute elsewhere; NumPy stands in for one."""
    r = Rows(9, 9, Band(3, 1).nnz(9, 9), lambda: Band(3, 1).entries(9, 9))
    q, k, _ = arrays(r, ())
    want, moves = row_scores(q, k, r), []
    monkeypatch.setattr(rows, "KEPT", ("numpy",))

    class Moving(type(of(q))):  # type: ignore[misc]
        def lift(self, x: Any, like: Any = None) -> Any:
            moves.append(x)
            return super().lift(x, like)

    with computing_in(Moving(kernels={})):
        for _ in range(3):
            np.testing.assert_array_equal(row_scores(q, k, r), want)
    assert len(moves) == 2
    assert [x is y for x, y in zip(moves, (r.row, r.col), strict=True)] == [True, True]


def test_lists_that_are_not_what_was_announced_are_refused() -> None:
    start, col, _ = Band(1).entries(4, 4)
    for n, nnz, build in [
        (4, 8, lambda: (start, col, None)),
        (3, 7, lambda: (start, col, None)),
        (4, 7, lambda: (start, col[:-1], None)),
        (4, 7, lambda: (start, col, np.ones(7))),
    ]:
        with pytest.raises(OptionError, match=f"{nnz} entries of {n} queries over 4 keys were announced"):
            _ = Rows(n, 4, nnz, build).start
    assert (Rows(4, 4, 7, lambda: (start, col, None), multiple=True).count == 1).all()


def test_rows_are_kept_and_the_oldest_are_forgotten() -> None:
    kept = rows._Made(entries=30, rows=3)
    first = kept.get(Band(1), 9, 9, 0)
    assert kept.get(Band(1), 9, 9, 0) is first
    second = kept.get(Band(1), 9, 9, 1)
    assert second is not first
    huge = kept.get(Band(100), 1000, 1000, 0)
    kept.get(Band(1), 9, 9, 0)
    assert list(kept.rows.values()) == [second, huge, first], "what nobody has listed takes no room"
    assert "lists" not in vars(huge)
    fourth = kept.get(Band(0), 8, 8, 0)
    assert list(kept.rows.values()) == [huge, first, fourth], "three at most"
    assert huge.lists is huge.lists
    assert kept.get(Band(0), 8, 8, 0) is fourth
    assert list(kept.rows.values()) == [first, fourth], "the oldest goes until the lists are few"


def test_every_word_can_be_replaced() -> None:
    words = {"row_scores", "row_sums", "row_sum", "row_max", "spread", "turn", "weigh", "rectangle"}
    assert words <= set(GENERIC)
    r = made(COUNTS["band"])
    q, k, p = arrays(r, ())
    calls = {
        "row_scores": (row_scores, q, k), "row_sums": (row_sums, p, k), "row_sum": (row_sum, p), "row_max": (row_max, p),
        "spread": (spread, q[..., :1]), "turn": (turn, p), "weigh": (weigh, p),
    }  # fmt: skip
    for name, (word, *args) in calls.items():
        with computing_in(replace(load("numpy"), kernels={name: lambda *_: "replaced"})):
            assert word(*args, r) == "replaced"
