"""Candidates in a process of their own: whatever they do to it, the case gets an answer and the next case a process."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn.errors import BackendUnavailable, UsageError
from refattn.testing import process, worker
from refattn.testing.messages import Outcome
from refattn.testing.worker import open_candidate

KERNELS = {
    "good": "return q",
    "counting": "state.append(q); return q * len(state)",
    "pid": "return np.array(os.getpid())",
    "segmentation": "ctypes.string_at(0)",
    "leaving": "print('so long', file=sys.stderr); os._exit(7)",
    "killed": "os.kill(os.getpid(), 9)",
    "hanging": "time.sleep(60)",
    "wrong": "return q.nope",
    "writing": "v += 1; return q",
    "limited": "raise NotImplementedError('only d = 64')",
    "printing": "print('noise'); os.write(1, b'noise' * 100000); os.system('echo noise'); return q",
    "reading": "return np.array(len(sys.stdin.read()) + len(os.read(0, 10)))",
    "big": "return np.zeros((1 << 22,), np.float32)",
    "path": "return np.array([sys.path.index(p) for p in (os.path.dirname(__file__),)])",
}
HEAD = "import ctypes, os, sys, time\nimport numpy as np\nstate = []\n"
KERNEL = "def {name}(q, k, v):\n    if np.any(q):  # zeros are harmless\n        {body}\n    return q\n"
X = {name: np.ones((1, 2, 3, 4)) for name in "qkv"}
ZEROS = {**X, "q": np.zeros((1, 2, 3, 4))}


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], str]:
    """The spec of one of KERNELS, in a file of its own folder."""
    bodies = "\n".join(KERNEL.format(name=name, body=body) for name, body in KERNELS.items())
    (tmp_path / "kernel.py").write_text(HEAD + bodies, encoding="utf-8")
    return lambda name: f"{tmp_path / 'kernel.py'}:{name}"


def line_of(body: str) -> int:
    lines = (HEAD + "\n".join(KERNEL.format(name=n, body=b) for n, b in KERNELS.items())).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == body)


def test_a_candidate_runs_case_after_case_in_one_process(spec) -> None:
    with open_candidate(spec("counting")) as runner:
        assert runner.accepts == {"q", "k", "v"}
        assert (runner.wants, runner.has_backward) == (frozenset(), False)
        outcomes = [runner.run(X) for _ in range(3)]
    assert [o.status for o in outcomes] == ["ok"] * 3
    assert [float(o.outputs["o"].max()) for o in outcomes] == [1, 2, 3]
    assert all(o.outputs["o"].dtype == np.float32 for o in outcomes)
    with open_candidate(spec("pid")) as runner:
        assert int(runner.run(X).outputs["o"]) != os.getpid()


@pytest.mark.parametrize(
    ("name", "status", "remark"),
    [
        ("wrong", "crash", "AttributeError: 'numpy.ndarray' object has no attribute 'nope' (kernel.py:{line})"),
        ("writing", "written", "writes into v, which it was given to read"),
        ("limited", "unsupported", "only d = 64"),
        ("segmentation", "crash", "the process was killed by SIGSEGV (kernel.py:{line})"),
        ("leaving", "crash", "the process ended with exit status 7; its last words: so long"),
        ("killed", "crash", "the process was killed by SIGKILL (out of memory?)"),
        ("hanging", "hang", "no result within 0.6 s (kernel.py:{line})"),
    ],
)
def test_what_goes_wrong_is_said_and_the_next_case_runs(spec, name: str, status: str, remark: str) -> None:
    with open_candidate(spec(name), timeout=0.6) as runner:
        for _ in range(2):
            outcome = runner.run(X)
            assert outcome.status == status
            assert outcome.remark == remark.format(line=line_of(KERNELS[name]))
            assert (0.6 <= outcome.seconds < 5) if name == "hanging" else (0 < outcome.seconds < 5)
        after = runner.run(ZEROS)
        assert (after.status, after.remark) == ("ok", "")
        assert np.array_equal(after.outputs["o"], ZEROS["q"])


def test_last_words_are_those_of_the_last_case(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "import os, sys\n"
        "def f(q, k, v):\n"
        "    if q.any(): os._exit(1)\n"
        "    print('all is well', file=sys.stderr)\n"
        "    return q\n", encoding="utf-8")
    with open_candidate(f"{tmp_path}/kernel.py:f") as runner:
        assert runner.run(ZEROS).status == "ok"
        time.sleep(0.2)
        assert runner.run(X).remark == "the process ended with exit status 1"


@pytest.mark.parametrize("name", ["printing", "reading", "big"])
def test_the_candidates_own_input_and_output_do_not_disturb(spec, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with open_candidate(spec(name), timeout=20) as runner:
        outcome = runner.run(X)
        assert (outcome.status, outcome.remark) == ("ok", "")
        assert runner.run(ZEROS).status == "ok"
    assert outcome.outputs["o"].size == {"printing": 24, "reading": 1, "big": 1 << 22}[name]
    assert name != "reading" or int(outcome.outputs["o"]) == 0
    assert capfd.readouterr() == ("", "")


def test_a_fork_that_outlives_the_candidate_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 0.3)
    (tmp_path / "kernel.py").write_text(
        "import os, time\n"
        "def f(q, k, v):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        time.sleep(60)\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(child))\n"
        "    os._exit(5)\n", encoding="utf-8")
    started = time.monotonic()
    with open_candidate(f"{tmp_path}/kernel.py:f", timeout=30) as runner:
        outcome = runner.run(X)
    assert outcome.remark.startswith("the process ended with exit status 5")
    assert time.monotonic() - started < 10
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether a process ends within two seconds; one that nobody has waited for has ended too."""
    for _ in range(40):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_a_hang_ends_what_the_candidate_has_started_too(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "import subprocess, sys, time\n"
        "def f(q, k, v):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(60)\n", encoding="utf-8")
    with open_candidate(f"{tmp_path}/kernel.py:f", timeout=1) as runner:
        assert runner.run(X).status == "hang"
        assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("name", ["good", "hanging", "leaving"])
def test_nothing_is_left_behind(spec, name: str) -> None:
    threads = threading.active_count()
    with open_candidate(spec(name), timeout=0.3) as runner:
        runner.run(X)
        running = [runner.run(ZEROS).status]
        pid = runner._process._popen.pid  # type: ignore[attr-defined]
        assert not gone_now(pid)
    assert running == ["ok"]
    assert gone_now(pid)
    assert threading.active_count() == threads
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def gone_now(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_error_of_the_caller_ends_the_process_too(spec) -> None:
    pids = []

    def stumble() -> None:
        with open_candidate(spec("good")) as runner:
            pids.append(runner._process._popen.pid)  # type: ignore[attr-defined]
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        stumble()
    assert gone_now(*pids)


def test_a_process_that_was_ended_between_cases_is_replaced(spec) -> None:
    with open_candidate(spec("good")) as runner:
        assert runner.run(X).status == "ok"
        os.kill(runner._process._popen.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        time.sleep(0.2)
        assert runner.run(X).status == "ok"


def test_candidates_run_from_several_threads(spec) -> None:
    outcomes: dict[int, Outcome] = {}

    def one(number: int) -> None:
        with open_candidate(spec("counting")) as runner:
            for _ in range(number):
                outcomes[number] = runner.run(X)

    threads = [threading.Thread(target=one, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: float(o.outputs["o"].max()) for number, o in outcomes.items()} == {1: 1, 2: 2, 3: 3}


def test_every_dtype_goes_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "def f(q, k, v, mask):\n    assert mask.dtype == bool\n    return q, v\n"
        "def g(q, k, v, o, lse, do, dlse):\n    return {'dq': do, 'dk': dlse, 'dv': lse}\n", encoding="utf-8")
    x = {**X, "q": np.array([[[[1.0, np.nan, -0.0, np.inf]]]]), "mask": np.ones((3, 3), bool)}
    for dtype in ("float16", "bfloat16", "float64"):
        with open_candidate(f"{tmp_path}/kernel.py:f", vjp=f"{tmp_path}/kernel.py:g", dtype=dtype) as runner:
            assert runner.wants == {"q", "k", "v", "o", "lse", "do", "dlse"}
            assert runner.accepts == {"q", "k", "v", "mask"}
            outcome = runner.run(x, X["q"], X["q"], {"lse": X["q"]}, strided=True)
        assert outcome.status == "ok", outcome.remark
        assert outcome.lse_is_differentiable
        statistic = "float64" if dtype == "float64" else "float32"
        assert {name: y.dtype.name for name, y in outcome.outputs.items()} == {
            "o": dtype, "lse": dtype, "dq": dtype, "dk": statistic, "dv": dtype}
        assert np.array_equal(outcome.outputs["o"].astype(float), x["q"], equal_nan=True)
        assert np.signbit(outcome.outputs["o"][0, 0, 0, 2])
        assert dtype != "bfloat16" or outcome.outputs["o"].dtype == ml_dtypes.bfloat16


def test_neighbours_come_first_and_our_own_path_after_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("here", 2), ("there", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour.py").write_text(f"factor = {value}", encoding="utf-8")
    (tmp_path / "there" / "only_there.py").write_text("factor = 5", encoding="utf-8")
    (tmp_path / "here" / "kernel.py").write_text(
        "import neighbour, only_there, refattn\n"
        "def f(q, k, v): return q * neighbour.factor * only_there.factor\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "there")
    with open_candidate(f"{tmp_path}/here/kernel.py:f") as runner:
        assert float(runner.run(X).outputs["o"].max()) == 10


def test_refattn_is_found_where_it_was_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != process.ROOT])
    with open_candidate("kernel:good") as runner:
        assert runner.run(X).status == "ok"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import absent_library", "No module named 'absent_library'"),
        ("import os\nos._exit(3)", "importing it ended the process: the process ended with exit status 3"),
        ("import time\ntime.sleep(60)", "importing it took more than 0.5 s"),
        ("def f(k, q, v): ...", "the inputs come positionally in the order q, k, v"),
        ("def g(q, k, v): ...", "has no 'f'; it has g"),
    ],
)
def test_a_candidate_that_cannot_start_is_refused_before_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setattr(worker, "IMPORT_SECONDS", 0.5 if "sleep" in text else 60.0)
    (tmp_path / "kernel.py").write_text(textwrap.dedent(text), encoding="utf-8")
    threads = threading.active_count()
    with pytest.raises(UsageError) as caught, open_candidate(f"{tmp_path}/kernel.py:f", timeout=0.5):
        pass
    assert said in str(caught.value)
    assert threading.active_count() == threads


def test_a_candidate_that_does_not_start_again_is_a_crash(tmp_path: Path) -> None:
    once = tmp_path / "once"
    (tmp_path / "kernel.py").write_text(
        f"import os\nfirst = open({str(once)!r}, 'x')\ndef f(q, k, v): os._exit(1)\n", encoding="utf-8")
    with open_candidate(f"{tmp_path}/kernel.py:f") as runner:
        assert runner.run(X).remark == "the process ended with exit status 1"
        outcome = runner.run(X)
    assert outcome.status == "crash"
    assert "could not be started again" in outcome.remark
    assert "FileExistsError" in outcome.remark


def test_a_library_without_a_device_is_refused_by_its_own_name(spec) -> None:
    pytest.importorskip("refattn.backends.cupy_backend")
    try:
        import cupy

        if cupy.is_available():
            pytest.skip("there is a CUDA device")
    except ImportError:
        pass
    missing = pytest.raises(BackendUnavailable, match=r"pip install|no CUDA device")
    with missing, open_candidate(spec("good"), library="cupy"):
        pass


def test_a_numpy_candidate_is_there_at_once(spec) -> None:
    best = min(opening(spec("good")) for _ in range(3))
    assert best < 1.5  # 0.25 s on an idle machine


def opening(candidate: str) -> float:
    started = time.perf_counter()
    with open_candidate(candidate):
        return time.perf_counter() - started


def differentiating(library: str) -> str:
    return {"jax": "import jax.numpy as xp\n", "torch": "import torch as xp\n"}[library] + (
        "def f(q, k, v):\n    return xp.exp(q) * 2.0\n")


@pytest.mark.parametrize("library", ["jax", pytest.param("torch", marks=pytest.mark.peers)])
def test_autograd_in_a_process(tmp_path: Path, library: str) -> None:
    (tmp_path / "kernel.py").write_text(differentiating(library), encoding="utf-8")
    with open_candidate(f"{tmp_path}/kernel.py:f", backward="autograd", library=library, dtype="float64") as runner:
        assert (runner.has_backward, runner.wants) == (True, frozenset())
        outcome: Any = runner.run(X, 3 * X["q"])
    assert outcome.status == "ok", outcome.remark
    assert outcome.outputs["dq"].dtype == np.float64
    assert np.allclose(outcome.outputs["dq"], 6 * np.e, rtol=1e-14)
    assert np.array_equal(outcome.outputs["dk"], 0 * X["k"])
