"""The generic texts of ``attend`` and ``attend_vjp`` on NumPy arrays, one head after another.

All heads at once make temporaries that no cache holds, and NumPy works on one core: a head at a time is nearly twice as
fast, needs its own block of scores only, and heads can share the cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from refattn import threads

Array = Any
Index = tuple[int, ...]


def within(at: Index, shape: Index) -> Index:
    """The index into an array whose leading axes broadcast."""
    return tuple(0 if size == 1 else i for i, size in zip(at[len(at) - len(shape):], shape, strict=True))


def sharing(q: Array, k: Array) -> dict[Index, list[Index]]:
    """Which query heads read each key head, by their indices."""
    shared: dict[Index, list[Index]] = {}
    for at in np.ndindex(*q.shape[:-2]):
        shared.setdefault(within(at, k.shape[:-2]), []).append(at)
    return shared


def apart(q: Array, k: Array, v: Array, pairs: int) -> bool:
    """Whether heads can be taken one by one, and have so many pairs that this pays."""
    shares = k.shape[:-2] == v.shape[:-2] and np.broadcast_shapes(q.shape[:-2], k.shape[:-2]) == q.shape[:-2]
    return bool(shares and q.shape[-2] * k.shape[-2] >= pairs)


def part(x: Array | None, at: Index) -> Array | None:
    """One head of an array (..., ·, ·) whose leading axes broadcast."""
    return None if x is None else x[within(at, x.shape[:-2])]


def _terms(at: Index, sink: Array | None, keep: Array | None, see: Any, scores: Any) -> tuple[Any, ...]:
    """What one head sees of all that is no q, k or v."""
    arrays = {f.name: part(x, at) for f in fields(see) if hasattr(x := getattr(see, f.name), "shape")}
    return part(sink, at), part(keep, at), replace(see, **arrays), replace(scores, bias=part(scores.bias, at))


def attend(generic: Callable[..., Any], q: Array, k: Array, v: Array, *terms: Any, **options: Any) -> tuple[Array, Array]:
    """o (..., n, e) and lse (..., n, 1) by the generic text `generic`."""
    o, lse = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty((*q.shape[:-1], 1), q.dtype)

    def task(at: Index) -> Callable[[], None]:
        def work() -> None:
            o[at], lse[at] = generic(q[at], part(k, at), part(v, at), *_terms(at, *terms), **options)

        return work

    threads.run(task(at) for at in np.ndindex(*q.shape[:-2]))
    return o, lse


def attend_vjp(generic: Callable[..., Any], q: Array, k: Array, v: Array, sink: Array | None, keep: Array | None, see: Any,
               scores: Any, *results: Any, **options: Any) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """dq as q; dk and dv as k and v, summed over the heads that share them; dbias as the bias; dsink for every head."""
    dq, dk, dv = np.empty_like(q), np.zeros(k.shape, k.dtype), np.zeros(v.shape, v.dtype)
    dbias = None if scores.bias is None else np.zeros(scores.bias.shape, q.dtype)
    dsink = None if sink is None else np.empty((*q.shape[:-2], 1, 1), q.dtype)

    def task(key: Index, heads: list[Index]) -> Callable[[], None]:
        def work() -> None:
            for at in heads:
                grads = generic(q[at], k[key], v[key], *_terms(at, sink, keep, see, scores),
                                *(part(x, at) for x in results), **options)
                dq[at] = grads[0]
                dk[key] += grads[1]
                dv[key] += grads[2]
                if dbias is not None:
                    dbias[within(at, dbias.shape[:-2])] += grads[3]
                if dsink is not None:
                    dsink[at] = grads[4]

        return work

    tasks = [task(key, heads) for key, heads in sharing(q, k).items()]

    def one_by_one() -> None:
        for work in tasks:
            work()

    threads.run(tasks if dbias is None else [one_by_one])  # heads may share a bias, whose gradient is a sum in one order
    return dq, dk, dv, dbias, dsink
