"""Every law has been seen to fail: its fault is planted in a copy of the package, and the law fails there."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laws.faults import FAULTS
from layout import ROOT

LAWS = ROOT / "tests" / "laws"
NO_LAWS = (Path(__file__).name, "test_add_a_scheme.py")
IDS = [fault.law.removeprefix("test_").replace(".py::test_", ": ") for fault in FAULTS]


def laws():
    """file::test of every law on the disk."""
    for file in sorted(LAWS.glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and file.name not in NO_LAWS:
                yield f"{file.name}::{node.name}"


def test_every_law_has_a_fault():
    assert sorted({fault.law for fault in FAULTS}) == sorted(laws())


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_the_text_of_a_fault_is_there_once(fault):
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.old != fault.new


def planted(folder, fault=None):
    """A copy of the package and its laws, with a fault."""
    for name in ("refattn", "backends", "tests/laws"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "tests/layout.py"):
        shutil.copy(ROOT / name, folder / name)
    if fault is not None:
        file = folder / fault.file
        file.write_text(file.read_text(encoding="utf-8").replace(fault.old, fault.new), encoding="utf-8")


def judge(folder, *laws, options=()):
    """pytest on these laws in the copy, up to the first that fails."""
    mine = {name: x for name, x in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    words = ("-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    command = [sys.executable, *words, *options, *(f"tests/laws/{law}" for law in laws)]
    env = {**mine, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_the_law_finds_its_fault(fault, tmp_path):
    planted(tmp_path, fault)
    done = judge(tmp_path, fault.law)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"FAILED tests/laws/{fault.law}" in done.stdout


@pytest.mark.sweep
def test_without_a_fault_the_copy_passes(tmp_path):
    planted(tmp_path)
    done = judge(tmp_path, *sorted({fault.law for fault in FAULTS}))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
