"""Loops over buckets beside the generic texts: permutations to the bit, ties, ranges, NaN, factors, what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.stand_in import computing_in
from refattn import LSH, load, threads
from refattn.backends.buckets_engine import BucketsEngine
from refattn.buckets import bucket_sort
from refattn.kernels import text
from refattn.ops.angular_hash import angular_hash

Array = Any
ENGINE = BucketsEngine(short=0, tile=5, part=7)
RNG = np.random.default_rng(5)


def both(buckets: Array) -> tuple[Any, Any]:
    return ENGINE.bucket_sort(buckets), text("bucket_sort")(buckets)


def test_the_order_of_a_report() -> None:
    """Buckets 1 1 2 1 2 2 1 1, and one small number behind many equal ones."""
    for sort in (ENGINE.bucket_sort, text("bucket_sort")):
        assert sort(np.array([1, 1, 2, 1, 2, 2, 1, 1]))[0].tolist() == [0, 1, 3, 6, 7, 2, 4, 5]
        assert sort(np.array([1000] * 6 + [0, 1000]))[0].tolist() == [6, 0, 1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "uint64"])
@pytest.mark.parametrize("shape", [(1,), (37,), (3, 50), (2, 3, 4, 29), (5, 1)])
def test_the_permutation_is_that_of_a_stable_sort_bit_for_bit(shape: tuple[int, ...], dtype: str) -> None:
    low = 0 if dtype.startswith("u") else -3
    for high in (low + 1, 4, 120):
        got, want = both(RNG.integers(low, high, shape).astype(dtype))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)


def test_any_layout_and_any_number_of_threads() -> None:
    buckets = RNG.integers(0, 9, (6, 40))
    views = (buckets.T, buckets[::-1, ::-2], np.broadcast_to(buckets[:1], (6, 40)), np.asfortranarray(buckets))
    before = threads._state.chosen
    try:
        for number in (1, 4):
            threads.set_threads(number)
            for view in views:
                for x, y in zip(*both(view), strict=True):
                    np.testing.assert_array_equal(x, y)
    finally:
        threads.set_threads(before)


def test_what_is_left_to_the_generic_text(monkeypatch: pytest.MonkeyPatch) -> None:
    far, wide = np.array([0, 2**17]), np.array([0, 2**63], dtype=np.uint64)
    x, turn = np.ones((3, 2)), np.ones((1, 2, 3))
    assert ENGINE.bucket_sort(far) is NotImplemented
    assert ENGINE.bucket_sort(wide) is NotImplemented
    assert ENGINE.bucket_sort(np.zeros((3, 0), dtype=int)) is NotImplemented
    assert BucketsEngine(short=100).bucket_sort(far) is NotImplemented
    assert ENGINE.angular_hash(x.astype("float16"), turn.astype("float16"), None) is NotImplemented
    assert ENGINE.angular_hash(x[:, :0], turn[:, :0], None) is NotImplemented
    assert BucketsEngine(short=100).angular_hash(x, np.ones((500, 2, 3)), None) is NotImplemented
    assert bucket_sort(far)[0].tolist() == [0, 1]
    monkeypatch.setenv("REFATTN_NUMBA", "0")
    assert ENGINE.bucket_sort(np.array([1, 0])) is NotImplemented
    assert ENGINE.angular_hash(x, turn, None) is NotImplemented


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("factors", [None, (4, 2, 6)])
@pytest.mark.parametrize("shared", [False, True])
def test_hashes_are_those_of_the_generic_text(dtype: str, factors: tuple[int, ...] | None, shared: bool) -> None:
    """Of whole numbers, whose products no order of summation rounds: ties and zeros among them."""
    x = RNG.integers(-2, 3, (2, 3, 23, 4)).astype(dtype)
    turn = RNG.integers(-2, 3, (4, 4, 6) if shared else (3, 4, 4, 6)).astype(dtype)
    x[0, 0, 3], x[0, 0, 4, 1], x[1, 2, 5] = 0.0, np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = text("angular_hash")(x, turn, factors)
    got = ENGINE.angular_hash(x, turn, factors)
    np.testing.assert_array_equal(np.delete(got, 5, axis=-1), np.delete(want, 5, axis=-1))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert ((got >= 0) & (got < 48)).all()


def test_they_run_in_the_scheme_and_a_turned_tie_is_seen() -> None:
    x, v, turn = RNG.normal(size=(2, 100, 8)), RNG.normal(size=(2, 100, 8)), RNG.normal(size=(3, 8, 4))
    scheme, ran = LSH(chunk=16, causal=True), []

    def noted(name: str, turned: bool = False) -> Any:
        def call(*args: Any) -> Any:
            ran.append(name)
            if not turned:
                return getattr(ENGINE, name)(*args)
            order = np.flip(np.argsort(np.flip(args[0], -1), axis=-1, kind="stable"), -1)
            return order, np.argsort(order, axis=-1)

        return call

    def run(**table: Any) -> Any:
        with computing_in(replace(load("numpy"), kernels=table)):
            return scheme(x, v, turn)

    want = run()
    np.testing.assert_array_equal(run(bucket_sort=noted("bucket_sort"), angular_hash=noted("angular_hash")), want)
    assert ran == ["angular_hash", "bucket_sort"]
    assert (run(bucket_sort=noted("bucket_sort", turned=True)) != want).any()
    assert angular_hash(x, turn, None).shape == (2, 3, 100)
