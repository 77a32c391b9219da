"""What check, check_rows and their commands are asked for: schemes as text, whole numbers, and what means nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refattn import Dense, cli
from refattn.errors import RefattnError
from refattn.expression import written
from refattn.testing import check, check_rows

Array = Any
CAUSAL = Dense(causal=True, align="bottom_right")


def kernel(q: Array, k: Array, v: Array) -> Array:
    return CAUSAL.forward(q, k, v)[0]


def test_a_scheme_may_be_written_as_text() -> None:
    report = check(kernel, "Dense(causal=True, align='bottom_right')", only="family=normal")
    assert (report.status(), report.scheme) == (0, written(CAUSAL))


@pytest.mark.parametrize(("scheme", "said"), [
    (Dense, "Dense is a class, not a scheme: write Dense()"), (None, "None is not a scheme"),
    (3, "3 is not a scheme"), ("Dens()", "did you mean 'Dense'"),
])  # fmt: skip
def test_what_is_no_scheme_is_refused(scheme: Any, said: str) -> None:
    for judged in (lambda: check(kernel, scheme), lambda: check_rows(kernel, scheme, rows=3, n=30)):
        with pytest.raises(RefattnError, match=re.escape(said)):
            judged()


@pytest.mark.parametrize("sizes", [{"rows": "x"}, {"rows": 2.5}, {"n": 30.5}, {"d": "16"}, {"heads": True}, {"m": "9"}])
def test_sizes_of_long_sequences_are_whole_numbers(sizes: dict[str, Any]) -> None:
    ((name, size),) = sizes.items()
    with pytest.raises(RefattnError, match=re.escape(f"{name}={size!r}: give a whole number")):
        check_rows(kernel, CAUSAL, **{"rows": 3, "n": 30, **sizes})


@pytest.mark.parametrize(("options", "said"), [
    ({"only": 3}, "only=3 is no text"), ({"timeout": "x"}, "timeout='x'"), ({"timeout": None}, "timeout=None"),
    ({"library": []}, "library=[]"), ({"contract": 3}, "contract=3: choose fp32"),
    ({"only": "d=1000000"}, "d=1000000 e=64 makes a case of 2.6e+08 numbers"),
    ({"only": "n=16384"}, "judge some rows of a long one"),
])  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RefattnError, match=re.escape(said)):
        check(kernel, CAUSAL, **options)


CHECK = ["check", "k.py:f", "--scheme", "Dense()"]


@pytest.mark.parametrize(("words", "said"), [
    (["show", "Dense()", "--frob"], "refattn show: unrecognized arguments: --frob"),
    (["--frob"], "refattn: unrecognized arguments: --frob"),
    ([*CHECK, "--frob", "1"], "refattn check: unrecognized arguments: --frob 1"),
    (["vectors", "check", "v", "d", "--frob"], "refattn vectors check: unrecognized arguments: --frob"),
    ([*CHECK, "--json", "/"], "refattn: --json /: this is a folder; give a file"),
    ([*CHECK, "--junit", "/"], "refattn: --junit /: this is a folder; give a file"),
    (["vectors", "check", "v", "d", "--json", "/"], "refattn: --json /: this is a folder; give a file"),
    (["vectors", "export", __file__], "can't be made a folder for the vectors: File exists"),
    (["verify", "growth", "--json", "/nowhere/x.json"], "refattn: --json /nowhere/x.json: there is no folder /nowhere"),
    (["verify", "growth", "--png", "/nowhere/x.png"], "refattn: --png /nowhere/x.png: there is no folder /nowhere"),
    (["verify", "growth", "--png", "x.xyz"], "refattn: x.xyz: the name must end in an image format, as claim.png"),
    (["verify", "growth", "--png", "x"], "refattn: x: the name must end in an image format, as claim.png"),
    (["show", "Dense()", "--png", "x.xyz"], "refattn: x.xyz: the name must end in an image format, as picture.png"),
    (["bench", "--json", "/nowhere/x.json"], "refattn: --json /nowhere/x.json: there is no folder /nowhere"),
])  # fmt: skip
def test_a_command_refuses_before_it_begins(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
