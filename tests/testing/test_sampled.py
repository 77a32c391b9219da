"""Long sequences: the bands of chosen rows, the verdicts on kernels that go wrong at length, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from refattn import Dense
from refattn.errors import OptionError, ShapeError
from refattn.precision import parse
from refattn.testing import check_rows, longkeys, sampled, sampled_bands, sampled_verdicts
from refattn.testing import report as reports
from refattn.testing.judge import judge
from refattn.testing.sampled_bands import Rows, expect_rows
from refattn.testing.sampled_inputs import chosen, draw, sees
from refattn.testing.tolerance import expect
from refattn.testing.verdicts import Band, Level, Report
from testing.long_kernel import LongKernel

PLAIN, BOTTOM, TOP = Dense(), Dense(causal=True, align="bottom_right"), Dense(causal=True, align="top_left")
LONG, FEW, NARROW = 200_003, 6, 8


def wide(x: Any) -> Any:
    return x.astype(np.float64)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short sequence is read in many pieces."""
    monkeypatch.setattr(longkeys, "KEYS", 16)
    monkeypatch.setattr(longkeys, "CHANNELS", 3)
    monkeypatch.setattr(sampled_bands, "ROW_ELEMENTS", 200)
    monkeypatch.setattr(sampled_bands, "KEY_ELEMENTS", 100)


PROBLEMS = [
    (Dense(), 150, 90, "fp32", "float32"),
    (BOTTOM, 100, 60, "fp64", "float64"),  # its first rows see nothing
    (TOP, 60, 100, "flash-bf16", "bfloat16"),
    (Dense(causal=True, heads="tiled", softcap=8.0, scale=0.3), 80, 80, "eager-fp16", "float16"),
    (BOTTOM, 60, 100, "tf32", "float32"),
]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("scheme", "n", "m", "preset", "dtype"), PROBLEMS)
def test_chosen_rows_have_the_bands_of_the_whole_problem(scheme: Any, n: int, m: int, preset: str, dtype: str) -> None:
    at = chosen(11, n, m, scheme)
    inputs, do = draw(scheme, {"h": 4, "g": 2, "n": n, "m": m, "d": 7, "e": 5}, dtype, at)
    found = expect_rows(Rows(scheme, inputs, do, at, parse(preset)))
    whole = expect(scheme, scheme.Inputs(*map(wide, inputs[:3])), parse(preset), wide(do))
    for name in ("o", "lse", "dq"):
        for part in ("value", "bound", "sigma"):
            got, want = getattr(found.bands[name], part), getattr(whole[name], part)[:, :, at]
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-13, err_msg=f"{part} of {name}")
    covered = {name: np.zeros(whole[name].value.shape, int) for name in ("dk", "dv")}
    for head, keys, bands in found.gradients():
        for name, band in bands.items():
            piece = (slice(None), slice(head, head + 1), keys)
            covered[name][piece] += 1
            np.testing.assert_allclose(band.value, whole[name].value[piece], rtol=1e-9, atol=1e-12)
            zero = whole[name].bound[piece] == 0
            assert np.all(band.bound[zero] == 0)
            # The whole problem counts rescales of rows that add nothing, this one a rescale for each chosen row.
            ratio = band.bound[~zero] / whole[name].bound[piece][~zero]
            assert np.all((ratio > 0.8) & (ratio < 1.3))
    assert all((count == 1).all() for count in covered.values())


def test_the_rows_are_the_ends_the_boundaries_and_random_ones() -> None:
    n = 100_000
    rows = chosen(20, n, n, Dense(causal=True))
    assert (np.diff(rows) > 0).all()
    assert {0, 127, 128, 65_535, 65_536, 99_967, 99_968, 99_999} <= set(rows.tolist())
    assert len(rows) == 20
    assert rows.dtype == np.int64
    assert chosen(1, n, n, Dense()).tolist() == [n - 1]
    assert chosen(50, 7, 7, Dense()).tolist() == list(range(7))
    assert sees(BOTTOM, 0, 10, 4) == 0
    assert chosen(50, 10, 4, BOTTOM)[0] == 0
    assert chosen(50, 10, 4, replace(BOTTOM, empty="mean"))[0] == 6
    with pytest.raises(OptionError, match="rows=0"):
        chosen(0, 7, 7, Dense())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_inputs_show_the_ends_of_each_row(dtype: str) -> None:
    """do is 0 in other rows; each row gives weight to the last key that it sees, and to few others."""
    n, scheme = 4000, Dense(causal=True)
    at = chosen(9, n, n, scheme)
    inputs, do = draw(scheme, {"h": 2, "g": 1, "n": n, "m": n, "d": 16, "e": 8}, dtype, at)
    assert {x.dtype.name for x in (*inputs[:3], do)} == {dtype}
    assert np.flatnonzero(wide(do).any(axis=(0, 1, 3))).tolist() == at.tolist()
    q, k = wide(inputs.q)[0], wide(inputs.k)[0, 0]
    for row in at[1:]:
        s = q[:, row] @ k[: row + 1].T / 4.0
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        assert np.all(p[:, row] > 0.02)
        assert np.all(np.sort(p, axis=1)[:, -20:].sum(axis=1) > 0.5)


def judged(kernel: LongKernel, scheme: Any = PLAIN, n: int = 2001, *, rows: int = 9, **options: Any) -> Report:
    given: dict[str, Any] = {"vjp": kernel.vjp, "d": NARROW, **options}
    return check_rows(kernel.forward, scheme, rows=rows, n=n, **given)


def up_to(i: int, m: int) -> Any:
    return np.arange(i + 1)


@pytest.mark.parametrize(
    ("dtype", "keys", "scheme"),
    [("float32", None, Dense()), ("bfloat16", up_to, Dense(causal=True)), ("float16", up_to, Dense(causal=True))],
)
def test_a_right_kernel_conforms(dtype: str, keys: Any, scheme: Any) -> None:
    n = 3001
    kernel = LongKernel(chosen(9, n, n, scheme), **({} if keys is None else {"keys": keys}), tile=256)
    report = judged(kernel, scheme, n, dtype=dtype, heads=4, kv_heads=2, e=5)
    assert report.status() == 0, reports.render(report)
    assert [t.tensor for t in report.cases[0].tensors] == ["o", "lse", "dq", "dk", "dv"]
    assert max(t.max_ratio for t in report.cases[0].tensors) > 1e-4
    assert report.rows == tuple(chosen(9, n, n, scheme))
    said = "9 rows of 3001 judged in o, lse and dq, and all of dk and dv, the other rows not: 0, 127, "
    assert said in reports.render(report)


def dropped_tail(i: int, m: int) -> Any:
    return np.arange(m // 128 * 128 if i == m - 1 else m)


def wrapped(i: int, m: int) -> Any:
    """Offsets that overflow after 2^17 keys."""
    return np.arange(m) % (1 << 17)


def test_faults_of_long_sequences_are_found_and_located() -> None:
    rows = chosen(FEW, LONG, LONG, Dense())
    right = judged(LongKernel(rows), n=LONG, rows=FEW)
    assert right.status() == 0, reports.render(right)
    tail = judged(LongKernel(rows, dropped_tail), n=LONG, rows=FEW, vjp=None)
    verdicts = {t.tensor: t for t in tail.cases[0].tensors}
    assert set(verdicts) == {"o", "lse"}
    assert verdicts["o"].where.startswith(f"row {LONG - 1} (the last) of {LONG}, 1 of the 6 judged")
    assert verdicts["o"].worst is not None
    assert verdicts["o"].worst.index[2] == LONG - 1
    assert verdicts["lse"].level == Level.FAIL
    lost = judged(LongKernel(rows, lost=64), n=LONG, rows=FEW)
    assert {t.tensor for t in lost.cases[0].tensors if t.level == Level.FAIL} == {"dk"}
    (dk,) = (t for t in lost.cases[0].tensors if t.tensor == "dk")
    assert f"{LONG - 64}…{LONG - 1} (the tail) of {LONG}" in dk.where
    over = judged(LongKernel(rows, wrapped), n=LONG, rows=FEW)
    assert {t.tensor for t in over.cases[0].tensors if t.level == Level.FAIL} == {"o", "lse", "dq", "dk", "dv"}


@pytest.mark.parametrize(
    ("name", "scheme", "n", "m", "keys"),
    [
        ("F20", BOTTOM, 1900, 2001, lambda i, m: np.arange(i + 101)),
        ("F21", BOTTOM, 1900, 2001, lambda i, m: np.arange(min(i + 103, m))),
        ("F22", BOTTOM, 1900, 2001, lambda i, m: np.arange(i + 1)),
        ("F28@128", Dense(), 2001, 2001, lambda i, m: np.arange(1920)),
        ("F28@16", Dense(), 2001, 2001, lambda i, m: np.arange(2000)),
        ("F28l@64", Dense(), 2048, 2048, lambda i, m: np.arange(1984)),
        ("F30", Dense(), 2001, 2001, lambda i, m: np.arange(1, m)),
        ("F30l", Dense(), 2048, 2048, lambda i, m: np.arange(m - 1)),
    ],
)
def test_mistakes_at_the_ends_are_named(name: str, scheme: Any, n: int, m: int, keys: Callable[[int, int], Any]) -> None:
    report = judged(LongKernel(chosen(9, n, m, scheme), keys), scheme, n, m=m, vjp=None)
    assert name in [x.mutant for x in report.names[:3]]
    assert report.level == (Level.CONVENTION if name == "F22" else Level.FAIL)
    assert report.names[0].amplitude == pytest.approx(1.0, abs=0.05)


WHOLE = """
import numpy as np


def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def vjp(q, k, v, o, lse, do):
    scale = np.float32(q.shape[-1] ** -0.5)
    p = np.exp(q @ k.swapaxes(-1, -2) * scale - lse[..., None])
    ds = p * (do @ v.swapaxes(-1, -2) - (do * o).sum(axis=-1, keepdims=True)) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do


def bnhd(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return attention(q, k, v).swapaxes(1, 2)


def bnhd_vjp(q, k, v, o, lse, do):
    return tuple(x.swapaxes(1, 2) for x in vjp(*(x.swapaxes(1, 2) for x in (q, k, v, o)), lse, do.swapaxes(1, 2)))


def short(q, k, v):
    return attention(q, k, v)[:, :, :-1]


def unable(q, k, v):
    raise NotImplementedError("at most 512 tokens")


def writes(q, k, v):
    k[..., -1, :] = 0
    return attention(q, k, v)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "whole_kernels.py").write_text(WHOLE, encoding="utf-8")
    return str(tmp_path / "whole_kernels.py")


@pytest.mark.parametrize("layout", ["bhnd", "bnhd"])
def test_a_kernel_by_name_is_given_lse_where_it_returns_none(file: str, layout: str) -> None:
    """Weights of rows that are not judged are 0: their lse is infinite."""
    name, vjp = ("attention", "vjp") if layout == "bhnd" else ("bnhd", "bnhd_vjp")
    report = check_rows(f"{file}:{name}", Dense(), rows=5, n=700, d=8, heads=2, vjp=f"{file}:{vjp}", layout=layout)
    assert report.status() == 0, reports.render(report)
    assert [t.tensor for t in report.cases[0].tensors] == ["o", "dq", "dk", "dv"]


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("short", 1, "o is returned in shape (1, 1, 699, 8), without an axis of 700 queries"),
        ("unable", 3, "at most 512 tokens"),
        ("writes", 1, "writes into k"),
    ],
)
def test_kernels_that_give_nothing_to_judge(file: str, name: str, status: int, said: str) -> None:
    report = check_rows(f"{file}:{name}", Dense(), rows=5, n=700, d=8)
    assert report.status() == status
    assert said in report.cases[0].remark


def test_a_wrong_gradient_shape_and_dtype_are_said() -> None:
    kernel = LongKernel(chosen(5, 300, 300, Dense()))

    def vjp(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> dict[str, Any]:
        found = kernel.vjp(q, k, v, o, lse, do)
        return {**found, "dk": found["dk"][:, :, 1:], "dv": wide(found["dv"])}

    tensors = {t.tensor: t for t in judged(kernel, n=300, rows=5, vjp=vjp).cases[0].tensors}
    assert (tensors["dk"].reason, tensors["dk"].where) == ("shape", "shape (1, 1, 299, 8) instead of (1, 1, 300, 8)")
    assert (tensors["dv"].reason, tensors["dv"].where) == ("dtype", "dtype float64 instead of float32")


def test_what_can_not_be_judged_is_not() -> None:
    flat = judged(LongKernel(chosen(5, 300, 300, Dense())), Dense(scale=0.0), n=300, rows=5)
    assert (flat.status(), flat.cases[0].remark) == (3, "not judged: the mean of V would pass")
    kernel = LongKernel([])
    with pytest.raises(OptionError, match="dropout needs a mask"):
        judged(kernel, Dense(keep_rate=0.5))
    with pytest.raises(ShapeError, match="n=2001 but k has m=5"):
        judged(kernel, Dense(causal=True), m=5)


@pytest.mark.parametrize("planted", [None, "bound", "nan", "noise", "far"])
def test_pieces_add_up_to_the_verdict_on_the_whole(planted: str | None) -> None:
    rng = np.random.default_rng(5)
    value = rng.normal(size=(1, 2, 96, 8))
    sigma = np.full(value.shape, 1e-6)
    band = Band(value, 10 * sigma, sigma)
    got = (value + rng.normal(size=value.shape) * sigma * (2.5 if planted == "noise" else 1.0)).astype(np.float32)
    got[0, 1, 70, 3] += {"bound": 1e-3, "nan": np.nan, "far": 8e-6}.get(str(planted), 0.0)
    band = replace(band, bound=1e-4 * np.ones_like(value) if planted != "bound" else band.bound)
    whole, pieces = judge("dk", got, band, "float32"), sampled_verdicts.Pieces("dk", got, "float32")
    for head in range(2):
        for a in range(0, 96, 24):
            keys = slice(a, a + 24)
            pieces.add(head, keys, Band(*(x[:, head : head + 1, keys] for x in vars(band).values())))
    found = pieces.verdict()
    assert (found.level, found.reason, repr(found.worst)) == (whole.level, whole.reason, repr(whole.worst))
    assert (found.share, found.where) == (whole.share, whole.where)
    assert found.rms == pytest.approx(whole.rms, rel=0.05)


def test_the_command_repeats_it(file: str) -> None:
    report = check_rows(f"{file}:attention", Dense(causal=True), rows=5, n=700, d=8, heads=2, dtype="float32", layout="bhnd")
    assert report.repro == f'refattn check {file}:attention --scheme "Dense(causal=True)" --rows 5 --n 700 --d 8 --heads 2'
    patient = check_rows(f"{file}:unable", Dense(), rows=5, n=700, d=8, timeout=9.0)
    assert patient.repro == f'refattn check {file}:unable --scheme "Dense()" --timeout 9 --rows 5 --n 700 --d 8'
    assert report.status() == 1
    assert report.repro in reports.render(report)


def test_progress_counts_the_steps() -> None:
    seen: list[tuple[int, int]] = []
    kernel = LongKernel(chosen(5, 300, 300, Dense()))
    judged(kernel, n=300, rows=5, heads=3, kv_heads=3, progress=lambda done, total, case, level: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]


MILLION = """
import sys

sys.path[:0] = {path!r}
from testing.long_kernel import LongKernel
from refattn import Dense
from refattn.testing import check_rows, report
from refattn.testing.sampled import chosen

n = 1 << 20
rows = chosen(16, n, n, Dense())
kernel = LongKernel(rows, tile=1 << 16)
found = check_rows(kernel.forward, Dense(), rows=16, n=n, vjp=kernel.vjp)
print(report.render(found, verbose=True))
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
print("peak", peak, "status", found.status())
"""


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process's own memory is read from /proc")
def test_a_million_tokens_take_less_than_four_gigabytes() -> None:
    """The peak is that of the process from its start on (ru_maxrss is inherited): the kernel's own arrays are in it."""
    code = MILLION.format(path=[str(ROOT), str(ROOT / "tests")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    words = done.stdout.split()
    assert words[-1] == "0"
    assert int(words[words.index("peak") + 1]) < 4e9


def test_the_names_are_those_that_the_package_offers() -> None:
    assert (sampled.check_rows, sampled.chosen) == (check_rows, chosen)
