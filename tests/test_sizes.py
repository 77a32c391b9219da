"""What one reader can hold: short files, short functions, and file names that say what is inside."""

import ast
from collections.abc import Iterator

import pytest

from layout import ROOT, python_files

FILE_LINES = 400
BODY_LINES = 60
SAYS_NOTHING = {"utils.py", "common.py", "helpers.py", "misc.py"}


def faults(name: str, source: str) -> Iterator[str]:
    """Everything about the size and the name of one file that breaks a ceiling."""
    if name.rpartition("/")[2] in SAYS_NOTHING:
        yield f"{name}: a name that says nothing about what is inside"
    if (lines := len(source.splitlines())) > FILE_LINES:
        yield f"{name}: {lines} lines, {FILE_LINES} at most"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (size := body_lines(node)) > BODY_LINES:
            yield f"{name}:{node.lineno}: the body of {node.name} has {size} lines, {BODY_LINES} at most"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last, the docstring apart."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_files_and_functions_stay_short() -> None:
    files = list(python_files("refattn", "backends", "tests", "benchmarks", "docs"))
    named = [(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]
    assert "tests/test_sizes.py" in dict(named)
    assert [fault for name, source in named for fault in faults(name, source)] == []


def function(lines: int, head: str = "def f():", indent: str = "") -> str:
    return "\n".join([indent + head, *[indent + "    x = 1"] * lines])


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("refattn/utils.py", "", "a name that says nothing"),
        ("tests/laws/helpers.py", "", "a name that says nothing"),
        ("refattn/long.py", "x = 1\n" * (FILE_LINES + 1), "401 lines, 400 at most"),
        ("refattn/a.py", function(BODY_LINES + 1), "refattn/a.py:1: the body of f has 61 lines"),
        ("refattn/a.py", function(BODY_LINES + 1, "async def g():"), "the body of g has 61 lines"),
        ("refattn/a.py", "class A:\n" + function(BODY_LINES + 1, "def h(self):", "    "), "a.py:2: the body of h"),
    ],
)
def test_a_planted_fault_is_found(name: str, source: str, complaint: str) -> None:
    assert any(complaint in fault for fault in faults(name, source))


def test_what_just_fits_is_not_a_fault() -> None:
    documented = 'def f():\n    """One.\n' + "\n" * 30 + '    """\n' + "    x = 1\n" * BODY_LINES
    assert list(faults("refattn/a.py", documented)) == []
    assert list(faults("refattn/a.py", "x = 1\n" * FILE_LINES)) == []
