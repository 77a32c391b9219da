"""Results that are odd rather than wrong by a known mistake: other dtypes, huge numbers, factors, gradients left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.testing import Report, check, check_rows
from refattn.testing import report as reports
from refattn.testing.verdicts import Level

Array = Any
ZERO = "family=normal,shared heads,no queries,no keys"
EDGES = np.finfo(np.float64).max


def right(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    o, saved = Dense().forward(*(x.astype(np.float32) if x.dtype.itemsize == 2 else x for x in (q, k, v)))
    return o.astype(q.dtype), saved.lse


def changed(change: Callable[[Array, Array], tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """The right kernel whose o and lse are changed."""

    def forward(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        return change(*right(q, k, v))

    return forward


def named(report: Report) -> list[tuple[str, str]]:
    return [(n.mutant, n.title) for n in report.names]


# ---- dtypes
@pytest.mark.parametrize(("dtype", "other"), [
    ("float32", "float64"), ("float32", "complex64"), ("bfloat16", "float32"), ("float16", "float32"),
    ("float64", "float32"),
])  # fmt: skip
def test_a_kernel_that_is_right_but_for_its_dtype_is_called_just_that(dtype: str, other: str) -> None:
    """Cases of length zero among them, where there is nothing to measure."""
    report = check(changed(lambda o, lse: (o.astype(other), lse)), Dense(), dtype=dtype, only=ZERO)
    assert report.level == Level.FAIL
    right_values = dtype != "float64"  # float32 loses what float64 promises
    assert named(report)[0][0] == ("dtype" if right_values else "precision")
    if right_values:
        assert named(report) == [("dtype", f"the values of o are right, in dtype {other} instead of {dtype}")]
    text = reports.render(report)
    assert f"dtype {other} instead of {dtype}" in text


def test_gradients_that_are_right_but_for_their_dtype_are_called_just_that() -> None:
    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array) -> dict[str, Array]:
        saved = Dense.Saved(Dense.Inputs(q, k, v), o, lse)
        grads = Dense().vjp(saved, do, dlse=dlse)
        return {"dq": grads.q, "dk": grads.k.astype(np.float64), "dv": grads.v}

    report = check(right, Dense(), vjp=vjp, only=ZERO)
    assert named(report) == [("dtype", "the values of dk are right, in dtype float64 instead of float32")]


def test_a_mistake_is_named_in_whatever_dtype_it_comes() -> None:
    report = check(changed(lambda o, lse: (o.astype(np.float64), lse / np.float32(np.log(2)))), Dense(), only=ZERO)
    assert named(report)[0][0] == "F46"
    none = check(changed(lambda o, lse: (o.astype(int), lse)), Dense(), only=ZERO)
    assert none.level == Level.FAIL
    assert named(none) == []


# ---- numbers beyond all measure
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "change"), [
    ("float64", lambda o, lse: (np.full_like(o, EDGES), lse)),
    ("float64", lambda o, lse: (np.copysign(EDGES, o), lse)),
    ("float64", lambda o, lse: (o, lse + 1e300)),
    ("float64", lambda o, lse: (o * 1e200, lse * 1e200)),
    ("float32", lambda o, lse: (o, np.full_like(lse, 1e38))),
    ("float32", lambda o, lse: (o, np.zeros_like(lse))),
    ("float32", lambda o, lse: (np.full_like(o, np.inf), np.full_like(lse, np.nan))),
])  # fmt: skip
def test_no_result_is_too_large_to_be_judged(dtype: str, change: Callable[..., Any]) -> None:
    report = check(changed(change), Dense(), dtype=dtype, only=ZERO)
    assert report.status() == 1
    assert "is wrong" in (text := reports.render(report)) or "are wrong" in text
    assert not any(n.mutant[0] in "FB" for n in report.names), report.names


# ---- factors, and what is none
@pytest.mark.parametrize(("change", "title"), [
    (lambda o: o * 2, "o is 2 times what it must be"),
    (lambda o: o * np.float32(1.25), "o is 1.25 times what it must be"),
    (lambda o: o * np.float32(1e20), "o is 1e+20 times what it must be"),
])  # fmt: skip
def test_a_constant_factor_is_told_by_its_size(change: Callable[..., Any], title: str) -> None:
    assert named(check(changed(lambda o, lse: (change(o), lse)), Dense(), only=ZERO)) == [("factor", title)]


@pytest.mark.parametrize("factor", [0.8, 1 / 0.8])
def test_the_keep_rate_is_a_factor_of_schemes_that_have_one(factor: float) -> None:
    def dropped(q: Array, k: Array, v: Array, keep: Array) -> tuple[Array, Array]:
        o, saved = Dense(keep_rate=0.8).forward(q, k, v, keep=keep)
        return o * np.float32(factor * 1.0001), saved.lse  # not within the bounds of the mistake F45

    (name,) = check(dropped, Dense(keep_rate=0.8), only="family=dropout").names
    assert name.title == f"o is {'the keep rate' if factor < 1 else '1/keep rate'} times what it must be"


def test_random_output_is_no_factor_however_wide_the_bounds() -> None:
    def noise(o: Array, lse: Array) -> tuple[Array, Array]:
        return np.random.default_rng(0).normal(size=o.shape).astype(o.dtype), lse

    for scheme in (Dense(), Dense(softcap=1e8), Dense(scale=0.0)):
        report = check(changed(noise), scheme, only="family=normal,peaked,flat")
        assert report.status() in (1, 3)
        assert named(report) == []


def test_small_noise_is_lost_precision_and_not_another_sum() -> None:
    def noisy(o: Array, lse: Array) -> tuple[Array, Array]:
        return (o * (1 + 1e-5 * np.random.default_rng(1).normal(size=o.shape))).astype(o.dtype), lse

    (name,) = check(changed(noisy), Dense(), only="family=normal,flat,peaked").names
    assert name.mutant == "precision"


# ---- gradients that are left out
def vjp_of(change: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """The right backward whose result is changed."""

    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array) -> Any:
        grads = Dense().vjp(Dense.Saved(Dense.Inputs(q, k, v), o, lse), do, dlse=dlse)
        return change({"dq": grads.q, "dk": grads.k, "dv": grads.v})

    return vjp


LEFT_OUT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a tuple of None": (lambda g: (None, None, None), "dq, dk, dv"),
    "an empty dict": (lambda g: {}, "dq, dk, dv"),
    "a dict of None": (lambda g: dict.fromkeys(g), "dq, dk, dv"),
    "dq alone": (lambda g: {"dq": g["dq"]}, "dk, dv"),
    "no dk": (lambda g: (g["dq"], None, g["dv"]), "dk"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
@pytest.mark.parametrize("rows", [None, 5])
def test_a_gradient_that_is_left_out_fails_and_is_named(what: str, rows: int | None) -> None:
    change, lacks = LEFT_OUT[what]
    report = (check(right, Dense(), vjp=vjp_of(change), only=ZERO) if rows is None
              else check_rows(right, Dense(), vjp=vjp_of(change), rows=rows, n=200, d=8))  # fmt: skip
    assert (report.level, report.status(), report.fits, report.declined) == (Level.FAIL, 1, None, ())
    assert all(c.level == Level.FAIL for c in report.cases)
    missing = [t.tensor for t in report.cases[0].tensors if t.reason == "missing"]
    assert ", ".join(missing) == lacks
    assert all(t.level <= Level.WARN for c in report.cases for t in c.tensors if t.reason != "missing")
    text = reports.render(report, width=200)
    assert f"What it does instead: it gives no {lacks}\n" in text
    assert "no backward was given" not in text
    assert "NotImplemented in place of each other one" in text


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("change", [
    lambda g: {"dq": g["dq"], "dk": NotImplemented, "dv": NotImplemented, "dbias": NotImplemented},
    lambda g: (g["dq"], NotImplemented, NotImplemented),
])  # fmt: skip
def test_a_backward_that_says_what_it_does_not_give_is_judged_on_the_rest(change: Any, rows: int | None) -> None:
    def run(of: Any) -> Report:
        if rows is None:
            return check(right, Dense(), vjp=vjp_of(of), only=ZERO)
        return check_rows(right, Dense(), vjp=vjp_of(of), rows=rows, n=200, d=8)

    report = run(change)
    assert (report.status(), report.declined) == (0, ("dk", "dv"))
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o", "lse", "dq"}
    text = reports.render(report, width=200)
    assert "  dk, dv: the vjp says that it gives none" in text
    assert "all of dk" not in text
    wrong = run(lambda g: change({**g, "dq": g["dq"] * 3}))
    assert {t.tensor for c in wrong.cases for t in c.tensors if t.level == Level.FAIL} == {"dq"}


def test_the_gradient_of_an_input_that_the_backward_does_not_name_is_not_owed() -> None:
    """With the forward's own lse a backward needs no sink."""

    def forward(q: Array, k: Array, v: Array, sink: Array | None = None, bias: Array | None = None) -> tuple[Array, Array]:
        o, saved = Dense().forward(q, k, v, sink=sink, bias=bias)
        return o, saved.lse

    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, bias: Array | None = None) -> tuple[Array, ...]:
        grads = Dense().vjp(Dense.Saved(Dense.Inputs(q, k, v, bias=bias), o, lse), do)
        return (grads.q, grads.k, grads.v) if bias is None else (grads.q, grads.k, grads.v, None)

    sink = check(forward, Dense(), vjp=vjp, only="family=sink")
    assert (sink.status(), sink.declined) == (0, ("dsink",))
    assert "dsink: the vjp says" in reports.render(sink)
    bias = check(forward, Dense(), vjp=vjp, only="family=normal,bias")
    assert bias.status() == 1
    assert "it gives no dbias" in reports.render(bias)
    closed = check(right, Dense(), vjp=lambda do: {}, only="family=normal")
    assert closed.status() == 1, "a backward that names no input owes all gradients"


# ---- what a user gets wrong, rather than a kernel
def exchanged(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Takes and returns (B, n, H, d)."""
    o, lse = right(*(x.swapaxes(1, 2) for x in (q, k, v)))
    return o.swapaxes(1, 2), lse


KEPT = '''
import numpy as np
from refattn import Dense


def bhnd(q, k, v):
    o, saved = Dense().forward(q, k, v)
    return o, saved.lse


def bnhd(q, k, v):
    o, lse = bhnd(*(x.swapaxes(1, 2) for x in (q, k, v)))
    return o.swapaxes(1, 2), lse
'''


@pytest.mark.parametrize(("name", "layout"), [("bnhd", "bhnd"), pytest.param("bhnd", "bnhd", marks=pytest.mark.sweep)])
def test_the_other_layout_is_named_with_the_command_that_judges_under_it(name: str, layout: str, tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(KEPT, encoding="utf-8")
    kernel = f"{tmp_path / 'kept.py'}:{name}"
    report = check(kernel, Dense(), layout=layout, only="family=normal,shared heads,more keys,flat")
    assert (report.level, report.names[0].mutant) == (Level.FAIL, "F39t")
    text = reports.render(report, width=200)
    assert "(B, H, n, d) instead" not in text
    assert "heads and tokens are exchanged" in text, "lse has another shape"
    line = f"    refattn check {kernel} --scheme 'Dense()'" + (" --layout bnhd" if layout == "bhnd" else "")
    assert line in text.splitlines()
    other = "bnhd" if layout == "bhnd" else "bhnd"
    assert check(kernel, Dense(), layout=other, only="family=normal,shared heads,more keys").status() == 0


def test_an_output_in_the_other_layout_is_told_by_its_shape() -> None:
    report = check(changed(lambda o, lse: (o.swapaxes(1, 2), lse)), Dense(), only="family=normal")
    assert {t.where.partition(": ")[2] for c in report.cases for t in c.tensors if t.tensor == "o"} == {
        "heads and tokens are exchanged"}  # fmt: skip
    assert "What it does instead: heads and tokens are exchanged in o" in reports.render(report)
    assert "layout=..." in reports.render(check(exchanged, Dense(), only="family=normal"))


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_a_causal_kernel_before_a_scheme_that_is_not_is_named(align: str) -> None:
    def causal(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        o, saved = Dense(causal=True, align=align).forward(q, k, v)
        return o, saved.lse

    report = check(causal, Dense(), only="family=normal,more keys,more queries")
    assert report.names[0].mutant == {"top_left": "F56", "bottom_right": "F57"}[align]
    assert report.level == Level.FAIL
