"""``refattn bench``: who takes part, what is reported and concluded, and what is refused. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from refattn.bench import bench, measure, process, run
from refattn.bench.measure import interleaved
from refattn.bench.room import measured, rooms, rows_of
from refattn.bench.subject import BOTH, FORWARD, Subject, Target, installed
from refattn.bench.subjects import HELD, SUBJECTS
from refattn.bench.table import missed, table
from refattn.cli import main

OURS = ("numba", "generic", "GEMM rate")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too busy, and rooms in this process: one test looks at a process of its own."""
    monkeypatch.setattr(run, "busy", lambda: None)
    monkeypatch.setattr(run, "measured", rows_of)


def test_the_report_has_every_subject_dtype_length_work_and_contender(quiet: None) -> None:
    found = bench(("dense", "causal"), lengths=(64, 130, 512), who=OURS, repeats=2, processes=False)
    rows = {(r["scheme"], r["dtype"], r["n"], r["work"], r["who"]) for r in found["rows"]}
    assert len(rows) == len(found["rows"]) == 2 * 2 * 3 * 2 * 3
    assert all(r["calls"] == 2 and r["low"] <= r["ms"] <= r["high"] and r["gflops"] > 0 for r in found["rows"])
    held = {(r["scheme"], r["dtype"], r["n"]) for r in found["rows"] if r["targets"]}
    assert held == {("dense", "float32", 512)}, "without torch only the share of the GEMM rate is known; bounds begin at 512"
    assert json.loads(json.dumps(found)) == found
    text = table(found)
    assert text.count("GEMM rate") >= 24
    assert found["machine"]["processor"] in text


@pytest.mark.parametrize("name", HELD)
def test_ours_compute_the_same(name: str) -> None:
    subject = SUBJECTS[name]
    p = subject.problem(192, subject.dtypes[-1])
    (_, one), (_, other) = (subject.contenders[who].make(p) for who in ("numba", "generic"))  # type: ignore[misc]
    (o, grads), (again, gradients) = one(), other()
    rough = 1e-4 if p.dtype == "float32" else 1e-12
    for a, b in zip((o, *grads), (again, *gradients), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=rough, atol=rough)


def test_who_wants_to_be_alone_stands_beside_the_yardsticks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(SUBJECTS["dense"].contenders)
    assert [room.who for room in rooms("dense", "float32", 64, names, 1)] == [
        ["numba", "generic", "torch SDPA", "FlexAttention", "GEMM rate"], ["jax", "torch SDPA", "GEMM rate"]]
    assert [room.who for room in rooms("dense", "float32", 64, ["jax"], 1)] == [["jax"]]
    times = {"numba": 6.0, "torch SDPA": 4.0, "jax": 10.0, "GEMM rate": 1.0}
    def pretend(room: Any) -> list[dict[str, Any]]:
        slow = 2.0 if "jax" in room.who else 1.0
        return [{"scheme": "dense", "dtype": "float32", "n": 64, "work": "forward", "who": who, "ms": slow * times[who],
                 "gflops": 1.0 / (slow * times[who])} for who in room.who]
    monkeypatch.setattr(run, "measured", pretend)
    monkeypatch.setattr(run, "installed", lambda name: True)
    found = bench(["dense"], ["float32"], [64], list(times), processes=False)
    ratios = {row["who"]: row["ratios"]["torch SDPA"] for row in found["rows"]}
    assert ratios == {"numba": 1.5, "torch SDPA": 1.0, "GEMM rate": 0.25, "jax": 2.5}, "each in its own room"
    assert len(found["rows"]) == 4


def test_a_target_holds_from_its_length_on() -> None:
    subject = SUBJECTS["dense"]
    key = next(iter(subject.targets))
    long = Subject(**{**vars(subject), "targets": {key._replace(n=100): Target(1.0, 1.0)}})
    found = [long.target(key.ours, key.theirs, key.dtype, key.work, n) for n in (99, 100)]
    assert found == [None, Target(1.0, 1.0)]


def test_a_room_is_a_process_of_its_own() -> None:
    rows = measured(rooms("dense", "float32", 64, OURS, 1)[0])
    assert [(row["who"], row["work"]) for row in rows] == [(who, work) for work in (FORWARD, BOTH) for who in OURS]
    assert all(row["ms"] > 0 for row in rows)


def test_what_went_wrong_in_a_room_is_told() -> None:
    room = rooms("dense", "float32", 64, ["numba"], 1)[0]
    with pytest.raises(RuntimeError, match=r"nobody on dense float32 n=64 ended with 1:\n(.*\n)*KeyError: 'nobody'"):
        measured(room._replace(who=["nobody"]))


def test_whole_processes_are_those_of_the_subjects(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "process", lambda: {"import refattn, s": 0.4, "two threads, n = 2048, times one": None})
    monkeypatch.setattr(run, "first", lambda name: (5.0, 0.2))
    monkeypatch.setattr(run, "peak", lambda name, n: {"lsh": 7.0}[name])
    found = bench(("lsh", "causal"), lengths=(64,), who=("generic",), repeats=1)
    assert [(row["what"], row["ratio"], row.get("must met")) for row in found["processes"]] == [
        ("import refattn, s", 0.4, False), ("two threads, n = 2048, times one", None, None),
        ("first kernels of lsh, nothing cached, s", 5.0, True), ("first kernels of lsh, cached, s", 0.2, True),
        ("extra memory, lsh forward and backward, n = 8192, of one input", 7.0, False)]
    assert [line.split(":")[0] for line in missed(found)] == [
        "import refattn, s", "extra memory, lsh forward and backward, n = 8192, of one input"]
    assert "not measurable here" in table(found)


@pytest.mark.sweep
def test_the_first_call_of_a_family_is_timed_with_nothing_cached_and_from_the_cache() -> None:
    cold, cached = process.first("linear")
    assert 0 < cached < cold


def test_functions_are_called_in_turn_each_as_often() -> None:
    called: list[str] = []
    timings = interleaved({name: lambda name=name: called.append(name) for name in "abc"}, 4)  # type: ignore[misc]
    assert "".join(called) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert [t.calls for t in timings.values()] == [4, 4, 4]


@pytest.mark.parametrize(("limit", "warm", "called"), [
    (None, True, "ab" + "ab" "ba" "ab" "ba"), (None, False, "ab" "ba" "ab" "ba"),
    (6.0, False, "ab" "ba" "ab"), (5.9, False, "ab" "ba"), (0.1, True, "ab" + "ab"),
])  # fmt: skip
def test_rounds_end_when_no_more_fit_into_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, warm: bool, called: str
) -> None:
    """Every call takes one second of this clock."""
    calls: list[str] = []
    monkeypatch.setattr(measure, "settle", lambda: None)
    monkeypatch.setattr(measure.time, "process_time", lambda: float(len(calls)))
    timings = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, 4, limit, warm)  # type: ignore[misc]
    assert "".join(calls) == called
    assert {t.calls for t in timings.values()} == {len(called) // 2 - warm}
    assert {t.median for t in timings.values()} == {1.0}


def test_work_that_nobody_in_the_room_does_is_left_out() -> None:
    room = rooms("dense", "float32", 64, ["numba"], 1)[0]
    assert [row["work"] for row in rows_of(room)] == [FORWARD, BOTH]
    assert [row["work"] for row in rows_of(room._replace(subject="linformer-layer", who=["dense", "k=128"]))] == [FORWARD]


@pytest.mark.parametrize(("target", "ratio", "met"), [
    (Target(1.0, 0.8), 1.09, True), (Target(1.0, 0.8), 1.11, False),
    (Target(0.65, 0.8, upper=False), 0.60, True), (Target(0.65, 0.8, upper=False), 0.58, False),
])  # fmt: skip
def test_a_tenth_is_granted(target: Target, ratio: float, met: bool) -> None:
    assert target.met(ratio, target.must) is met


def test_what_is_missed_is_said_and_a_busy_machine_concludes_nothing(
    quiet: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", "--scheme", "dense", "--dtype", "float32", "--n", "64", "--with", "numba, GEMM rate", "--repeats", "1",
             "--no-processes", "--json", str(tmp_path / "found.json")]
    dense = SUBJECTS["dense"]
    for must, status in ((1e-9, 0), (1e9, 1)):
        held = {k._replace(n=0): Target(must, 1.0, upper=False) for k in dense.targets if k.dtype == "float32"}
        monkeypatch.setitem(SUBJECTS, "dense", Subject(**{**vars(dense), "targets": held}))
        assert main(words) == status
        assert capsys.readouterr().out.count("\nmissed: numba, dense float32 n=64, ") == 2 * status
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(missed(found)) == 2
    monkeypatch.setattr(run, "busy", lambda: "load 9.0 on 2 cores")
    assert main(words) == 3
    out = capsys.readouterr().out
    assert "Nothing can be concluded: the machine is busy (load 9.0 on 2 cores)." in out
    assert "missed" not in out


@pytest.mark.parametrize(("words", "said"), [
    (["--n", "63"], "lengths from 64 on"), (["--n", "many"], "'many' is no size"), (["--repeats", "0"], "one call"),
    (["--scheme", "nothing"], "'nothing' among dense"), (["--dtype", "float16"], "among float32, float64"),
    (["--with", "me"], "among numba, generic"), (["--limit", "0"], "'0' is no time"),
])  # fmt: skip
def test_what_can_not_be_done_is_one_message(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_other_peoples_code_is_only_loaded_to_take_part() -> None:
    code = "import sys, refattn.bench; print({'torch', 'jax', 'numba', 'scipy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["dense", "causal", "window", "bigbird", "strided", "linear", "linformer"])
def test_everyone_computes_the_same(name: str) -> None:
    subject = SUBJECTS[name]
    p = subject.problem(96, "float32")
    want = p.scheme.forward(*p.inputs)[0]
    there = {who: x for who, x in subject.contenders.items() if who != "GEMM rate" and installed(x.library)}
    assert {"numba", "generic"} < {*there}
    for contender in there.values():
        pair: Any = contender.make(p)
        if pair is None:
            continue
        o = pair[0]()
        o = np.asarray(o[0] if isinstance(o, tuple) else o)
        np.testing.assert_allclose(o if o.shape == want.shape else o.transpose(0, 2, 1, 3), want, rtol=1e-5, atol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize(("name", "who"), [("linformer", "lucidrains")])
def test_a_layer_of_others_has_the_same_gradients(name: str, who: str) -> None:
    p = SUBJECTS[name].problem(96, "float64")
    (_, mine), (_, theirs) = (SUBJECTS[name].contenders[w].make(p) for w in ("generic", who))  # type: ignore[misc]
    (_, ours), (_, other) = mine(), theirs()
    for a, b in zip(ours, other, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", [
    ["--dry-run"],
    pytest.param(["--backend", "torch", "--n", "64", "--repeats", "1"], marks=pytest.mark.peers),
])
def test_the_gpu_script_runs_dry(options: list[str]) -> None:
    done = subprocess.run([sys.executable, "benchmarks/gpu.py", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("outside of their bounds: none\n")
