"""The rounding reading of sparse attention on simulated kernels: never a false alarm, faults outside, a spread that is
calibrated; and each rule of the words is needed for that."""

from __future__ import annotations

import zlib
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from refattn import load, using
from refattn.backends import rounding_backend, rounding_rows
from refattn.precision import PRESETS, parse
from refattn.schemes.sparse import Sparse
from simulated import draws, sparse, styles
from simulated.arithmetic import rounded
from simulated.kernel import Kernel
from simulated.reading import ratio, run
from tabled import Table

Array = Any
EACH, FEW = 30, 10  # of each of eleven styles, every run has the first third
CHUNKS = 11  # in the sweep, which has all
U = 2.0**-24


def outside(style: str, first: int, count: int) -> list[str]:
    """The kernels of a style, numbered from `first`, that have a result outside its bound: reproducible one by one."""
    found = []
    for number in range(first, first + count):
        rng = np.random.default_rng([zlib.crc32(style.encode()), number, 1])
        kernel, precision = styles.draw(style, rng)
        kind = sparse.KINDS[number % len(sparse.KINDS)]
        problem, table = sparse.problem(kind, rng, kernel.result)
        got, reading = run(kernel, problem), sparse.read(problem, table, precision)
        bad = {name: x for name, want in reading.items() if not (x := ratio(got[name], want)) <= 1.0}
        found += [f"{style} {number} {kind} {precision.name}(tile={precision.tile}): {bad} by {kernel}"] if bad else []
    return found


@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_is_outside_its_bound(style: str) -> None:
    assert outside(style, 0, FEW) == []


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_is_outside_its_bound_in_a_sweep(style: str, chunk: int) -> None:
    assert outside(style, chunk * EACH, EACH) == []


def oldest_dropped(table: Array) -> Array:
    """Every query loses its first key."""
    out = table.copy()
    i = np.flatnonzero(out.any(axis=1))
    out[i, (out[i] > 0).argmax(axis=1)] = 0
    return out


def one_more(table: Array) -> Array:
    """Every query sees the key after its last, if there is one."""
    out = table.copy()
    i = np.arange(len(out))
    last = len(out) - 1 - (out[:, ::-1] > 0).argmax(axis=1)
    out[i, np.minimum(last + 1, len(out) - 1)] = 1
    return out


def one_dropped(table: Array) -> Array:
    """One entry of one query."""
    out = table.copy()
    i, j = np.argwhere(out)[len(np.argwhere(out)) // 2]
    out[i, j] = 0
    return out


FAULTS = {"the oldest key dropped": oldest_dropped, "one key more": one_more, "one entry dropped": one_dropped}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["window", "strided", "global", "random"])
def test_a_faulty_kernel_is_far_outside(kind: str, fault: str) -> None:
    rng = np.random.default_rng(5)
    problem, table = sparse.problem(kind, rng, n=64, d=32, logits=1.0, mean=0.0)
    reading, wrong = sparse.read(problem, table, PRESETS["fp32"]), FAULTS[fault](table)
    assert (wrong != table).any()
    got = run(Kernel(), problem._replace(see=wrong > 0))
    assert min(ratio(got[name], want) for name, want in reading.items()) > 10.0
    assert max(ratio(run(Kernel(), problem)[name], want) for name, want in reading.items()) <= 0.2


def test_a_kernel_that_ignores_counts_is_far_outside() -> None:
    problem, table = sparse.problem("counts", np.random.default_rng(5), n=64, d=32, logits=1.0, mean=0.0)
    reading = sparse.read(problem, table, PRESETS["fp32"])
    got = run(Kernel(), problem._replace(bias=None))
    assert min(ratio(got[name], want) for name, want in reading.items()) > 10.0


def test_a_count_is_that_many_equal_keys_or_its_logarithm_or_a_factor() -> None:
    """The three ways in which kernels count are within one bound."""
    problem, table = sparse.problem("counts", np.random.default_rng(6), n=48, d=16, logits=1.0, mean=0.0)
    reading = sparse.read(problem, table, PRESETS["fp32"])
    logarithm = run(Kernel(), problem)
    keys = np.repeat(np.arange(48), 3)
    see = np.concatenate([np.arange(3) < table[:, j : j + 1] for j in range(48)], axis=1)
    repeated = run(Kernel(), problem._replace(k=problem.k[keys], v=problem.v[keys], see=see, bias=None))
    repeated |= {name: repeated[name].reshape(48, 3, -1).sum(axis=1) for name in ("dk", "dv")}
    scheme = Sparse(Table.of(table))
    o, saved = scheme.forward(*problem[:3])
    grads = scheme.vjp(saved, problem.do)
    factor = {"o": o, "lse": saved.lse, "dq": grads.q, "dk": grads.k, "dv": grads.v}
    for got in (logarithm, repeated, factor):
        assert max(ratio(got[name], want) for name, want in reading.items()) <= 1.0


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The reading without one of its rules, by the generic text."""

    def drop(*names: str) -> None:
        left = {name: rule for name, rule in rounding_rows.KERNELS.items() if name not in names}
        monkeypatch.setattr(rounding_backend.Rounding, "kernels", MappingProxyType(left))

    return drop


PATTERNS = {
    "window": lambda i, j: (j <= i) & (i - j < 64),
    "strided": lambda i, j: (j <= i) & ((i - j < 22) | ((i - j) % 22 == 0)),
    "global": lambda i, j: (abs(i - j) <= 16) | (j < 4) | (i < 4),
}


def spread(kind: str, logits: float, shift: float, half: str = "bfloat16") -> dict[str, float]:
    """rms of error/sigma of a correct half precision kernel, by result; keys of mean `shift`."""
    n = 512
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    table = PATTERNS[kind](i, j).astype(int)
    p = draws.problem(np.random.default_rng(n), half, n=n, d=64, logits=logits, mean=0.0, kind="full")
    p = p._replace(see=table > 0, k=rounded(p.k + np.float32(shift), half))
    got = run(Kernel(result=half, operand=half, walk="tiles"), p)
    reading = sparse.read(p, table, PRESETS["flash-bf16" if half == "bfloat16" else "flash-fp16"])
    return {name: float(np.sqrt(np.mean(((got[name] - x.value) / x.sigma) ** 2))) for name, x in reading.items()}


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize(("logits", "shift"), [(0.1, 0.0), (1.0, 3.0)])
def test_sigma_is_calibrated(kind: str, logits: float, shift: float) -> None:
    rms = spread(kind, logits, shift)
    windows = {"o": (0.75, 1.05), "dq": (0.65, 1.1), "dk": (0.9, 1.1), "dv": (0.93, 1.07), "lse": (0.2, 1.0)}
    assert {name: x for name, x in rms.items() if not windows[name][0] <= x <= windows[name][1]} == {}


def test_an_error_of_a_query_is_common_to_its_entries(without: Any) -> None:
    """With keys of mean 3 a correct kernel would be warned about, rms/sigma of dq above 1.25."""
    for rule in ("spread", "rectangle"):
        without(rule)
        assert spread("window", 1.0, 3.0)["dq"] > 1.4


def test_an_error_of_a_query_meets_a_key_once(without: Any) -> None:
    without("turn")
    assert spread("window", 1.0, 0.0)["dk"] < 0.8


def test_scattered_entries_are_rescaled_tile_by_tile(without: Any) -> None:
    """An entry in each of 32 tiles, the largest last: 31 rescales, each of which errs by 400 u, as its kernel declares."""
    keys, each = np.arange(0, 512, 16), 400 * U
    table = np.zeros((1, 512), dtype=int)
    table[0, keys] = 1
    k = (np.arange(512) // 16 * 1e-3)[:, None]
    v = np.eye(512, 1)
    late = np.arange(31, -1, -1)
    e = np.exp(k[keys, 0] - k[-1, 0]) * (1 + each) ** late
    got = np.array([[(e @ v[keys, 0]) / e.sum()]])

    def bound() -> Any:
        with using(load("rounding", precision=parse("fp32(exp=400)"))):
            return Sparse(Table.of(table), align="top_left").forward(np.ones((1, 1)), k, v)[0]

    assert ratio(got, bound()) <= 1.0
    without("row_sum", "row_sums")
    assert ratio(got, bound()) > 1.0
