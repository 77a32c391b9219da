"""Inputs for simulated kernels: sizes, logits from flat to peaked, values with and without a mean, masks, optional terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulated.arithmetic import rounded
from simulated.kernel import Problem

Array = Any
MASKS = ("full", "causal", "window", "random")


def mask(kind: str, n: int, rng: np.random.Generator) -> Array:
    """see (n, n); random masks have rows that see nothing."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    if kind == "full":
        return np.ones((n, n), bool)
    if kind == "causal":
        return j <= i
    if kind == "window":
        return (j <= i) & (j >= i - int(rng.integers(0, max(1, n // 2))))
    return (rng.random((n, n)) < rng.uniform(0.02, 0.9)) & (rng.random((n, 1)) < 0.9)


def problem(
    rng: np.random.Generator,
    form: str = "float32",
    *,
    n: int | None = None,
    d: int | None = None,
    logits: float | None = None,
    mean: float | None = None,
    kind: str | None = None,
    extras: bool = False,
) -> Problem:
    """One head's inputs, representable in `form`; what is not asked for is drawn."""
    n = int(rng.integers(2, 201)) if n is None else n
    d = int(rng.choice([8, 16, 24, 32, 64])) if d is None else d
    logits = float(10 ** rng.uniform(-1.5, 1.0)) if logits is None else logits
    mean = float(rng.choice([0.0, 0.0, 1.0, 10.0])) if mean is None else mean
    e = int(rng.choice([d, d, 16]))
    dtype = "float64" if form == "float64" else "float32"

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Array:
        return rounded((rng.normal(size=shape) * scale + shift).astype(dtype), form)

    see = mask(str(rng.choice(MASKS)) if kind is None else kind, n, rng)
    out = Problem(normal(n, d, scale=logits), normal(n, d), normal(n, e, shift=mean), normal(n, e), see)
    if not extras:
        return out
    return out._replace(
        bias=normal(n, n) if rng.random() < 0.4 else None,
        sink=float(normal(1)[0]) if rng.random() < 0.4 else None,
        keep=rng.random((n, n)) < 0.8 if rng.random() < 0.4 else None,
        keep_rate=0.8,
        softcap=float(rng.choice([5.0, 30.0, 50.0])) if rng.random() < 0.4 else None,
    )
