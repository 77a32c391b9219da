"""LSH attention as the kit sees it: shared queries and keys, buckets given or hashed, which are judged before values."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.testing import lsh_buckets
from refattn.testing.cases import Case
from refattn.testing.families_lsh import FAMILIES, complete, fit
from refattn.testing.mutants_lsh import known
from refattn.testing.staged_lsh import LSHStaged
from refattn.testing.subjects.base import Decisions, Subject

Values = Any


def nulls(case: Case) -> dict[str, Values]:
    """Zeros, the mean of V, every token's own value, and every row's predecessor."""
    v, n = case.inputs.v, case.sizes["n"]
    out = {"zeros": np.zeros_like(v)}
    if n > 1:
        out["mean of V"] = np.broadcast_to(v.mean(axis=-2, keepdims=True), v.shape)
        out["own value"] = v
        out["previous row"] = np.roll(case.scheme.forward(*case.inputs)[0], 1, axis=-2)
    return out


def note(scheme: Any, cases: Any) -> str:
    """What cases with buckets alone, or with rotations alone, leave out."""
    if cases and all(c.given("rotations") is None and not isinstance(c, lsh_buckets.Hashed) for c in cases):
        return "no case has rotations: the hash was not judged (a candidate whose signature names `rotations` gets them)"
    return ""


SUBJECT = Subject(
    kernel=LSHStaged, mutants=known, nulls=nulls, families=FAMILIES, shapes={"qk": "bhnd", "v": "bhne"},
    results={"o": "bhne", "lse": "bhn"}, axes={"rounds": "r"}, fit=fit, complete=complete, heads=frozenset({"qk", "v"}),
    decisions=Decisions(("buckets",), lsh_buckets.judge, lsh_buckets.given, lsh_buckets.doubtful), note=note,
)  # fmt: skip
