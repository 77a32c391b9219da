"""Is this kernel right, and if not, what does it do instead?  One call runs, judges and diagnoses a candidate."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refattn._version import __version__
from refattn.catalogue import scheme as scheme_of
from refattn.errors import OptionError
from refattn.expression import written
from refattn.precision import Precision, for_dtype, parse
from refattn.testing import only as filters
from refattn.testing.cases import Case, cases, nulls
from refattn.testing.decided import Settled, settle
from refattn.testing.diagnose import Diagnosis, level_of
from refattn.testing.judge import judge, missing
from refattn.testing.readout import read_mask
from refattn.testing.signature import signature
from refattn.testing.subjects import subject_of
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Band, CaseVerdict, Level, Naming, Report
from refattn.testing.worker import open_candidate

Progress = Callable[[int, int, str, str], None]
USUAL: Mapping[str, Any] = {"library": "numpy", "dtype": "float32", "layout": "bhnd", "timeout": 60.0}
"""What ``check`` takes where nothing else is said."""


def check(
    candidate: Any, scheme: Any, *, vjp: Any = None, backward: str | None = None, library: str = "numpy",
    dtype: str = "float32", contract: str | Precision | None = None, layout: str = "bhnd", only: str | None = None,
    timeout: float = 60.0, progress: Progress | None = None,
) -> Report:  # fmt: skip
    """Judge a kernel against `scheme` under a derived tolerance and name what it does instead.

    Parameters
    ----------
    candidate : "path/file.py:function", "package.module:function" (each gets a process of its own) or a callable.
    scheme : a configured scheme, as ``Dense(causal=True, align="bottom_right")``, or this as text.
    vjp, backward : a candidate for the gradients, or "autograd" for torch's or jax's.
    library : "numpy", "torch", "jax" or "cupy": whose arrays the candidate takes.
    dtype : "float64", "float32", "float16" or "bfloat16": of the inputs and results.
    contract : a precision preset, possibly with overrides; default: the strictest of the dtype.
    layout : "bhnd" or "bnhd": the order of axes of q, k, v, o.
    only : which sizes and families, as in ``"d=64,128; n%64=0; nq=nk; heads=1:1; family=tail"``.
    timeout : seconds for one case.
    progress : called with (cases done, all cases, case, level).

    Raises
    ------
    RefattnError
        For options that mean nothing, and a candidate that can't be loaded.
    """
    scheme, precision = scheme_of(scheme), contract_of(contract, dtype)
    subject = subject_of(scheme)
    with open_candidate(
        candidate, vjp=vjp, backward=backward, library=library, dtype=dtype, layout=layout, timeout=timeout, scheme=scheme
    ) as runner:
        limits = None if only is None else filters.parse(only, subject.cases_of(scheme), subject.axes)
        run = Run(scheme, dtype, precision, runner, limits)
        run.all_cases(progress)
        readout = run.read_mask() if run.failed() else ""
    options = run.arguments(vjp=vjp, backward=backward, library=library, dtype=dtype, contract=contract, layout=layout,
                            only=only, timeout=timeout)  # fmt: skip
    return run.report(candidate, library, contract is not None, readout, repro(candidate, scheme, options))


def assert_conforms(candidate: Any, scheme: Any, *, strict: bool = False, **options: Any) -> Report:
    """``check``, raising AssertionError with the whole report unless the candidate conforms.

    With `strict` a warning does not conform either. Nothing judged does not conform.
    """
    from refattn.testing.report import render

    report = check(candidate, scheme, **options)
    if report.status(strict) != 0:
        raise AssertionError("\n" + render(report))
    return report


def contract_of(contract: str | Precision | None, dtype: str) -> Precision:
    """The contract to judge under; refused if it is none for this dtype."""
    presets = for_dtype(dtype)
    if contract is None:
        return presets[0]
    precision = parse(contract) if isinstance(contract, str) else contract
    if not isinstance(precision, Precision):
        raise OptionError(f"contract={contract!r}: choose {' or '.join(p.name for p in presets)}")
    base = precision.name.partition("(")[0]
    if base not in {p.name for p in presets}:
        raise OptionError(f"contract {precision.name} is none for {dtype}: choose {' or '.join(p.name for p in presets)}")
    return precision


@dataclass
class Run:
    """One candidate under one contract: cases run and judged one by one, then diagnosed together."""

    scheme: Any
    dtype: str
    precision: Precision
    runner: Any
    only: Any
    verdicts: list[CaseVerdict] = field(default_factory=list)
    outputs: dict[str, tuple[Case, Mapping[str, Any]]] = field(default_factory=dict)
    diagnosis: Diagnosis = field(init=False)
    takes_dlse: bool = True
    declined: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.runner.has_backward and self.runner.wants:
            self.takes_dlse = "dlse" in self.runner.wants
        self.diagnosis = Diagnosis(self.dtype, self.precision, self.runner.has_backward)

    def all_cases(self, progress: Progress | None) -> None:
        todo = list(cases(self.scheme, self.dtype, self.runner.accepts, self.only))
        for i, case in enumerate(todo):
            verdict = self.one_case(case)
            self.verdicts.append(verdict)
            if progress is not None:
                progress(i + 1, len(todo), case.id, str(verdict.level))

    def one_case(self, case: Case) -> CaseVerdict:
        """Run and judge a case; what it looks like is added when all cases are known."""
        given = self.runner.has_backward
        case = replace(case, dlse=case.dlse if given and self.takes_dlse else None)
        ref = expect(case.scheme, case.inputs, self.precision, case.do if given else None, case.dlse)
        if (vacuous := self.vacuous(case, ref)) is not None:
            return self._plain(case, Level.UNSUPPORTED, f"not judged: {vacuous} would pass under {self.precision.name}")
        saved = {name: _cast(ref[name].value, "float32" if name == "lse" and self.dtype != "float64" else self.dtype)
                 for name in case.scheme.outputs}  # fmt: skip
        inputs = {n: _cast(x, self.dtype) for n, x in case.inputs._asdict().items() if x is not None}
        dlse = None if case.dlse is None else _cast(case.dlse, "float64" if self.dtype == "float64" else "float32")
        outcome = self.runner.run(inputs, _cast(case.do, self.dtype), dlse, saved, case.strided)
        if outcome.status != "ok":
            return self._not_run(case, outcome)
        if case.dlse is not None and not self.runner.wants and not outcome.lse_is_differentiable:
            self.takes_dlse = False
            case = replace(case, dlse=None)
            ref = expect(case.scheme, case.inputs, self.precision, case.do)
        settled = settle(case, ref, outcome.outputs, self.precision)
        return self.judged(settled.case, settled.ref, outcome, settled)

    def _not_run(self, case: Case, outcome: Any) -> CaseVerdict:
        """The verdict on a candidate that refused, crashed, hung or wrote into its inputs."""
        refused = outcome.status == "unsupported" or (outcome.status == "crash" and case.lenient)
        level = Level.UNSUPPORTED if refused else Level.FAIL
        return self._plain(case, level, f"{outcome.status}: {outcome.remark}", outcome.seconds)

    def _plain(self, case: Case, level: Level, remark: str, seconds: float = 0.0) -> CaseVerdict:
        return CaseVerdict(case.id, case.flag, level, remark=remark, sizes=case.sizes, seconds=seconds)

    def judged(self, case: Case, ref: Mapping[str, Band], outcome: Any, settled: Settled) -> CaseVerdict:
        """Every tensor that came back against its band; o must be among them, and every gradient that was not declined.

        The decisions that came back are judged before; where some are wrong, values are compared with the reference's.
        """
        got = outcome.outputs
        owed = [n for n in ref if n not in got and n != "lse" and n not in outcome.declined]
        tensors = [judge(n, got[n], ref[n], self.dtype) for n in ref if n in got] + [missing(n) for n in owed]
        self.declined |= dict.fromkeys(outcome.declined)
        level = max(t.level for t in (*settled.verdicts, *tensors))
        remark = ""
        if settled.doubt and level > Level.WARN:
            return self._plain(case, Level.UNDECIDED, settled.doubt, outcome.seconds)
        if case.soft and level > Level.WARN:
            level, remark = Level.WARN, f"{case.effect}: {case.flag}"
            tensors = [replace(t, level=min(t.level, Level.WARN)) for t in tensors]
        if not case.soft:
            self.outputs[case.id] = (case, got)
            self.diagnosis.collect(case, got, ref, tensors)
        tensors = [*settled.verdicts, *tensors]
        return CaseVerdict(case.id, case.flag, level, tuple(tensors), (), remark, case.sizes, outcome.seconds)

    def vacuous(self, case: Case, ref: Mapping[str, Band]) -> str | None:
        """The null model that would pass this case, if any."""
        if case.soft or not case.do.size:
            return None
        for name, o in nulls(case).items():
            if name not in case.exempt and judge("o", _cast(o, self.dtype), ref["o"], self.dtype).level < Level.FAIL:
                return name
        return None

    # ---- the whole
    def failed(self) -> bool:
        return any(v.level == Level.FAIL for v in self.verdicts)

    def read_mask(self) -> str:
        return read_mask(self.runner, self.scheme, self.dtype, self.takes_dlse)

    def fits(self, named: bool) -> str | None:
        """The strictest preset of the dtype that every judged output satisfies; the contract itself if it does."""
        if not any(v.level >= Level.OK for v in self.verdicts):
            return None
        if not self.failed():
            return self.precision.name
        broken = any(v.level == Level.FAIL and not v.tensors for v in self.verdicts)
        broken |= any(t.reason == "missing" for v in self.verdicts for t in v.tensors)
        looser = [] if broken or named else list(for_dtype(self.dtype)[1:])
        return next((p.name for p in looser if self._fits(p)), None)

    def _fits(self, precision: Precision) -> bool:
        for case, got in self.outputs.values():
            with_do = any(name.startswith("d") for name in got)
            ref = expect(case.scheme, case.inputs, precision, case.do if with_do else None, case.dlse)
            if any(judge(n, got[n], ref[n], self.dtype).level == Level.FAIL for n in ref if n in got):
                return False
        return True

    def report(self, candidate: Any, library: str, named: bool, readout: str, repro: str) -> Report:
        """Verdicts with their names, and what the inputs can and can't see."""
        names = self.diagnosis.names() if self.failed() else []
        classes, words = signature(self.diagnosis.evidence) if self.failed() else ([], [])
        if "lse" in self.scheme.outputs and self.outputs and not any("lse" in got for _, got in self.outputs.values()):
            words.append("no lse was returned: in half precision it is the only witness in float32, and shows the most")
        if note := subject_of(self.scheme).note(self.scheme, [case for case, _ in self.outputs.values()]):
            words.append(note)
        looks = self.diagnosis.looks()
        verdicts = tuple(self._with_names(v, names, looks) for v in self.verdicts)
        power = self.diagnosis.power()
        return Report(
            candidate=called(candidate), scheme=written(self.scheme), library=library, dtype=self.dtype,
            contract=self.precision.name, fits=self.fits(named), cases=verdicts, notes=tuple(words),
            names=tuple(n for n, _ in names) or tuple(classes),
            explains={n.mutant: k for n, k in names}, power=power, readout=readout, repro=repro,
            unseen=tuple(sorted(i for i, p in power.items() if p < 15)),
            environment=environment(), declined=tuple(self.declined),
        )  # fmt: skip

    def _with_names(self, v: CaseVerdict, names: list[tuple[Naming, int]], looks: dict[str, list[Naming]]) -> CaseVerdict:
        if v.level == Level.FAIL and v.tensors:
            here = tuple(n for n, _ in names if self.diagnosis.confirmed.get((v.case, n.mutant)))
            if not here and names and self.diagnosis.follows(v.case, names[0][0].mutant):
                here = (names[0][0],)
            return replace(v, names=here, level=level_of(True, here))
        if v.case in looks and v.level in (Level.OK, Level.WARN):
            here = tuple(looks[v.case])
            return replace(v, names=here, level=max(v.level, level_of(False, here)))
        return v

    def arguments(self, **options: Any) -> dict[str, Any]:
        """Options of a command that repeats the first failing case, defaults left out."""
        first = next((v.case.partition("/")[0] for v in self.verdicts if v.level == Level.FAIL), None)
        if first is not None:
            options["only"] = filters.of_family(options["only"] or "", first)
        return {k: v for k, v in options.items() if v is not None and USUAL.get(k) != v}


def environment() -> dict[str, str]:
    """What a report was made with."""
    return {"refattn": __version__, "python": platform.python_version(), "numpy": np.__version__, "platform": sys.platform}


def repro(candidate: Any, scheme: Any, options: Mapping[str, Any]) -> str:
    """The command that repeats a check; empty for a candidate that is not named by a string."""
    if not isinstance(candidate, str) or any(callable(v) for v in options.values()):
        return ""
    shown = {k: v.name if isinstance(v, Precision) else f"{v:g}" if k == "timeout" else v for k, v in options.items()}
    quoted = " ".join(f"--{k} {_quote(str(v))}" for k, v in shown.items())
    return f"refattn check {_quote(candidate)} --scheme {_quote(written(scheme))} {quoted}".rstrip()


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[\w./:@-]+", text) else f'"{text}"'


def called(candidate: Any) -> str:
    """The name of a candidate in a report."""
    return candidate if isinstance(candidate, str) else getattr(candidate, "__qualname__", repr(candidate))


def _cast(x: Any, dtype: str) -> Any:
    """Floats in `dtype`; booleans and integers as they are."""
    return x.astype(storage(dtype)) if x.dtype.kind == "f" else x
