"""Discrete decisions: judged first, then values are judged by what follows from the candidate's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.precision import Precision
from refattn.testing import Report, check
from refattn.testing.cases import Case
from refattn.testing.subjects import Decisions, dense
from refattn.testing.verdicts import Level, TensorVerdict

Array = Any
ONLY = "family=normal; d=16; d=e"
DOUBT = "two keys of query 0 are as good as each other"


def judged(case: Case, name: str, got: Array, precision: Precision) -> TensorVerdict:
    """A query may leave out one key, whichever it likes."""
    right = got.shape == (*case.do.shape[:3], case.sizes["m"]) and ((~got).sum(axis=-1) == 1).all()
    return TensorVerdict(name, Level.OK if right else Level.FAIL, "" if right else "shape")


def given(case: Case, decisions: Mapping[str, Array]) -> Case:
    return replace(case, inputs=case.inputs._replace(**decisions))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Attention that decides for itself which key each query leaves out, with a reason to doubt the reference's choice."""

    def tell(doubt: str) -> None:
        rules = Decisions(("mask",), judged, given, lambda case, precision: doubt)
        monkeypatch.setattr(dense, "SUBJECT", replace(dense.SUBJECT, decisions=rules))

    return tell


def leaving(key: int | list[int], says: Callable[[Array], Any] = lambda mask: mask) -> Callable[..., Any]:
    """A kernel that leaves out this key, and hands back what `says` makes of its decision."""

    def forward(q: Array, k: Array, v: Array) -> dict[str, Array]:
        mask = np.ones((*q.shape[:-1], k.shape[-2]), bool)
        mask[..., key] = False
        o, saved = Dense().forward(q, k, v, mask=mask)
        found = says(mask)
        return {"o": o, "lse": saved.lse, **({} if found is None else {"mask": found})}

    return forward


def levels(report: Report) -> dict[str, Level]:
    return {t.tensor: t.level for c in report.cases for t in c.tensors}


def test_values_are_judged_by_the_candidates_own_decisions(told: Callable[[str], None]) -> None:
    told("")
    for key in (0, 5):
        report = check(leaving(key), Dense(), only=ONLY)
        assert (report.level, levels(report)) == (Level.OK, {"mask": Level.OK, "o": Level.OK, "lse": Level.OK})


def test_the_backward_is_judged_by_them_too(told: Callable[[str], None]) -> None:
    told("")

    def vjp(q: Array, k: Array, v: Array, do: Array, mask: Array) -> dict[str, Array]:
        saved = Dense().forward(q, k, v, mask=mask)[1]
        return {f"d{n}": g for n, g in Dense().vjp(saved, do)._asdict().items() if g is not None}

    report = check(leaving(5), Dense(), vjp=vjp, only=ONLY)
    assert (report.level, set(levels(report))) == (Level.OK, {"mask", "o", "lse", "dq", "dk", "dv"})


def test_a_decision_that_is_none_fails_and_values_are_those_of_the_reference(told: Callable[[str], None]) -> None:
    told("")
    report = check(leaving(0, lambda mask: mask | True), Dense(), only=ONLY)
    assert levels(report) == {"mask": Level.FAIL, "o": Level.FAIL, "lse": Level.FAIL}
    # Its values follow from its decision, which it must not take: they are not judged by it.
    two = check(leaving([0, 5]), Dense(), only=ONLY)
    assert levels(two) == {"mask": Level.FAIL, "o": Level.FAIL, "lse": Level.FAIL}
    other = check(lambda q, k, v: {"o": Dense()(q, k, v), "mask": np.ones((1, 1), bool)}, Dense(), only=ONLY)
    assert levels(other) == {"mask": Level.FAIL, "o": Level.OK}
    assert other.status() == 1


def test_without_them_a_failure_is_undecided_where_the_reference_is_in_doubt(told: Callable[[str], None]) -> None:
    told(DOUBT)
    report = check(leaving(0, lambda mask: None), Dense(), only=ONLY)
    assert {(c.level, c.remark) for c in report.cases} == {(Level.UNDECIDED, DOUBT)}
    assert report.status() == 3
    right = check(lambda q, k, v: Dense()(q, k, v), Dense(), only=ONLY)
    assert right.status() == 0, "what is right all the same is judged"
    told("")
    assert check(leaving(0, lambda mask: None), Dense(), only=ONLY).level == Level.FAIL


def test_a_result_that_is_no_decision_is_refused(told: Callable[[str], None]) -> None:
    told("")
    report = check(lambda q, k, v: {"o": v, "masks": v}, Dense(), only=ONLY)
    assert "returned a dict with o, masks; it may have o, lse and mask" in report.cases[0].remark
