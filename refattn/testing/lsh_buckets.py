"""Buckets as decisions: which of them a kernel of a precision may find, by the margins between products of a hash.

A digit of a hash is open to every column of [xR; −xR] whose product may, within the bounds that the rounding reading gives
x·R, be the largest one. What is clear must be found; where several are open, each of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import load, using
from refattn.ops.angular_hash import widths
from refattn.precision import Precision
from refattn.testing.cases import Case
from refattn.testing.locate import indices
from refattn.testing.verdicts import Level, TensorVerdict, Worst

Values = Any


class Hashed(Case):
    """A case whose buckets are what a candidate made of its rotations."""


def judge(case: Case, name: str, got: Values, precision: Precision) -> TensorVerdict:
    """OK if every token that is not padding is in a bucket that its margins allow, or where it was put."""
    got, shape = np.asarray(got), _shape(case)
    if got.shape != shape:
        where = f"shape {got.shape} instead of {shape}, one for each round and token"
        return TensorVerdict(name, Level.FAIL, "shape", where=where)
    if got.dtype.kind not in "iu":
        return TensorVerdict(name, Level.FAIL, "dtype", where=f"dtype {got.dtype.name}; buckets are whole numbers")
    got = _in_round(case, got.astype(np.int64))
    wrong = (got != _given(case) if case.inputs.rotations is None else ~_allowed(case, got, precision)) & _tokens(case)
    if not wrong.any():
        return TensorVerdict(name, Level.OK)
    want = _given(case) if case.inputs.rotations is None else _found(case)
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    worst = Worst(at, float(got[at]), float(want[at]), 0.0, float("inf"))
    where = _places(wrong) + _telling(case, got, want)
    return TensorVerdict(name, Level.FAIL, "decision", worst, float("inf"), share=float(wrong.mean()), where=where)


def given(case: Case, decisions: Mapping[str, Values]) -> Case:
    """The case with the candidate's buckets as inputs, in place of rotations."""
    if case.inputs.rotations is None:
        return case
    found = _in_round(case, np.asarray(decisions["buckets"]).astype(np.int64))
    inputs = case.inputs._replace(buckets=found, rotations=None)
    return Hashed(**{**vars(case), "inputs": inputs, "scheme": replace(case.scheme, factors=None)})


def doubtful(case: Case, precision: Precision) -> str:
    """How many hashes are open in this precision, in words; "" if none is, or if buckets were given."""
    if case.inputs.rotations is None or not case.do.size:
        return ""
    open_ = np.zeros(_shape(case), dtype=bool)
    for _, _, may in _digits(case, precision):
        open_ |= may.sum(axis=-1) > 1
    count = int((open_ & _tokens(case)).sum())
    if not count:
        return ""
    return f"{count} of {open_.size} hashes lie within rounding of another bucket: hand `buckets` back to have this judged"


def _digits(case: Case, precision: Precision) -> Iterator[tuple[int, int, Values]]:
    """(factor, stride, which digits are open (B, H, r, n, factor)) of each factor of the hash."""
    x, rotations, at, stride = case.inputs.qk, case.inputs.rotations, 0, 1
    x = np.where(_tokens(case)[:, :, 0, :, None], x, 0.0)
    with using(load("rounding", precision=precision)) as b:
        turned = b.xp.matmul(b.lift(x[:, :, None]), b.lift(rotations))
        value, bound = turned.value, turned.bound
    for f in widths(rotations.shape[-1], case.scheme.factors):
        part, room = value[..., at : at + f // 2], bound[..., at : at + f // 2]
        part, room = np.concatenate([part, -part], axis=-1), np.concatenate([room, room], axis=-1)
        yield f, stride, (part + room >= (part - room).max(axis=-1, keepdims=True)) & _first(part, room)
        at, stride = at + f // 2, stride * f


def _first(part: Values, room: Values) -> Values:
    """Among products that are equal without error, as of the zero vector, the first alone is right."""
    exact = (room == 0.0) & (part == part.max(axis=-1, keepdims=True))
    return ~exact | (np.cumsum(exact, axis=-1) == 1)


def _allowed(case: Case, got: Values, precision: Precision) -> Values:
    fine, rest = got >= 0, np.maximum(got, 0)
    for f, _, may in _digits(case, precision):
        fine &= np.take_along_axis(may, (rest % f)[..., None], axis=-1)[..., 0]
        rest = rest // f
    return fine & (rest == 0)


def _found(case: Case) -> Values:
    """The reference's own buckets."""
    return case.scheme.forward(*case.inputs)[1].buckets


def _shape(case: Case) -> tuple[int, ...]:
    b, h, n, _ = case.inputs.qk.shape
    rounds = case.inputs.buckets.shape[-2] if case.inputs.rotations is None else case.inputs.rotations.shape[-3]
    return b, h, rounds, n


def _given(case: Case) -> Values:
    return np.broadcast_to(case.inputs.buckets, _shape(case))


def _tokens(case: Case) -> Values:
    """(B, H, r, n): what is no padding."""
    b, h, r, n = _shape(case)
    valid = case.inputs.key_valid
    return np.ones((b, h, r, n), bool) if valid is None else np.broadcast_to(valid[:, None, None, :], (b, h, r, n))


def _in_round(case: Case, got: Values) -> Values:
    """Buckets without the round that many kernels add to them, as bucket + round·count: every round is sorted by itself."""
    if not got.size:
        return got
    if case.inputs.rotations is None:
        apart = got - _given(case)
        first = np.take_along_axis(apart, np.argmax(_tokens(case), axis=-1)[..., None], axis=-1)
        return got - first if not ((apart != first) & _tokens(case)).any() else got
    count, rounds = _count(case), np.arange(got.shape[2])[:, None]
    own = got - rounds * count
    return own if not (((own < 0) | (own >= count)) & _tokens(case)).any() else got


def _count(case: Case) -> int:
    return math.prod(widths(case.inputs.rotations.shape[-1], case.scheme.factors))


def _places(wrong: Values) -> str:
    """Where wrong buckets are, in words."""
    axes = zip(("item", "head", "round", "token"), wrong.shape, strict=True)
    others = [tuple(a for a in range(4) if a != i) for i in range(4)]
    hits = [(name, np.flatnonzero(wrong.any(axis=other)), size) for other, (name, size) in zip(others, axes, strict=True)]
    parts = [f"{name}{'s' * (len(hit) > 1)} {indices(hit, size)} of {size}" for name, hit, size in hits if len(hit) < size]
    return ", ".join([f"{int(wrong.sum())} of {wrong.size} tokens in rounds", *parts])


def _telling(case: Case, got: Values, want: Values) -> str:
    """What numbering nine of ten buckets have instead, in words; "" if it is none that is known."""
    if case.inputs.rotations is None or case.scheme.factors is not None:
        return ""
    half = _count(case) // 2
    kinds = {"numbered by [−xR; xR] where [xR; −xR] is asked for": (want + half) % (2 * half),
             "argmax of |xR|, without the sign": want % half}  # fmt: skip
    return "".join(f"; {text}" for text, other in kinds.items() if np.mean((got == other)[_tokens(case)]) > 0.9)
