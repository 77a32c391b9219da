"""Candidates found by name, and what their signatures say: clear answers to every way of getting them wrong."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refattn.errors import UsageError
from refattn.schemes.dense import Dense
from refattn.testing.candidate import Call, accepts, fields, home, load, wants

INPUTS = fields(Dense())


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test in a folder of its own, with the path and the modules of before put back after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_the_fields_of_a_scheme_are_its_inputs_in_order() -> None:
    assert INPUTS.required == ("q", "k", "v")
    assert INPUTS.names == Dense.Inputs._fields
    assert INPUTS.floats == {"q", "k", "v", "bias", "sink"}


def test_a_file_is_loaded_with_its_neighbours() -> None:
    write("here/scaling.py", "FACTOR = 3")
    write("here/kernel.py", """\
        from scaling import FACTOR
        def f(): return FACTOR
        class C:
            @staticmethod
            def g(): return 4
    """)
    assert load("here/kernel.py:f")() == 3
    assert load(f"{Path('here').absolute()}/kernel.py:C.g")() == 4


def test_a_file_is_loaded_once_and_its_functions_share_its_state() -> None:
    write("kernel.py", "seen = []\ndef f(x): seen.append(x)\ndef g(): return seen")
    load("kernel.py:f")(1)
    assert load("./kernel.py:g")() == [1]


@pytest.mark.parametrize("name", ["json.py", "my-kernel.py"])
def test_a_file_may_have_the_name_of_a_loaded_module_or_no_name_at_all(name: str) -> None:
    import json

    write(f"here/{name}", "def f(): return 5")
    assert load(f"here/{name}:f")() == 5
    assert sys.modules["json"] is json


def test_a_module_is_found_from_the_current_folder() -> None:
    write("pack/__init__.py", "")
    write("pack/kernel.py", "from . import other\ndef f(): return other.x")
    write("pack/other.py", "x = 6")
    assert load("pack.kernel:f")() == 6
    assert load("os.path:join")("a", "b") == str(Path("a/b"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("kernel.py", "give path/file.py:function or package.module:function"),
        (":f", "give path/file.py:function"),
        ("kernel.py:", "give path/file.py:function"),
        ("absent.py:f", "there is no file absent.py (looked in "),
        ("kernel.txt/x:f", "there is no file"),
        ("absent_module:f", "there is no module 'absent_module'"),
        ("os.absent:f", "there is no module 'os.absent'"),
        ("kernel.py:attn", "kernel.py has no 'attn'; did you mean 'attention'?"),
        ("kernel.py:zzz", "it has attention, other"),
        ("empty.py:f", "has no 'f' and no other function"),
        ("kernel.py:number", "number is no function but of type int"),
        ("./text.dat:f", "its name must end in .py"),
    ],
)
def test_what_is_not_there_is_named(spec: str, said: str) -> None:
    write("kernel.py", "number = 3\ndef attention(): ...\ndef other(): ...")
    write("empty.py", "")
    write("text.dat", "")
    with pytest.raises(UsageError) as caught:
        load(spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import absent_library", ["broken.py", "line 1", "ModuleNotFoundError: No module named 'absent_library'"]),
        ("x = 1\ndef f(:\n", ["broken.py", "line 2", "SyntaxError"]),
        ("def g(): return 1 / 0\ng()", ["line 2", "line 1, in g", "ZeroDivisionError"]),
        ("raise SystemExit(2)", ["SystemExit: 2"]),
    ],
)
@pytest.mark.parametrize("spec", ["broken.py:f", "broken:f"])
def test_an_import_error_comes_with_the_candidates_own_traceback(spec: str, text: str, said: list[str]) -> None:
    write("broken.py", text)
    with pytest.raises(UsageError) as caught:
        load(spec)
    message = str(caught.value)
    assert f"candidate {spec!r} can't be imported:\n" in message
    assert [part for part in said if part not in message] == []
    assert "importlib" not in message
    assert "candidate.py" not in message
    assert "broken" not in sys.modules


def test_optional_inputs_are_those_that_the_signature_names() -> None:
    def some(q, k, v, mask=None, *, bias=None, dropout=0.0): ...
    def every(q, k, v, **options): ...
    def plain(query, key, value, causal=True): ...
    def rest(*qkv, sink): ...

    assert accepts(some, INPUTS) == Call(frozenset({"mask", "bias"}))
    assert accepts(every, INPUTS) == Call(frozenset(INPUTS.optional))
    assert accepts(plain, INPUTS) == Call(frozenset())
    assert accepts(rest, INPUTS) == Call(frozenset({"sink"}), frozenset({"sink"}))
    assert accepts(max, INPUTS) == Call(frozenset())  # a built-in: no signature to read


def test_an_input_without_a_default_is_none_where_a_case_lacks_it() -> None:
    def f(q, k, v, mask, bias, sink=0): ...

    call = accepts(f, INPUTS)
    assert call.pick({"q": 1, "bias": 2, "keep": 3}) == {"mask": None, "bias": 2}


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ("q, k", "can't be called with q, k, v"),
        ("*, q, k, v", "can't be called with q, k, v"),
        ("k, q, v", "'k' stands where q is given; the inputs come positionally in the order q, k, v"),
        ("q, k, mask", "'mask' stands where v is given"),
        ("q, k, v, causal", "nothing can be given for 'causal'"),
        ("q, k, v, mask, /", "nothing can be given for 'mask'"),
        ("q, k, v, *, window", "nothing can be given for 'window'"),
    ],
)
def test_a_forward_that_cannot_be_called_is_refused(signature: str, said: str) -> None:
    there: dict[str, Any] = {}
    exec(f"def kernel({signature}): ...", there)
    with pytest.raises(UsageError) as caught:
        accepts(there["kernel"], INPUTS)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"kernel({signature})")


def test_a_vjp_takes_what_it_names() -> None:
    def some(*, q, k, v, do, lse, mask=None, eps=1e-6): ...
    def every(do, **saved): ...

    needed = {"q", "k", "v", "do", "lse"}
    assert wants(some, INPUTS) == Call(frozenset({*needed, "mask"}), frozenset(needed))
    assert wants(every, INPUTS).names == {*INPUTS.names, "o", "lse", "do", "dlse"}


def test_a_vjp_that_cannot_be_called_is_refused() -> None:
    def strange(q, k, v, do, grad): ...
    def without(q, k, v): ...

    with pytest.raises(UsageError, match="nothing can be given for 'grad'"):
        wants(strange, INPUTS)
    with pytest.raises(UsageError, match="takes no 'do', the cotangent of o"):
        wants(without, INPUTS)
    with pytest.raises(UsageError, match="signature of max can't be read"):
        wants(max, INPUTS)


def test_home_is_the_folder_of_the_code() -> None:
    class Kernel:
        def __call__(self, q): ...

    here = str(Path(__file__).parent)
    assert home(test_home_is_the_folder_of_the_code) == here
    assert home(Kernel()) == here
    assert home(max) is None
