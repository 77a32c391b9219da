"""The C example: nothing but the files is needed to be judged."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from layout import ROOT
from refattn.testing.vectors_cases import recipes
from refattn.testing.vectors_check import check_dump
from refattn.testing.vectors_files import tensors
from refattn.testing.vectors_manifest import export
from refattn.testing.verdicts import Level

pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
CC = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler: neither CC nor gcc, cc or clang")

SOURCE = ROOT / "docs" / "examples" / "read_vectors.c"
GROUP = "dense-causal-bottom-right.safetensors"
COUNT = "size_t seen = i + m + 1 > n ? i + m + 1 - n : 0;"
ONE_MORE = "size_t seen = i + m + 2 > n ? (i + m + 2 - n < m ? i + m + 2 - n : m) : 0;"
CASES = [r.id for r in recipes() if r.group == "causal-bottom-right"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vectors")
    export(made, [r for r in recipes() if r.group in ("causal-bottom-right", "heads-causal")])
    return made


def compiled(source: str, folder: Path) -> Path:
    file = folder / "read_vectors.c"
    file.write_text(source, encoding="utf-8")
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([str(CC), *strict, "-o", str(folder / "read_vectors"), str(file), "-lm"], check=True)
    return folder / "read_vectors"


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(SOURCE.read_text(encoding="utf-8"), tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same kernel with a diagonal that is off by one."""
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(COUNT) == 1
    return compiled(source.replace(COUNT, ONE_MORE), tmp_path_factory.mktemp("wrong"))


def read(program: Path, file: Path, case: int, dump: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, file, str(case), dump], capture_output=True, text=True, timeout=60)


def test_the_example_is_short_and_needs_libc_alone() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    used = {line.split()[1] for line in text.splitlines() if line.startswith("#include")}
    assert used == {"<math.h>", "<stdint.h>", "<stdio.h>", "<stdlib.h>", "<string.h>"}


def test_a_right_kernel_in_c_conforms_in_every_case_of_its_group(right: Path, folder: Path, tmp_path: Path) -> None:
    for case in CASES:
        done = read(right, folder / GROUP, case, tmp_path / f"{case}.safetensors")
        assert (done.returncode, done.stdout) == (0, f"OK case {case}\n")
    report = check_dump(folder, tmp_path)
    assert (report.status(), report.contract, len(report.judged)) == (0, "fp32", len(CASES))


def test_its_heads_are_grouped(right: Path, folder: Path, tmp_path: Path) -> None:
    done = read(right, folder / "dense-heads-causal.safetensors", 41, tmp_path / "dump.safetensors")
    assert (done.returncode, done.stdout) == (0, "OK case 41\n")
    assert check_dump(folder, tmp_path).status() == 0


def test_a_wrong_kernel_in_c_is_told_by_itself_and_named_by_the_kit(wrong: Path, folder: Path, tmp_path: Path) -> None:
    for case in CASES:
        done = read(wrong, folder / GROUP, case, tmp_path / f"{case}.safetensors")
        same = tensors(folder / GROUP)[f"{case}.q"].shape[2] == 1  # a last query that sees every key is right
        assert done.returncode == (0 if same else 1)
        assert done.stdout.startswith("OK" if same else "FAIL o[")
    report = check_dump(folder, tmp_path)
    assert report.status() == 1
    assert report.names[0].mutant == "F21"
    assert sum(c.level == Level.FAIL for c in report.judged) == len(CASES) - 1


def test_a_file_that_is_none_and_a_case_that_is_not_there_are_refused(right: Path, folder: Path, tmp_path: Path) -> None:
    for file, case, says in ((folder / "manifest.json", 1, "no safetensors file"), (folder / GROUP, 1, '"1.q":{')):
        done = read(right, file, case, tmp_path / "dump.safetensors")
        assert done.returncode == 2
        assert says in done.stderr
        assert not (tmp_path / "dump.safetensors").exists()
