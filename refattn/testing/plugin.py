"""The pytest plugin: a check as tests, one for each case, and a fixture for checks inside tests of one's own.

    pytest --refattn-candidate kernel.py:attention --refattn-scheme "Dense(causal=True)"

    def test_my_kernel(conforms):
        conforms(attention, Dense(causal=True), dtype="bfloat16")

Nothing of refattn's kit is imported unless one of the two is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

OPTIONS = {
    "vjp": "its backward, which is judged too",
    "backward": "autograd: differentiate the kernel by torch or jax",
    "library": "whose arrays it takes: numpy, torch, jax or cupy",
    "dtype": "dtype of its inputs",
    "contract": "precision to judge under, as flash-bf16",
    "layout": "bhnd or bnhd",
    "only": "limits of the kernel, as 'd=64,128; n%%64=0'",
    "timeout": "seconds for one case",
}
USUAL: dict[str, Any] = {"library": "numpy", "dtype": "float32", "layout": "bhnd", "timeout": 60.0}  # as in check
OPEN = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refattn", "attention kernels against a reference (refattn)")
    group.addoption("--refattn-candidate", metavar="SPEC", help="add a test for each case of a check of this kernel: "
                    "path/file.py:function or package.module:function")  # fmt: skip
    group.addoption("--refattn-scheme", metavar="EXPR", help="what it should be, as \"Dense(causal=True)\"")
    for name, text in OPTIONS.items():
        kind = float if name == "timeout" else str
        group.addoption(f"--refattn-{name}", metavar=name.upper(), type=kind, default=USUAL.get(name), help=text)
    group.addoption("--refattn-strict", action="store_true", help="warnings fail too")


@pytest.fixture(scope="session")
def conforms() -> Callable[..., Any]:
    """``conforms(candidate, scheme, **options)``: the report of a check, or a failure of the test with its text.

    `scheme` may be written as an expression; the options are those of ``refattn.testing.check``, and `strict`.
    """

    def conforms(candidate: Any, scheme: Any, *, strict: bool = False, **options: Any) -> Any:
        __tracebackhide__ = True
        from refattn.catalogue import scheme as scheme_of
        from refattn.testing.check import check
        from refattn.testing.report import render

        report = check(candidate, scheme_of(scheme), **options)
        if report.status(strict):
            pytest.fail("\n" + render(report), pytrace=False)
        return report

    return conforms


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among what there is
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    spec, scheme = (config.getoption(f"--refattn-{name}") for name in ("candidate", "scheme"))
    if spec is None and scheme is None:
        return
    if spec is None or scheme is None:
        raise pytest.UsageError("--refattn-candidate SPEC and --refattn-scheme EXPR belong together: give both")
    from refattn.errors import RefattnError

    try:
        check = Check.from_parent(session, name="refattn", nodeid="refattn")
        more: list[Any] = list(check.collect())
    except RefattnError as error:
        raise pytest.UsageError(f"refattn: {error}") from None
    config.hook.pytest_collectreport(report=pytest.CollectReport(check.nodeid, "passed", None, more))  # so that they count
    items.extend(more)


def pytest_unconfigure(config: pytest.Config) -> None:
    if OPEN in config.stash:
        config.stash[OPEN].close()


class Check(pytest.Collector):
    """A candidate, opened once in each process that runs its cases."""

    def collect(self) -> Iterator[pytest.Item]:
        from refattn.catalogue import scheme as scheme_of
        from refattn.testing import only as filters
        from refattn.testing.cases import cases
        from refattn.testing.check import contract_of
        from refattn.testing.subjects import subject_of
        from refattn.testing.worker import open_candidate

        given = {name: self.config.getoption(f"--refattn-{name}") for name in OPTIONS}
        self.spec = self.config.getoption("--refattn-candidate")
        self.scheme = scheme_of(self.config.getoption("--refattn-scheme"))
        self.given, self.precision = given, contract_of(given["contract"], given["dtype"])
        subject = subject_of(self.scheme)
        families = subject.cases_of(self.scheme)
        self.only = None if given["only"] is None else filters.parse(given["only"], families, subject.axes)
        stack = self.config.stash.setdefault(OPEN, ExitStack())
        options = {name: given[name] for name in ("vjp", "backward", "library", "dtype", "layout", "timeout")}
        self.runner = stack.enter_context(open_candidate(self.spec, scheme=self.scheme, **options))
        for case in cases(self.scheme, given["dtype"], self.runner.accepts, self.only):
            yield CaseItem.from_parent(self, name=case.id, case=case)

    def report(self, case: Any) -> Any:
        """The report of a check of one case alone."""
        from refattn.testing import only as filters
        from refattn.testing.check import Run, repro

        run = Run(self.scheme, self.given["dtype"], self.precision, self.runner, self.only)
        run.verdicts.append(run.one_case(case))
        options = {**self.given, "only": filters.of_family(self.given["only"] or "", case.family)}
        again = repro(self.spec, self.scheme, {k: x for k, x in options.items() if x is not None and USUAL.get(k) != x})
        found = run.report(self.spec, self.given["library"], self.given["contract"] is not None, "", again)
        return replace(found, unseen=())  # that one case shows few mistakes is no news


class NonConforming(Exception):
    """A case that fails; the message is the report."""


class CaseItem(pytest.Item):
    """One case of a check."""

    def __init__(self, *, case: Any, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        self.add_marker("refattn")

    def runtest(self) -> None:
        from refattn.testing.report import render

        assert isinstance(self.parent, Check)
        report = self.parent.report(self.case)
        status = report.status(self.config.getoption("--refattn-strict"))
        if status == 3:
            pytest.skip(report.cases[0].remark or str(report.cases[0].level))
        if status:
            raise NonConforming(render(report))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, NonConforming):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return "refattn", None, f"refattn: {self.case.id}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "refattn: a case of a check, added by --refattn-candidate")
