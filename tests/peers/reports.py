"""What is asked of a report on other people's code: that it is clean, or that it departs exactly as is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from refattn.testing.verdicts import CaseVerdict, Level, Report

SOFT = ("poison",)  # judged, but never above WARN


def family(case: CaseVerdict) -> str:
    return case.case.partition("/")[0]


def hard(report: Report) -> list[CaseVerdict]:
    """The judged cases whose verdicts count."""
    return [c for c in report.judged if family(c) not in SOFT]


def worst(report: Report) -> dict[str, float]:
    """Tensor → its largest |error| ÷ bound."""
    out: dict[str, float] = {}
    for case in hard(report):
        for t in case.tensors:
            out[t.tensor] = max(out.get(t.tensor, 0.0), t.max_ratio)
    return out


def failing(report: Report) -> dict[str, set[str]]:
    """Tensor → families in which it fails."""
    out: dict[str, set[str]] = {}
    for case in hard(report):
        for t in case.tensors:
            if t.level == Level.FAIL:
                out.setdefault(t.tensor, set()).add(family(case))
    return out


def at(report: Report, level: Level) -> set[str]:
    """Families that have a case at this level."""
    return {family(c) for c in report.cases if c.level == level}


def assert_right(report: Report, *, least: int, warns: Collection[str] = (), unsupported: Collection[str] = ()) -> None:
    """At least so many cases judged and right, nothing looks like anything, and only these families warn or are refused."""
    wrong = {c.case: (str(c.level), c.remark, [n.mutant for n in c.names]) for c in report.judged if c.level > Level.WARN}
    assert not wrong, wrong
    assert report.names == (), report.names
    assert report.fits == report.contract, report.fits
    loud = {c.case: [(t.tensor, t.reason, t.rms) for t in c.tensors if t.level == Level.WARN] for c in hard(report)
            if c.level == Level.WARN and family(c) not in warns}  # fmt: skip
    assert not loud, loud
    refused = {c.case: c.remark for c in report.cases if c.level < Level.OK and family(c) not in unsupported}
    assert not refused, refused
    assert len(hard(report)) >= least, len(hard(report))


def assert_departs(report: Report, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Exactly these tensors leave their bounds, each by a factor in its range; the others stay inside."""
    found = worst(report)
    assert set(failing(report)) == set(ranges), found
    for tensor, (least, most) in ranges.items():
        assert least <= found[tensor] <= most, (tensor, found[tensor])
    assert all(ratio <= 1 for tensor, ratio in found.items() if tensor not in ranges), found
