"""Laws of the rounding reading on simulated kernels: correct ones are never outside their bound, the bound is tight where
half precision decides, the predicted spread is that of real errors, and faulty kernels are outside."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense, load, using
from refattn.precision import PRESETS
from simulated import draws, styles
from simulated.kernel import Kernel, Problem
from simulated.reading import ratios, read, run

Array = Any
EACH, FEW = 91, 30  # of each of eleven styles: a thousand and one kernels, of which every run has the first third
CHUNKS = 11  # in the sweep, which has all of them and ten thousand more


def outside(style: str, first: int, count: int) -> list[str]:
    """The kernels of a style, numbered from `first`, that have a result outside its bound: reproducible one by one."""
    found = []
    for number in range(first, first + count):
        rng = np.random.default_rng([zlib.crc32(style.encode()), number])
        kernel, precision = styles.draw(style, rng)
        problem = draws.problem(rng, kernel.result, extras=number % 3 == 0)
        worst = ratios(kernel, problem, read(problem, precision))
        bad = {name: x for name, x in worst.items() if not x <= 1.0}
        found += [f"{style} {number} {precision.name}(tile={precision.tile}): {bad} by {kernel}"] if bad else []
    return found


@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_is_outside_its_bound(style: str) -> None:
    assert outside(style, 0, FEW) == []


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_is_outside_its_bound_in_a_sweep(style: str, chunk: int) -> None:
    assert outside(style, chunk * EACH, EACH) == []


def test_there_are_at_least_eight_styles_and_a_thousand_kernels() -> None:
    assert len(styles.STYLES) >= 8
    assert len(styles.STYLES) * EACH >= 1000
    assert len(styles.STYLES) * EACH * (CHUNKS - 1) >= 10_000


def one_key_dropped(p: Problem) -> Problem:
    """The last key that the last seeing query sees, for that query alone."""
    see = p.see.copy()
    i, j = np.argwhere(see)[-1]
    see[i, j] = False
    return p._replace(see=see)


FAULTS = {
    "one key of one query dropped": one_key_dropped,
    "scale off by a thousandth": lambda p: p._replace(q=(p.q * 1.001).astype(p.q.dtype)),
    "values of the next key": lambda p: p._replace(v=np.roll(p.v, 1, 0)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("style", [s for s in styles.STYLES if s not in ("eager", "tf32")])
def test_a_faulty_kernel_is_outside(style: str, fault: str) -> None:
    rng = np.random.default_rng(3)
    kernel, precision = styles.draw(style, rng)
    problem = draws.problem(rng, kernel.result, n=64, d=32, logits=1.0, mean=0.0, kind="causal")
    assert max(ratios(kernel, FAULTS[fault](problem), read(problem, precision)).values()) > 1.0


def test_the_bound_is_tight_for_bfloat16() -> None:
    """Two units in the last place of P and of the result is what such kernels do; a bound of twice the worst is as good as
    any, one of three times it would be slack."""
    worst = {"o": 0.0, "dv": 0.0}
    for number in range(60):
        rng = np.random.default_rng([number, 16])
        kernel, precision = styles.draw("flash_bf16", rng)
        problem = draws.problem(rng, "bfloat16")
        found = ratios(kernel, problem, read(problem, precision))
        worst = {name: max(x, found[name]) for name, x in worst.items()}
    assert 0.4 <= worst["o"] <= 1.0
    assert 0.4 <= worst["dv"] <= 1.0


def spread(half: str, n: int, logits: float) -> dict[str, float]:
    """rms of error/sigma of a correct half precision kernel, by result."""
    kernel = Kernel(result=half, operand=half, walk="tiles")
    problem = draws.problem(np.random.default_rng(n), half, n=n, d=64, logits=logits, mean=0.0, kind="causal")
    reading = read(problem, PRESETS["flash-bf16" if half == "bfloat16" else "flash-fp16"])
    got = run(kernel, problem)
    return {name: float(np.sqrt(np.mean(((got[name] - x.value) / x.sigma) ** 2))) for name, x in reading.items()}


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [128, 512])
@pytest.mark.parametrize("logits", [0.1, 1.0])
def test_sigma_is_calibrated(half: str, n: int, logits: float) -> None:
    rms = spread(half, n, logits)
    windows = {"o": (0.8, 1.05), "dq": (0.6, 1.0), "dk": (0.9, 1.1), "dv": (0.93, 1.07), "lse": (0.2, 1.0)}
    assert {name: x for name, x in rms.items() if not windows[name][0] <= x <= windows[name][1]} == {}


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_sigma_is_calibrated_for_peaked_logits(half: str) -> None:
    rms = spread(half, 256, 6.0)
    assert all(0.5 <= rms[name] <= 1.1 for name in ("o", "dq", "dk", "dv"))


def test_the_values_of_a_reading_are_those_of_a_float64_run() -> None:
    rng = np.random.default_rng(8)
    q, do = rng.normal(size=(2, 4, 9, 8)), rng.normal(size=(2, 4, 9, 5))
    k, v = rng.normal(size=(2, 2, 12, 8)), rng.normal(size=(2, 2, 12, 5))
    named = {"bias": rng.normal(size=(4, 1, 12)), "sink": rng.normal(size=4), "key_valid": rng.random((2, 12)) < 0.8}
    scheme = Dense(causal=True, align="bottom_right", softcap=3.0)
    o, saved = scheme.forward(q, k, v, **named)
    grads = scheme.vjp(saved, do, dlse=do[..., 0])
    with using(load("rounding", precision=PRESETS["fp32"])):
        rounded, kept = scheme.forward(q, k, v, **named)
        pulled = scheme.vjp(kept, do, dlse=do[..., 0])
    pairs = [(o, rounded), (saved.lse, kept.lse), *((g, r) for g, r in zip(grads, pulled, strict=True) if g is not None)]
    assert len(pairs) == 7
    for plain, read_ in pairs:
        np.testing.assert_allclose(read_.value, plain, rtol=1e-12, atol=1e-13)
        assert read_.shape == plain.shape == read_.bound.shape == read_.sigma.shape
        assert 0.0 < np.max(read_.bound) < 1e-2


def test_a_smaller_tile_widens_the_bound_and_a_coarser_precision_too() -> None:
    problem = draws.problem(np.random.default_rng(4), n=100, d=16, logits=1.0, mean=0.0, kind="causal")
    coarser = [replace(PRESETS["fp32"], tile=64), PRESETS["fp32"], replace(PRESETS["fp32"], tile=1), PRESETS["tf32"]]
    sizes = [np.median(read(problem, precision)["o"].bound) for precision in coarser]
    assert sizes == sorted(sizes)
    assert sizes[2] < 10 * sizes[1]
