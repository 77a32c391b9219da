"""The mask read out of a black box: with q = k = 0 and V = I the output is the matrix of weights, equal for visible keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.testing.diagnose import as_float
from refattn.testing.locate import indices
from refattn.testing.subjects import subject_of
from refattn.testing.tolerance import storage

Values = Any
SIZES = ((12, 12), (7, 12), (12, 7), (70, 70), (131, 131))


def read_mask(runner: Any, scheme: Any, dtype: str, takes_dlse: bool) -> str:
    """Which keys the candidate sees that it must not, or misses, in words and for n = 12 as a picture; empty if none.

    A key that counts several times is read as that many times the smallest weight of its row.
    """
    subject = subject_of(scheme)
    text, read = "", []
    for n, m in (*SIZES, *subject.long(scheme)) if subject.reads(scheme) else ():
        if n != m and placed(scheme) and scheme.align is None:
            continue
        found = weights(runner, scheme, dtype, n, m, takes_dlse)
        if found is None:
            continue
        got, want = (counts(x, subject.counted) for x in found)
        read.append((got, n, m))
        wrong = (got != want).any(axis=(-2, -1))
        if wrong.any() and not text:
            head = int(np.flatnonzero(wrong)[0])
            text = describe(got[head], want[head], f", head {head}" if len(wrong) > 1 else "")
        if text and not subject.counted:
            return text
    return "\n".join(filter(None, (text, subject.tell(scheme, read) if text else "")))


def placed(scheme: Any) -> bool:
    """True if it matters where queries and keys stand."""
    return bool(getattr(scheme, "causal", False)) or hasattr(scheme, "pattern")


def weights(runner: Any, scheme: Any, dtype: str, n: int, m: int, takes_dlse: bool) -> tuple[Values, Values] | None:
    """(weights, what they should be), each (heads, n, m), or None if the candidate does not take such inputs."""
    heads = (subject_of(scheme).fit(scheme, {"h": 1, "g": 1}) or {"h": 1})["h"]
    zeros, eye = np.zeros((1, heads, n, m)), np.zeros((1, heads, m, m)) + np.eye(m)
    inputs = {"q": zeros, "k": np.zeros((1, heads, m, m)), "v": eye}
    want, saved = scheme.forward(*inputs.values())
    cast = {name: x.astype(storage(dtype)) for name, x in inputs.items()}
    back = {"o": want.astype(storage(dtype)), "lse": saved.lse.astype(np.float64 if dtype == "float64" else np.float32)}
    outcome = runner.run(cast, back["o"], np.zeros_like(back["lse"]) if takes_dlse else None, back, False)
    got = outcome.outputs.get("o") if outcome.status == "ok" else None
    if got is None or got.shape != want.shape:
        return None
    return np.nan_to_num(as_float({"o": got})["o"])[0], want[0]


def counts(weights: Values, several: bool) -> Values:
    """How often each key counts: its weight over the smallest one of the row, whole; 0 where there is none."""
    seen = weights > 1e-6
    if not several:
        return seen.astype(np.int64)
    least = np.where(seen, weights, np.inf).min(axis=-1, keepdims=True)
    return np.where(seen, np.maximum(np.rint(weights / least), 1), 0).astype(np.int64)


def describe(got: Values, want: Values, where: str = "") -> str:
    """The difference in words, with the picture if it fits on a few lines."""
    got, want = np.asarray(got).astype(np.int64), np.asarray(want).astype(np.int64)
    n, m = want.shape
    parts = []
    differences = {
        "sees keys that it must not": (got > 0) & (want == 0), "does not see keys that it must": (got == 0) & (want > 0),
        "counts keys too often": (got > want) & (want > 0), "counts keys too rarely": (got < want) & (got > 0),
    }  # fmt: skip
    for name, off in differences.items():
        if off.any():
            parts.append(f"{name}: {shape(off)}")
    text = f"mask read out with q = k = 0, V = I (n = {n}, m = {m}{where}): " + "; ".join(parts)
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
    """█ seen and right, + seen but must not, − not seen but must, · not seen and right; 2 counts so often, wrongly."""
    marks = np.where(want, np.where(got, "█", "−"), np.where(got, "+", "·"))
    legend = "  █ seen   · hidden   + seen, must not be   − hidden, must be seen"
    wrong = (np.asarray(got, np.int64) != np.asarray(want, np.int64)) & (np.asarray(got) > 0) & (np.asarray(want) > 0)
    if wrong.any():
        marks = np.where(wrong, np.vectorize(lambda x: str(min(int(x), 9)))(np.asarray(got, np.int64)), marks)
        legend += "   2 counts so often, wrongly"
    return "\n".join([*("  " + "".join(row) for row in marks), legend])
