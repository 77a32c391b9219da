"""`refattn vectors`: what it writes, what it refuses, and with which status."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closed_schema import invalid
from refattn import cli
from refattn.testing import report as reports
from refattn.testing.vectors_cases import recipes
from refattn.testing.vectors_files import tensors
from refattn.testing.vectors_manifest import export

pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")

Array = Any
Run = Callable[..., tuple[int, str, str]]
GROUP = "causal-bottom-right"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of the vectors."""
    made = tmp_path_factory.mktemp("vectors")
    export(made, [r for r in recipes() if r.group in (GROUP, "empty")])
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Status, output and errors of one command line."""

    def go(*words: object) -> tuple[int, str, str]:
        status = cli.main(["vectors", *map(str, words)])
        return status, *capsys.readouterr()

    return go


def dump(path: Path, found: dict[str, Array], codes: dict[str, str] | None = None) -> Path:
    """Arrays as a safetensors file, by hand; codes that are given stand in place of the dtypes' own."""
    body, header = b"", {}
    for name, x in found.items():
        data = np.ascontiguousarray(x).tobytes()
        code = (codes or {}).get(name, {"float64": "F64", "float32": "F32", "int32": "I32"}[x.dtype.name])
        header[name] = {"dtype": code, "shape": list(x.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.fixture
def right(folder: Path, tmp_path: Path) -> Path:
    """o and lse of two cases: the expected values themselves."""
    held = tensors(folder / f"dense-{GROUP}.safetensors")
    return dump(tmp_path / "right.safetensors", {name: held[name] for name in ("30.o", "30.lse", "31.o", "31.lse")})


@pytest.fixture
def wrong(folder: Path, tmp_path: Path) -> Path:
    held = tensors(folder / f"dense-{GROUP}.safetensors")
    return dump(tmp_path / "wrong.safetensors", {"30.o": held["30.o"] * 1.5, "31.o": held["31.o"]})


def test_a_right_dump_has_status_0_and_says_what_was_not_judged(run: Run, folder: Path, right: Path) -> None:
    status, out, _ = run("check", folder, right)
    assert status == 0
    said = " ".join(out.split())
    what = "against golden vectors files, float64, judged under fp64;"
    assert said.startswith(f"OK conforms in all 2 judged cases {right} {what}")
    assert "UNSUPPORTED, not in the dump: causal-bottom-right/29-more-keys" in out
    assert "the gradients, since none are in the dump" in out


def test_a_wrong_dump_has_status_1_and_the_command_again(run: Run, folder: Path, wrong: Path) -> None:
    status, out, _ = run("check", folder, wrong, "--contract", "fp64")
    assert status == 1
    assert out.startswith("FAIL  1 of 2 judged cases is wrong")
    assert "FAIL  causal-bottom-right/30-unequal-sizes   b=2 h=3 g=3 n=9 m=21 d=5 e=7" in out
    assert out.endswith(f"Again\n  refattn vectors check {folder} {wrong} --contract fp64\n")


def test_nothing_judged_is_status_3(run: Run, folder: Path, tmp_path: Path) -> None:
    status, out, _ = run("check", folder, dump(tmp_path / "x.safetensors", {"1.o": np.zeros(3)}))
    assert status == 3
    assert out.startswith("NOT JUDGED  none of 9 cases could be judged")
    assert "in the dump, but no result of these vectors: 1.o" in out


def test_the_report_is_written_as_json_and_junit(run: Run, folder: Path, wrong: Path, tmp_path: Path) -> None:
    status, out, _ = run("check", folder, wrong, "--json", tmp_path / "r.json", "--junit", tmp_path / "r.xml")
    data = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (status, data["status"], data["library"], data["contract"]) == (1, 1, "files", "fp64")
    assert invalid(data, reports.schema(), reports.schema()) == []
    assert '<testsuite name="' in (tmp_path / "r.xml").read_text(encoding="utf-8")
    assert out.startswith("FAIL")
    status, out, _ = run("check", folder, wrong, "--json", "-")
    assert json.loads(out) == data


def test_export_says_what_it_wrote(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refattn.testing import vectors_manifest

    few = [r for r in recipes() if r.group == "empty"]
    monkeypatch.setattr(vectors_manifest, "recipes", lambda: few)
    status, out, _ = run("export", tmp_path / "new" / "folder")
    assert status == 0
    assert out.splitlines()[0] == f"{tmp_path / 'new' / 'folder'}: 2 cases in 1 files, 0.1 MB in all"
    made = {file.name for file in (tmp_path / "new" / "folder").iterdir()}
    assert made == {"manifest.json", "vectors.schema.json", "dense-empty.safetensors", "dense.digests.json"}


def refused(run: Run, *words: object) -> str:
    """The one message of a command that can't be carried out."""
    status, out, errors = run(*words)
    assert (status, out) == (2, "")
    assert errors.startswith("refattn: ")
    return errors


def test_vectors_that_are_not_there_or_were_changed_are_refused(run: Run, folder: Path, right: Path, tmp_path: Path) -> None:
    assert "has no manifest.json: write the vectors there with refattn vectors" in refused(run, "check", tmp_path, right)
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / "dense-empty.safetensors"
    held = bytearray(file.read_bytes())
    held[-1] ^= 1
    file.write_bytes(held)
    assert f"{file} is not the file that the manifest describes" in refused(run, "check", copy, right)
    file.unlink()
    assert f"{file} is missing" in refused(run, "check", copy, right)


@pytest.mark.parametrize(("text", "message"), [
    ('{"format": "refattn-vectors-9"}', "has format 'refattn-vectors-9'; this version reads refattn-vectors-1"),
    ("{}", "is not as refattn vectors export writes it (KeyError: 'format')"),
    ("[1]", "is not as refattn vectors export writes it"),
    ("no json", "is not as refattn vectors export writes it (JSONDecodeError"),
])  # fmt: skip
def test_a_manifest_of_another_kind_is_refused(text: str, message: str, run: Run, right: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    assert message in refused(run, "check", tmp_path, right)


def test_dumps_that_are_none_are_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"{empty} has no tensors: write the results into .safetensors files" in refused(run, "check", folder, empty)
    assert "there is no file or folder" in refused(run, "check", folder, tmp_path / "nowhere.safetensors")
    (tmp_path / "text.safetensors").write_text("o = 1, 2, 3", encoding="utf-8")
    assert "text.safetensors is no safetensors file:" in refused(run, "check", folder, tmp_path / "text.safetensors")
    assert "holds golden vectors, not the results of a kernel" in refused(run, "check", folder, folder)


def test_a_dump_that_ends_early_is_refused(run: Run, folder: Path, right: Path) -> None:
    right.write_bytes(right.read_bytes()[:-4])
    assert "right.safetensors is no safetensors file:" in refused(run, "check", folder, right)


def test_results_that_can_mean_two_things_are_refused(run: Run, folder: Path, right: Path, tmp_path: Path) -> None:
    held = tensors(right)
    dump(tmp_path / "again.safetensors", {"30.o": held["30.o"]})
    both = f"30.o is in {tmp_path / 'again.safetensors'} and in {right}: which one is meant?"
    assert both in refused(run, "check", folder, tmp_path)
    two = dump(tmp_path / "again.safetensors", {"30.o": held["30.o"], "31.o": held["31.o"].astype(np.float32)})
    assert "has outputs in float32 and float64: say with --contract what is judged" in refused(run, "check", folder, two)


def test_results_that_are_no_floats_are_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    whole = dump(tmp_path / "x.safetensors", {"30.o": np.zeros((2, 3, 9, 7), np.int32)})
    assert "30.o is int32; results are F64, F32, F16 or BF16" in refused(run, "check", folder, whole)
    strange = dump(tmp_path / "y.safetensors", {"30.o": np.zeros((2, 3, 9, 7), np.int32)}, {"30.o": "U32"})
    assert "30.o is U32; F64, F32, F16, BF16, I32, I64, U8, BOOL are read" in refused(run, "check", folder, strange)


def test_a_contract_that_does_not_exist_is_refused(run: Run, folder: Path, right: Path) -> None:
    assert "no precision is called 'fp8'" in refused(run, "check", folder, right, "--contract", "fp8")
    assert "there is no folder" in refused(run, "check", folder, right, "--json", "nowhere/r.json")
