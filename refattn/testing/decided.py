"""Discrete decisions of a candidate: judged first, then its values are compared with what follows from these decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refattn.precision import Precision
from refattn.testing.cases import Case
from refattn.testing.subjects import subject_of
from refattn.testing.tolerance import expect
from refattn.testing.verdicts import Band, Level, TensorVerdict


@dataclass(frozen=True)
class Settled:
    """The case and the reference that the values are judged by. verdicts: of the decisions. doubt: why a failure of the
    values says nothing: the reference's decisions can't be settled, and the candidate did not hand back its own.
    """

    case: Case
    ref: Mapping[str, Band]
    verdicts: tuple[TensorVerdict, ...] = ()
    doubt: str = ""


def settle(case: Case, ref: Mapping[str, Band], outputs: Mapping[str, Any], precision: Precision) -> Settled:
    """Judge what decisions came back; if they are all right, they take the place of the reference's."""
    rules = subject_of(case.scheme).decisions
    if rules is None:
        return Settled(case, ref)
    found = {name: outputs[name] for name in rules.names if name in outputs}
    if not found:
        return Settled(case, ref, doubt=rules.doubtful(case, precision))
    verdicts = tuple(rules.judge(case, name, x, precision) for name, x in found.items())
    if any(v.level > Level.WARN for v in verdicts):
        return Settled(case, ref, verdicts)
    case = rules.given(case, found)
    do = case.do if any(name.startswith("d") for name in ref) else None
    return Settled(case, expect(case.scheme, case.inputs, precision, do, case.dlse), verdicts)
