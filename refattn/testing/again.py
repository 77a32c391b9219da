"""The commands that judge a kernel again: against another scheme, or with its axes in the other order."""

from __future__ import annotations

import shlex

from refattn.testing.verdicts import Report


def command(report: Report, scheme: str) -> str:
    """The shell command that judges the same kernel, in all cases, against another scheme.

    A kernel that was given as a Python function has no command; then it is the call of ``check``.
    """
    if not report.repro:
        return f"check({report.candidate}, {scheme}, ...)"
    words = shlex.split(report.repro)
    words[words.index("--scheme") + 1] = scheme
    if "--only" in words:
        at = words.index("--only")
        kept = [clause for clause in words[at + 1].split(";") if not clause.strip().startswith("family=")]
        words[at : at + 2] = ["--only", "; ".join(clause.strip() for clause in kept)] if kept else []
    return " ".join(quoted(word) for word in words)


def in_other_layout(report: Report) -> str:
    """The shell command that judges the same kernel, in all cases, with heads and tokens in the other order."""
    text, usual = command(report, report.scheme), " --layout bnhd"
    if not report.repro:
        return text.replace("...", "layout=..., ...")
    return text.replace(usual, "") if usual in text else text + usual


def quoted(word: str) -> str:
    """A word for a shell, in double quotes where single ones are inside."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)
