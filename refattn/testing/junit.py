"""A Report as JUnit XML, which continuous integration shows: one suite, one test for each case."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from refattn.testing.report import case_text, render
from refattn.testing.verdicts import CaseVerdict, Level, Report

# Everything that XML 1.0 has no place for: an exception's message may hold it.
_STRANGE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report, *, strict: bool = False) -> str:
    """The report as one ``testsuite`` in ``testsuites``.

    A case that fails has a ``failure`` with its text, one that was not judged is ``skipped`` with the reason. With `strict`
    a warning is a failure too. The whole text of the report is the suite's ``system-out``.
    """
    bad = [c for c in report.judged if _fails(c, strict)]
    counts = {
        "tests": str(len(report.cases)),
        "failures": str(len(bad)),
        "errors": "0",
        "skipped": str(len(report.cases) - len(report.judged)),
        "time": f"{sum(c.seconds for c in report.cases):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(f"refattn {report.candidate}"), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    about = {name: getattr(report, name) for name in ("candidate", "scheme", "library", "dtype", "contract")}
    for name, value in {**about, **report.environment}.items():
        ElementTree.SubElement(properties, "property", {"name": _clean(name), "value": _clean(value)})
    for case in report.cases:
        suite.append(_case(report, case, strict))
    ElementTree.SubElement(suite, "system-out").text = _clean(render(report))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def write(report: Report, file: str, *, strict: bool = False) -> None:
    """``to_junit`` into a file."""
    Path(file).write_text(to_junit(report, strict=strict), encoding="utf-8")


def _fails(case: CaseVerdict, strict: bool) -> bool:
    return case.level > Level.WARN or (strict and case.level == Level.WARN)


def _case(report: Report, case: CaseVerdict, strict: bool) -> ElementTree.Element:
    place = {"classname": f"refattn.{report.scheme}", "name": case.case, "time": f"{case.seconds:.3f}"}
    made = ElementTree.Element("testcase", {name: _clean(value) for name, value in place.items()})
    if case.level < Level.OK:
        reason = f"{case.level}: {case.remark or 'no reason given'}"
        ElementTree.SubElement(made, "skipped", {"message": _clean(reason)})
    elif _fails(case, strict):
        name = f": {case.names[0].title} [{case.names[0].mutant}]" if case.names else ""
        about = {"message": _clean(f"{case.level}{name}"), "type": str(case.level)}
        ElementTree.SubElement(made, "failure", about).text = _clean(case_text(case))
    return made


def _clean(text: str) -> str:
    return _STRANGE.sub("�", text)
