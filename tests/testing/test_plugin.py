"""The pytest plugin, in processes of pytest: a test for each case, the fixture, distribution, and nothing when unused."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

from layout import ROOT
from refattn.catalogue import scheme as scheme_of
from refattn.testing.cases import cases
from refattn.testing.plugin import OPTIONS

RIGHT, WRONG = (f"{ROOT}/docs/examples/{name}.py:attention" for name in ("corrected", "off_by_one"))
BOTTOM = "Dense(causal=True, align='bottom_right')"
PLUGIN = "refattn.testing.plugin"
Pytest = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pytest_run(tmp_path: Path) -> Pytest:
    """pytest in an empty folder of its own, with the plugin, which pytest finds by itself where refattn is installed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n", encoding="utf-8")

    found = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    load = [] if found else ["-p", PLUGIN]

    def go(*words: str, test: str | None = None) -> subprocess.CompletedProcess[str]:
        if test is not None:
            (tmp_path / "test_user.py").write_text(test, encoding="utf-8")
        around = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        around |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *load, *words]
        return subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=300)

    return go


def judge(candidate: str, *words: str) -> list[str]:
    return ["--refattn-candidate", candidate, "--refattn-scheme", BOTTOM, *words]


def test_there_is_a_test_for_each_case(pytest_run: Pytest) -> None:
    done = pytest_run("--collect-only", "-q", *judge(RIGHT))
    listed = re.findall(r"^refattn::(.+)$", done.stdout, re.MULTILINE)
    assert listed == [case.id for case in cases(scheme_of(BOTTOM), "float32", frozenset({"q", "k", "v"}))]
    assert len(listed) > 20
    assert f"{len(listed)} tests collected" in done.stdout
    done = pytest_run("--collect-only", "-q", *judge(RIGHT, "-k", "normal and not odd"))
    assert re.findall(r"^refattn::(.+)$", done.stdout, re.MULTILINE) == ["normal/pow2"]


def test_cases_pass_and_fail_with_the_report(pytest_run: Pytest, tmp_path: Path) -> None:
    few = ["--refattn-only", "family=normal,one key"]
    done = pytest_run(*judge(RIGHT, *few))
    assert done.returncode == 0, done.stdout
    done = pytest_run(*judge(WRONG, *few, "--refattn-vjp", f"{WRONG}_vjp", "--junitxml", str(tmp_path / "j.xml")))
    assert done.returncode == 1
    assert "FAIL  1 of 1 judged case is wrong" in done.stdout
    assert "What it does instead: a query sees one key beyond the diagonal [F21]" in done.stdout
    assert "dq: outside the rigorous bound" in done.stdout
    assert "Traceback" not in done.stdout
    assert f"refattn check {WRONG} --scheme" in done.stdout
    assert re.search(r"FAILED refattn::normal/pow2", done.stdout)
    tests = {t.attrib["name"]: [c.tag for c in t] for t in ElementTree.parse(tmp_path / "j.xml").iter("testcase")}
    failed = {name: ["failure"] for name in ("normal/pow2", "normal/odd", "one key/odd")}
    assert tests == {**failed, "one key/pow2": []}


KERNELS = """
import numpy as np


def attention(q, k, v):
    if q.shape[-1] % 16:
        raise NotImplementedError("widths of whole vectors only")
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def truncated(q, k, v):
    return attention(q, k, v).astype(np.float16).astype(np.float32)
"""
USER = """
from kernels import attention, truncated
from refattn import Dense
from refattn.testing import assert_conforms
import pytest


def test_right(conforms):
    report = conforms(attention, "Dense()", only="family=normal")
    assert report.status() == 0


def test_wrong(conforms):
    conforms(truncated, Dense(), only="family=normal")


def test_caught(conforms):
    with pytest.raises(pytest.fail.Exception, match="FAIL  1 of 1 judged"):
        conforms(truncated, Dense(), only="family=normal")


def test_plain():
    assert_conforms(attention, Dense(), only="family=normal")
"""


@pytest.mark.parametrize("words", [
    pytest.param((), marks=pytest.mark.sweep, id="alone"), pytest.param(("-n", "2"), id="xdist"),
])  # fmt: skip
def test_the_fixture_and_cases_together(pytest_run: Pytest, tmp_path: Path, words: tuple[str, ...]) -> None:
    if words:
        pytest.importorskip("xdist")
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    add = ["--refattn-candidate", "kernels.py:attention", "--refattn-scheme", "Dense()", "--refattn-dtype", "float64"]
    done = pytest_run("-rA", *words, *add, "--refattn-only", "family=normal,widths", test=USER)
    assert done.returncode == 1
    outcomes = re.findall(r"^(PASSED|FAILED) (refattn::\S+|test_user.py::\w+)", done.stdout, re.MULTILINE)
    assert ("FAILED", "test_user.py::test_wrong") in outcomes
    assert {name for level, name in outcomes if level == "FAILED"} == {"test_user.py::test_wrong"}
    passed = {name for level, name in outcomes if level == "PASSED"}
    assert passed >= {f"test_user.py::test_{name}" for name in ("right", "caught", "plain")} | {"refattn::normal/pow2"}
    assert "widths of whole vectors only" in done.stdout
    assert done.stdout.count("FAIL  1 of 1 judged case is wrong") >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--refattn-scheme", "Dense()"], "--refattn-candidate SPEC and --refattn-scheme EXPR belong together"),
        (["--refattn-candidate", "k.py:f", "--refattn-scheme", "Dense()"], "there is no file k.py"),
        (judge(RIGHT, "--refattn-dtype", "float31"), "float31"),
        (judge(RIGHT, "--refattn-only", "n<3"), "--only 'n<3' is not understood"),
        (["--refattn-candidate", RIGHT, "--refattn-scheme", "Dens()"], "did you mean 'Dense'?"),
    ],
)
def test_what_can_not_be_done_is_one_message(pytest_run: Pytest, words: list[str], said: str) -> None:
    done = pytest_run(*words)
    assert done.returncode == 4, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "INTERNALERROR" not in done.stderr + done.stdout


UNUSED = """
import sys


def test_nothing_is_loaded():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert "numpy" not in loaded
    kit = {name for name in sys.modules if name.startswith("refattn.")}
    assert kit == {"refattn._version", "refattn.testing", "refattn.testing.plugin"}
"""


def test_unused_it_costs_nothing(pytest_run: Pytest) -> None:
    done = pytest_run(test=UNUSED)
    assert done.returncode == 0, done.stdout


def test_it_is_entered_for_pytest() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    assert config["options.entry_points"]["pytest11"].strip() == "refattn = refattn.testing.plugin"

def test_the_page_shows_a_fixture_that_works(pytest_run: Pytest, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = (block for language, block in blocks if not language)
    shutil.copy(RIGHT.partition(":")[0], tmp_path / "kernel.py")
    done = pytest_run(test=f"from kernel import attention, attention_vjp\n\n\n{shown}")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    options = set(re.findall(r"--refattn-[a-z]+", page))
    assert options == {f"--refattn-{name}" for name in ("candidate", "scheme", "strict", *OPTIONS)}
