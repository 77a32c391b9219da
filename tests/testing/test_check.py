"""From a candidate to its report: right kernels conform, wrong ones are named, and all else that can happen is said."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn import Dense
from refattn.errors import OptionError, UsageError
from refattn.precision import PRESETS
from refattn.testing import Report, assert_conforms, check
from refattn.testing.cases import Case
from refattn.testing.check import repro
from refattn.testing.mutants import Mutant, everything
from refattn.testing.verdicts import Level
from simulated.arithmetic import rounded

Array = Any
CAUSAL = Dense(causal=True, align="bottom_right")
FEW = "family=normal,more keys,shared heads; d=16; b=1"
OPTIONAL = Dense.Inputs._fields[3:]
SAVED = ("q", "k", "v", "o", "lse", "do", "dlse")


def kernel(scheme: Dense, *accepts: str) -> Callable[..., Any]:
    """The scheme's own text in float32, taking q, k, v and these optional inputs."""

    def forward(**given: Array) -> tuple[Array, Array]:
        dtype = given["q"].dtype
        given = {n: x.astype(np.float32) if x.dtype.itemsize == 2 else x for n, x in given.items()}
        o, saved = scheme.forward(**given)
        return o.astype(dtype), saved.lse

    return taking(forward, *accepts)


def taking(function: Callable[..., Any], *accepts: str) -> Callable[..., Any]:
    """A function of keywords as one whose signature is q, k, v and some optional inputs."""

    def candidate(q: Array, k: Array, v: Array, **given: Array) -> Any:
        return function(q=q, k=k, v=v, **given)

    names = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("q", "k", "v")]
    names += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in accepts]
    candidate.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return candidate


def pullback(scheme: Dense, *names: str, uses: tuple[str, ...] | None = None) -> Callable[..., Any]:
    """A vjp that names these arguments, and uses some of them or all."""

    def vjp(**x: Array) -> dict[str, Array]:
        used = {n: a for n, a in x.items() if uses is None or n in uses}
        inputs = {n: a for n, a in used.items() if n in Dense.Inputs._fields}
        o = used["o"] if "o" in used else scheme.forward(**inputs)[0]
        grads = scheme.vjp(Dense.Saved(Dense.Inputs(**inputs), o, used["lse"]), used["do"], dlse=used.get("dlse"))
        return {f"d{n}": g.astype(x["q"].dtype) for n, g in grads._asdict().items() if g is not None}

    vjp.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None if n in OPTIONAL else inspect.Parameter.empty)
        for n in names])
    return vjp


def products(form: str, compute: str = "float32", every: bool = False) -> Callable[..., Any]:
    """Softmax whose products round their operands to a format, or (every) all intermediate results."""

    def forward(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        if 0 in (*q.shape, *k.shape):
            raise NotImplementedError("empty axes")
        dtype, (q, k, v) = q.dtype, (x.astype(compute) for x in (q, k, v))
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        cut, keep = (lambda x: rounded(x, form)), (lambda x: rounded(x, form) if every else x)
        s = keep(keep(cut(q) @ cut(k).swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5))
        m = s.max(axis=-1, keepdims=True)
        e = keep(np.exp(keep(s - m)))
        z = keep(e.sum(axis=-1, keepdims=True))
        o = cut(keep(e / z)) @ cut(v) if every else cut(e) @ cut(v) / z
        return o.astype(dtype), (m + np.log(z))[..., 0]

    return forward


def ids(report: Report) -> list[str]:
    return [n.mutant for n in report.names]


# ---- right kernels
def test_a_right_kernel_with_its_backward_conforms_on_all_cases_in_less_than_a_minute() -> None:
    taken = ("mask", "bias", "sink", "key_valid", "segment_ids", "kv_segment_ids")
    done: list[tuple[int, int, str, str]] = []
    started, cpu = time.perf_counter(), time.process_time()
    vjp = pullback(Dense(), *SAVED, *taken)
    report = check(kernel(Dense(), *taken), Dense(), vjp=vjp, progress=lambda *x: done.append(x))
    seconds = time.perf_counter() - started, time.process_time() - cpu
    print(f"{len(report.cases)} cases, {seconds[0]:.1f} s by the clock, {seconds[1]:.1f} s of one core")
    assert (report.level, report.status(), report.status(strict=True)) == (Level.OK, 0, 0)
    assert (report.contract, report.fits, report.names, report.readout) == ("fp32", "fp32", (), "")
    assert [d[0] for d in done] == list(range(1, len(report.cases) + 1)) == list(range(1, done[0][1] + 1))
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o", "lse", "dq", "dk", "dv", "dbias", "dsink"}
    assert len(report.cases) == len(report.judged) > 45
    assert len(report.power) > 100
    assert max(report.power.values()) > 1e6


@pytest.mark.parametrize(("dtype", "contract", "fits"), [
    ("bfloat16", None, "flash-bf16"), ("float16", None, "flash-fp16"),
    ("bfloat16", "flash-bf16(tile=1)", "flash-bf16(tile=1)"),
    ("float32", PRESETS["tf32"], "tf32"), ("float64", "fp64", "fp64"),
])  # fmt: skip
def test_a_right_kernel_conforms_in_every_precision(dtype: str, contract: Any, fits: str) -> None:
    report = check(kernel(CAUSAL), CAUSAL, vjp=pullback(CAUSAL, *SAVED), dtype=dtype, contract=contract, only=FEW)
    assert report.status() == 0, report.cases
    assert (report.contract, report.fits) == (fits, fits)


@pytest.mark.parametrize("taken", [
    (), ("mask",), ("bias", "sink"), ("key_valid",), ("segment_ids",), ("k_positions", "q_positions"),
])  # fmt: skip
def test_optional_inputs_are_given_where_the_signature_names_them(taken: tuple[str, ...]) -> None:
    causal = Dense(causal="q_positions" in taken)
    only = "d=16; family=normal,mask,bias,sink,padding,segments,positions,mixed positions"
    report = check(kernel(causal, *taken), causal, only=only)
    assert report.status() == 0
    families = {c.case.partition("/")[0] for c in report.cases}
    where = {"mask": "mask", "bias": "bias", "sink": "sink", "key_valid": "padding", "segment_ids": "segments",
             "q_positions": "positions", "k_positions": "mixed positions"}  # fmt: skip
    assert families == {"normal", *(where[name] for name in taken)}


def test_a_kernel_without_lse_is_judged_on_o() -> None:
    report = check(taking(lambda **x: Dense().forward(**x)[0]), Dense(), only=FEW)
    assert report.status() == 0
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o"}
    assert any("no lse was returned" in note for note in report.notes)


def test_layout_is_the_candidates_own() -> None:
    def bnhd(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        o, saved = CAUSAL.forward(*(x.swapaxes(1, 2) for x in (q, k, v)))
        return o.swapaxes(1, 2), saved.lse

    assert check(bnhd, CAUSAL, layout="bnhd", only=FEW).status() == 0
    assert check(bnhd, CAUSAL, only="family=normal").status() == 1


# ---- the backward
@pytest.mark.parametrize("names", [SAVED, SAVED[:-1], ("q", "k", "v", "lse", "do"), ("dlse", "do", "lse", "v", "k", "q")])
def test_a_vjp_names_what_it_needs(names: tuple[str, ...]) -> None:
    """One that does not name dlse is given a loss that does not depend on lse."""
    report = check(kernel(CAUSAL), CAUSAL, vjp=pullback(CAUSAL, *names), only=FEW)
    assert report.status() == 0
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o", "lse", "dq", "dk", "dv"}


def test_a_vjp_that_names_dlse_and_ignores_it_is_told_so() -> None:
    report = check(kernel(CAUSAL), CAUSAL, vjp=pullback(CAUSAL, *SAVED, uses=SAVED[:-1]), only=FEW)
    assert report.status() == 1
    assert ids(report)[0] == "B13"
    assert all(t.level <= Level.WARN for c in report.cases for t in c.tensors if t.tensor in ("o", "lse", "dv"))


def test_a_wrong_backward_of_a_right_forward_is_named_by_its_own_mistake() -> None:
    twice = pullback(CAUSAL, *SAVED)

    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array) -> tuple[Array, ...]:
        g = twice(q=q, k=k, v=v, o=o, lse=lse, do=do, dlse=dlse)
        return g["dq"] * np.float32(q.shape[-1] ** -0.5), g["dk"], g["dv"]

    report = check(kernel(CAUSAL), CAUSAL, vjp=vjp, only=FEW)
    assert ids(report)[0] == "B3q"
    assert {t.tensor for c in report.cases for t in c.tensors if t.level == Level.FAIL} == {"dq"}


# ---- mistakes
def mistaken(mutant: Mutant) -> Callable[..., Any]:
    """The kernel that makes this mistake."""

    def forward(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        (b, h, n, d), (g, m, e) = q.shape, v.shape[1:]
        sizes = dict(zip("bhgnmde", (b, h, g, n, m, d, e), strict=True))
        inputs = Dense.Inputs(*(x.astype(np.float64) for x in (q, k, v)))
        case = Case("", "", "", "", CAUSAL, inputs, np.zeros((b, h, n, e)), None, sizes)
        out = mutant.values(case, q.dtype.name)
        if "lse" not in out:
            out["lse"] = CAUSAL.forward(*inputs)[1].lse
        return out["o"].astype(q.dtype), out["lse"].astype(np.float32)

    return forward


@pytest.mark.parametrize("mutant_id", ["F3", "F9", "F28@16", "F38", "F47", "F30", "F50"])
def test_a_kernel_with_a_known_mistake_is_named(mutant_id: str) -> None:
    mutant = next(m for m in everything() if m.id == mutant_id)
    report = check(mistaken(mutant), CAUSAL, only="family=normal,more keys,tail; n=99,128; d=16; d=e; b=1")
    assert report.level == Level.FAIL
    assert ids(report)[0] == mutant_id
    assert report.names[0].how == "within"
    assert report.names[0].amplitude == pytest.approx(1.0, abs=0.05)
    assert report.explains[mutant_id] == sum(mutant_id in {n.mutant for n in c.names} for c in report.cases)
    assert report.power[mutant_id] >= 30


# ---- conventions
@pytest.mark.parametrize(("actual", "asked", "mutant", "takes", "only"), [
    (Dense(causal=True, align="top_left"), CAUSAL, "F22", (), FEW),
    (CAUSAL, Dense(causal=True, align="top_left"), "F22", (), FEW),
    (Dense(heads="tiled"), Dense(), "F37", (), FEW),
    (Dense(empty="mean"), Dense(), "F33m", ("mask",), "family=mask,blind rows,normal"),
    (Dense(), Dense(empty="mean"), "F33z", ("mask",), "family=mask,blind rows,normal"),
])  # fmt: skip
def test_another_convention_is_named_with_the_scheme_under_which_it_conforms(
    actual: Dense, asked: Dense, mutant: str, takes: tuple[str, ...], only: str
) -> None:
    candidate = kernel(actual, *takes)
    report = check(candidate, asked, only=only)
    assert (report.level, report.status(), ids(report)[0]) == (Level.CONVENTION, 1, mutant)
    instead = report.names[0].instead
    assert instead is not None
    assert eval(instead, {"Dense": Dense}) == actual  # as a user would paste it
    assert check(candidate, actual, only=only).status() == 0


# ---- precision
def test_an_eager_kernel_fails_its_dtypes_strictest_contract_and_fits_the_next() -> None:
    eager = products("bfloat16", every=True)
    report = check(eager, Dense(), dtype="bfloat16", only=FEW)
    assert (report.level, report.contract, report.fits) == (Level.FAIL, "flash-bf16", "eager-bf16")
    asked = check(eager, Dense(), dtype="bfloat16", contract="eager-bf16", only=FEW)
    assert (asked.status(), asked.fits) == (0, "eager-bf16")


def test_a_kernel_of_ten_bit_products_fits_tf32_and_conforms_only_if_asked() -> None:
    report = check(products("tf32"), Dense(), only=FEW)
    assert (report.level, report.contract, report.fits) == (Level.FAIL, "fp32", "tf32")
    asked = check(products("tf32"), Dense(), contract="tf32", only=FEW)
    assert (asked.status(), asked.fits) == (0, "tf32")
    worse = check(products("bfloat16"), Dense(), only=FEW)
    assert (worse.level, worse.fits) == (Level.FAIL, None)


def test_a_contract_of_another_dtype_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match="contract flash-bf16 is none for float32: choose fp32 or tf32"):
        check(kernel(CAUSAL), CAUSAL, contract="flash-bf16")
    with pytest.raises(OptionError, match=r"flash-fp16\(tile=1\) is none for bfloat16: choose flash-bf16 or eager-bf16"):
        check(kernel(CAUSAL), CAUSAL, dtype="bfloat16", contract="flash-fp16(tile=1)")
    with pytest.raises(OptionError, match="no precision is called 'fp31'"):
        check(kernel(CAUSAL), CAUSAL, contract="fp31")


# ---- what is no result
def test_a_candidate_that_refuses_everything_is_not_judged() -> None:
    def refusing(q: Array, k: Array, v: Array) -> Array:
        raise NotImplementedError("only d = 256")

    report = check(refusing, Dense(), only=FEW)
    assert (report.level, report.status(), report.fits, report.judged) == (Level.UNSUPPORTED, 3, None, ())
    assert all("only d = 256" in c.remark for c in report.cases)
    assert check(kernel(Dense()), Dense(), only="family=mask").status() == 3, "no case at all"


def test_a_candidate_that_refuses_some_cases_is_judged_on_the_others() -> None:
    def even(**x: Array) -> Any:
        if x["q"].shape[-1] % 16:
            raise NotImplementedError("d must be a multiple of 16")
        return kernel(Dense())(**x)

    report = check(taking(even), Dense(), only="family=normal")
    assert report.status() == 0
    assert {c.level for c in report.cases} == {Level.OK, Level.UNSUPPORTED}


@pytest.mark.parametrize(("body", "remark"), [
    (lambda **x: 1 / 0, "crash: ZeroDivisionError: division by zero"),
    (lambda **x: None, "crash: returned None"),
    (lambda **x: x["q"].__iadd__(1), "written: writes into q"),
])  # fmt: skip
def test_a_candidate_that_gives_no_result_fails(body: Any, remark: str) -> None:
    report = check(taking(body), Dense(), only=FEW)
    assert (report.level, report.status(), report.fits) == (Level.FAIL, 1, None)
    assert all(c.level == Level.FAIL and c.remark.startswith(remark) for c in report.cases), report.cases[0].remark


def test_an_exception_on_empty_axes_counts_as_unsupported() -> None:
    def fragile(**x: Array) -> Any:
        if 0 in x["k"].shape:
            raise ValueError("zero-size array to reduction operation")
        return kernel(Dense())(**x)

    report = check(taking(fragile), Dense(), only="family=normal,no keys,no queries")
    assert report.status() == 0
    assert {c.case: c.level for c in report.cases if c.level < Level.OK} == {
        "no queries/zero": Level.UNSUPPORTED, "no keys/zero": Level.UNSUPPORTED}  # fmt: skip


def test_wrong_shape_and_missing_o_fail() -> None:
    flat = check(taking(lambda **x: Dense().forward(**x)[0][..., 0]), Dense(), only="family=normal")
    assert {t.reason for c in flat.cases for t in c.tensors} == {"shape"}
    assert flat.status() == 1


@pytest.fixture
def hanging(tmp_path: Path) -> str:
    path = tmp_path / "slow.py"
    slow = "    time.sleep(600 if q.shape[-1] == 24 else 0)\n"
    path.write_text(f"import time\n\ndef attention(q, k, v):\n{slow}    return q\n", encoding="utf-8")
    return f"{path}:attention"


def test_a_hang_ends_at_the_timeout_and_the_command_repeats_it(hanging: str) -> None:
    report = check(hanging, Dense(), timeout=1.0, only="family=normal; d=24; d=e")
    assert report.status() == 1
    assert [c.remark.partition(" (")[0] for c in report.cases] == ["hang: no result within 1 s"] * 2
    assert "(slow.py:4)" in report.cases[0].remark
    assert report.repro == f'refattn check {hanging} --scheme "Dense()" --only "d=24; d=e; family=normal" --timeout 1'


# ---- the whole
def test_a_result_that_is_truncated_is_seen_as_biased_and_named() -> None:
    def truncating(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        o, saved = Dense().forward(*(x.astype(np.float64) for x in (q, k, v)))
        near = o.astype(ml_dtypes.bfloat16)
        toward = np.where(np.abs(near.astype(float)) > np.abs(o), np.nextafter(near, np.zeros_like(near)), near)
        return toward, saved.lse.astype(np.float32)

    report = check(truncating, Dense(), dtype="bfloat16", only="family=normal,peaked")
    assert "bias" in {t.reason for c in report.cases for t in c.tensors}
    assert (report.level, report.status()) == (Level.LOOKS_LIKE, 1)
    assert {n.mutant for c in report.cases for n in c.names} == {"F17"}


def test_poison_only_warns_which_is_enough_to_fail_a_strict_check() -> None:
    def spreading(**x: Array) -> Any:
        valid = x.get("key_valid", np.ones((x["k"].shape[0], x["k"].shape[-2]), bool))
        hidden = np.where(valid, np.float32(0), np.float32(-np.inf))[:, None, None, :]
        return Dense().forward(x["q"], x["k"], x["v"], bias=hidden)[0]

    with np.errstate(invalid="ignore"):
        report = check(taking(spreading, "key_valid"), Dense(), only="family=normal,poison")
    assert report.level == Level.WARN
    assert {c.case.partition("/")[0] for c in report.cases if c.level == Level.WARN} == {"poison"}
    assert (report.status(), report.status(strict=True)) == (0, 1)


def test_assert_conforms_returns_the_report_or_raises_it() -> None:
    assert assert_conforms(kernel(CAUSAL), CAUSAL, only=FEW).status() == 0
    with pytest.raises(AssertionError, match="F20") as error:
        assert_conforms(taking(lambda **x: strict_causal(**x)), CAUSAL, only=FEW)
    text = " ".join(str(error.value).split())
    assert "strictly causal" in text
    assert "the diagonal j − i = 0" in text, "the mask read out"
    with pytest.raises(AssertionError):
        assert_conforms(kernel(CAUSAL), CAUSAL, only="family=mask")  # nothing judged


def strict_causal(**x: Array) -> tuple[Array, Array]:
    n, m = x["q"].shape[-2], x["k"].shape[-2]
    mask = np.arange(m)[None] < np.arange(n)[:, None] + m - n
    o, saved = Dense().forward(**x, mask=mask)
    return o, saved.lse


def test_the_command_that_repeats_a_check_is_quoted_and_leaves_defaults_out() -> None:
    assert repro("a.py:f", CAUSAL, {"dtype": "float16", "contract": PRESETS["flash-fp16"], "only": "d=64; n%64=0"}) == (
        'refattn check a.py:f --scheme "Dense(causal=True, align=\'bottom_right\')" --dtype float16 --contract flash-fp16 '
        '--only "d=64; n%64=0"')
    assert repro(kernel(CAUSAL), CAUSAL, {}) == ""


def test_options_that_mean_nothing_are_refused() -> None:
    for options, error in (({"dtype": "int8"}, (OptionError, UsageError)), ({"only": "d"}, OptionError),
                           ({"layout": "nhd"}, UsageError), ({"library": "mlx"}, UsageError), ({"timeout": 0}, UsageError)):
        with pytest.raises(error):
            check(kernel(CAUSAL), CAUSAL, **options)
    with pytest.raises(OptionError, match="keep_rate"):
        check(kernel(Dense()), Dense(keep_rate=0.5))
