"""The tile engine beside the generic text: lists of tiles, masks, special values, strides, shared heads, workers, cache."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import njit

import refattn
from cutting import cut
from laws.bounds import case as make
from laws.bounds import outside, results, rounded
from laws.stand_in import computing_in
from refattn import Dense, load, threads
from refattn.backends import tile_engine
from refattn.backends.numba_words import SUMS, exp
from refattn.backends.numpy_backend import kernels
from refattn.backends.tile_engine import Engine
from refattn.backends.tile_lists import tiles

Array = Any
BOTTOM = Dense(causal=True, align="bottom_right")


@contextmanager
def engine(**options: Any) -> Iterator[list[str]]:
    """NumPy with a tile engine alone; a list of what it did not leave to the generic text."""
    ran: list[str] = []

    def noted(name: str, kernel: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            out = kernel(*args, **named)
            ran.extend([name] if out is not NotImplemented else [])
            return out

        return call

    table = {name: noted(name, kernel) for name, kernel in kernels(Engine(**{"short": 0, **options}), pairs=10**9).items()}
    with computing_in(replace(load("numpy"), kernels=table)):
        yield ran


def draw(*shape: int, dtype: str = "float64", seed: int = 0, m: int | None = None, kv: int | None = None
         ) -> dict[str, Array]:
    """q (b, h, n, d), k and v with `kv` heads and m keys."""
    rng, (b, h, n, d) = np.random.default_rng(seed), shape
    keys = (b, kv or h, n if m is None else m, d)
    return {name: rng.standard_normal(s).astype(dtype) for name, s in (("q", shape), ("k", keys), ("v", keys))}


@pytest.mark.parametrize("seed", range(6))
def test_any_list_of_tiles_is_a_mask(seed: int) -> None:
    see = np.random.default_rng(seed).random((40, 57)) < (0.03, 0.5, 0.97)[seed % 3]
    see[7], see[:, 9] = False, False
    inputs = Dense.Inputs(**draw(2, 3, 40, 5, seed=seed, m=57), mask=see)
    case = make(Dense(), inputs)
    with engine(tiles=tiles(cut(see, seed)), keys=6, back=7) as ran:
        got = results(Dense(), inputs._replace(mask=None), case.cotangents)
    assert ran == ["attend", "attend_vjp"]
    assert not outside(got, case.bands)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", [Dense(), Dense(causal=True), Dense(scale=0.3)], ids=str)
@pytest.mark.parametrize("further", ["", "key_valid", "mask", "both"])
def test_masks_and_keys_that_are_invalid(dtype: str, scheme: Dense, further: str) -> None:
    rng = np.random.default_rng(3)
    valid, mask = rng.random((2, 70)) < 0.7, rng.random((2, 1, 70, 70)) < 0.4
    valid[0, 30:], mask[:, :, 3] = False, False
    given = {n: x for n, x in (("key_valid", valid), ("mask", mask)) if further in (n, "both")}
    inputs = Dense.Inputs(**draw(2, 4, 70, 8, dtype=dtype, kv=2), **given)
    shapes = {"o": (2, 4, 70, 8), "lse": (2, 4, 70)}
    cotangents = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    with engine(rows=32, keys=24, back=16, corner=8) as ran:
        got = results(scheme, inputs, cotangents)
    assert ran == ["attend", "attend_vjp"]
    wide = Dense.Inputs(*(x if x is None or x.dtype == bool else x.astype("float64") for x in inputs))
    preset = {"float32": "fp32", "float64": "fp64"}[dtype]
    assert not outside(got, rounded(preset, scheme, wide, {n: x.astype("float64") for n, x in cotangents.items()}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype: str) -> None:
    narrow = {name: x.astype(getattr(ml_dtypes, dtype, dtype)) for name, x in draw(1, 2, 90, 8).items()}
    do = narrow["q"]
    with engine() as ran:
        _, saved = BOTTOM.forward(**narrow)
        grads = BOTTOM.vjp(saved, do)
        _, wide = BOTTOM.forward(**{name: x.astype("float32") for name, x in narrow.items()})
        want = BOTTOM.vjp(wide._replace(o=saved.o.astype("float32")), do.astype("float32"))
    assert ran == ["attend", "attend_vjp"] * 2
    assert saved.lse.dtype == np.float32
    for got, exact in zip((saved.o, *grads[:3]), (wide.o, *want[:3]), strict=True):
        assert got.dtype == do.dtype
        np.testing.assert_array_equal(got, exact.astype(do.dtype))


SPECIAL = {
    "a score of −inf": (0, 1, -np.inf), "a row of −inf": (0, slice(None), -np.inf),
    "+inf": (2, 9, np.inf), "NaN": (2, 3, np.nan),
    "NaN alone in the first tile": (1, slice(0, 4), np.nan), "a row of NaN": (3, slice(None), np.nan),
    "+inf and −inf": (slice(None), 5, np.array([np.inf, -np.inf] * 10)),
}


@pytest.mark.parametrize("what", SPECIAL)
@pytest.mark.parametrize("masked", [False, True])
def test_infinite_and_undefined_scores_end_as_in_the_generic_text(what: str, masked: bool) -> None:
    rows, keys, value = SPECIAL[what]
    s, v = np.random.default_rng(0).standard_normal((20, 20)), np.random.default_rng(1).standard_normal((20, 3))
    s[rows, keys] = value
    got, want = (each_row(s, v, masked, short) for short in (0, 10**9))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)  # NaN and ±inf in the same places


def each_row(s: Array, v: Array, masked: bool, short: int) -> tuple[Array, Array]:
    """o and lse of rows of scores: the query is (1), the keys are the scores, so that no score spoils another row."""
    out = []
    with engine(rows=8, keys=4, short=short), np.errstate(invalid="ignore"):
        for i, row in enumerate(s):
            seen = (np.arange(20) <= i)[None] if masked else None
            o, saved = Dense(scale=1.0).forward(np.ones((1, 1)), row[:, None], v, mask=seen)
            out.append((o, saved.lse))
    o, lse = zip(*out, strict=True)
    return np.concatenate(o), np.concatenate(lse)


def test_rows_that_blas_can_step_over_are_not_copied() -> None:
    x = np.zeros((2, 30, 3, 8), "float32")
    for y in (x.transpose(0, 2, 1, 3), x[:, ::2], x[..., :5], x[:, :, 1:2], np.broadcast_to(x[:1], (4, 30, 3, 8))):
        assert tile_engine.strided(y) is y
    flat = np.zeros(800, "uint8")
    odd = [x[:, ::-1].transpose(0, 2, 1, 3), x[..., ::2], x.transpose(0, 1, 3, 2),
           np.broadcast_to(x[:, :1, :1], (2, 30, 3, 8)), flat[1:769].view("float32").reshape(8, 3, 8), x.astype(">f4")]
    for y in odd:
        z = tile_engine.strided(y)
        assert z.flags.c_contiguous
        assert z.dtype.isnative
        np.testing.assert_array_equal(z, y)


def test_heads_that_share_keys_and_layouts_give_the_same_bits() -> None:
    x = draw(2, 6, 80, 16, kv=2, dtype="float32")
    do = np.random.default_rng(5).standard_normal(x["q"].shape).astype("float32")
    with engine():
        _, saved = BOTTOM.forward(**x)
        want = (saved.o, saved.lse, *BOTTOM.vjp(saved, do)[:3])
        inside = {n: np.ascontiguousarray(y.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for n, y in x.items()}
        _, saved = BOTTOM.forward(**inside)
        got = (saved.o, saved.lse, *BOTTOM.vjp(saved, do)[:3])
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.shape == b.shape


@pytest.mark.parametrize("heads", [1, 3, 16])
def test_the_same_bits_for_any_number_of_workers_in_any_order(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, order, before = draw(1, heads, 300, 16, dtype="float32"), random.Random(0), threads._state.chosen
    do, pooled = np.random.default_rng(5).standard_normal(x["q"].shape).astype("float32"), threads.run

    def shuffled(tasks: Any) -> None:
        todo = list(tasks)
        order.shuffle(todo)
        pooled(todo)

    def bits() -> list[bytes]:
        with engine(rows=64, keys=48, back=32, corner=16):
            _, saved = BOTTOM.forward(**x)
            return [a.tobytes() for a in (saved.o, saved.lse, *BOTTOM.vjp(saved, do)[:3])]

    want = bits()
    monkeypatch.setattr(threads, "run", shuffled)
    try:
        for number in range(1, 9):
            refattn.set_threads(number)
            assert bits() == want
    finally:
        refattn.set_threads(before)


@pytest.mark.parametrize(
    ("scheme", "more"),
    [(Dense(softcap=5.0), {}), (Dense(), {"bias": np.zeros((70, 70))}), (Dense(), {"sink": np.zeros(2)}),
     (Dense(), {"segment_ids": np.zeros((1, 70), int)}), (Dense(causal=True), {"q_positions": np.arange(70)}),
     (Dense(keep_rate=0.5), {"keep": np.ones((70, 70), bool)})],
    ids=["softcap", "bias", "sink", "segments", "positions", "dropout"],
)
def test_the_rest_is_left_to_the_generic_text(scheme: Dense, more: dict[str, Array]) -> None:
    x = draw(1, 2, 70, 8)
    with engine() as ran:
        o, saved = scheme.forward(**x, **more)
        scheme.vjp(saved, o)
    assert ran == []


@pytest.mark.parametrize(("flag", "expected"), [("1", ["attend", "attend_vjp"]), ("0", [])])
def test_the_variable_turns_kernels_off(flag: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFATTN_NUMBA", flag)
    with engine() as ran:
        o, saved = Dense().forward(**draw(1, 2, 70, 8))
        Dense().vjp(saved, o)
    assert ran == expected


LAZY = """
import sys, numpy as np
from refattn import Dense
short, long = np.ones((4, 8)), np.ones((100, 8))
loaded = lambda: "numba" in sys.modules
print(loaded(), Dense()(short, short, short).sum(), loaded(), Dense()(long, long, long).sum(), loaded())
"""
WARM = """
import sys, refattn
refattn.warmup()
print("numba" in sys.modules)
"""
CACHED = """
from refattn.backends import tile_engine
kernel = tile_engine._kernel("forward", "float32")
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


def python(code: str, **variables: str) -> str:
    command, env = [sys.executable, "-c", code], {**os.environ, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numba_is_loaded_by_the_first_kernel_that_runs() -> None:
    assert python(LAZY).split() == ["False", "32.0", "False", "800.0", "True"]


def test_nothing_is_warmed_up_where_nothing_compiled_runs() -> None:
    assert python(WARM, REFATTN_NUMBA="0").split() == ["False"]


@pytest.mark.sweep  # the same of the linear engine in every run
def test_a_second_process_reads_the_kernels_from_the_cache(tmp_path: Path) -> None:
    assert python(CACHED, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["0", "1"]
    assert python(CACHED, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["1", "0"]


def test_the_exponential() -> None:
    @njit(fastmath=SUMS)
    def run(x: Array, y: Array) -> None:
        for i in range(x.size):
            y[i] = exp(x[i])

    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30]
    for dtype, low, high, most in ((np.float32, -87.3, 88.3, 1.2e-7), (np.float64, -708.3, 709.4, 4e-16)):
        x = np.concatenate([np.linspace(low, high, 100_003), np.linspace(-1, 1, 10_001), edges]).astype(dtype)
        y = np.empty_like(x)
        run(x, y)
        want = np.exp(x[:-len(edges)].astype(np.longdouble))
        assert float(np.max(np.abs(y[:-len(edges)] - want) / want)) < most
        np.testing.assert_array_equal(y[-len(edges):], np.array([1, 1, np.inf, 0, np.nan, np.inf, 0], dtype))
