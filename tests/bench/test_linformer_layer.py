"""The layer of Linformer's table 3: what its contenders compute, what their memory is, and how the table is made of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from refattn import tree
from refattn.bench import bench, room, run
from refattn.bench.memory import Extra, extra
from refattn.bench.process import peak
from refattn.bench.room import rooms, rows_of
from refattn.bench.subject import FORWARD
from refattn.bench.subjects import HELD, SUBJECTS
from refattn.bench.subjects.linformer_layer import DENSE, LAYER, WRITTEN, all_at_once
from refattn.bench.table import table
from refattn.cli import main
from refattn.kernels import text
from refattn.ops.attend import attend
from refattn.verify.linformer_paper import HEADS, SLOTS, counted

RESULTS, DOCS = ROOT / "benchmarks" / "results" / "linformer.json", ROOT / "docs" / "schemes" / "linformer.md"
MACHINE = {"processor": "P", "cores": 1, "python": "3", "blas": ["B"], "versions": {"numpy": "2", "torch": "2"}}


def made(name: str, who: str, n: int) -> Any:
    subject = SUBJECTS[name]
    pair = subject.contenders[who].make(subject.problem(n, "float64"))
    return None if pair is None else pair[0]()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("linformer_table", ROOT / "benchmarks" / "linformer_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("who", [DENSE, "k=128"])
def test_both_ways_to_compute_the_layer_agree(who: str) -> None:
    (y, saved), (again, _) = (made(name, who, 256) for name in (LAYER, WRITTEN))
    np.testing.assert_allclose(y, again, rtol=1e-12, atol=1e-12)
    assert saved.attention.scheme.inputs.q.shape == (1, HEADS, 256, 64)
    E = getattr(saved.attention.scheme.inputs, "E", None)
    assert (None if E is None else E.shape) == (None if who == DENSE else (128, 256))
    if E is not None:  # keeps lengths: a column of k numbers of variance 1/k
        assert 0.9 < float((E**2).sum(axis=0).mean()) < 1.1


def test_contenders_are_the_slots_of_table_3_and_no_more_than_half_of_the_tokens() -> None:
    assert list(SUBJECTS[LAYER].contenders) == list(SUBJECTS[WRITTEN].contenders) == [DENSE, *(f"k={k}" for k in SLOTS)]
    assert made(LAYER, "k=128", 255) is None
    assert {LAYER, WRITTEN}.isdisjoint(HELD), "neither has bounds: they are timed if they are named"


def test_all_scores_are_written_there_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    generic = text("attend")
    def watched(q: Any, k: Any, *others: Any, **options: Any) -> Any:
        seen.append((*q.shape[:-1], k.shape[-2], options["block"]))
        return generic(q, k, *others, **options)
    monkeypatch.setattr(attend, "__wrapped__", watched)
    made(LAYER, DENSE, 256)
    assert seen == []
    made(WRITTEN, DENSE, 256)
    assert seen == [(1, HEADS, 1, 256, 256, None)]
    with pytest.raises(ZeroDivisionError), all_at_once():
        raise ZeroDivisionError
    made(LAYER, DENSE, 256)
    assert len(seen) == 1


def test_long_problems_are_warmed_up_on_shorter_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, lengths = SUBJECTS[LAYER], []
    def problem(n: int, dtype: str) -> Any:
        lengths.append(n)
        return subject.problem(n, dtype)
    held = {"warm": 96, "problem": problem}
    monkeypatch.setitem(SUBJECTS, LAYER, type(subject)(**{**vars(subject), **held}))
    for n, wanted in ((96, [96]), (128, [96, 128])):
        lengths.clear()
        assert [row["calls"] for row in rows_of(rooms(LAYER, "float32", n, [DENSE], 9, 1e-6)[0])] == [1]
        assert lengths == wanted


LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak of a process")


@LINUX
@pytest.mark.parametrize(("name", "who"), [
    (WRITTEN, DENSE),
    pytest.param(WRITTEN, "k=512", marks=pytest.mark.sweep),
    pytest.param(LAYER, DENSE, marks=pytest.mark.sweep),
])  # fmt: skip
def test_the_memory_of_a_layer_is_what_is_counted(name: str, who: str) -> None:
    """Elements of four bytes, to 3 %. With refattn's kernels no scores are alive: dense holds what 128 slots do."""
    found = extra(rooms(name, "float32", 1024, [who], 1)[0], FORWARD)
    assert found is not None
    k = 128 if name == LAYER else None if who == DENSE else int(who[2:])
    assert found.bytes == pytest.approx(4 * counted(1024, k).layer_peak, rel=0.03)
    assert found.unit == 4 * 1024 * 768


@LINUX
@pytest.mark.sweep
def test_the_memory_of_a_backward_is_at_least_that_of_its_results() -> None:
    """o and three gradients, each as large as the first input; what was freed before the call is not held before it."""
    found = peak("dense", 4096)
    assert found is not None
    assert 4.0 <= found < 4.4


def test_a_machine_that_can_not_tell_the_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refattn.bench.memory.os.path.exists", lambda _: False)
    assert extra(rooms(LAYER, "float32", 64, [DENSE], 1)[0], FORWARD) is None


def test_memory_stands_beside_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str], str]] = []
    taken = {DENSE: Extra(9_000_000, 1), "k=128": Extra(3_000_000, 1)}
    def weigh(given: room.Room, work: str) -> Extra | None:
        asked.append((given.subject, list(given.who), work))
        return taken[given.who[0]]
    monkeypatch.setattr(run, "extra", weigh)
    monkeypatch.setattr(run, "measured", rows_of)
    monkeypatch.setattr(run, "machine", lambda: MACHINE)
    options: dict[str, Any] = {"dtypes": ["float32"], "lengths": [256], "who": [DENSE, "k=128"], "repeats": 1}
    found = bench([LAYER], **options, processes=False, memory=True)
    assert asked == [(LAYER, [DENSE], FORWARD), (LAYER, ["k=128"], FORWARD)]
    assert [(row["extra"], row["extra ratios"]) for row in found["rows"]] == [
        (9_000_000, {DENSE: 1.0}), (3_000_000, {DENSE: 1 / 3})]
    lines = table(found).splitlines()
    assert next(line for line in lines if "GFLOP/s |" in line).split(" | ")[-2:] == ["extra MB", "/ dense |"]
    assert next(line for line in lines if "k=128" in line).split("|")[-3:-1] == [" 3.0      ", " 0.33    "]
    monkeypatch.setattr(run, "extra", lambda *_: None)
    untold = bench([LAYER], **options, processes=False, memory=True)
    assert [(row["extra"], row["extra ratios"]) for row in untold["rows"]] == [(None, {})] * 2
    assert table(untold).count("|          |         |") == 2
    left_out = bench([LAYER], **options, processes=False)
    assert "extra" not in left_out["rows"][0]
    assert "extra" not in table(left_out)


def row(scheme: str, n: int, who: str, ms: float, extra: int) -> dict[str, Any]:
    return {"scheme": scheme, "n": n, "who": who, "ms": ms, "extra": extra, "calls": 3, "gflops": 100.0}


def test_a_cell_is_dense_attention_over_slots_and_what_is_missing_is_told(script: ModuleType) -> None:
    rows = [row(LAYER, 512, DENSE, 6.4, 50), row(LAYER, 512, "k=128", 4.0, 40), row(WRITTEN, 512, DENSE, 8.0, 90),
            row(WRITTEN, 512, "k=128", 2.0, 30)]
    lines = script.text({"machine": MACHINE, "rows": rows, "busy": None}).splitlines()
    cells = {tuple(line.strip("| ").split(" | ")[:2]): [x.strip() for x in line.split("|")[1:-1]] for line in lines[2:36]}
    assert len(cells) == 34
    head = [x.strip() for x in lines[0].split("|")[1:-1]]
    first, blank = (dict(zip(head, cells[at], strict=True)) for at in (("512", "128"), ("512", "256")))
    assert (first["time, here"], first["time, scores written"], first["time, paper"]) == ("1.60", "4.00", "1.5")
    assert (first["memory, here"], first["memory, scores written"], first["memory, paper"]) == ("1.25", "3.00", "1.7")
    assert [first[x] for x in ("MACs, attention", "MACs, layer", "peak, layer")] == ["2.0", "1.05", "1.17"]
    assert [blank[x] for x in head if "here" in x or "written" in x] == [""] * 4
    rest = "\n".join(lines[36:])
    assert "P, 1 cores; Python 3, numpy 2; B. Calls of each layer: 3 at 512; with scores written 3 at 512." in rest
    seconds = 2 * counted(65536, None).layer / 100.0e9
    assert f"{seconds:.0f} s at 65536." in rest
    assert "39 GB at 16384, 155 GB at 32768, 619 GB at 65536." in rest
    assert "Time over the layer's multiply-adds: 1.52 to 1.52 with refattn's kernels, 3.80 to 3.80 with scores" in rest
    assert "Nothing can be concluded" not in rest
    assert "Nothing can be concluded" in script.text({"machine": MACHINE, "rows": rows, "busy": "load 9"})


def test_the_table_of_the_docs_is_that_of_the_results(script: ModuleType) -> None:
    kept, page = json.loads(RESULTS.read_text(encoding="utf-8")), DOCS.read_text(encoding="utf-8")
    assert page.partition(script.BEGIN)[2].partition(script.END)[0] == f"\n{script.text(kept)}\n"
    rows = {(r["scheme"], r["n"], r["who"]): r for r in kept["rows"]}
    dense, few = rows[LAYER, 512, DENSE], rows[LAYER, 512, "k=128"]
    assert f"| 512 | 128 | 2.0 | 1.05 | {dense['ms'] / few['ms']:.2f} | " in page
    assert kept["machine"]["processor"] in page


def test_the_script_shows_what_is_kept_and_refuses_other_lengths() -> None:
    command = [sys.executable, "benchmarks/linformer_table.py", "--kept"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| ") == 34
    done = subprocess.run([*command, "--lengths", "512,500"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--lengths: table 3 has no n = 500, but 512, 1024, 2048" in done.stderr


def test_a_busy_machine_measures_and_writes_nothing(script: ModuleType, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(script, "busy", lambda: "load 9.0 on 2 cores")
    monkeypatch.setattr(script, "measured", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(sys, "argv", ["linformer_table.py", "--write"])
    assert script.main() == 3
    assert "the machine is busy: load 9.0 on 2 cores" in capsys.readouterr().err


def test_results_of_a_busy_machine_are_shown_and_not_written(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """And those of a quiet one are written: both files, so that they agree."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n", encoding="utf-8")
    for name, value in (("DOCS", page), ("RESULTS", results), ("busy", lambda: None)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(sys, "argv", ["linformer_table.py", "--write"])
    for busy, status in (("load 9.0", 3), (None, 0)):
        found = kept | {"busy": busy}
        monkeypatch.setattr(script, "measured", lambda *_, found=found: found)
        assert script.main() == status
        assert results.exists() is (status == 0)
    assert json.loads(results.read_text(encoding="utf-8")) == found
    assert page.read_text(encoding="utf-8") == f"before\n{script.BEGIN}\n{script.text(found)}\n{script.END}\nafter\n"


def test_a_length_that_fails_is_left_out(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(subjects: Any, dtypes: Any, lengths: Any, *_: Any, **__: Any) -> dict[str, Any]:
        if lengths == (1024,):
            raise RuntimeError("ended with -9")
        return {"machine": {}, "rows": [(subjects[0], lengths[0])], "busy": "load" if lengths == (512,) else None}
    monkeypatch.setattr(script, "bench", one)
    found = script.measured((512, 1024, 2048), (512,), 1, 1.0)
    assert found == {"machine": {}, "rows": [(LAYER, 512), (LAYER, 2048), (WRITTEN, 512)], "busy": "load"}


def test_the_command_hands_the_limit_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    def pretend(subjects: Any, dtypes: Any, lengths: Any, *_: Any, limit: float | None) -> dict[str, Any]:
        asked.append((subjects, lengths, limit))
        return {"machine": MACHINE, "rows": [], "processes": [], "absent": [], "busy": None}
    monkeypatch.setattr("refattn.bench.bench", pretend)
    assert main(["bench", "--scheme", LAYER, "--n", "512", "--limit", "2.5"]) == 0
    assert main(["bench"]) == 0
    assert asked == [([LAYER], [512], 2.5), (list(HELD), None, None)]


def test_the_first_input_is_what_memory_is_a_multiple_of() -> None:
    p = SUBJECTS[LAYER].problem(96, "float32")
    assert tree.leaves(p.inputs)[0] is p.inputs.x
