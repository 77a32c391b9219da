"""The command line: what it prints, what it refuses and with which status."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from refattn import Dense, __version__, catalogue, cli
from refattn.errors import UsageError
from refattn.testing.verdicts import CaseVerdict, Level, Report, TensorVerdict

Run = Callable[..., tuple[int, str, str]]
BOTTOM = "Dense(causal=True, align='bottom_right')"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Status, output and errors of one command line."""

    def go(*words: str) -> tuple[int, str, str]:
        status = cli.main(words)
        return status, *capsys.readouterr()

    return go


def report(level: Level) -> Report:
    case = CaseVerdict("plain/odd", "", level, (TensorVerdict("o", level, "rms" if level > Level.OK else ""),))
    return Report("k.py:f", BOTTOM, "numpy", "float32", "fp32", "fp32", (case,))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A check that records what it is called with and returns or raises what the test puts into "result"."""
    seen: dict[str, Any] = {"result": report(Level.OK)}

    def fake(candidate: Any, scheme: Any, *, progress: cli.Progress, **options: Any) -> Report:
        seen.update(candidate=candidate, scheme=scheme, options=options)
        for done in range(9):
            progress(done, 8, f"case {done}", "OK")
        if isinstance(seen["result"], BaseException):
            raise seen["result"]
        result: Report = seen["result"]
        return result

    module = ModuleType("refattn.testing.check")
    module.check = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "refattn.testing.check", module)
    return seen


def test_alone_it_prints_help_with_examples(run: Run) -> None:
    status, out, err = run()
    assert (status, err) == (2, "")
    assert 'refattn show "Dense(causal=True' in out
    assert run("--help")[0] == 0
    assert run("--version") == (0, f"refattn {__version__}\n", "")


@pytest.mark.parametrize("command", ["list", "show", "cost", "check"])
def test_each_command_explains_itself(run: Run, command: str) -> None:
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: refattn {command}")


def test_list_shows_every_row_of_the_catalogue(run: Run) -> None:
    status, out, _ = run("list")
    assert status == 0
    lines = out.split("\n")
    assert lines[0].split() == ["name", "class", "paper", "tags", "conventions"]
    for row in catalogue.ROWS:
        words = out.replace(",", " ").split()
        assert {row.name, type(row.scheme).__name__, *row.tags, *type(row.scheme).conventions} <= set(words)
        assert row.paper in out


def test_show_draws_and_counts(run: Run) -> None:
    status, out, err = run("show", BOTTOM, "--n", "2", "--m", "3")
    assert (status, err) == (0, "")
    assert out == f"    key  0\nquery 0  ■ ■ ·\n      1  ■ ■ ■\n\n{BOTTOM}: 5 of 6 pairs seen\n"


def test_show_draws_with_the_characters_that_the_output_has(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.main(["show", BOTTOM, "--n", "2", "--m", "3"]) == 0
    assert raw.getvalue().decode("ascii").split("\n")[1] == "query 0  # # ."


def test_errors_are_written_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert cli.main(["show", "Dense(causal=True)", "--m", "3"]) == 2
    assert b"causal attention with n != m needs align" in raw.getvalue()


def test_show_writes_a_picture(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "a.png"
    status, out, _ = run("show", BOTTOM, "--png", str(file))
    assert (status, out) == (0, f"{file}: {BOTTOM}, 12 queries, 12 keys\n")
    assert file.read_bytes()[1:4] == b"PNG"


def test_show_draws_patterns_as_asked_for_and_as_composed(run: Run) -> None:
    status, out, err = run("show", "SparseTransformer.strided(2, part='second')", "--n", "4")
    assert (status, err) == (0, "")
    assert out.split("\n")[2:] == [
        "      1  · ■ · ·",
        "      2  ■ · ■ ·",
        "      3  · ■ · ■",
        "",
        "SparseTransformer.strided(2, part='second'): 6 of 16 pairs seen",
        "    = Strided(period=2) & Causal()",
        "",
    ]
    assert run("show", "Causal() + Self()", "--n", "2")[1].split("\n")[1:] == [
        "query 0  2 ·", "      1  ■ 2", "", "Causal() + Self(): 3 of 4 pairs seen, 5 with multiplicities", "",
    ]  # fmt: skip
    assert "    =" not in run("show", "Causal()", "--n", "2")[1]
    one, named = (run("show", f"Alternate((Causal(), Self())).at({k})", "--n", "2")[1] for k in ("3", "layer=1"))
    assert one.split("\n")[:3] == named.split("\n")[:3] == run("show", "Self()", "--n", "2")[1].split("\n")[:3]
    assert "3  ■ ■ ■ ■ ■ ■\n" in run("show", "Causal()", "--n", "4", "--m", "6", "--align", "bottom_right")[1]


def test_show_draws_what_several_layers_reach(run: Run) -> None:
    _, out, _ = run("show", "SparseTransformer.strided(3, 'survey', 'alternate')", "--hops", "2")
    assert "'alternate'), 2 layers: 24 of 144 pairs seen" in out
    _, out, _ = run("show", "SparseTransformer.strided(3, 'survey', 'alternate')", "--hops", "2", "--residual")
    assert "'alternate'), 2 layers, residual: 78 of 144 pairs seen" in out
    assert "Dense(causal=True), 1 layer: 78 of 144 pairs seen" in run("show", "Dense(causal=True)", "--hops", "1")[1]


def test_show_on_a_narrow_terminal_refuses_what_does_not_fit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    status, _, err = run("show", "Dense()", "--n", "40")
    assert status == 2
    assert "or a picture with --png FILE" in err


def test_cost_prints_the_integers_of_the_scheme(run: Run) -> None:
    sizes = {"n": 100, "m": 300, "d": 8, "e": 4, "b": 2, "heads": 6, "kv-heads": 3, "block": 10}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    shapes = Dense.Inputs((2, 6, 100, 8), (2, 3, 300, 8), (2, 3, 300, 4))
    cost = Dense(causal=True, align="bottom_right").cost(shapes, 10)
    status, out, err = run("cost", BOTTOM, *words)
    assert (status, err) == (0, "")
    f, b = cost.forward, cost.backward
    numbers = (f.macs, b.macs, cost.useful_macs, f.exps, f.saved, cost.peak)
    assert [number for number in numbers if f"{number:,}" not in out] == []
    found = json.loads(run("cost", BOTTOM, *words, "--json", "--dtype", "float64")[1])
    assert found["scheme"] == BOTTOM
    assert found["sizes"] == {"b": 2, "heads": 6, "kv_heads": 3, "n": 100, "m": 300, "d": 8, "e": 4}
    assert (found["forward"], found["backward"]) == (vars(cost.forward), vars(cost.backward))
    assert (found["block"], found["useful_macs"], found["peak_bytes"]) == (10, cost.useful_macs, 8 * cost.peak)


def test_cost_of_dropout_counts_its_mask_too(run: Run) -> None:
    assert json.loads(run("cost", "Dense(keep_rate=0.5)", "--n", "8", "--json")[1])["forward"]["macs"] == 8 * 8 * 128


@pytest.mark.parametrize("size", ["1000000", "1_000_000", "1e6", "10**6"])
def test_cost_at_a_million_is_instant(run: Run, size: str) -> None:
    start = time.process_time()
    status, out, _ = run("cost", "Dense(causal=True)", "--n", size, "--block", "none")
    assert time.process_time() - start < 1
    assert status == 0
    assert "128,000,000,000,000" in out
    assert "64,000,064,000,000" in out
    assert "all rows at once" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "invalid choice: 'chek'"),
        (["show"], "required: EXPR"),
        (["show", "Dens()"], "did you mean 'Dense'?\n    Dens()\n    ^^^^"),
        (["show", "3"], "3 is neither a scheme nor a pattern; there is Dense, Sparse, Linear"),
        (["show", "Local(1)"], "missing a required argument: 'right'; it takes left, right, dilation\n    Local(1)"),
        (["show", "Blocks(0)"], "Blocks: size=0 must be at least 1\n    Blocks(0)\n    ^^^^^^^^^"),
        (["show", "All()", "--m", "3"], "n=12 queries and m=3 keys: a pattern needs align='top_left' or 'bottom_right'"),
        (["show", "Dense()", "--align", "top_left"], "align='top_left' is for patterns"),
        (["show", "All()", "--hops", "2", "--m", "3", "--align", "top_left"], "where n = m, but n=12 and m=3"),
        (["show", "All()", "--residual"], "give hops, the number of layers, too"),
        (["show", "Dense()", "--n", "0"], "n=0: a picture has 1 to 4096"),
        (["show", "Dense()", "--n", "-1"], "'-1' is no size"),
        (["show", "Dense()", "--png", "a.xyz"], "a.xyz: the name must end in an image format"),
        (["show", "Dense()", "--png", "/nowhere/a.png"], "--png /nowhere/a.png: there is no folder /nowhere"),
        (["cost", "Dense()"], "required: --n"),
        (["cost", "Dense()", "--n", "2.5"], "'2.5' is no size"),
        (["cost", "Dense()", "--n", "4", "--block", "0"], "a block has at least one row"),
        (["cost", "Dense()", "--n", "4", "--heads", "3", "--kv-heads", "2"], "is no multiple of the H_kv=2"),
        (["cost", "Dense(causal=True)", "--n", "4", "--m", "5"], "needs align"),
        (["check", "k.py:f"], "required: --scheme"),
        (["check", "k.py:f", "--scheme", "Dense(causl=1)"], "did you mean 'causal'?"),
        (["check", "k.py:f", "--scheme", "Dense()", "--dtype", "float31"], "invalid choice: 'float31'"),
        (["check", "k.py:f", "--scheme", "Dense()", "--timeout", "0"], "'0' is no time"),
        (["check", "k.py:f", "--scheme", "Dense()", "--timeout", "x"], "'x' is no time"),
        (["check", "k.py:f", "--scheme", "Dense()", "--contract", "fp31"], "no precision is called 'fp31'"),
        (["check", "k.py:f", "--scheme", "Dense()", "--contract", "fp32(tiles=1)"], "has no field 'tiles'"),
        (["check", "k.py:f", "--scheme", "Dense()", "--vjp", "k.py:g", "--backward", "autograd"], "not allowed with"),
        (["check", "k.py:f", "--scheme", "Dense()", "--backward", "autograd"], "needs --library torch or jax, not numpy"),
        (["check", "k.py:f", "--scheme", "Dense()", "--json", "/nowhere/r.json"], "there is no folder /nowhere"),
        (["check", "k.py:f", "--scheme", "Dense()", "--n", "64"], "--n needs --rows K"),
        (["check", "k.py:f", "--scheme", "Dense()", "--kv-heads", "2"], "--kv-heads needs --rows K"),
        (["check", "k.py:f", "--scheme", "Dense()", "--rows", "4"], "--rows 4 needs --n N"),
        (["check", "k.py:f", "--scheme", "Dense()", "--rows", "4", "--n", "9", "--only", "d=64"], "'d=64' has nothing"),
    ],
)
def test_what_can_not_be_done_is_one_message(run: Run, check: dict[str, Any], words: list[str], said: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("refattn")
    assert "Traceback" not in err
    assert "candidate" not in check


def test_check_is_called_with_what_was_asked_for(run: Run, check: dict[str, Any]) -> None:
    run("check", "k.py:f", "--scheme", BOTTOM)
    assert (check["candidate"], check["scheme"]) == ("k.py:f", Dense(causal=True, align="bottom_right"))
    defaults = {"vjp": None, "backward": None, "library": "numpy", "dtype": "float32", "contract": None, "layout": "bhnd"}
    assert check["options"] == {**defaults, "only": None, "timeout": 60.0}
    words = ["--library", "torch", "--backward", "autograd", "--dtype", "bfloat16", "--contract", "flash-bf16(tile=1)"]
    run("check", "k.py:f", "--scheme", BOTTOM, *words, "--layout", "bnhd", "--only", "d=64; nq=nk", "--timeout", "2.5")
    asked = {"vjp": None, "backward": "autograd", "library": "torch", "dtype": "bfloat16", "contract": "flash-bf16(tile=1)"}
    assert check["options"] == {**asked, "layout": "bnhd", "only": "d=64; nq=nk", "timeout": 2.5}
    run("check", "k.py:f", "--scheme", BOTTOM, "--vjp", "k.py:g")
    assert check["options"]["vjp"] == "k.py:g"


def test_rows_are_judged_by_their_own_check(run: Run, check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("refattn.testing.sampled")
    fake.check_rows = sys.modules["refattn.testing.check"].check  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "refattn.testing.sampled", fake)
    words = ["check", "k.py:f", "--scheme", BOTTOM, "--rows", "16", "--n", "10**6", "--heads", "4", "--kv-heads", "2"]
    assert run(*words)[0] == 0
    defaults = {"vjp": None, "backward": None, "library": "numpy", "dtype": "float32", "contract": None, "layout": "bhnd"}
    assert check["options"] == {**defaults, "rows": 16, "n": 10**6, "heads": 4, "kv_heads": 2}
    run(*words, "--m", "7", "--d", "8", "--e", "9", "--timeout", "5")
    sizes = {"rows": 16, "n": 10**6, "m": 7, "d": 8, "e": 9, "heads": 4, "kv_heads": 2}
    assert check["options"] == {**defaults, **sizes, "timeout": 5.0}


@pytest.mark.parametrize(
    ("level", "status", "strict"),
    [
        (Level.OK, 0, 0),
        (Level.WARN, 0, 1),
        (Level.CONVENTION, 1, 1),
        (Level.LOOKS_LIKE, 1, 1),
        (Level.FAIL, 1, 1),
        (Level.UNDECIDED, 3, 3),
        (Level.UNSUPPORTED, 3, 3),
    ],
)
def test_the_status_is_the_verdict(run: Run, check: dict[str, Any], level: Level, status: int, strict: int) -> None:
    check["result"] = report(level)
    assert run("check", "k.py:f", "--scheme", BOTTOM)[0] == status
    assert run("check", "k.py:f", "--scheme", BOTTOM, "--strict")[0] == strict


def test_a_pipe_gets_plain_lines_of_progress_beside_the_report(run: Run, check: dict[str, Any]) -> None:
    _, out, err = run("check", "k.py:f", "--scheme", BOTTOM)
    assert out.startswith("OK  conforms in the one judged case\n")
    assert err == "".join(f"refattn: {done} of 8 cases\n" for done in (2, 4, 6, 8))


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_gets_a_bar(run: Run, check: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    if rich:
        pytest.importorskip("rich")
        monkeypatch.setenv("TERM", "xterm")
    else:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _, out, err = run("check", "k.py:f", "--scheme", BOTTOM)
    assert out.startswith("OK  ")
    assert "\r" in err
    assert "refattn:" not in err
    assert rich or "\r8 of 8  case 8" in err


def test_the_report_is_written_as_json_too(run: Run, check: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    _, out, _ = run("check", "k.py:f", "--scheme", BOTTOM, "--json", str(file))
    assert out.startswith("OK  ")
    assert json.loads(file.read_text(encoding="utf-8"))["candidate"] == "k.py:f"
    assert json.loads(run("check", "k.py:f", "--scheme", BOTTOM, "--json", "-")[1])["level"] == "OK"


@pytest.mark.parametrize("error", [UsageError("no such function"), FileNotFoundError(2, "No such file", "k.py")])
def test_errors_of_a_check_are_one_message(run: Run, check: dict[str, Any], error: Exception) -> None:
    check["result"] = error
    status, out, err = run("check", "k.py:f", "--scheme", BOTTOM)
    assert (status, out) == (2, "")
    assert err.endswith(f"refattn: {error}\n")


def test_an_interrupt_is_no_traceback(run: Run, check: dict[str, Any]) -> None:
    check["result"] = KeyboardInterrupt()
    status, out, err = run("check", "k.py:f", "--scheme", BOTTOM)
    assert (status, out) == (130, "")
    assert err.endswith("refattn: interrupted\n")


def test_it_runs_as_a_module_and_into_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "refattn"]
    done = subprocess.run([*command, "show", "Dens()"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("refattn: nothing is called 'Dens'")
    script = f"{sys.executable} -m refattn show 'Dense()' --n 2000 | true; echo ${{PIPESTATUS[0]}}"
    closed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (closed.stdout, closed.stderr) == ("141\n", "")


KERNELS = """
import time

import numpy as np


def top_left(q, k, v):
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def hang(q, k, v):
    while True:
        time.sleep(1)


def unable(q, k, v):
    raise NotImplementedError("not on Sundays")


def broken(q, k, v):
    return [][q.shape[-1]]
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS, encoding="utf-8")
    return str(file)


def test_a_convention_is_named_with_a_command_that_conforms(run: Run, kernel: str, tmp_path: Path) -> None:
    words = ["check", f"{kernel}:top_left", "--scheme", BOTTOM, "--only", "family=more keys"]
    status, out, _ = run(*words, "--json", str(tmp_path / "report.json"))
    assert status == 1
    assert out.startswith("CONVENTION  ")
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [name["instead"] is not None for name in found["names"]] == [True]
    (command,) = (line.strip() for line in out.split("\n") if line.startswith("    refattn check "))
    assert "top_left'" in command
    assert "--only" not in command
    status, out, _ = run(*shlex.split(command)[1:], "--only", "family=more keys")
    assert status == 0
    assert out.startswith(("OK  ", "WARN  "))


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("hang", 1, "FAIL  2 of 2 judged cases are wrong"),
        ("broken", 1, "IndexError"),
        ("unable", 3, "unsupported: not on Sundays"),
        ("mising", 2, "has no 'mising'"),
    ],
)
def test_kernels_that_do_not_answer(run: Run, kernel: str, name: str, status: int, said: str) -> None:
    words = ["check", f"{kernel}:{name}", "--scheme", BOTTOM, "--only", "family=one key", "--timeout", "1"]
    got, out, err = run(*words)
    assert got == status
    assert said in (err if status == 2 else out)


def test_what_is_said_to_be_wrong_with_a_filter(run: Run, kernel: str) -> None:
    status, _, err = run("check", f"{kernel}:top_left", "--scheme", BOTTOM, "--only", "n<64")
    assert status == 2
    assert "--only 'n<64' is not understood" in err
