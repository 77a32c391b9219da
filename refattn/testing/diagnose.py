"""Which known mistake explains a candidate? Matched filters over all cases, confirmed by the mutants' own bounds.

FAIL          the names are the mutants within whose own bounds the candidate lies on every failing case of their side
LOOKS LIKE x  inside the bound, but amplitude .7–1.4 at power ≥ 30, on that case and on the others where x has power
CONVENTION x  instead of either, where x would be right under another configuration of the scheme
hint          the same at power 15–30: said, but no verdict
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refattn.backend import load
from refattn.expression import written
from refattn.precision import Precision
from refattn.testing.cases import Case
from refattn.testing.judge import ratios
from refattn.testing.match import Match, match, out_of_class
from refattn.testing.mutants import Mutant, applicable
from refattn.testing.subjects import kernel_of
from refattn.testing.tolerance import exact_in
from refattn.testing.verdicts import Band, Level, Naming, TensorVerdict

Values = Any
SEEN, CERTAIN = 15.0, 30.0
LOW, HIGH = 0.7, 1.4
MOST_WRONG = 0.2
NOTHING = ("shape", "missing")  # reasons by which a tensor has nothing to compare


@dataclass
class Evidence:
    """One judged case: the candidate's float64 outputs, the reference, failing tensors, and a match for each mutant.

    unfit: failing tensor → what is wrong with its dtype.
    """

    case: Case
    got: Mapping[str, Values]
    ref: Mapping[str, Band]
    failing: frozenset[str]
    matches: dict[str, Match] = field(default_factory=dict)
    predicted: dict[str, Mapping[str, Values]] = field(default_factory=dict)
    fitted: dict[str, Mutant] = field(default_factory=dict)
    unfit: Mapping[str, str] = field(default_factory=dict)

    def fails(self, mutant: Mutant) -> bool:
        """True if a tensor of the mutant's side is out of its bound here."""
        return any(mutant.concerns(name) for name in self.failing)

    @property
    def fails_forward(self) -> bool:
        """True if a result of the forward is out of its bound here."""
        return any(not name.startswith("d") for name in self.failing)


@dataclass
class Diagnosis:
    """Evidence from all cases of one candidate in one precision."""

    dtype: str
    precision: Precision
    backward: bool
    evidence: list[Evidence] = field(default_factory=list)
    mutants: dict[str, Mutant] = field(default_factory=dict)
    confirmed: dict[tuple[str, str], bool] = field(default_factory=dict)

    def collect(self, case: Case, outputs: Mapping[str, Values], ref: Mapping[str, Band],
                tensors: Sequence[TensorVerdict]) -> None:
        """Match every applicable mutant on a judged case; tensors that are missing, or of another shape, say nothing."""
        if any(t.tensor == "o" and t.reason in NOTHING for t in tensors):
            return
        there = {t.tensor: t for t in tensors if t.reason not in NOTHING}
        got = as_float({name: outputs[name] for name in there})
        failing = frozenset(name for name, t in there.items() if t.level == Level.FAIL)
        e = Evidence(case, got, ref, failing, unfit={n: t.where for n, t in there.items() if t.reason == "dtype"})
        mutants = [m for m in applicable(case, self.dtype, self.backward) if not granted(m, self.precision)]
        right = kernel_of(case.scheme)(case.scheme, case.inputs)
        if mutants:
            right.run()
        for m in mutants:
            values = m.values(case, self.dtype, right)
            e.predicted[m.id], self.mutants[m.id] = values, m
            e.matches[m.id] = self._match(m, got, ref, values)
        self.evidence.append(e)

    def _match(self, m: Mutant, got: Mapping[str, Values], ref: Mapping[str, Band], values: Mapping[str, Values]) -> Match:
        """The matched filter. Sums that are rounded on the way are told from sums that are stored once in half precision:
        both the reference and the mutant are stored first, so that the rounding of storage is in neither difference.

        In float64 the reference has roundings of the size of those looked for: a mutant nowhere further from it than
        a correct kernel may be changes nothing, and its difference, which has these roundings too, says nothing.
        """
        if self.dtype == "float64" and unchanged(ref, values):
            return match(got, ref, {name: b.value for name, b in ref.items() if name in values})
        if not (self.dtype in ("bfloat16", "float16") and m.id.partition("@")[0] in ("B20", "B21")):
            return match(got, ref, values)
        kept = {name: exact_in(x, self.dtype) for name, x in values.items()}
        near = {n: Band(exact_in(b.value, self.dtype), b.bound, b.sigma) for n, b in ref.items() if n in kept}
        return match(got, near, kept)

    # ---- power
    def power(self) -> dict[str, float]:
        """Mutant → its largest power over the judged cases."""
        return {i: max(e.matches[i].power for e in self.evidence if i in e.matches) for i in self.mutants}

    # ---- names of a failing candidate
    def names(self) -> list[tuple[Naming, int]]:
        """(name, number of failing cases that it explains), best first: forward mistakes if the forward fails."""
        forward = any(e.fails_forward for e in self.evidence)
        self._fit()
        side = [m for m in self.mutants.values() if m.backward != forward]
        found = [(m, n, self._residual(m)) for m in side if (n := self._explains(m))]
        found.sort(key=lambda f: (-f[1], f[0].rounds, f[0].at is not None, f[2]))
        return [(self._naming(m), n) for m, n, _ in found]

    def failing_cases(self) -> int:
        """How many cases fail on the side that names are looked for."""
        forward = any(e.fails_forward for e in self.evidence)
        return sum(e.fails_forward if forward else bool(e.failing) for e in self.evidence)

    def _explains(self, m: Mutant) -> int:
        """How many failing cases the mutant explains; 0 if it leaves a fifth unexplained, or is seen to be absent."""
        good, bad, absent, seen = 0, 0, 0, 0
        for e in self.evidence:
            if m.id not in e.matches:
                continue
            if e.fails(m):
                good, bad = (good + 1, bad) if self._explained(e, m) else (good, bad + 1)
            elif e.matches[m.id].power >= CERTAIN and m.at is None:
                seen, absent = seen + 1, absent + (not self._explained(e, m))
            if bad > MOST_WRONG * len(self.evidence):
                return 0
        return good if bad <= 0.2 * (good + bad) and absent <= 0.1 * (good + seen) else 0

    def _fit(self) -> None:
        """Give mistakes that have a size, on each failing case, the size that fits it."""
        for m in [m for m in self.mutants.values() if m.at is not None]:
            for e in self.evidence:
                if m.id in e.matches and e.fails(m) and (size := self._size(e, m)) is not None and m.at is not None:
                    fitted = e.fitted[m.id] = m.at(size)
                    e.predicted[m.id] = fitted.values(e.case, self.dtype)
                    e.matches[m.id] = match(e.got, e.ref, e.predicted[m.id])

    def _size(self, e: Evidence, m: Mutant) -> float | None:
        """Secant steps from size 0: at each, how much of the change to a slightly larger size is in what is left."""
        assert m.at is not None
        size, step = 0.0, 0.05
        for _ in range(6):
            here, there = (m.at(size + s).values(e.case, self.dtype) for s in (0.0, step))
            base = {k: Band(here[k], e.ref[k].bound, e.ref[k].sigma) for k in here.keys() & e.ref.keys()}
            found = match(e.got, base, there)
            if found.power == 0 or found.classes is not None or not np.isfinite(found.amplitude):
                return None
            size += float(np.clip(found.amplitude * step, -20.0, 20.0))
        return size if size != 0 and abs(size) < 90 else None

    def _explained(self, e: Evidence, m: Mutant) -> bool:
        """The candidate does here what the mutant does."""
        key = (e.case.id, m.id)
        if key not in self.confirmed:
            self.confirmed[key] = m.id in e.matches and self._close(e, m) and (m.rounds or self._within(e, m))
        return self.confirmed[key]

    def _close(self, e: Evidence, m: Mutant) -> bool:
        found = e.matches[m.id]
        if found.classes is not None:
            return found.classes and (found.residual < 0.5 or found.power > 0)
        if m.rounds:
            return LOW <= found.amplitude <= HIGH and found.residual < 0.85
        return 0.5 <= found.amplitude <= 2.0 and found.residual < 0.8

    def _within(self, e: Evidence, m: Mutant) -> bool:
        """The candidate lies inside the mutant's own bound, classes included."""
        bands = e.fitted.get(m.id, m).bands(e.case, self.dtype, load("rounding", precision=self.precision))
        for name, band in bands.items():
            if name in e.got:
                values = Band(e.predicted[m.id][name], band.bound, band.sigma)
                if out_of_class(e.got[name], values.value).any() or (ratios(e.got[name], values) > 1).any():
                    return False
        return True

    def follows(self, case: str, mutant_id: str) -> bool:
        """On a case whose forward is right, the wrong gradients are those of a kernel with this mistake of the forward."""
        m = self.mutants[mutant_id]
        e = next((e for e in self.evidence if e.case.id == case and mutant_id in e.matches), None)
        if e is None or e.fails_forward or m.backward or m.rounds:
            return False
        bands = m.gradients(e.case, self.dtype, load("rounding", precision=self.precision))
        return all(name in bands and not out_of_class(e.got[name], bands[name].value).any()
                   and bool((ratios(e.got[name], bands[name]) <= 1).all()) for name in e.failing)

    def _residual(self, m: Mutant) -> float:
        return max((e.matches[m.id].residual for e in self.evidence if e.fails(m) and m.id in e.matches), default=1.0)

    def _naming(self, m: Mutant, how: str = "within") -> Naming:
        ids = [e for e in self.evidence if m.id in e.matches]
        where = max(ids, key=lambda e: e.matches[m.id].power * e.fails(m))
        best = where.matches[m.id]
        return Naming(m.id, self._title(m), best.amplitude, best.power, how, under(m, self.evidence[0].case.scheme))

    def _title(self, m: Mutant) -> str:
        """The title, with the sizes that fit the failing cases where they differ."""
        titles = sorted({e.fitted[m.id].title for e in self.evidence if m.id in e.fitted and e.fails(m)})
        return m.title if not titles else titles[0] if len(titles) == 1 else f"{titles[0]} … {titles[-1].rpartition(' ')[2]}"

    # ---- what a candidate inside its bounds looks like
    def looks(self) -> dict[str, list[Naming]]:
        """Case → what it looks like: the mutant with the largest 2tP − P², if all cases that can see it agree."""
        out: dict[str, list[Naming]] = {}
        for e in self.evidence:
            near = [(m, x) for i, x in e.matches.items() if not e.fails(m := self.mutants[i]) and self._like(x)]
            near = [(m, x) for m, x in near if self._agreed(m)]
            if near:
                m, x = max(near, key=lambda pair: 2 * pair[1].t * pair[1].power - pair[1].power ** 2)
                how = "filter" if x.power >= CERTAIN else "hint"
                out[e.case.id] = [Naming(m.id, m.title, x.amplitude, x.power, how, under(m, e.case.scheme))]
        return out

    def _like(self, x: Match) -> bool:
        return x.classes is not False and x.power >= SEEN and LOW <= x.amplitude <= HIGH and x.steady

    def _agreed(self, m: Mutant) -> bool:
        """Nine of ten cases in which the mutant has power say the same; where it must fail, it does."""
        seen = [e for e in self.evidence if m.id in e.matches and e.matches[m.id].power >= CERTAIN]
        agree = [e for e in seen if 0.5 <= e.matches[m.id].amplitude <= 1.6]
        return len(agree) >= 0.9 * len(seen)


def under(m: Mutant, scheme: Any) -> str | None:
    """The scheme under which a mistake would be right, written; None if it is no convention."""
    found = None if m.instead is None else m.instead(scheme)
    return None if found is None else written(found)


EAGER = frozenset({"F4", "F14", "F14r", "F15", "F15z", "F16b", "B5", "B5p", "B20", "B21"})


def granted(m: Mutant, precision: Precision) -> bool:
    """True for a rounding to half precision that an eager contract allows: no mistake there."""
    return precision.u > 2.0**-20 and m.id.partition("@")[0] in EAGER


def level_of(failing: bool, names: Sequence[Naming]) -> Level:
    """The level of a case that fails, or that looks like `names`."""
    certain = [n for n in names if n.how != "hint"]
    if failing:
        return Level.FAIL if not certain or any(n.instead is None for n in certain[:1]) else Level.CONVENTION
    if not certain:
        return Level.OK
    return Level.LOOKS_LIKE if certain[0].instead is None else Level.CONVENTION


def unchanged(ref: Mapping[str, Band], values: Mapping[str, Values]) -> bool:
    """True if every value is within the bound of the reference."""
    with np.errstate(invalid="ignore"):
        return all(bool(np.all((x == ref[n].value) | (np.abs(x - ref[n].value) <= ref[n].bound)))
                   for n, x in values.items() if n in ref and np.shape(x) == np.shape(ref[n].value))


def as_float(outputs: Mapping[str, Values]) -> dict[str, Values]:
    """Outputs as float64; a complex number that is not real is no number here."""
    return {name: _real(np.asarray(x)).astype(np.float64) for name, x in outputs.items()}


def _real(x: Values) -> Values:
    return np.where(x.imag == 0, x.real, np.nan) if x.dtype.kind == "c" else x
