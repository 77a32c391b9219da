"""Softmax attention as the kit sees it: the families, stages and mistakes that schemes with q, k, v share."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.testing.cases import Case
from refattn.testing.families import Inputs, Sizes, Want
from refattn.testing.mutants import everything
from refattn.testing.staged import Staged
from refattn.testing.subjects.base import Subject

Values = Any


def nulls(case: Case) -> dict[str, Values]:
    """Zeros, the mean of V, and every row's predecessor.

    Without a previous query, or with a single key, that model is no other answer and is left out.
    """
    v, shape, sizes = case.inputs.v, case.do.shape, case.sizes
    out = {"zeros": np.zeros(shape)}
    if sizes["m"] > 1:
        ratio = sizes["h"] // sizes["g"] if sizes["g"] else 1
        mean = v.mean(axis=-2, keepdims=True)
        mean = np.tile(mean, (1, ratio, 1, 1)) if case.option("heads") == "tiled" else np.repeat(mean, ratio, axis=1)
        out["mean of V"] = np.broadcast_to(mean, shape)
    if sizes["n"] > 1:
        right, _ = case.scheme.forward(*case.inputs)
        out["previous row"] = np.roll(right, 1, axis=-2)
    return out


def _keep(stream: np.random.Generator, inputs: Inputs, sizes: Sizes, want: Want) -> None:
    """Dropout needs its mask in every case."""
    rate = want.option("keep_rate")
    if rate is not None and "keep" not in inputs:
        inputs["keep"] = stream.random(tuple(sizes[a] for a in "bhnm")) < rate


SUBJECT = Subject(kernel=Staged, mutants=lambda scheme: everything(), nulls=nulls, complete=_keep,
                  reads=lambda scheme: scheme.keep_rate is None)
