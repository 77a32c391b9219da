"""The main job with the core dependencies alone: no ml_dtypes, rich, hypothesis, safetensors, jax or torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from layout import ROOT

EXTRAS = ("flint", "hypothesis", "jax", "matplotlib", "ml_dtypes", "onnx", "rich", "safetensors", "torch")
SCHEME = "Dense(causal=True, align='bottom_right')"
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def core(tmp_path: Path) -> dict[str, str]:
    """An environment in which the modules of the extras can't be imported."""
    for name in EXTRAS:
        says = f"No module named {name!r}"
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError({says!r}, name={name!r})\n", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "COLUMNS": "100"}


def refattn(core: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refattn", *arguments]
    return subprocess.run(command, env=core, capture_output=True, text=True, timeout=300, cwd=ROOT)


@pytest.mark.parametrize(("name", "status", "dtype", "first"), [
    pytest.param("corrected", 0, "float32", "OK  conforms in all 37 judged cases", marks=pytest.mark.sweep),
    ("corrected", 0, "float64", "OK  conforms in all 5 judged cases"),
    ("off_by_one", 1, "float32", "FAIL  5 of 5 judged cases are wrong"),
])  # fmt: skip
def test_a_kernel_is_judged_and_named(core: dict[str, str], name: str, status: int, dtype: str, first: str) -> None:
    file, few = f"{EXAMPLES / name}.py", () if "37" in first else ("--only", "family=normal,shared heads")
    command = ["check", f"{file}:attention", "--vjp", f"{file}:attention_vjp", "--scheme", SCHEME, "--dtype", dtype]
    done = refattn(core, *command, *few)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stdout + done.stderr
    assert done.stdout.startswith(first), done.stdout
    assert ("[F21]" in done.stdout) == bool(status)


def test_chosen_rows_are_judged(core: dict[str, str]) -> None:
    kernel = f"{EXAMPLES / 'corrected.py'}:attention"
    done = refattn(core, "check", kernel, "--scheme", SCHEME, "--rows", "5", "--n", "300", "--d", "8")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("more", [(), ("--rows", "5", "--n", "300")])
def test_bfloat16_arrays_need_an_extra_and_it_is_named(core: dict[str, str], more: tuple[str, ...]) -> None:
    kernel = f"{EXAMPLES / 'corrected.py'}:attention"
    done = refattn(core, "check", kernel, "--scheme", SCHEME, "--dtype", "bfloat16", *more)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("refattn: ")
    assert "ml_dtypes" in done.stderr
    assert "pip install 'refattn[kit]'" in done.stderr


def test_what_else_needs_an_extra_says_so(core: dict[str, str], tmp_path: Path) -> None:
    done = refattn(core, "vectors", "export", str(tmp_path / "vectors"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "pip install 'refattn[" in done.stderr
    code = "import refattn.testing.strategies"
    done = subprocess.run([sys.executable, "-c", code], env=core, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr.splitlines()[-1].startswith("refattn.errors.BackendUnavailable: hypothesis is not installed")
    assert "pip install 'refattn[kit]'" in done.stderr
