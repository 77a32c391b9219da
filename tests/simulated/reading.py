"""The rounding reading of a problem, and the distance of a kernel's results from it in units of the bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn import Dense, load, using
from refattn.precision import Precision
from simulated.kernel import Kernel, Problem

Array = Any


def read(p: Problem, precision: Precision) -> dict[str, Any]:
    """o, lse and the gradients of Dense as rounded arrays, by name."""
    scheme = Dense(softcap=p.softcap, keep_rate=None if p.keep is None else p.keep_rate)
    sink = None if p.sink is None else np.asarray(p.sink, p.q.dtype)
    with using(load("rounding", precision=precision)):
        o, saved = scheme.forward(p.q, p.k, p.v, mask=p.see, bias=p.bias, sink=sink, keep=p.keep)
        grads = scheme.vjp(saved, p.do)
    out = {"o": o, "lse": saved.lse, "dq": grads.q, "dk": grads.k, "dv": grads.v}
    return {**out, **{name: g for name, g in (("dbias", grads.bias), ("dsink", grads.sink)) if g is not None}}


def run(kernel: Kernel, p: Problem) -> dict[str, Array]:
    """The same results from a kernel."""
    dtype = np.dtype(kernel.compute)
    p = p._replace(**{name: getattr(p, name).astype(dtype) for name in ("q", "k", "v", "do")})
    o, lse = kernel.forward(p)
    return {"o": o, "lse": lse[:, 0], **kernel.backward(p, o, lse)}


def ratio(got: Array, want: Any) -> float:
    """max |got − value| / bound; inf for a NaN, a wrong infinity, or an error where none is allowed."""
    got = np.asarray(got, np.float64)
    finite = np.isfinite(want.value)
    if got.shape != want.shape or not np.array_equal(got[~finite], want.value[~finite]):
        return np.inf
    error, bound = np.abs(got[finite] - want.value[finite]), want.bound[finite]
    if not np.all(np.isfinite(error)) or np.any(error[bound == 0.0]):
        return np.inf
    some = bound > 0.0
    return float(np.max(error[some] / bound[some], initial=0.0))


def ratios(kernel: Kernel, p: Problem, reading: dict[str, Any]) -> dict[str, float]:
    """``ratio`` of every result."""
    got = run(kernel, p)
    return {name: ratio(got[name], want) for name, want in reading.items()}
