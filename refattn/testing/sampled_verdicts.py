"""Verdicts on chosen rows, and on tensors that are judged some keys at a time; in words, where the errors sit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refattn.testing.judge import RMS, SIGMAS, floor, judge, ratios
from refattn.testing.locate import locate
from refattn.testing.match import out_of_class
from refattn.testing.verdicts import Band, Level, TensorVerdict

Values = Any
RARE = 1e-6  # at most this part of very many errors lies beyond 6σ by the prediction's own faults
SHOWN = 8


def rows_verdict(name: str, got: Values, band: Band, dtype: str, rows: Values, n: int) -> TensorVerdict:
    """The verdict on tensor `name` (1, h, rows, ·), with indices and places in the whole tensor."""
    found = judge(name, got, band, dtype)
    if found.worst is not None:
        item, head, row, *rest = found.worst.index
        found = replace(found, worst=replace(found.worst, index=(item, head, int(rows[row]), *rest)))
    if found.level == Level.FAIL and found.reason in ("bound", "class"):
        found = replace(found, where=_place(outside(got, band), rows, n))
    return found


def outside(got: Values, band: Band) -> Values:
    """Where got is out of its band."""
    x = got.astype(np.float64)
    return out_of_class(x, band.value) | (ratios(x, band) > 1)


def _place(out: Values, rows: Values, n: int) -> str:
    hit = rows[np.flatnonzero(out.any(axis=(0, 1, *range(3, out.ndim))))]
    names = ", ".join(f"{r}{' (the last)' if r == n - 1 else ''}" for r in hit[:SHOWN])
    rest = f" and {len(hit) - SHOWN} more" if len(hit) > SHOWN else ""
    inside = locate(out.take(np.flatnonzero(np.isin(rows, hit)), axis=2))
    return f"row{'' if len(hit) == 1 else 's'} {names}{rest} of {n}, {len(hit)} of the {len(rows)} judged; there {inside}"


@dataclass
class Pieces:
    """The verdict on a whole tensor (1, g, m, ·), added up from verdicts on some keys at a time."""

    name: str
    got: Values
    dtype: str
    worst: TensorVerdict | None = None
    out: Values | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    squares: float = 0.0
    beyond: int = 0

    def add(self, head: int, keys: slice, band: Band) -> None:
        """Judge the keys of a key head."""
        got = self.got[:, head : head + 1, keys]
        found = judge(self.name, got, band, self.dtype)
        self.reasons[found.reason] += 1
        self.squares += found.rms**2 * got.size
        error = np.abs(got.astype(np.float64) - band.value)
        self.beyond += int(np.count_nonzero((error > SIGMAS * floor(band.sigma)) & (band.sigma > 0)))
        if found.level == Level.FAIL and found.reason in ("bound", "class"):
            self.out = np.zeros(self.got.shape, bool) if self.out is None else self.out
            self.out[:, head : head + 1, keys] = outside(got, band)
        if found.worst is not None:
            item, g, key, *rest = found.worst.index
            index = (item, g + head, key + keys.start, *rest)
            found = replace(found, worst=replace(found.worst, index=index))
        if self.worst is None or _order(found) > _order(self.worst):
            self.worst = found

    def verdict(self) -> TensorVerdict:
        """The whole: FAIL where a piece fails; warnings by the statistics of all pieces together."""
        if self.worst is None:
            return TensorVerdict(self.name, Level.OK)
        rms = float(np.sqrt(self.squares / max(self.got.size, 1)))
        if self.worst.level == Level.FAIL:
            where, share = ("", self.worst.share) if self.out is None else (_counted(self.out), float(self.out.mean()))
            return replace(self.worst, rms=rms, share=share, where=where)
        level, reason = Level.OK, ""
        if rms > RMS:
            level, reason = Level.WARN, "rms"
        elif self.beyond > RARE * self.got.size:
            level, reason = Level.WARN, "sigma"
        elif 2 * self.reasons["bias"] > self.reasons.total():
            level, reason = Level.WARN, "bias"
        return replace(self.worst, level=level, reason=reason, rms=rms)


def _order(found: TensorVerdict) -> tuple[bool, float]:
    return found.level == Level.FAIL, found.max_ratio


def _counted(out: Values) -> str:
    """Where errors sit; a few among millions by their number, since a share of 0.0% says nothing."""
    text = locate(out)
    return text.replace("0.0% of the", f"{np.count_nonzero(out)} of {out.size}", 1) if text.startswith("0.0% ") else text


def gradients(got: Mapping[str, Values], pieces: Iterable[tuple[int, slice, Mapping[str, Band]]], shapes: Mapping[str, Any],
              dtype: str) -> list[TensorVerdict]:  # fmt: skip
    """Verdicts on those of dk and dv that are there."""
    wrong = [_shape(name, got[name], shapes[name], dtype) for name in shapes if name in got]
    refused = [v for v in wrong if v is not None]
    sums = {v: Pieces(v, got[v], dtype) for v in shapes if v in got and v not in {w.tensor for w in refused}}
    if sums:
        for head, keys, bands in pieces:
            for name, total in sums.items():
                total.add(head, keys, bands[name])
    return [*refused, *(total.verdict() for total in sums.values())]


def _shape(name: str, got: Values, shape: tuple[int, ...], dtype: str) -> TensorVerdict | None:
    if got.shape != shape:
        return TensorVerdict(name, Level.FAIL, "shape", where=f"shape {got.shape} instead of {shape}")
    if got.dtype.name != dtype:
        return TensorVerdict(name, Level.FAIL, "dtype", where=f"dtype {got.dtype.name} instead of {dtype}")
    return None
