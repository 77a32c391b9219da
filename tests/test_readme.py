"""What the README and the pages of docs/ show: the code runs, its output is the one shown, commands and links are right."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from layout import ROOT
from refattn import cli
from refattn.errors import BackendUnavailable

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"memory.md"}  # twenty seconds of it
RUN = [pytest.param(file, marks=[pytest.mark.sweep] if file.name in SLOW else []) for file in PAGES]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the text block right after it, which is what it prints."""

    page: str
    line: int
    language: str
    text: str
    shown: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(file: Path) -> list[Block]:
    found: list[Block] = []
    page, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
    end = -1
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$\n?", text, re.MULTILINE | re.DOTALL):
        language, inside = match.groups()
        if language == "text" and match.start() == end and found:
            last = found.pop()
            found.append(Block(last.page, last.line, last.language, last.text, inside))
        else:
            found.append(Block(page, text[: match.start()].count("\n") + 1, language, inside))
        end = match.end()
    return found


BLOCKS = [block for file in PAGES for block in blocks(file)]


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Every command of the shell blocks, its words without the folder of an environment."""
    for block in BLOCKS:
        if block.language != "sh":
            continue
        lexer = shlex.shlex(block.text, posix=True, punctuation_chars="&;|\n")
        lexer.whitespace, lexer.whitespace_split = " ", True
        words: list[str] = []
        for word in [*lexer, "\n"]:
            if set(word) <= set("&;|\n"):
                if words:
                    yield block, [words[0].removeprefix(".venv/bin/"), *words[1:]]
                words = []
            else:
                words.append(word)


COMMANDS = list(commands())
REFATTN = [(block, words[1:]) for block, words in COMMANDS if words[0] == "refattn"]


def test_there_is_something_to_test() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh", "text", ""} - {"text"}
    assert sum(block.page == "README.md" and block.language == "python" for block in BLOCKS) >= 3
    assert {words[0] for _, words in REFATTN} == {"list", "show", "cost", "check", "vectors", "verify", "bench"}


@pytest.mark.parametrize("file", RUN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_code_runs_and_prints_what_is_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for block in blocks(file):
        if block.language != "python":
            continue
        before = set(names)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            raised = run(block, names)
            for name in set(names) - before:
                if name.startswith("test_"):
                    names[name]()
        if 'load("cupy")' in block.text and importlib.util.find_spec("cupy"):
            assert raised is None or isinstance(raised, BackendUnavailable)  # with CuPy it says something else, or works
            continue
        if raised is not None:
            out.write(f"{type(raised).__module__}.{type(raised).__qualname__}: {raised}\n")
        assert out.getvalue() == (block.shown or ""), block


def run(block: Block, names: dict[str, Any]) -> BackendUnavailable | None:
    """Execute a block; only a missing library is an answer that a page may show."""
    try:
        exec(compile(block.text, str(block), "exec"), names)
    except BackendUnavailable as error:
        return error
    return None


@pytest.mark.parametrize(("block", "words"), REFATTN, ids=str)
def test_each_command_parses(block: Block, words: list[str]) -> None:
    args = cli._parser().parse_args(words)
    assert args.command == words[0]
    if "EXPR" not in words and words[0] not in ("list", "vectors", "verify", "bench"):
        read = cli.scheme_or_pattern if words[0] == "show" else cli.scheme
        read(args.scheme)


SHOWN = [(block, words) for block, words in REFATTN if block.shown is not None]


@pytest.mark.parametrize(("block", "words"), SHOWN, ids=str)
def test_each_command_prints_what_is_shown(
    block: Block, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured numbers depend on the machine's libraries, and with them where lines break: they are compared as #."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    cli.main(words)
    out = capsys.readouterr().out
    if words[0] == "check":
        assert plain(out) == plain(block.shown or "")
    else:
        assert out == block.shown


def plain(report: str) -> str:
    return " ".join(re.sub(r"(?<![\w/])-?\d+(\.\d+)?(e[+-]\d+)?", "#", report).split())


def judging() -> tuple[list[str], list[str]]:
    """What the README's first command judges: the wrong example and the right one."""
    first = next(block for block in BLOCKS if block.page == "README.md" and "venv" in block.text and "[kit]" in block.text)
    assert first.text.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e '.[kit]' && .venv/bin/refattn check ")
    assert first.text.count("\n") == 1
    wrong, right = (words for block, words in COMMANDS if block is first and words[0] == "refattn")
    return wrong[1:], right[1:]


def test_the_two_commands_are_there() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n auto" in lines
    wrong, right = judging()
    assert wrong != right


@pytest.mark.sweep
def test_the_first_command_judges_both_examples(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The wrong one stands in the README with its report, which every run compares."""
    wrong, right = judging()
    monkeypatch.chdir(ROOT)
    assert cli.main(wrong) == 1
    said = capsys.readouterr().out
    assert said.startswith("FAIL  ")
    assert "What it does instead: a query sees one key beyond the diagonal [F21]" in said
    assert cli.main(right) == 0
    assert re.match(r"(OK|WARN)  conforms in all \d+ judged cases", capsys.readouterr().out)


def test_the_examples_differ_in_one_comparison() -> None:
    folder = ROOT / "docs" / "examples"
    wrong, right = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("off_by_one.py", "corrected.py"))
    different = [(a.strip(), b.strip()) for a, b in zip(wrong, right, strict=True) if a != b]
    assert different == [("return keys[None, :] <= count", "return keys[None, :] < count")]


def test_the_extras_are_the_ones_that_exist() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = set(config["options.extras_require"])
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| extra | for |")[2].partition("\n\n")[0]
    assert {name for name in re.findall(r"`(\w+)`", table)} == extras
    asked = {name for group in re.findall(r"(?:\.|refattn)\[([\w,]+)\]", text) for name in group.split(",")}
    assert asked <= extras
    markers = {line.partition(":")[0].strip() for line in config["tool:pytest"]["markers"].splitlines()}
    runs = [words[3:] for _, words in COMMANDS if words[1:3] == ["-m", "pytest"]]
    assert {run[run.index("-m") + 1] for run in runs if "-m" in run} == {"sweep", "peers"} & markers


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_each_link_leads_somewhere(file: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("http") and not (file.parent / link).exists()] == []
