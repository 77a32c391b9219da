"""Long sequences: a kernel judged at chosen query rows, and in all of dk and dv, in O(rows·n·d) time and O(n·d) memory.

The candidate is called on the whole problem like on any other. Of o, lse and dq the chosen rows alone are compared; do is 0
in all other rows, so that dk and dv are sums over the chosen rows, and every element of them is compared. Faults that only
long sequences show are what this is for: offsets that overflow, the last tile, counters, sums that lose their tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.catalogue import scheme as scheme_of
from refattn.errors import OptionError
from refattn.expression import written
from refattn.precision import Precision
from refattn.schemes.dense import Dense
from refattn.testing.check import called, contract_of, environment, repro
from refattn.testing.diagnose import as_float, level_of
from refattn.testing.judge import judge, missing
from refattn.testing.sampled_bands import Expected, Rows, expect_rows
from refattn.testing.sampled_inputs import chosen, draw
from refattn.testing.sampled_names import names
from refattn.testing.sampled_verdicts import gradients, rows_verdict
from refattn.testing.tolerance import storage
from refattn.testing.verdicts import Band, CaseVerdict, Level, Report, TensorVerdict
from refattn.testing.worker import Outcome, open_candidate

__all__ = ["check_rows", "chosen"]

Values = Any
FLAG = "faults that only long sequences show: offsets that overflow, dropped tails, the last tile"
Progress = Any
LIMIT = 3600.0  # seconds


def check_rows(
    candidate: Any, scheme: Any, *, rows: int, n: int, m: int | None = None, d: int = 64, e: int | None = None,
    heads: int = 1, kv_heads: int | None = None, vjp: Any = None, backward: str | None = None, library: str = "numpy",
    dtype: str = "float32", contract: str | Precision | None = None, layout: str = "bhnd", timeout: float = LIMIT,
    progress: Progress | None = None,
) -> Report:  # fmt: skip
    """Judge a kernel on one long sequence: o, lse and dq at `rows` query rows, every element of dk and dv.

    Parameters
    ----------
    rows : how many query rows of each head; ``chosen(rows, n, m, scheme)`` says which.
    n, m, d, e, heads, kv_heads : the sizes of the one case; m defaults to n, e to d, kv_heads to heads.
    timeout : seconds for the candidate.

    The others are those of ``check``. Only q, k and v are given: no optional inputs.

    Raises
    ------
    RefattnError
        For options that mean nothing, sizes that do not fit, and a candidate that can't be loaded.
    """
    scheme = scheme_of(scheme)
    if not isinstance(scheme, Dense):
        raise OptionError(f"{written(scheme)}: at chosen rows of a long sequence kernels of Dense are judged, not of "
                          f"{type(scheme).__name__}; leave out rows: short cases are judged whole")
    _refuse_parts({"rows": rows, "n": n, "m": m, "d": d, "e": e, "heads": heads, "kv_heads": kv_heads})
    m, e, kv = (n if m is None else m), (d if e is None else e), (heads if kv_heads is None else kv_heads)
    sizes = {"b": 1, "h": heads, "g": kv, "n": n, "m": m, "d": d, "e": e}
    if scheme.keep_rate is not None:
        raise OptionError(f"keep_rate={scheme.keep_rate}: dropout needs a mask (n, m), which does not fit at these lengths")
    scheme.check(scheme.Inputs((1, heads, n, d), (1, kv, m, d), (1, kv, m, e)))
    precision, at = contract_of(contract, dtype), chosen(rows, n, m, scheme)
    inputs, do = draw(scheme, sizes, dtype, at)
    options = {"vjp": vjp, "backward": backward, "library": library, "dtype": dtype, "layout": layout, "timeout": timeout}
    with open_candidate(candidate, scheme=scheme, **options) as runner:
        run = Long(Rows(scheme, inputs, do if runner.has_backward else None, at, precision), dtype, runner)
        verdict = run.judged(sizes, progress)
    size = {"n": n, "m": m if m != n else None, "d": d, "e": e if e != d else None, "heads": heads if heads > 1 else None,
            "kv-heads": kv if kv != heads else None}  # fmt: skip
    usual = {"library": "numpy", "dtype": "float32", "layout": "bhnd", "timeout": LIMIT}
    shown = {"vjp": vjp, "backward": backward, "contract": contract, **{k: options[k] for k in usual}, "rows": rows, **size}
    again = repro(candidate, scheme, {k: x for k, x in shown.items() if x is not None and usual.get(k) != x})
    return Report(
        candidate=called(candidate), scheme=written(scheme), library=library, dtype=dtype, contract=precision.name,
        fits=precision.name if verdict.level in (Level.OK, Level.WARN) else None, cases=(verdict,), names=verdict.names,
        explains={x.mutant: 1 for x in verdict.names}, repro=again, environment=environment(),
        rows=tuple(map(int, at)), declined=run.declined,
    )  # fmt: skip


def _refuse_parts(sizes: Mapping[str, Any]) -> None:
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer)):
            raise OptionError(f"{name}={size!r}: give a whole number")


@dataclass
class Long:
    """One long problem and its candidate."""

    rows: Rows
    dtype: str
    runner: Any
    declined: tuple[str, ...] = ()

    def judged(self, sizes: Mapping[str, int], progress: Progress | None) -> CaseVerdict:
        """Read the rows, run the candidate, compare; each step of a head counts as one for `progress`."""
        name, n = f"rows/{sizes['n']}", sizes["n"]
        total, done = len(self.rows.steps()) * sizes["h"] + 2, 0

        def step() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total, name, "")

        expected = expect_rows(self.rows, step)
        if (vacuous := self._vacuous(expected)) is not None:
            return CaseVerdict(name, FLAG, Level.UNSUPPORTED, remark=f"not judged: {vacuous} would pass", sizes=sizes)
        outcome = self._run(expected)
        step()
        self.declined = outcome.declined
        if outcome.status != "ok":
            level = Level.UNSUPPORTED if outcome.status == "unsupported" else Level.FAIL
            remark = f"{outcome.status}: {outcome.remark}"
            return CaseVerdict(name, FLAG, level, remark=remark, sizes=sizes, seconds=outcome.seconds)
        tensors = self._tensors(expected, outcome, n)
        step()
        level, found = max(t.level for t in tensors), []
        if any(t.level == Level.FAIL and t.tensor in ("o", "lse") and t.reason in ("bound", "class") for t in tensors):
            found = names(expected, as_float({k: x for k, x in outcome.outputs.items() if k in ("o", "lse")}))
            level = level_of(True, found)
        return CaseVerdict(name, FLAG, level, tuple(tensors), tuple(found), "", sizes, outcome.seconds)

    def _run(self, expected: Expected) -> Outcome:
        x = self.rows
        inputs = {name: y for name, y in x.inputs._asdict().items() if y is not None}
        saved = {}
        if "lse" in self.runner.wants:
            # Weights of rows that are not judged: exp(s − ∞) = 0, and their do is 0 besides.
            lse = np.full(x.inputs.q.shape[:-1], np.inf, np.float64 if self.dtype == "float64" else np.float32)
            lse[:, :, x.at] = expected.bands["lse"].value
            saved["lse"] = lse
        found: Outcome = self.runner.run(inputs, x.do, None, saved, rows=x.at)
        return found

    def _tensors(self, expected: Expected, outcome: Outcome, n: int) -> list[TensorVerdict]:
        x, got = self.rows, outcome.outputs
        there = {name: band for name, band in expected.bands.items() if name in got}
        tensors = [rows_verdict(name, got[name], band, self.dtype, x.at, n) for name, band in there.items()]
        owed = ("o",) if x.do is None else ("o", "dq", "dk", "dv")
        tensors += [missing(name) for name in owed if name not in got and name not in outcome.declined]
        if x.do is not None:
            shapes = {"dk": x.inputs.k.shape, "dv": x.inputs.v.shape}
            tensors += gradients(got, expected.gradients(), shapes, self.dtype)
        return tensors

    def _vacuous(self, expected: Expected) -> str | None:
        """The null model that would pass: nothing at all, or the mean of all values."""
        band: Band = expected.bands["o"]
        x = self.rows
        mean = x.inputs.v.mean(axis=-2, dtype=np.float64)[0]
        heads = {head: g for g in range(len(mean)) for head in x.heads(g)}
        filled = np.stack([np.broadcast_to(mean[heads[h]], band.value.shape[2:]) for h in sorted(heads)])[None]
        for name, o in (("zeros", np.zeros_like(band.value)), ("the mean of V", filled)):
            if judge("o", o.astype(storage(self.dtype)), band, self.dtype).level < Level.FAIL:
                return name
        return None
