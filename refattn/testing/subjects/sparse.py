"""Attention over a pattern as the kit sees it: softmax attention whose pairs, and how often they count, a pattern says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.patterns import Heads
from refattn.testing.families import FAMILIES
from refattn.testing.mutants import Mutant, everything
from refattn.testing.staged import Staged
from refattn.testing.subjects.base import Sizes, Subject
from refattn.testing.subjects.dense import nulls

Array = Any


@dataclass
class SparseStaged(Staged):
    """One run of Sparse: the pattern written out as counts (1, H | 1, n, m); a key that counts c times has log c added."""

    def prepare(self) -> None:
        self.times = self.counted()
        super().prepare()

    def counted(self) -> Any:
        """The counts of the pattern, or of each head's."""
        n, m = self.inputs.q.shape[-2], self.inputs.k.shape[-2]
        start = m - n if self.option("align") == "bottom_right" else 0
        pattern = self.scheme.pattern
        found = pattern.dense(n, m, start)
        found = found if self.scheme.within is None else found * (self.scheme.within.dense(n, m, start) > 0)
        return found[None] if isinstance(pattern, Heads) else found[None, None]

    def shown(self) -> Any:
        return self.times > 0

    def add_bias(self, s: Array) -> Array:
        if not (self.times > 1).any():
            return s
        return s + of(s).lift(np.log(np.maximum(self.times, 1).astype(np.float64)))


def fit(scheme: Any, sizes: Sizes) -> Sizes | None:
    """As many query heads as patterns, where each has one; shared key heads are as few as they were, if that divides."""
    if not isinstance(scheme.pattern, Heads):
        return sizes
    h = len(scheme.pattern)
    shared = sizes["h"] != sizes["g"]
    g = math.gcd(h, sizes["g"]) if shared else h
    return None if shared and g == h else {**sizes, "h": h, "g": g}


def mutants(scheme: Any) -> tuple[Mutant, ...]:
    return everything()


SUBJECT = Subject(kernel=SparseStaged, mutants=mutants, nulls=nulls, families=FAMILIES, fit=fit,
                  reads=lambda scheme: True, counted=True)
