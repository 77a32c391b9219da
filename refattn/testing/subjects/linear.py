"""Linear attention as the kit sees it: cases in which features, normaliser, running state and chunks show."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from refattn.testing.families import BOTH, FAMILIES, Family, Inputs, Sizes, Want, sizes
from refattn.testing.mutants import Mutant
from refattn.testing.mutants_linear import linear
from refattn.testing.staged_linear import LinearStaged
from refattn.testing.subjects.base import Subject
from refattn.testing.subjects.dense import nulls

Generator = np.random.Generator
SOFTMAX = {f.name: f for f in FAMILIES}
SHARED = ("one key", "more keys", "more queries", "one query", "shared heads", "widths", "strided", "padding", "padded item",
          "small", "no queries", "no keys", "poison")
"""Families of softmax attention that expose the same here."""


def _as_drawn(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    return None


def _one_sided(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    """Values about 2: o has their common part, which a wrong normaliser changes."""
    x["v"] = x["v"] + 2.0


def _wide(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    x["q"], x["k"] = x["q"] * 4.0, x["k"] * 4.0


def _below(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    """Where elu + 1 is an exponential, and relu is 0."""
    x["q"], x["k"] = -abs(x["q"]) - 0.5, -abs(x["k"]) - 0.5


def _faint(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    """Features of about e⁻⁸: weights as small as an ε."""
    x["q"], x["k"] = x["q"] * 0.25 - 8.0, x["k"] * 0.25 - 8.0


def _constant(g: Generator, x: Inputs, at: Sizes, want: Want) -> None:
    x["v"] = x["v"] * 0.0 + g.normal(size=x["v"].shape[-1])


LONG = {"pow2": sizes(1, 2, 2, 256, 256, 16, 16), "odd": sizes(1, 2, 2, 269, 269, 12, 20),
        "tail": sizes(2, 2, 2, 99, 99, 16, 12)}
OWN = (
    Family("normal", "everyday inputs", "any gross mistake", BOTH, _as_drawn),
    Family("one-sided v", "the normaliser", "every output is off by a common factor", BOTH, _one_sided),
    Family("wide", "the feature map where it is linear and where it vanishes", "large activations go wrong", BOTH, _wide),
    Family("below zero", "the feature map of negative numbers; weights that sum to 0", "NaN, or no gradient", BOTH, _below,
           exempt=("zeros", "mean of V", "previous row")),
    Family("faint", "ε, and where it is added", "outputs shrink where features are small", BOTH, _faint,
           exempt=("zeros", "mean of V", "previous row")),
    Family("constant v", "weights that do not sum to one", "outputs off by a factor", BOTH, _constant,
           applies=lambda want: bool(want.option("normalise")), exempt=("mean of V", "previous row")),
    Family("chunks", "chunk boundaries and the state between chunks", "long sequences forget, or count tokens twice", LONG,
           _as_drawn),
)  # fmt: skip


@functools.cache
def mutants(scheme: Any) -> tuple[Mutant, ...]:
    return linear()


SUBJECT = Subject(kernel=LinearStaged, mutants=mutants, nulls=nulls, families=(*OWN, *(SOFTMAX[name] for name in SHARED)),
                  results={"o": "bhne"})
