"""The mask read out of a black box: with q = k = 0 and V = I the output is the matrix of weights, equal for visible keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.testing.diagnose import as_float
from refattn.testing.locate import indices
from refattn.testing.tolerance import storage

Values = Any
SIZES = ((12, 12), (7, 12), (12, 7), (70, 70), (131, 131))


def read_mask(runner: Any, scheme: Any, dtype: str, takes_dlse: bool) -> str:
    """Which keys the candidate sees that it must not, or misses, in words and for n = 12 as a picture; empty if none."""
    for n, m in SIZES:
        if n != m and scheme.causal and scheme.align is None:
            continue
        found = weights(runner, scheme, dtype, n, m, takes_dlse)
        if found is None:
            continue
        got, want = found
        if (got != want).any():
            return describe(got, want)
    return ""


def weights(runner: Any, scheme: Any, dtype: str, n: int, m: int, takes_dlse: bool) -> tuple[Values, Values] | None:
    """(seen, should be seen), each (n, m), or None if the candidate does not take such inputs."""
    if scheme.keep_rate is not None:
        return None
    zeros, eye = np.zeros((1, 1, n, m)), np.eye(m)[None, None]
    inputs = {"q": zeros, "k": np.zeros((1, 1, m, m)), "v": eye}
    want, saved = scheme.forward(*inputs.values())
    cast = {name: x.astype(storage(dtype)) for name, x in inputs.items()}
    back = {"o": want.astype(storage(dtype)), "lse": saved.lse.astype(np.float64 if dtype == "float64" else np.float32)}
    outcome = runner.run(cast, back["o"], np.zeros_like(back["lse"]) if takes_dlse else None, back, False)
    got = outcome.outputs.get("o") if outcome.status == "ok" else None
    if got is None or got.shape != want.shape:
        return None
    return np.nan_to_num(as_float({"o": got})["o"])[0, 0] > 1e-6, want[0, 0] > 0


def describe(got: Values, want: Values) -> str:
    """The difference in words, with the picture if it fits on a few lines."""
    n, m = want.shape
    extra, missing = got & ~want, want & ~got
    parts = []
    for name, off in (("sees keys that it must not", extra), ("does not see keys that it must", missing)):
        if off.any():
            parts.append(f"{name}: {shape(off)}")
    text = f"mask read out with q = k = 0, V = I (n = {n}, m = {m}): " + "; ".join(parts)
    return text if max(n, m) > 16 else text + "\n" + picture(got, want)


def shape(off: Values) -> str:
    """Where a set of pairs lies: a diagonal, columns, rows, or so many pairs."""
    i, j = np.nonzero(off)
    steps = np.unique(j - i)
    if len(steps) == 1:
        return f"the diagonal j − i = {int(steps[0])}"
    rows, cols = np.flatnonzero(off.any(axis=1)), np.flatnonzero(off.any(axis=0))
    return f"{len(i)} pairs, queries {indices(rows, off.shape[0])}, keys {indices(cols, off.shape[1])}"


def picture(got: Values, want: Values) -> str:
    """█ seen and right, + seen but must not, − not seen but must, · not seen and right."""
    marks = np.where(want, np.where(got, "█", "−"), np.where(got, "+", "·"))
    legend = "  █ seen   · hidden   + seen, must not be   − hidden, must be seen"
    return "\n".join([*("  " + "".join(row) for row in marks), legend])
