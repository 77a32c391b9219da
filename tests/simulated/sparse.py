"""Problems whose masks are sparse patterns, and the rounding reading of Sparse for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn import load, using
from refattn.precision import Precision
from refattn.schemes.sparse import Sparse
from simulated import draws
from simulated.kernel import Problem
from tabled import Table

Array = Any
KINDS = ("window", "strided", "global", "random", "counts")


def counts(kind: str, n: int, rng: np.random.Generator) -> Array:
    """(n, n): how often each query sees each key; random ones have rows and columns that see nothing."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    near = abs(i - j) <= rng.integers(0, max(1, n // 4))
    if kind == "window":
        return (near & (j <= i)).astype(int)
    if kind == "strided":
        step = int(rng.integers(1, 12))
        return ((j <= i) & ((i - j < step) | ((i - j) % step == 0))).astype(int)
    if kind == "global":
        first = int(rng.integers(1, 4))
        return (near | (j < first) | (i < first)).astype(int)
    some = (rng.random((n, n)) < rng.uniform(0.02, 0.5)) & (rng.random((n, 1)) < 0.9)
    return some * (rng.integers(1, 4, (n, n)) if kind == "counts" else 1)


def problem(kind: str, rng: np.random.Generator, form: str = "float32", **fixed: Any) -> tuple[Problem, Array]:
    """One head's inputs as ``draws.problem`` has them, with the counts of a pattern; a count is log count of bias."""
    p = draws.problem(rng, form, kind="full", **{"n": int(rng.integers(2, 110)), **fixed})
    table = counts(kind, len(p.q), rng)
    bias = np.log(np.maximum(table, 1)).astype(p.q.dtype) if kind == "counts" else None
    return p._replace(see=table > 0, bias=bias), table


def read(p: Problem, table: Array, precision: Precision) -> dict[str, Any]:
    """o, lse and the gradients of Sparse as rounded arrays, by name."""
    scheme = Sparse(Table.of(table))
    with using(load("rounding", precision=precision)):
        o, saved = scheme.forward(p.q, p.k, p.v)
        grads = scheme.vjp(saved, p.do)
    return {"o": o, "lse": saved.lse, "dq": grads.q, "dk": grads.k, "dv": grads.v}
