"""What the kit has to know of a scheme: axes and draws, null models, a staged kernel, its mistakes, its decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from refattn.precision import Precision
    from refattn.testing.cases import Case
    from refattn.testing.families import Family, Want
    from refattn.testing.mutants import Mutant
    from refattn.testing.verdicts import TensorVerdict

Values = Any
Sizes = Mapping[str, int]
Generator = np.random.Generator


@dataclass(frozen=True)
class Decisions:
    """Discrete outcomes that values hang on, as buckets: they are judged first, then values given the candidate's own.

    names: results in which a candidate may hand them back. judge(case, name, got, precision): OK where a kernel of this
    precision may decide so, else FAIL. given(case, decisions): the case in which these decisions are inputs.
    doubtful(case, precision): why the reference's decisions can't be settled in this precision, "" if they can; a case that
    is doubtful, and wrong, and whose candidate hands nothing back, is UNDECIDED.
    """

    names: tuple[str, ...]
    judge: Callable[[Case, str, Values, Precision], TensorVerdict]
    given: Callable[[Case, Mapping[str, Values]], Case]
    doubtful: Callable[[Case, Precision], str]


def _as_they_are(scheme: Any, sizes: Sizes) -> Sizes | None:
    return sizes


def _nothing(stream: Generator, inputs: dict[str, Values], sizes: Sizes, want: Want) -> None:
    return None


@dataclass(frozen=True)
class Subject:
    """A scheme as the kit sees it.

    kernel                  its staged kernel, a subclass of ``Stages``
    mutants(scheme)         its known mistakes; of those that explain equally well the first is named: conventions come first
    nulls(case)             answers that use no attention, by name
    families                of cases, or a function of the configured scheme; None: those of softmax attention
    shapes                  axes of the inputs that all cases have, in Inputs order; all are drawn normal
    results                 axes of the outputs that have a cotangent, which are drawn in this order
    axes                    further sizes that ``--only`` may name, as {"rounds": "r"}
    fit(scheme, sizes)      the sizes as the configuration takes them (as many heads as patterns); None: not at all
    complete                draws what the configuration needs, after the family's change
    heads                   inputs of shape (..., H, n, d), which layout bnhd has as (..., n, H, d)
    decisions               discrete outcomes, judged first
    note(scheme, cases)     what the cases can't show, in words; "" if nothing
    reads(scheme)           whether the mask can be read out of a kernel, with q = k = 0 and V = I
    long(scheme)            further sizes (n, m) at which it is read out
    counted                 whether a key may count several times; then that is read out too
    tell(scheme, read)      masks that were read out, [((H, n, m), n, m), …], in terms of the configuration; "" if none
    """

    kernel: Any
    mutants: Callable[[Any], Sequence[Mutant]]
    nulls: Callable[[Case], dict[str, Values]]
    families: Callable[[Any], Sequence[Family]] | Sequence[Family] | None = None
    shapes: Mapping[str, str] = field(default_factory=lambda: {"q": "bhnd", "k": "bgmd", "v": "bgme"})
    results: Mapping[str, str] = field(default_factory=lambda: {"o": "bhne", "lse": "bhn"})
    axes: Mapping[str, str] = field(default_factory=dict)
    fit: Callable[[Any, Sizes], Sizes | None] = _as_they_are
    complete: Callable[[Generator, dict[str, Values], Sizes, Want], None] = _nothing
    heads: frozenset[str] = frozenset({"q", "k", "v"})
    decisions: Decisions | None = None
    note: Callable[[Any, Sequence[Case]], str] = lambda scheme, cases: ""
    reads: Callable[[Any], bool] = lambda scheme: False
    long: Callable[[Any], Sequence[tuple[int, int]]] = lambda scheme: ()
    tell: Callable[[Any, Sequence[tuple[Values, int, int]]], str] = lambda scheme, read: ""
    counted: bool = False

    def cases_of(self, scheme: Any) -> Sequence[Family] | None:
        """The families of a configured scheme; None: those of softmax attention."""
        return self.families(scheme) if callable(self.families) else self.families

    @property
    def decided(self) -> tuple[str, ...]:
        """The names of its discrete outcomes."""
        return () if self.decisions is None else self.decisions.names
