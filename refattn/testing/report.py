"""A Report as text for the author of a kernel, and as JSON for programs.

The text answers in this order: does it conform; if not, what does it do instead; where that shows; what was not judged or
could not have been seen; and which command shows it again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from refattn.precision import PRESETS
from refattn.testing.again import command, in_other_layout
from refattn.testing.judge import EXCHANGED
from refattn.testing.mutants import LAYOUT
from refattn.testing.verdicts import CaseVerdict, Level, Naming, Report, TensorVerdict

LISTED = 12
"""Rows that are told by their numbers, where some were chosen."""
SHOWN = 3
"""Failing cases of different kinds that are told in full, one if a mistake explains all; `verbose` tells every case."""

_COLORS = {Level.OK: 32, Level.WARN: 33, Level.CONVENTION: 35, Level.LOOKS_LIKE: 31, Level.FAIL: 31}
_REASONS = {
    "bound": "outside the rigorous bound",
    "class": "NaN or infinity in the wrong place, or missing",
    "shape": "wrong shape",
    "dtype": "wrong dtype",
    "statistical": "errors far larger, as a whole, than rounding makes them",
    "sigma": "one error larger than rounding makes them",
    "rms": "errors larger, as a whole, than rounding makes them",
    "bias": "errors mostly of one sign, as truncation makes them",
    "missing": "not returned",
    "decision": "decided as no rounding allows",
}
_DECLINE = "a backward that has some of the gradients returns NotImplemented in place of each other one"
_ORDER = "layout bhnd is (B, H, n, d) and bnhd (B, n, H, d), of q, k, v, of o and of their gradients alike"
_HOW = {
    "within": "the results are within the rounding bound of this mistake",
    "filter": "the errors have the shape and the size of this mistake",
    "hint": "a hint only: these inputs show this mistake faintly",
    "class": "the kind of mistake, no known one: this is what the errors look like",
}


def render(report: Report, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """The report as text: the verdict in the first line, a screen or two in all; `verbose` tells every case."""
    blocks = [
        _verdict(report),
        _names(report),
        *_cases(report, verbose),
        report.readout[:1].upper() + report.readout[1:],
        _warnings(report, verbose),
        _not_judged(report),
        _unseen(report),
        _listed("Notes", report.notes),
        _again(report),
    ]
    lines = [part for block in blocks if block for line in f"{block}\n".split("\n") for part in _folded(line, width)]
    return "\n".join(_painted(line) if color else line for line in lines).rstrip() + "\n"


def _verdict(report: Report) -> str:
    judged, level = report.judged, report.level
    bad = sum(c.level > Level.WARN for c in judged)
    share = f"{bad} of {_count(len(judged), 'judged case')}"
    says = {
        Level.UNSUPPORTED: f"none of {_count(len(report.cases), 'case')} could be judged",
        Level.OK: f"conforms in {_all(len(judged))}",
        Level.WARN: f"conforms in {_all(len(judged))}, with warnings",
        Level.CONVENTION: f"right, but under another convention ({share})",
        Level.LOOKS_LIKE: f"within the bounds, but a known mistake shows ({share})",
        Level.FAIL: f"{share} {'is' if bad == 1 else 'are'} wrong",
    }
    return "\n".join(
        [
            f"{level if judged else 'NOT JUDGED'}  {says[level]}",
            f"  {report.candidate} against {report.scheme}",
            f"  {report.library}, {report.dtype}, judged under {_meaning(report.contract)}; {_fits(report)}",
            *([_sampled(report)] if report.rows else []),
        ]
    )


def _sampled(report: Report) -> str:
    """Which rows were judged, and that the others were not."""
    there = [t.tensor for c in report.cases for t in c.tensors if t.reason != "missing"]
    shown = ", ".join(map(str, report.rows[:LISTED])) + (", …" if len(report.rows) > LISTED else "")
    n = report.cases[0].sizes["n"]
    whole = " and ".join(name for name in ("dk", "dv") if name in there)
    more = (" and dq" if "dq" in there else "") + (f", and all of {whole}" if whole else "")
    return f"  {_count(len(report.rows), 'row')} of {n} judged in o, lse{more}, the other rows not: {shown}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _all(number: int) -> str:
    return "the one judged case" if number == 1 else f"all {number} judged cases"


def _painted(line: str) -> str:
    """A line that begins with a level shows it in color."""
    level = next((level for level in _COLORS if line.startswith(f"{level}  ")), None)
    return line if level is None else f"\033[1;{_COLORS[level]}m{level}\033[0m{line[len(str(level)) :]}"


def _fits(report: Report) -> str:
    if not report.judged:
        return "nothing was judged"
    if report.fits is None:
        return "it does not keep this contract" if report.rows else f"it keeps no contract of {report.dtype}"
    if report.fits == report.contract:
        return "it keeps this contract"
    return f"the strictest contract that it keeps is {report.fits}"


def _meaning(contract: str) -> str:
    """The contract and, where its name does not say it, what it grants a kernel: unit roundoffs as powers of two."""
    preset = PRESETS.get(contract.partition("(")[0])
    if preset is None or contract in ("fp32", "fp64"):
        return contract
    parts = [f"arithmetic 2^{math.log2(preset.u):.0f}", f"accumulation 2^{math.log2(preset.acc):.0f} a step"]
    if preset.operand:
        parts.append(f"operands of products rounded to 2^{math.log2(preset.operand):.0f}")
    return f"{contract} ({', '.join(parts)}, results 2^{math.log2(preset.out):.0f})"


def _names(report: Report) -> str:
    bad = [c for c in report.judged if c.level > Level.WARN]
    if not bad:
        return _hints(report)
    if not any(c.tensors for c in bad):
        return ""  # it never returned anything that could be compared
    found = _explained(report, bad)
    wrong = [t for c in bad for t in c.tensors if t.level > Level.WARN]
    if not found and wrong and all(t.reason == "missing" for t in wrong):
        lacks = ", ".join(dict.fromkeys(t.tensor for t in wrong))
        return f"What it does instead: it gives no {lacks}\n  {_DECLINE}"
    if not found and wrong and all(EXCHANGED in t.where for t in wrong):
        those = ", ".join(dict.fromkeys(t.tensor for t in wrong))
        return f"What it does instead: {EXCHANGED} in {those}, in their shape already\n  {_ORDER}"
    if not found:
        return "What it does instead: unknown. No known mistake explains the results; where they are wrong is below."
    lines = []
    for place, (name, explains) in enumerate(found[:3]):
        lines.append(f"{'or' if place else 'What it does instead'}: {_title(name)}")
        if name.how == "class":
            lines.append(f"  {_HOW['class']}")
            continue
        lines.append(f"  {_how(name)}; explains {explains} of {_count(len(bad), 'failing case')}")
        if name.instead:
            lines += _under(report, name.instead)
        if name.mutant == LAYOUT and report.library != "files":
            lines.append("  a kernel that takes and returns them in the other order is judged by")
            lines.append(f"    {in_other_layout(report)}")
    return "\n".join(lines)


def _under(report: Report, scheme: str) -> list[str]:
    """How the kernel is judged under another convention; results in files are those of one scheme, and can't be."""
    if report.library == "files":
        return [f"  the expected results are those of another convention; {scheme} would give these"]
    return ["  under that convention it is judged by", f"    {command(report, scheme)}"]


def _explained(report: Report, bad: list[CaseVerdict]) -> list[tuple[Naming, int]]:
    """The mistakes of the whole report, or else those that single cases look like, with the cases that each explains."""
    if report.names:
        looks = Counter(mutant for c in bad for mutant in {name.mutant for name in c.names})
        return [(name, max(report.explains.get(name.mutant, 0), looks[name.mutant])) for name in report.names]
    first = [c.names[0] for c in bad if c.names]
    counts = Counter(name.mutant for name in first)
    strongest = {name.mutant: name for name in sorted(first, key=lambda name: name.power)}
    return [(strongest[mutant], number) for mutant, number in counts.most_common()]


def _hints(report: Report) -> str:
    """What a kernel that conforms resembles too faintly for a verdict."""
    found = [(name, c.case) for c in report.judged for name in c.names]
    lines = tuple(f"{case}: {_title(x)}, amplitude {x.amplitude:.2f}, power {_short(x.power)}" for x, case in found)
    return _listed("Hints, no verdict: some cases faintly resemble a known mistake", lines[:SHOWN])


def _title(name: Naming) -> str:
    return f"{name.title} [{name.mutant}]"


def _how(name: Naming) -> str:
    sure = _HOW.get(name.how, name.how)
    return f"{sure} (amplitude {name.amplitude:.2f}, power {_short(name.power)})"


def _cases(report: Report, verbose: bool) -> Iterator[str]:
    bad = [c for c in report.judged if c.level > Level.WARN]
    explained = any(number == len(bad) for _, number in _explained(report, bad)[:1])
    shown = bad if verbose else _different(bad)[: 1 if explained else SHOWN]
    named = report.names[0].mutant if report.names else ""
    yield from ("\n".join(_case(c, named)) for c in shown)
    rest = [c for c in bad if c not in shown]
    if rest:
        yield f"{len(rest)} more: {_grouped(rest, report.level)}   (all of them: --verbose)"
    passed = [c for c in report.judged if c.level <= Level.WARN]
    if verbose and passed:
        yield "\n".join(["Cases that pass", *_table(passed)])
    elif passed and bad:
        largest = max(map(_worst_finite, passed))
        verb = "passes" if len(passed) == 1 else "pass"
        yield f"{_count(len(passed), 'other case')} {verb}; the largest error there is {_short(largest)} of its bound."
    elif passed:
        closest = max(passed, key=_worst_finite)
        yield f"The largest error is {_short(_worst_finite(closest))} of its bound, in {closest.case}."


def _grouped(cases: list[CaseVerdict], usual: Level) -> str:
    """Names family/tier with the tiers of a family together, and the level where it is not the usual one."""
    tiers: dict[str, list[str]] = {}
    for c in cases:
        family, slash, tier = c.case.partition("/")
        level = "" if c.level == usual else f" ({c.level})"
        tiers.setdefault(family + slash, []).append(tier + level)
    return "; ".join(f"{family}{', '.join(names)}" for family, names in tiers.items())


def _different(bad: list[CaseVerdict]) -> list[CaseVerdict]:
    """A few failing cases to tell in full: the first of each kind, by what fails and what it looks like."""
    kinds: dict[Any, CaseVerdict] = {}
    for c in sorted(bad, key=lambda c: -c.level):
        wrong = tuple((t.tensor, t.reason) for t in c.tensors if t.level > Level.WARN)
        kinds.setdefault((c.level, wrong, c.names[:1] and c.names[0].mutant), c)
    return list(kinds.values())


def _worst_ratio(case: CaseVerdict) -> float:
    return max((t.max_ratio for t in case.tensors), default=0.0)


def _worst_finite(case: CaseVerdict) -> float:
    """The same among finite numbers: what spreads from NaN is told as a warning of its own."""
    return max((t.max_ratio for t in case.tensors if math.isfinite(t.max_ratio)), default=0.0)


def case_text(case: CaseVerdict) -> str:
    """One case in words, as the report tells it."""
    return "\n".join(_case(case, ""))


def _case(case: CaseVerdict, named: str) -> Iterator[str]:
    sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
    yield f"{case.level}  {case.case}   {sizes}".rstrip()
    if case.flag:
        yield f"  probes {case.flag}"
    if case.remark:
        yield textwrap.indent(case.remark, "  ")
    wrong = [t for t in case.tensors if t.level > Level.WARN] or [t for t in case.tensors if t.level > Level.OK]
    for t in sorted(wrong, key=lambda t: -t.level):
        yield from _tensor(t)
    right = [t.tensor for t in case.tensors if t.level == Level.OK]
    if right:
        yield f"  {', '.join(right)}: OK"
    for name in case.names[:1]:
        if name.mutant != named:
            yield f"  looks like {_title(name)}: {_how(name)}"


def _tensor(t: TensorVerdict) -> Iterator[str]:
    reason = _REASONS.get(t.reason, t.reason) or str(t.level)
    yield f"  {t.tensor}: {reason}" + (f"; {t.where}" if t.where else "")
    if t.worst is not None:
        w = t.worst
        ratio = "" if t.reason == "class" or w.bound == 0 else f"   error {_short(w.ratio)} × bound"
        index = ", ".join(str(i) for i in w.index)
        yield f"    [{index}]  got {w.got:.7g}   want {w.want:.7g}   bound {w.bound:.2g}{ratio}"
    if t.reason in ("rms", "statistical"):
        yield f"    errors are {_short(t.rms)} times what independent roundings give (rms)"


def _short(x: float) -> str:
    """Three digits, and no decimals or exponents where whole numbers are readable."""
    return f"{x:.0f}" if 99.5 <= abs(x) < 1e6 else f"{x:.2g}" if abs(x) < 99.5 else f"{x:.1e}"


def _table(cases: list[CaseVerdict]) -> Iterator[str]:
    wide = max(len(c.case) for c in cases)
    for c in cases:
        yield f"  {c.level!s:<5} {c.case:<{wide}}  error ≤ {_short(_worst_ratio(c))} × bound  {c.seconds:.2f} s"


def _warnings(report: Report, verbose: bool) -> str:
    found = [(c, t) for c in report.cases for t in c.tensors if t.level == Level.WARN and c.level <= Level.WARN]
    kinds = {
        "Warnings: inside the bound, yet not how rounding errors look":
            [f"  {t.tensor} of {c.case}: {_REASONS.get(t.reason, t.reason)} (rms {_short(t.rms)})"
             for c, t in found if math.isfinite(t.max_ratio)],
        "Warnings: NaN in keys and values that nobody may see reaches results, as in many kernels (--strict: a failure)":
            [f"  {t.tensor} of {c.case}: {t.where or 'somewhere'}" for c, t in found if not math.isfinite(t.max_ratio)],
    }
    lines = []
    for head, told in kinds.items():
        rest = [] if verbose or len(told) <= SHOWN else [f"  and {len(told) - SHOWN} more (--verbose)"]
        lines += [head, *(told[:SHOWN] if rest else told), *rest] if told else []
    return "\n".join(lines)


def _not_judged(report: Report) -> str:
    groups: dict[tuple[Level, str], list[str]] = {}
    for c in report.cases:
        if c.level < Level.OK:
            groups.setdefault((c.level, c.remark or "no reason given"), []).append(c.case)
    lines = [f"  {level}, {remark}: {_some(names)}" for (level, remark), names in groups.items()]
    tensors = {t.tensor for c in report.judged for t in c.tensors}
    if report.declined:
        why = "NotImplemented, or inputs that it does not name"
        lines.append(f"  {', '.join(report.declined)}: the vjp says that it gives none ({why})")
    elif "o" in tensors and not any(name.startswith("d") for name in tensors):
        why = "none are in the dump" if report.library == "files" else "no backward was given (--vjp or --backward)"
        lines.append(f"  the gradients, since {why}")
    return "\n".join(["Not judged", *lines]) if lines else ""


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _unseen(report: Report) -> str:
    if not report.unseen:
        return ""
    known = len(report.power)
    of = f" of {known}" if known else ""
    return f"{len(report.unseen)}{of} known mistakes would not show in these cases (power < 15): {', '.join(report.unseen)}"


def _listed(title: str, lines: tuple[str, ...]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _again(report: Report) -> str:
    what = "Again, the first failing family alone" if "family=" in report.repro else "Again"
    return f"{what}\n  {report.repro}" if report.status() and report.repro else ""


def _folded(line: str, width: int) -> list[str]:
    """A long line folded, continued under its own indentation; a command stays on one line, to be copied."""
    if len(line) <= width or line.lstrip().startswith(("refattn check ", "refattn vectors check ", "check(")):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain data that `schema` describes; numbers that JSON lacks are the strings inf, -inf and nan."""
    status = {"level": str(report.level), "status": report.status(), "status_strict": report.status(strict=True)}
    return {"format": "refattn-report-1", **status, **_plain(report)}


def _plain(x: Any) -> Any:
    if isinstance(x, Level):
        return str(x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: _plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, Mapping):
        return {str(key): _plain(value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return [_plain(item) for item in x]
    if x is None or isinstance(x, bool | str):
        return x
    if isinstance(x, numbers.Integral):
        return int(x)
    return float(x) if math.isfinite(x) else str(float(x))


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of `to_json`: closed, with everything required."""
    text = resources.files("refattn.testing").joinpath("report.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
