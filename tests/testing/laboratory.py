"""Candidates that are known mistakes themselves: every mutant of the dictionary judged and named like a kernel.

What a mutant does on a case, and the bounds around that, are computed once and serve all candidates of a bench.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from refattn import Dense
from refattn.precision import Precision, for_dtype
from refattn.testing.cases import Case, cases
from refattn.testing.diagnose import Diagnosis, Evidence, as_float
from refattn.testing.judge import judge
from refattn.testing.match import match
from refattn.testing.mutants import Mutant, applicable
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Band, Level

Values = Any


@dataclass(frozen=True)
class Setting:
    """A configuration, what a candidate of it takes, and the cases that it is judged on (none: all)."""

    scheme: Dense
    accepts: tuple[str, ...]
    dtype: str
    ids: tuple[str, ...] = ()

    def cases(self) -> list[Case]:
        """The cases with these ids; soft and empty ones say nothing of mistakes."""
        found = [c for c in cases(self.scheme, self.dtype, frozenset(self.accepts)) if not self.ids or c.id in self.ids]
        assert {c.id for c in found} >= set(self.ids), set(self.ids) - {c.id for c in found}
        return [c for c in found if not c.soft and 0 not in c.sizes.values()]


@dataclass
class Cached:
    """A mutant whose values and bands are computed once for each case."""

    mutant: Mutant
    shared: dict[tuple[str, str], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mutant, name)

    def values(self, case: Case, dtype: str) -> Any:
        key = (self.mutant.id, case.id)
        if key not in self.shared:
            self.shared[key] = self.mutant.values(case, dtype)
        return self.shared[key]

    def bands(self, case: Case, dtype: str, backend: Any) -> Any:
        key = (self.mutant.id, case.id + " bands")
        if key not in self.shared:
            self.shared[key] = self.mutant.bands(case, dtype, backend)
        return self.shared[key]


@dataclass
class Bench:
    """A setting with its references and mutants, on which candidates are judged."""

    setting: Setting
    shared: dict[tuple[str, str], Any] = field(default_factory=dict)

    @cached_property
    def precision(self) -> Precision:
        return for_dtype(self.setting.dtype)[0]

    @cached_property
    def cases(self) -> list[Case]:
        return self.setting.cases()

    @cached_property
    def refs(self) -> dict[str, dict[str, Band]]:
        return {c.id: expect(c.scheme, c.inputs, self.precision, c.do, c.dlse) for c in self.cases}

    @cached_property
    def mutants(self) -> dict[str, list[Cached]]:
        return {c.id: [Cached(m, self.shared) for m in applicable(c, self.setting.dtype, True)] for c in self.cases}

    @cached_property
    def power(self) -> dict[str, dict[str, float]]:
        """Mutant → case → power."""
        out: dict[str, dict[str, float]] = {}
        for c in self.cases:
            exact = {name: b.value for name, b in self.refs[c.id].items()}
            for m in self.mutants[c.id]:
                out.setdefault(m.id, {})[c.id] = match(exact, self.refs[c.id], m.values(c, self.setting.dtype)).power
        return out

    def stored(self, name: str, x: Values) -> Values:
        """A result as a kernel of the dtype returns it."""
        statistic = name == "lse" and self.setting.dtype != "float64"
        return x.astype(storage("float32" if statistic else self.setting.dtype))

    def outputs(self, case: Case, mutant_id: str) -> dict[str, Values]:
        """What a kernel with this mistake returns: right apart from the tensors of the mistake's side."""
        right = {name: b.value for name, b in self.refs[case.id].items()}
        changed = next((m.values(case, self.setting.dtype) for m in self.mutants[case.id] if m.id == mutant_id), {})
        return {name: self.stored(name, x) for name, x in {**right, **changed}.items()}

    def diagnose(self, results: Mapping[str, Mapping[str, Values]], backward: bool) -> tuple[Diagnosis, bool]:
        """All cases of one candidate judged together, by the mistakes of one side. Also whether anything fails."""
        d, failed = Diagnosis(self.setting.dtype, self.precision, True), False
        for c in self.cases:
            ref, got = self.refs[c.id], as_float(results[c.id])
            levels = {name: judge(name, x, ref[name], self.setting.dtype).level for name, x in results[c.id].items()}
            e = Evidence(c, got, ref, frozenset(name for name, level in levels.items() if level == Level.FAIL))
            failed |= bool(e.failing)
            for m in self.mutants[c.id]:
                if m.backward != backward:
                    continue
                e.predicted[m.id], d.mutants[m.id] = m.values(c, self.setting.dtype), m
                e.matches[m.id] = match(got, ref, e.predicted[m.id])
            d.evidence.append(e)
        return d, failed

    def names(self, mutant_id: str) -> tuple[bool, list[str]]:
        """(fails, what it is named, best first) of the candidate that is this mutant.

        A failing one that no name explains may still look like a mistake on the cases that it passes.
        """
        d, failed = self.diagnose({c.id: self.outputs(c, mutant_id) for c in self.cases}, mutant_id.startswith("B"))
        named = [n.mutant for n, _ in d.names()] if failed else []
        if named:
            return True, named
        found = [n for names in d.looks().values() for n in names]
        return failed, [n.mutant for n in sorted(found, key=lambda n: -n.power)]


@cache
def bench_of(setting: Setting) -> Bench:
    """The bench of a setting, shared by all tests of a run."""
    return Bench(setting)


MASKED = ("mask", "bias", "sink", "key_valid", "segment_ids", "kv_segment_ids")
SETTINGS = {
    "dropped": Setting(Dense(causal=True, keep_rate=0.8), ("keep", "sink"), "float32", (
        "peaked/odd", "dropout/odd", "dropout/pow2", "shared heads/odd", "sink/odd")),
    "bfloat16": Setting(Dense(causal=True), (), "bfloat16", (
        "normal/odd", "peaked/odd", "flat/odd", "flat/pow2", "tail/off", "shared heads/odd", "small/odd")),
    "capped": Setting(Dense(softcap=8.0, scale=0.3, empty="mean"), ("mask", "bias", "sink"), "float32", (
        "peaked/odd", "softcap/odd", "softcap/pow2", "blind rows/odd", "bias/odd", "bias and mask/odd", "shared heads/odd")),
    "masks": Setting(Dense(), MASKED, "float32", (
        "peaked/odd", "large/odd", "mask/odd", "blind rows/odd", "padding/odd", "segments/odd", "segments/pow2", "bias/odd",
        "sink/odd", "sink/pow2", "shared heads/one", "strided/odd", "more keys/odd")),
    "causal": Setting(Dense(causal=True, align="bottom_right"), ("q_positions", "k_positions"), "float32", (
        "peaked/odd", "flat/odd", "far below/odd", "large/odd", "more keys/odd", "more keys/pow2", "more queries/odd",
        "one query/odd", "shared heads/odd", "widths/narrow", "strided/odd", "positions/odd", "mixed positions/odd",
        "tail/off")),
    "float16": Setting(Dense(), (), "float16", ("half range/pow2", "peaked/odd", "flat/odd")),
}  # fmt: skip
