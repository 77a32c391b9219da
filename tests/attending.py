"""Inputs and right answers for tests that hand arrays to candidates."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from refattn import rng
from refattn.schemes.dense import Dense

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "v": (2, 3, 7, 6)}
DO, LSE = (2, 3, 5, 6), (2, 3, 5)


def draw(dtype: str = "float32", seed: int = 1, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Float64 arrays that hold values of `dtype`."""
    drawn = {name: rng.stream(seed, name).normal(size=shape) for name, shape in (SHAPES | shapes).items()}
    return {name: x.astype(BFLOAT16 if dtype == "bfloat16" else dtype).astype(np.float64) for name, x in drawn.items()}


def attention(q, k, v, mask=None, bias=None):
    o, saved = Dense().forward(q, k, v, mask, bias)
    return o, saved.lse


def gradients(q, k, v, o, lse, do, dlse=None, mask=None, bias=None):
    given = Dense.Saved(Dense.Inputs(q, k, v, mask, bias), o, lse)
    return {f"d{name}": g for name, g in Dense().vjp(given, do, dlse=dlse)._asdict().items() if g is not None}
