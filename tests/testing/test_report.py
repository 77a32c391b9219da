"""The text and the JSON of reports, on reports made by hand."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from closed_schema import invalid
from refattn.testing import report as reports
from refattn.testing import verdicts
from refattn.testing.verdicts import CaseVerdict, Level, Naming, Report, TensorVerdict, Worst

EXPR = "Dense(causal=True, align='bottom_right')"
PLUS_ONE = Naming("21", "causal mask one key too wide (j ≤ i + 1)", 1.0, 4.2e4, "within")
TOP_LEFT = Naming("22", "causal, top-left aligned", 0.98, 512.0, "filter", "Dense(causal=True, align='top_left')")
OFF = TensorVerdict("o", Level.FAIL, "bound", Worst((0, 1, 3, 2), 0.5, 0.25, 1e-6, 2.5e5), 2.5e5, 9e4, 0.4, "rows 0…5")
NAN = TensorVerdict("lse", Level.FAIL, "class", Worst((0, 1, 3), math.nan, 0.25, 1e-6, math.inf), math.inf, where="row 3")
FINE = TensorVerdict("lse", Level.OK, "", Worst((0, 0, 0), 1.0, 1.0, 1e-6, 0.25), 0.25, 0.6)
NOISY = TensorVerdict("dq", Level.WARN, "rms", Worst((0, 0, 0, 0), 1.0, 1.0, 1e-6, 0.9), 0.9, 2.4)
SIZES = {"b": 2, "h": 6, "g": 3, "n": 7, "m": 9}
BAD = CaseVerdict("diagonal/odd", "a diagonal that is off by one", Level.FAIL, (OFF, FINE), (PLUS_ONE,), "", SIZES, 0.5)
GOOD = CaseVerdict("plain/odd", "", Level.OK, (FINE,), (), "", SIZES, 0.5)
WARNED = CaseVerdict("long/odd", "", Level.WARN, (FINE, NOISY), (), "", SIZES, 0.5)
UNABLE = CaseVerdict("sink/odd", "", Level.UNSUPPORTED, (), (), "NotImplementedError: no sinks")
OPEN = CaseVerdict("ties/odd", "", Level.UNDECIDED, (), (), "the order of two keys")
CRASH = CaseVerdict("empty/odd", "zero lengths", Level.FAIL, (), (), "IndexError: pop from empty list", SIZES)


def made(*cases: CaseVerdict, **more: Any) -> Report:
    given = {"contract": "fp32", "fits": "fp32", **more}
    return Report("kernel.py:attention", EXPR, "numpy", "float32", cases=cases, **given)


FAILED = made(
    *(dataclasses.replace(BAD, case=f"diagonal/{i}") for i in range(5)),
    GOOD,
    WARNED,
    UNABLE,
    OPEN,
    fits=None,
    names=(PLUS_ONE,),
    explains={"21": 5},
    power={"21": 4.2e4, "20": 2e5, "46": 3.0},
    unseen=("46",),
    readout="mask read out\n  #...\n  ##..",
    repro=f'refattn check kernel.py:attention --vjp kernel.py:back --scheme "{EXPR}" --only "family=diagonal"',
    notes=("the kernel takes no mask: such cases were not drawn",),
    environment={"numpy": "2.4.6"},
)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (made(GOOD, GOOD), "OK  conforms in all 2 judged cases"),
        (made(GOOD), "OK  conforms in the one judged case"),
        (made(GOOD, WARNED), "WARN  conforms in all 2 judged cases, with warnings"),
        (made(BAD, GOOD), "FAIL  1 of 2 judged cases is wrong"),
        (FAILED, "FAIL  5 of 7 judged cases are wrong"),
        (made(UNABLE, OPEN), "NOT JUDGED  none of 2 cases could be judged"),
        (made(), "NOT JUDGED  none of 0 cases could be judged"),
    ],
)
def test_the_first_line_is_the_verdict_and_the_second_what_it_is_about(report: Report, line: str) -> None:
    lines = reports.render(report).split("\n")
    assert lines[:2] == [line, f"  kernel.py:attention against {EXPR}"]


def test_the_named_mistake_comes_next_with_how_sure_it_is() -> None:
    text = reports.render(FAILED, width=200)
    assert "What it does instead: causal mask one key too wide (j ≤ i + 1) [21]\n" in text
    assert "within the rounding bound of this mistake (amplitude 1.00, power 42000); explains 5 of 5 failing cases" in text
    assert text.index("What it does instead") < text.index("diagonal/0")


def test_an_unknown_mistake_is_called_unknown() -> None:
    assert "What it does instead: unknown." in reports.render(made(dataclasses.replace(BAD, names=()), GOOD))
    assert "instead" not in reports.render(made(GOOD))


def test_a_failing_case_shows_its_worst_element_and_where_the_errors_are() -> None:
    text = reports.render(FAILED)
    assert "FAIL  diagonal/0   b=2 h=6 g=3 n=7 m=9\n  probes a diagonal that is off by one\n" in text
    assert "  o: outside the rigorous bound; rows 0…5\n" in text
    assert "    [0, 1, 3, 2]  got 0.5   want 0.25   bound 1e-06   error 250000 × bound\n" in text
    assert "  lse: OK\n" in text
    noisy = reports.render(made(dataclasses.replace(BAD, tensors=(OFF, NOISY))))
    assert "dq" not in noisy
    crashed = reports.render(made(CRASH))
    assert "FAIL  empty/odd" in crashed
    assert "IndexError: pop from empty list" in crashed
    assert "instead" not in crashed


def test_a_wrong_class_shows_nan_and_no_ratio() -> None:
    text = reports.render(made(dataclasses.replace(BAD, tensors=(NAN,))))
    assert "lse: NaN or infinity in the wrong place, or missing; row 3\n" in text
    assert "[0, 1, 3]  got nan   want 0.25   bound 1e-06\n" in text


def test_a_long_report_is_a_screen_or_two_and_verbose_tells_every_case() -> None:
    short, long = reports.render(FAILED), reports.render(FAILED, verbose=True)
    assert len(short.split("\n")) < 50
    assert "4 more: diagonal/1, 2, 3, 4   (all of them: --verbose)" in short
    assert "FAIL  diagonal/4" not in short
    assert "FAIL  diagonal/4" in long
    assert re.search(r"OK +plain/odd +error ≤ 0.25 × bound +0.50 s", long)


def test_what_was_not_judged_is_said_with_its_reason() -> None:
    text = reports.render(FAILED)
    assert "Not judged\n  UNSUPPORTED, NotImplementedError: no sinks: sink/odd\n" in text
    assert "  UNDECIDED, the order of two keys: ties/odd\n" in text
    assert "gradients" not in text
    forward = dataclasses.replace(GOOD, tensors=(dataclasses.replace(FINE, tensor="o"),))
    assert "Not judged\n  the gradients, since no backward was given (--vjp or --backward)" in reports.render(made(forward))
    assert "1 of 3 known mistakes would not show in these cases (power < 15): 46\n" in text


def test_warnings_notes_the_mask_and_the_command_are_there() -> None:
    text = reports.render(FAILED)
    assert "  dq of long/odd: errors larger, as a whole, than rounding makes them (rms 2.4)\n" in text
    assert "\n\nMask read out\n  #...\n  ##..\n\n" in text
    assert "Notes\n  the kernel takes no mask" in text
    assert text.endswith(f"Again, the first failing family alone\n  {FAILED.repro}\n")
    assert reports.render(made(BAD, repro="refattn check k.py:f")).endswith("Again\n  refattn check k.py:f\n")
    assert "Again" not in reports.render(made(GOOD, repro=FAILED.repro))
    assert "Again" not in reports.render(made(BAD))


@pytest.mark.parametrize(
    ("contract", "fits", "said"),
    [
        ("fp32", "fp32", "judged under fp32; it keeps this contract\n"),
        ("fp32", "tf32", "judged under fp32; the strictest contract that it keeps is tf32\n"),
        ("fp32", None, "judged under fp32; it keeps no contract of float32\n"),
        ("flash-bf16(tile=1)", None, "accumulation 2^-23 a step, operands of products rounded to 2^-8, results 2^-8)"),
    ],
)
def test_the_contract_says_what_it_grants_and_what_the_kernel_keeps(contract: str, fits: str | None, said: str) -> None:
    assert said in reports.render(made(BAD, contract=contract, fits=fits), width=200)


def test_a_convention_comes_with_the_command_that_judges_under_it() -> None:
    case = dataclasses.replace(BAD, level=Level.CONVENTION, names=(TOP_LEFT,))
    text = reports.render(made(case, GOOD, names=(TOP_LEFT,), explains={"22": 1}, repro=FAILED.repro))
    assert text.startswith("CONVENTION  right, but under another convention (1 of 2 judged cases)\n")
    wanted = 'refattn check kernel.py:attention --vjp kernel.py:back --scheme "Dense(causal=True, align=\'top_left\')"\n'
    assert f"  {wanted}" in text


@pytest.mark.parametrize(
    ("repro", "said"),
    [
        ("", "check(kernel.py:attention, Dense(), ...)"),
        ('refattn check k.py:f --scheme "Dense(x=\'y\')" --only family=mask', "refattn check k.py:f --scheme 'Dense()'"),
        ('refattn check k.py:f --scheme A --only "d=64; family=mask" --dtype float16',
         "refattn check k.py:f --scheme 'Dense()' --only d=64 --dtype float16"),
    ],
)  # fmt: skip
def test_the_command_for_another_scheme_keeps_the_options_and_takes_all_cases(repro: str, said: str) -> None:
    assert reports.command(made(BAD, repro=repro), "Dense()") == said


def test_without_a_name_for_the_whole_the_names_of_the_cases_speak() -> None:
    like = dataclasses.replace(BAD, level=Level.LOOKS_LIKE)
    other = dataclasses.replace(like, names=(dataclasses.replace(PLUS_ONE, power=40.0),))
    top_left = dataclasses.replace(like, names=(TOP_LEFT,))
    text = reports.render(made(GOOD, other, like, like, top_left), width=200)
    assert text.startswith("LOOKS LIKE  within the bounds, but a known mistake shows (4 of 5 judged cases)\n")
    assert "What it does instead: causal mask one key too wide (j ≤ i + 1) [21]\n" in text
    assert "power 42000); explains 3 of 4 failing cases" in text
    assert "or: causal, top-left aligned [22]\n" in text


def test_a_faint_resemblance_is_a_hint() -> None:
    hint = dataclasses.replace(PLUS_ONE, power=17.0, how="hint")
    text = reports.render(made(dataclasses.replace(GOOD, names=(hint,))))
    assert text.startswith("OK  ")
    assert "faintly resemble a known mistake\n  plain/odd: causal mask one key too wide (j ≤ i + 1) [21], ampl" in text


def test_the_cases_that_are_told_are_of_different_kinds() -> None:
    gradient = dataclasses.replace(BAD, case="gradient/odd", tensors=(dataclasses.replace(OFF, tensor="dq"),))
    same = [dataclasses.replace(BAD, case=f"same/{i}") for i in range(5)]
    text = reports.render(made(*same, gradient, CRASH))
    assert re.findall(r"^FAIL  (\S+/\S+)", text, re.MULTILINE) == ["same/0", "gradient/odd", "empty/odd"]
    explained = reports.render(made(*same, gradient, names=(PLUS_ONE,), explains={"21": 6}))
    assert re.findall(r"^FAIL  (\S+/\S+)", explained, re.MULTILINE) == ["same/0"]
    assert "5 more: same/1, 2, 3, 4; gradient/odd   (all" in explained
    other = dataclasses.replace(BAD, case="other/odd", level=Level.CONVENTION)
    assert "; other/odd (CONVENTION)   (all" in reports.render(made(*same, other, names=(PLUS_ONE,), explains={"21": 6}))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_fit_the_width_except_commands(width: int) -> None:
    lines = reports.render(FAILED, width=width).split("\n")
    assert [line for line in lines if len(line) > width and "refattn check" not in line] == []


def test_color_adds_nothing_but_color() -> None:
    colored = reports.render(FAILED, color=True)
    assert colored.startswith("\033[1;31mFAIL\033[0m  5 of 7")
    assert re.sub(r"\033\[[\d;]*m", "", colored) == reports.render(FAILED)


def faults(data: Any) -> list[str]:
    return invalid(data, reports.schema(), reports.schema())


ALL_KINDS = made(dataclasses.replace(BAD, tensors=(OFF, NAN, NOISY)), CRASH, UNABLE, OPEN, names=(TOP_LEFT, PLUS_ONE))


@pytest.mark.parametrize("report", [FAILED, ALL_KINDS, made(GOOD), made()], ids=["failed", "all", "good", "none"])
def test_the_json_is_what_the_schema_says(report: Report) -> None:
    data = reports.to_json(report)
    assert faults(data) == []
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_json_holds_the_whole_report() -> None:
    data = reports.to_json(FAILED)
    assert (data["level"], data["status"], data["status_strict"]) == ("FAIL", 1, 1)
    assert [data[f.name] for f in dataclasses.fields(Report)].count(None) == 1  # fits
    assert data["cases"][0]["tensors"][0]["worst"] == {
        "index": [0, 1, 3, 2], "got": 0.5, "want": 0.25, "bound": 1e-6, "ratio": 2.5e5,
    }  # fmt: skip
    assert reports.to_json(ALL_KINDS)["cases"][0]["tensors"][1]["worst"]["got"] == "nan"
    assert reports.to_json(made(WARNED))["status_strict"] == 1


def test_numpy_numbers_become_plain_ones() -> None:
    worst = Worst((np.int64(3),), np.float32(0.5), np.float64(-math.inf), 1.0, 2.0)  # type: ignore[arg-type]
    report = made(dataclasses.replace(BAD, tensors=(dataclasses.replace(OFF, worst=worst),), sizes={"n": np.int64(4)}))
    data = reports.to_json(report)
    assert faults(json.loads(json.dumps(data, allow_nan=False))) == []
    assert data["cases"][0]["tensors"][0]["worst"] == {"index": [3], "got": 0.5, "want": "-inf", "bound": 1.0, "ratio": 2.0}


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("level",), "FINE", "'FINE' is not allowed"),
        (("extra",), 1, "extra is unknown"),
        (("cases", 0, "extra"), 1, "extra is unknown"),
        (("cases", 0, "tensors", 0, "rms"), "big", "'big' is not allowed"),
        (("cases", 0, "tensors", 0, "worst", "index"), [-1], "-1 is too small"),
        (("cases", 0, "sizes", "n"), 1.5, "1.5 is no integer"),
        (("names", 0, "how"), "guess", "'guess' is not allowed"),
        (("fits",), 3, "3 is no string or null"),
    ],
)
def test_the_schema_refuses_anything_else(path: tuple[Any, ...], value: Any, complaint: str) -> None:
    data = copy.deepcopy(reports.to_json(FAILED))
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert any(complaint in fault for fault in faults(data)), faults(data)


@pytest.mark.parametrize("kind", [Report, CaseVerdict, TensorVerdict, Worst, Naming])
def test_the_schema_is_closed_and_has_every_field(kind: type) -> None:
    schema = reports.schema()
    names = {"CaseVerdict": "case", "TensorVerdict": "tensor", "Worst": "worst", "Naming": "naming"}
    part = schema if kind is Report else schema["$defs"][names[kind.__name__]]
    own = {"format", "level", "status", "status_strict"} if kind is Report else set()
    fields = {f.name for f in dataclasses.fields(kind)}
    assert set(part["properties"]) == set(part["required"]) == fields | own
    assert part["additionalProperties"] is False


def test_every_level_and_reason_is_in_the_schema() -> None:
    definitions = reports.schema()["$defs"]
    assert definitions["level"]["enum"] == [str(level) for level in Level]
    reasons = re.findall(r'"(\w*)"', (verdicts.TensorVerdict.__doc__ or "").partition("reason:")[2].partition(". share")[0])
    assert sorted(definitions["tensor"]["properties"]["reason"]["enum"]) == sorted(reasons)
    assert set(reasons) - {""} == set(reports._REASONS)
