"""Running held-out faults: on a case of the kit, and through check()."""

from __future__ import annotations

from typing import Any

import numpy as np

from heldout.kernel import Attention
from refattn.testing.cases import Case, cases
from refattn.testing.check import check, contract_of
from refattn.testing.match import match
from refattn.testing.only import parse
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Level, Report

Array = Any


def families(fault: type[Attention], plain: bool) -> str:
    """The ``only`` text of the families that show a fault, with everyday inputs besides if `plain`."""
    names = dict.fromkeys((*fault.families, *(("normal",) if plain else ())))
    return f"family={','.join(names)}"


def drawn(fault: type[Attention], dtype: str, plain: bool = False) -> list[Case]:
    """The judged cases of those families."""
    every = frozenset(fault.scheme.Inputs._fields[3:]) - ({"keep"} if fault.scheme.keep_rate is None else set())
    found = cases(fault.scheme, dtype, every, parse(families(fault, plain)))
    return [c for c in found if not c.soft and 0 not in c.sizes.values()]


def results(fault: type[Attention], case: Case, dtype: str) -> dict[str, Array]:
    """What the faulty kernel returns for a case, inputs and results in `dtype`."""
    kernel, form = fault(), storage(dtype)
    present = {name: x for name, x in case.inputs._asdict().items() if x is not None}
    given = {name: x.astype(form) if x.dtype.kind == "f" else x for name, x in present.items()}
    if case.strided:
        given |= {name: given[name].swapaxes(1, 2).copy().swapaxes(1, 2) for name in ("q", "k", "v")}
    o, lse = kernel.forward(**given)
    dlse = None if case.dlse is None else case.dlse.astype(lse.dtype)
    return {"o": o, "lse": lse, **kernel.vjp(**given, o=o, lse=lse, do=case.do.astype(form), dlse=dlse)}


def power(fault: type[Attention], case: Case, contract: str, dtype: str) -> float:
    """How many standard deviations of a correct kernel the fault is on this case; infinite for a wrong dtype."""
    ref = expect(case.scheme, case.inputs, contract_of(contract, dtype), case.do, case.dlse)
    if results(fault, case, dtype)["o"].dtype != storage(dtype):
        return np.inf
    with np.errstate(all="ignore"):
        wrong = results(fault, case, "float64")
    return match(wrong, ref, wrong).power


def checked(fault: type[Attention], dtype: str, contract: str | None = None, plain: bool = False) -> Report:
    """The kit's report on the faulty kernel."""
    kernel = fault()
    return check(kernel.forward, fault.scheme, vjp=kernel.vjp, dtype=dtype, contract=contract, only=families(fault, plain))


def names(report: Report) -> list[str]:
    """The mistakes of the dictionary that a report names, best first."""
    found = [n for n in report.names if n.how != "class"] or [n for c in report.cases for n in c.names]
    return list(dict.fromkeys(n.mutant for n in found))


def misnamed(fault: type[Attention], report: Report) -> bool:
    """True if the first name is neither what the fault is nor one of its two mistakes."""
    return any(i not in fault.near and i.partition("@")[0] not in fault.near for i in names(report)[:1])


def says(report: Report) -> str:
    """What a report says of a fault, on one line: the names, or a class, or where the errors are."""
    if found := names(report):
        return "named " + ", ".join(found[:2])
    worst = next((t for c in report.cases for t in c.tensors if t.level == Level.FAIL), None)
    place = "" if worst is None else f"{worst.tensor}: {worst.where}"
    when = [n for n in report.notes if n.startswith("fails")]
    parts = [*(n.title for n in report.names[:1]), *when[:1], place]
    return "unknown: " + "; ".join(dict.fromkeys(p for p in parts if p))
