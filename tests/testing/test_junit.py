"""Reports as JUnit XML, read back by a parser that knows nothing of refattn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from refattn import Dense, cli
from refattn.testing import check
from refattn.testing.junit import to_junit, write
from refattn.testing.verdicts import CaseVerdict, Level, Naming, Report, TensorVerdict, Worst

OFF = TensorVerdict("o", Level.FAIL, "bound", Worst((0, 1), 0.5, 0.25, 1e-6, 2.5e5), 2.5e5, 9e4, 0.4, "rows 0…5")
NAMED = Naming("F21", "a query sees one key beyond the diagonal (j ≤ i + 1)", 1.0, 4.2e4, "within")
BAD = CaseVerdict("diagonal/odd", "a diagonal that is <off> & \"by one\"", Level.FAIL, (OFF,), (NAMED,), "", {"n": 7}, 0.5)
GOOD = CaseVerdict("plain/odd", "", Level.OK, (), (), "", {}, 0.25)
WARNED = CaseVerdict("long/odd", "", Level.WARN, (TensorVerdict("o", Level.WARN, "rms"),))
UNABLE = CaseVerdict("sink/odd", "", Level.UNSUPPORTED, remark="NotImplementedError: no sinks")
CRASH = CaseVerdict("empty/odd", "", Level.FAIL, remark="ValueError: \x1b[31m\x00 \udcff \ufffe <tag> ]]> & é 😀")


def made(*cases: CaseVerdict) -> Report:
    about = ("kernel.py:attention", "Dense(scale=0.5)", "numpy", "float32", "fp32", None)
    return Report(*about, cases, environment={"numpy": "2"})


def read(text: str) -> tuple[Any, dict[str, Any]]:
    """The suite, and its tests by name."""
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    (suite,) = root
    return suite, {test.attrib["name"]: test for test in suite.iter("testcase")}


def test_each_case_is_a_test() -> None:
    suite, tests = read(to_junit(made(BAD, GOOD, WARNED, UNABLE, CRASH)))
    assert {a: suite.attrib[a] for a in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "5", "failures": "2", "errors": "0", "skipped": "1", "time": "0.750",
    }  # fmt: skip
    assert list(tests) == ["diagonal/odd", "plain/odd", "long/odd", "sink/odd", "empty/odd"]
    assert {name: [child.tag for child in test] for name, test in tests.items()} == {
        "diagonal/odd": ["failure"], "plain/odd": [], "long/odd": [], "sink/odd": ["skipped"], "empty/odd": ["failure"],
    }  # fmt: skip
    failure = tests["diagonal/odd"][0]
    assert failure.attrib == {"type": "FAIL", "message": f"FAIL: {NAMED.title} [F21]"}
    assert "o: outside the rigorous bound; rows 0…5" in failure.text
    assert 'probes a diagonal that is <off> & "by one"' in failure.text
    assert tests["sink/odd"][0].attrib["message"] == "UNSUPPORTED: NotImplementedError: no sinks"
    assert tests["plain/odd"].attrib == {"classname": "refattn.Dense(scale=0.5)", "name": "plain/odd", "time": "0.250"}
    about = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
    assert about == {"candidate": "kernel.py:attention", "scheme": "Dense(scale=0.5)", "library": "numpy",
                     "dtype": "float32", "contract": "fp32", "numpy": "2"}  # fmt: skip
    assert suite.find("system-out").text.startswith("FAIL  2 of 4 judged cases are wrong\n")


def test_what_xml_has_no_place_for_is_replaced() -> None:
    _, tests = read(to_junit(made(CRASH)))
    assert "ValueError: �[31m� � � <tag> ]]> & é 😀" in tests["empty/odd"][0].text
    strange = dataclasses.replace(made(GOOD), candidate="a\x00b", environment={"odd\x01": "\x02"})
    suite, _ = read(to_junit(strange))
    assert suite.attrib["name"] == "refattn a�b"


def test_strict_counts_warnings_as_failures() -> None:
    suite, tests = read(to_junit(made(GOOD, WARNED), strict=True))
    assert suite.attrib["failures"] == "1"
    assert tests["long/odd"][0].attrib["message"] == "WARN"


def test_nothing_judged_is_all_skipped() -> None:
    suite, _ = read(to_junit(made(UNABLE)))
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "0", "1")
    assert read(to_junit(made()))[0].attrib["tests"] == "0"


def test_it_is_written_in_utf8(tmp_path: Path) -> None:
    write(made(BAD), str(tmp_path / "r.xml"))
    assert (tmp_path / "r.xml").read_bytes().decode("utf-8") == to_junit(made(BAD))


def test_a_check_has_the_same_counts(tmp_path: Path) -> None:
    file = "docs/examples/off_by_one.py"
    scheme = Dense(causal=True, align="bottom_right")
    found = check(f"{file}:attention", scheme, only="family=normal,one key")
    suite, tests = read(to_junit(found))
    assert int(suite.attrib["failures"]) == sum(c.level > Level.WARN for c in found.judged) > 0
    assert set(tests) == {c.case for c in found.cases}
    words = ["check", f"{file}:attention", "--scheme", "Dense(causal=True, align='bottom_right')", "--only", "family=normal"]
    assert cli.main([*words, "--junit", str(tmp_path / "j.xml")]) == 1
    suite, tests = read((tmp_path / "j.xml").read_text(encoding="utf-8"))
    assert set(tests) == {"normal/pow2", "normal/odd"}


def test_a_folder_that_is_not_there_is_said_before_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "k.py:f", "--scheme", "Dense()", "--junit", "/nowhere/j.xml"]
    assert cli.main(words) == 2
    assert "--junit /nowhere/j.xml: there is no folder /nowhere" in capsys.readouterr().err
