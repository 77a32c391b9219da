"""What a check finds, as plain data: levels, bands, verdicts of a tensor, a case and a whole candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

Values = Any  # a float64 ndarray


class Level(IntEnum):
    """From harmless to wrong; the level of a whole is the highest of its parts."""

    UNSUPPORTED = 0  # the candidate says that it does not do this: not judged
    UNDECIDED = 1  # a discrete decision can't be settled in this precision: not judged
    OK = 2
    WARN = 3  # inside the bound, but not how independent rounding errors look
    CONVENTION = 4  # right under another convention, which the verdict names
    LOOKS_LIKE = 5  # inside the bound, but nearer to a known mistake than to the reference
    FAIL = 6  # outside the rigorous bound; or crash, hang, wrong shape or dtype, written input

    def __str__(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Band:
    """A reference tensor: float64 value, rigorous elementwise bound and predicted standard deviation of a correct kernel."""

    value: Values
    bound: Values
    sigma: Values


@dataclass(frozen=True)
class Naming:
    """A known mistake or convention that the result looks like.

    amplitude: 1 is the whole fault, 0 none of it. power: how many standard deviations of a correct kernel the fault is on
    this case. how: "within" (inside the mutant's own bound), "filter" (matched filter), "hint" (power 15 to 30).
    instead: the scheme under which the kernel would be right, for conventions.
    """

    mutant: str
    title: str
    amplitude: float
    power: float
    how: str
    instead: str | None = None


@dataclass(frozen=True)
class Worst:
    """The element that is furthest out, in units of its bound."""

    index: tuple[int, ...]
    got: float
    want: float
    bound: float
    ratio: float


@dataclass(frozen=True)
class TensorVerdict:
    """One tensor of one case. max_ratio: largest |error| ÷ bound. rms: root mean square of |error| ÷ sigma.

    reason: "" (OK), "bound", "class" (NaN or infinity in the wrong place), "shape", "dtype", "statistical", "sigma",
    "rms", "bias", "missing", "decision". share: part of the elements out of bound. where: the errors' place in words.
    """

    tensor: str
    level: Level
    reason: str = ""
    worst: Worst | None = None
    max_ratio: float = 0.0
    rms: float = 0.0
    share: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class CaseVerdict:
    """One case: its tensors, what it looks like, and a remark (the exception of a crash, why it is not judged)."""

    case: str
    flag: str
    level: Level
    tensors: tuple[TensorVerdict, ...] = ()
    names: tuple[Naming, ...] = ()
    remark: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """A whole check. contract: the preset judged under; fits: the strictest preset of the dtype that the kernel satisfies.

    names: mistakes over all cases, best first, with the number of failing cases that each explains in `explains`.
    power: mutant → largest power over the judged cases; unseen: applicable mutants whose power is below 15.
    rows: the query rows that were judged, where they were not all (``check_rows``). declined: gradients that the backward
    says it does not give, which were not judged.
    """

    candidate: str
    scheme: str
    library: str
    dtype: str
    contract: str
    fits: str | None
    cases: tuple[CaseVerdict, ...]
    names: tuple[Naming, ...] = ()
    explains: Mapping[str, int] = field(default_factory=dict)
    power: Mapping[str, float] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    readout: str = ""
    repro: str = ""
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    declined: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[CaseVerdict, ...]:
        """The cases that got a verdict."""
        return tuple(c for c in self.cases if c.level >= Level.OK)

    @property
    def level(self) -> Level:
        """The highest level of the judged cases; UNSUPPORTED if none was."""
        return max((c.level for c in self.judged), default=Level.UNSUPPORTED)

    def status(self, strict: bool = False) -> int:
        """Exit status: 0 conforms, 1 does not, 3 nothing judged; with `strict`, WARN does not conform."""
        if not self.judged:
            return 3
        return int(self.level > Level.WARN or (strict and self.level == Level.WARN))


def finite(x: Values) -> Values:
    """x with NaN and infinities as 0, for sums over what can be compared."""
    return np.where(np.isfinite(x), x, 0.0)
