"""What the table of power is measured on: cases of the kit, candidates that are known mistakes, and correct kernels."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from refattn import Dense
from refattn.backend import load
from refattn.precision import PRESETS
from refattn.testing.cases import Case, cases
from refattn.testing.check import Run
from refattn.testing.diagnose import CERTAIN, Diagnosis, Evidence, granted
from refattn.testing.judge import judge
from refattn.testing.match import match
from refattn.testing.mutants import applicable
from refattn.testing.only import parse
from refattn.testing.staged import Staged
from refattn.testing.tolerance import exact_in, expect, storage
from refattn.testing.verdicts import Band, Level
from simulated import styles
from simulated.kernel import Kernel, Problem
from testing.laboratory import Cached

Array = Any
Results = dict[str, Array]
DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "flash-bf16": "bfloat16", "flash-fp16": "float16",
          "eager-bf16": "bfloat16", "eager-fp16": "float16"}  # fmt: skip
STYLES = {
    "fp64": ("double",),
    "fp32": ("naive", "sequential", "online", "split", "folded"),
    "tf32": ("tf32",),
    "flash-bf16": ("flash_bf16", "truncating"),
    "flash-fp16": ("flash_fp16", "truncating"),
    "eager-bf16": ("eager",),
    "eager-fp16": ("eager",),
}  # fmt: skip
ALL = ("mask", "bias", "sink", "key_valid", "segment_ids", "kv_segment_ids", "q_positions")


@dataclass(frozen=True)
class Setting:
    """A configuration, what its candidates take, and its cases: those that --quick has too come first."""

    scheme: Dense
    accepts: tuple[str, ...]
    ids: tuple[str, ...]
    quick: int
    dlse: bool = True


SETTINGS = {
    "causal": Setting(Dense(causal=True, align="bottom_right"), ALL, (
        "peaked/odd", "more keys/odd", "shared heads/odd", "strided/odd", "blind rows/odd", "padding/odd", "bias/odd",
        "sink/odd", "segments/odd", "positions/odd", "tail/off", "normal/pow2", "large/odd", "rising/odd",
        "mask/odd", "widths/wide", "half range/pow2"), 11),
    "full": Setting(Dense(), (), ("tail/off", "normal/odd", "tail/odd", "tail/pow2"), 1),
    "capped": Setting(Dense(softcap=8.0, keep_rate=0.8), ("keep", "bias", "key_valid"),
                      ("softcap/odd", "dropout/odd", "bias/odd", "padding/odd"), 3, dlse=False),
}  # fmt: skip


def problem(case: Case, kernel: Staged, b: int, h: int) -> Problem:
    """One head of a case for a simulated kernel. dlse goes in as the cotangent of a column of ones behind v."""
    x, source = case.inputs, kernel.source[h]
    see = np.broadcast_to(kernel.see, (*case.do.shape[:2], *kernel.see.shape[-2:]))[b, h]
    v, do = x.v[b, source], case.do[b, h]
    if case.dlse is not None:
        v, do = np.c_[v, np.ones(len(v))], np.c_[do, case.dlse[b, h]]
    pick = {n: None if (y := getattr(x, n)) is None else np.broadcast_to(y, (*case.do.shape[:2], *see.shape))[b, h]
            for n in ("bias", "keep")}  # fmt: skip
    sink = None if x.sink is None else float(x.sink[h])
    return Problem(x.q[b, h], x.k[b, source], v, do, see, pick["bias"], sink, pick["keep"], case.scheme.keep_rate or 1.0,
                   case.scheme.softcap)  # fmt: skip


@np.errstate(over="ignore", invalid="ignore")
def simulate(kernel: Kernel, case: Case, stored: bool = True) -> Results:
    """A simulated kernel on a whole case, as float64 values: rounded to its result format, or as they are before that.

    A naive float16 kernel overflows where scores are large: what it returns is not finite, and the rule that measures by it
    then allows anything.
    """
    staged = Staged(case.scheme, case.inputs)
    staged.prepare()
    (b, h, n, _), work = case.do.shape, np.dtype(kernel.compute)
    if case.dlse is not None:  # Σ P dP over the column of ones would take dlse out again
        kernel = replace(kernel, delta_from="output")
    summing, e = replace(kernel, result=kernel.compute), case.sizes["e"]
    out: Results = {name: np.zeros((b, h, *shape), work) for name, shape in shapes(case).items()}
    out |= {} if case.inputs.sink is None else {"dsink": np.zeros(h, work)}
    for at in np.ndindex(b, h):
        p = problem(case, staged, *at)
        p = p._replace(**{name: getattr(p, name).astype(work) for name in ("q", "k", "v", "do")})
        plain = p._replace(v=p.v[:, :e], do=p.do[:, :e])
        o, lse = (kernel if stored else summing).forward(plain)
        held = np.c_[kernel.store(o), np.zeros((n, p.v.shape[1] - e), work)].astype(work)
        grads = summing.backward(p, held, lse)
        grads["dv"] = grads["dv"][:, :e]
        out["o"][at], out["lse"][at] = o, lse[:, 0]
        for name in grads.keys() - {"dsink"}:
            out[name][at] = grads[name]
        if "dsink" in grads:
            out["dsink"][at[1]] += grads["dsink"] + _sink_of_dlse(case, p, lse, at)
    return _gathered(out, case, staged, kernel if stored else summing)


def _sink_of_dlse(case: Case, p: Problem, lse: Array, at: tuple[int, ...]) -> Any:
    if case.dlse is None or p.sink is None:
        return 0.0
    return np.sum(np.exp(lse.dtype.type(p.sink) - lse[:, 0]) * case.dlse[at].astype(lse.dtype))


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Per head, before heads that share are summed."""
    n, m, d, e = (case.sizes[a] for a in "nmde")
    found = {"o": (n, e), "lse": (n,), "dq": (n, d), "dk": (m, d), "dv": (m, e)}
    return found | ({} if case.inputs.bias is None else {"dbias": (n, m)})


def _gathered(out: Results, case: Case, staged: Staged, kernel: Kernel) -> Results:
    """Gradients summed over the heads and items that share an input, then stored."""
    if staged.few != staged.heads:
        out |= {name: np.stack([sum(out[name][:, h] for h in staged.readers(g)) for g in range(staged.few)], axis=1)
                for name in ("dk", "dv")}  # fmt: skip
    if "dbias" in out:
        out["dbias"] = staged.pull_bias(out["dbias"])
    return {name: np.asarray(x if name == "lse" else kernel.store(x), np.float64) for name, x in out.items()}


def naive(preset: str) -> Kernel:
    """A kernel of a preset as one writes it first: whole rows, every intermediate in the dtype, or in tf32 every operand."""
    dtype = DTYPES[preset]
    work = "float64" if dtype == "float64" else "float32"
    every = "" if work == dtype else dtype
    kernel = Kernel(compute=work, result=dtype, every=every, normalise="first", delta_from="weights")
    return replace(kernel, operand="tf32", given=True) if preset == "tf32" else kernel


@dataclass
class Panel:
    """The cases of a setting under a preset, with references, mutants, a correct kernel's errors, and a naive kernel."""

    preset: str
    setting: Setting
    quick: bool = False
    shared: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dtype, self.precision = DTYPES[self.preset], PRESETS[self.preset]
        self.work = "float64" if self.preset == "fp64" else "float32"

    @cached_property
    def cases(self) -> list[Case]:
        """Those of the setting that no null model passes, as check() has them."""
        ids = self.setting.ids[: self.setting.quick] if self.quick else self.setting.ids
        only = parse("family=" + ",".join(dict.fromkeys(i.partition("/")[0] for i in ids)))
        drawn = [c for c in cases(self.setting.scheme, self.dtype, frozenset(self.setting.accepts), only) if c.id in ids]
        drawn = [c if self.setting.dlse else replace(c, dlse=None) for c in drawn]
        silent = SimpleNamespace(has_backward=False, wants=frozenset(), accepts=frozenset())
        run = Run(self.setting.scheme, self.dtype, self.precision, silent, None)
        return [c for c in drawn if run.vacuous(c, self.reference(c)) is None]

    def reference(self, case: Case) -> dict[str, Band]:
        key = (case.id, "reference")
        if key not in self.shared:
            self.shared[key] = expect(case.scheme, case.inputs, self.precision, case.do, case.dlse)
        return self.shared[key]

    @cached_property
    def refs(self) -> dict[str, dict[str, Band]]:
        return {c.id: self.reference(c) for c in self.cases}

    @cached_property
    def mutants(self) -> dict[str, list[Cached]]:
        return {c.id: [Cached(m, self.shared) for m in applicable(c, self.dtype, True) if not granted(m, self.precision)]
                for c in self.cases}  # fmt: skip

    @cached_property
    def power(self) -> dict[str, dict[str, float]]:
        """Mutant → case → power."""
        out: dict[str, dict[str, float]] = {}
        for c in self.cases:
            exact = {name: b.value for name, b in self.refs[c.id].items()}
            for m in self.mutants[c.id]:
                out.setdefault(m.id, {})[c.id] = match(exact, self.refs[c.id], m.values(c, self.dtype)).power
        return out

    # ---- candidates
    def own(self, stored: bool) -> Kernel:
        """The correct kernel whose rounding errors the candidates have: tiles of 64, or one operation at a time."""
        result = self.dtype if stored else self.work
        if self.preset.startswith("eager"):
            return Kernel(result=result, every=self.dtype, normalise="first", product="sequential")
        given = self.preset == "tf32"
        operand = "tf32" if given else self.dtype if self.preset.startswith("flash") else ""
        return Kernel(compute=self.work, result=result, operand=operand, given=given, walk="tiles", base2=True)

    @cached_property
    def errors(self) -> dict[str, Results]:
        """Case → tensor → rounding errors of a correct kernel, before results are stored."""
        found = {c.id: simulate(self.own(stored=True), c, stored=False) for c in self.cases}
        return {c: {n: np.where(np.isfinite(b.value), found[c][n] - np.where(np.isfinite(b.value), b.value, 0.0), 0.0)
                    for n, b in self.refs[c].items()} for c in found}  # fmt: skip

    @cached_property
    def naive(self) -> dict[str, Results]:
        """Case → results of the naive kernel, which the 2× rule measures by."""
        kernel = naive(self.preset)
        return {c.id: simulate(kernel, c) for c in self.cases}

    def stored(self, name: str, x: Array) -> Array:
        """A result in the dtype that a kernel returns it in."""
        return x.astype(storage(self.work if name == "lse" else self.dtype))

    def candidate(self, case: Case, mutant: str) -> Results:
        """A kernel with this mistake: what it does exactly, and rounding errors as a correct kernel has them.

        Those are taken in units of the spread predicted for the right result, and put back in units of that predicted for
        the wrong one (--quick, which looks for no names, leaves them as they are). Results that are in the dtype already
        (cut off, or never stored) are not changed.
        """
        ref, errors = self.refs[case.id], self.errors[case.id]
        m = next((m for m in self.mutants[case.id] if m.id == mutant), None)
        wrong = {} if m is None else m.values(case, self.dtype)
        bands = {} if m is None or self.quick else m.bands(case, self.dtype, load("rounding", precision=self.precision))
        out = {}
        for name, band in ref.items():
            x, error = np.asarray(wrong.get(name, band.value)), errors[name]
            if name in bands:
                error = self.rescaled(error, band, replace(bands[name], value=x))
            with np.errstate(over="ignore"):
                final = name in wrong and name != "lse" and np.array_equal(exact_in(x, self.dtype), x, equal_nan=True)
                out[name] = self.stored(name, x if final else x + error)
        return out

    def rescaled(self, error: Array, right: Band, wrong: Band) -> Array:
        """Errors of a right result as errors of a wrong one, within the wrong one's bound less the rounding of its store."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            size = np.where(right.sigma > 0, wrong.sigma / right.sigma, 0.0)
            most = np.maximum(wrong.bound - (self.precision.out * np.abs(wrong.value) + self.precision.tiny_out), 0.0)
            return np.nan_to_num(np.clip(error * size, -most, most), nan=0.0, posinf=0.0, neginf=0.0)

    def kernels(self, count: int) -> Iterator[Kernel]:
        """Correct kernels of the preset's styles with tiles that the preset allows."""
        rng, found = np.random.default_rng([zlib.crc32(self.preset.encode()), 2]), 0
        while found < count:
            kernel, _ = styles.draw(STYLES[self.preset][found % len(STYLES[self.preset])], rng)
            if kernel.result == self.dtype and kernel.tile >= self.precision.tile:
                found += 1
                yield kernel

    # ---- verdicts
    def failing(self, case: Case, got: Mapping[str, Array]) -> tuple[frozenset[str], bool]:
        """The tensors that fail, and whether one warns."""
        levels = {name: judge(name, x, self.refs[case.id][name], self.dtype).level for name, x in got.items()}
        return frozenset(n for n, v in levels.items() if v == Level.FAIL), Level.WARN in levels.values()

    def fails(self, case: Case, got: Mapping[str, Array], mutant: str) -> bool:
        """True if a tensor in which this mistake shows fails; the others are those of a correct kernel."""
        m = next((m for m in self.mutants[case.id] if m.id == mutant), None)
        return m is not None and bool(self.failing(case, {n: x for n, x in got.items() if n in m.tensors})[0])

    def diagnosed(self, results: Mapping[str, Results], side: bool | None) -> Diagnosis:
        """All cases of a candidate before the mistakes of one side (True: the backward), or of both (None)."""
        d = Diagnosis(self.dtype, self.precision, True)
        for c in self.cases:
            ref, got = self.refs[c.id], {n: x.astype(np.float64) for n, x in results[c.id].items()}
            e = Evidence(c, got, ref, self.failing(c, results[c.id])[0])
            for m in self.mutants[c.id]:
                if side is None or m.backward == side:
                    e.predicted[m.id], d.mutants[m.id] = m.values(c, self.dtype), m
                    e.matches[m.id] = match(got, ref, e.predicted[m.id])
            d.evidence.append(e)
        return d

    def same(self, one: str, other: str) -> bool:
        """True if two mistakes have the same effect on every case of the panel."""
        for c in self.cases:
            found = [next((m.values(c, self.dtype) for m in self.mutants[c.id] if m.id == i), {}) for i in (one, other)]
            right = {n: b.value for n, b in self.refs[c.id].items()}
            both = found[0].keys() | found[1].keys()
            if not all(np.array_equal(found[0].get(n, right[n]), found[1].get(n, right[n]), equal_nan=True) for n in both):
                return False
        return True

    def visible(self, mutant: str) -> bool:
        """True if the mistake has power on some case."""
        return max(self.power[mutant].values()) >= CERTAIN


