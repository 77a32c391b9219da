"""Results of a kernel in any language, as files, judged against golden vectors with the verdicts of ``check``.

A tensor is judged against the certified value and the stored bound of its precision (of other presets, and of presets with
overrides, the bound is computed). Mistakes are matched over all cases together.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refattn.errors import UsageError
from refattn.expression import written
from refattn.precision import Precision, for_dtype
from refattn.precision import parse as parse_precision
from refattn.testing import vectors_files as files
from refattn.testing.check import contract_of, environment
from refattn.testing.diagnose import Diagnosis, Evidence, level_of
from refattn.testing.judge import judge
from refattn.testing.mutants import Mutant
from refattn.testing.signature import signature
from refattn.testing.tolerance import storage
from refattn.testing.vectors import dtype_of
from refattn.testing.vectors_cases import DTYPES
from refattn.testing.vectors_golden import Golden, load
from refattn.testing.verdicts import CaseVerdict, Level, Naming, Report, TensorVerdict

Values = Any
Arrays = Mapping[str, Any]


class Mixed(Diagnosis):
    """A diagnosis over cases of several configurations.

    A kernel that knows one convention only is right where that is asked and wrong elsewhere: whether a convention explains
    it is asked of each configuration apart.
    """

    def names(self) -> list[tuple[Naming, int]]:
        """(name, number of failing cases that it explains), best first; of a convention over all configurations."""
        best = {naming.mutant: (naming, count) for naming, count in super().names()}
        apart: dict[str, list[tuple[Naming, int]]] = {}
        for scheme in dict.fromkeys(e.case.scheme for e in self.evidence):
            for naming, count in self._of(scheme).names_of_one():
                apart.setdefault(naming.mutant, []).append((naming, count))
        for mutant, found in apart.items():
            strongest = max(found, key=lambda pair: pair[1])[0]
            total = max(sum(count for _, count in found), best.get(mutant, (strongest, 0))[1])
            best[mutant] = (strongest, total)
        return sorted(best.values(), key=lambda pair: -pair[1])

    def names_of_one(self) -> list[tuple[Naming, int]]:
        return super().names()

    def _of(self, scheme: Any) -> Mixed:
        """The evidence of one configuration, and the mutants that are conventions."""
        part = Mixed(self.dtype, self.precision, self.backward, confirmed=self.confirmed)
        part.evidence = [e for e in self.evidence if e.case.scheme == scheme]
        seen = {i for e in part.evidence for i in e.matches}
        part.mutants = {i: m for i, m in self.mutants.items() if m.instead is not None and i in seen}
        return part

    def _naming(self, m: Mutant, how: str = "within") -> Naming:
        found = [e for e in self.evidence if m.id in e.matches]
        where: Evidence = max(found, key=lambda e: (e.fails(m), e.matches[m.id].power))
        instead = None if m.instead is None else written(m.instead(where.case.scheme))
        return replace(super()._naming(replace(m, instead=None), how), instead=instead)


@dataclass
class Judging:
    """A dump under one contract."""

    precision: Precision
    dtype: str
    verdicts: list[CaseVerdict] = field(default_factory=list)
    judged: list[tuple[Golden, dict[str, Values]]] = field(default_factory=list)
    diagnosis: Mixed = field(init=False)

    def __post_init__(self) -> None:
        self.diagnosis = Mixed(self.dtype, self.precision, False)

    def one(self, golden: Golden, found: dict[str, Values]) -> None:
        """Judge the results of one case, by the name of the result."""
        case = golden.case
        if not found or self.dtype not in golden.exact_in:
            remark = "not in the dump" if not found else f"its inputs are not exact in {self.dtype}"
            self.verdicts.append(CaseVerdict(case.id, case.flag, Level.UNSUPPORTED, remark=remark, sizes=case.sizes))
            return
        ref, got = golden.bands(self.precision), {name: self._stored(x) for name, x in found.items()}
        tensors = [judge(name, got[name], ref[name], self._judged_as(name, got[name])) for name in ref if name in got]
        if "o" not in got:
            tensors.append(TensorVerdict("o", Level.FAIL, "missing", where=f"{golden.id}.o is not in the dump"))
        self.judged.append((golden, got))
        self.diagnosis.backward = any(name not in case.scheme.outputs for name in got)
        self.diagnosis.collect(case, got, ref, tensors)
        level = max(t.level for t in tensors)
        self.verdicts.append(CaseVerdict(case.id, case.flag, level, tuple(tensors), sizes=case.sizes))

    def _stored(self, x: Values) -> Values:
        """Results of a narrower dtype that were written in a wider one, as their language has it, in their own dtype."""
        own = storage(self.dtype)
        if x.dtype.name in DTYPES[: DTYPES.index(self.dtype)] and x.dtype != own:
            with np.errstate(over="ignore", invalid="ignore"):
                near = x.astype(own)
            if np.array_equal(near.astype(np.float64), x.astype(np.float64), equal_nan=True):
                return near
        return x

    def _judged_as(self, name: str, x: Values) -> str:
        """The contract's dtype, or a wider one in which the results were kept: the bound holds for them too."""
        wider = x.dtype.name in DTYPES[: DTYPES.index(self.dtype)] and {self.dtype, x.dtype.name} != {"bfloat16", "float16"}
        return x.dtype.name if wider else self.dtype

    def report(self, dump: str, notes: list[str], repro: str) -> Report:
        """Verdicts with their names, and what the judged cases can and can't see."""
        failed = any(v.level == Level.FAIL for v in self.verdicts)
        names = self.diagnosis.names() if failed else []
        classes, words = signature(self.diagnosis.evidence) if failed else ([], [])
        looks, power = self.diagnosis.looks(), self.diagnosis.power()
        return Report(
            candidate=dump, scheme="golden vectors", library="files", dtype=self.dtype, contract=self.precision.name,
            fits=self._fits(failed), cases=tuple(self._named(v, names, looks) for v in self.verdicts),
            notes=(*notes, *words), names=tuple(n for n, _ in names) or tuple(classes),
            explains={n.mutant: k for n, k in names}, power=power, repro=repro,
            unseen=tuple(sorted(i for i, p in power.items() if p < 15)), environment=environment(),
        )  # fmt: skip

    def _named(self, v: CaseVerdict, names: list[tuple[Naming, int]], looks: Mapping[str, list[Naming]]) -> CaseVerdict:
        if v.level == Level.FAIL and v.tensors:
            here = tuple(n for n, _ in names if self.diagnosis.confirmed.get((v.case, n.mutant)))
            return replace(v, names=here, level=level_of(True, here))
        if v.case in looks and v.level in (Level.OK, Level.WARN):
            here = tuple(looks[v.case])
            return replace(v, names=here, level=max(v.level, level_of(False, here)))
        return v

    def _fits(self, failed: bool) -> str | None:
        """The strictest preset of the dtype that every result keeps; the contract itself if it is kept."""
        if not self.judged:
            return None
        if not failed:
            return self.precision.name
        presets = [p for p in for_dtype(self.dtype) if p.name != self.precision.name]
        return next((p.name for p in presets if self._keeps(p)), None)

    def _keeps(self, precision: Precision) -> bool:
        for golden, got in self.judged:
            ref = golden.bands(precision)
            if "o" not in got or any(
                judge(n, got[n], ref[n], self._judged_as(n, got[n])).level == Level.FAIL for n in ref if n in got
            ):
                return False
        return True


def check_dump(vectors: str | Path, dump: str | Path, contract: str | Precision | None = None) -> Report:
    """Judge the results in `dump`, a safetensors file or a folder of them, against the golden vectors of a folder.

    A result has the name that the manifest gives its expected value, as ``29.o`` or ``29.dq``. Cases that are not in the
    dump are not judged. contract: a preset, possibly with overrides; by default the strictest of the dtype of the o's.

    Raises
    ------
    UsageError, OptionError
        For files that can't be read, results of two dtypes without a contract, and a contract that does not exist.
    """
    golden, found = load(Path(vectors)), files.dump(Path(dump))
    known = {f"{g.id}.{name}": (g.id, name) for g in golden for name in g.expected}
    if any(name.endswith(".class") for name in found):
        raise UsageError(f"{dump} holds golden vectors, not the results of a kernel")
    dtype = _dtype(dump, {name: x for name, x in found.items() if name in known}, contract)
    judging = Judging(contract_of(contract, dtype), dtype)
    for g in golden:
        judging.one(g, {name: found[f"{g.id}.{name}"] for name in g.expected if f"{g.id}.{name}" in found})
    unknown = sorted(set(found) - set(known))
    shown = ", ".join(unknown[:8]) + ", …" * (len(unknown) > 8)
    notes = [f"in the dump, but no result of these vectors: {shown}"] if unknown else []
    if judging.judged and not any("lse" in got for _, got in judging.judged):
        notes.append("no lse was given: in half precision it is the only witness in float32, and shows the most")
    asked = [] if contract is None else ["--contract", judging.precision.name]
    return judging.report(str(dump), notes, shlex.join(["refattn", "vectors", "check", str(vectors), str(dump), *asked]))


def _dtype(dump: str | Path, results: Arrays, contract: str | Precision | None) -> str:
    """The dtype of the kernel: the contract's, or that of all o's."""
    wrong = sorted(name for name, x in results.items() if x.dtype.name not in DTYPES)
    if wrong:
        raise UsageError(f"{dump}: {wrong[0]} is {results[wrong[0]].dtype.name}; results are F64, F32, F16 or BF16")
    if contract is not None:
        return dtype_of(parse_precision(contract) if isinstance(contract, str) else contract)
    kinds: set[str] = {x.dtype.name for name, x in results.items() if name.endswith(".o")} or {"float32"}
    if len(kinds) > 1:
        raise UsageError(f"{dump} has outputs in {' and '.join(sorted(kinds))}: say with --contract what is judged")
    (kind,) = kinds
    return kind
