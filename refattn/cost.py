"""What a call costs, as exact integers that depend on shapes alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """Work of one call: multiply-adds in contractions, elements exponentiated, elements of the result that are kept.

    Masked work is included: the texts multiply with whole keys and select afterwards.
    """

    macs: int
    exps: int
    saved: int

    def __add__(self, other: Count) -> Count:
        return Count(self.macs + other.macs, self.exps + other.exps, self.saved + other.saved)


@dataclass(frozen=True)
class Passes:
    """forward, backward: Count of an operation's ``forward`` and ``vjp``; those of a chain of operations add."""

    forward: Count
    backward: Count

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class Cost:
    """forward, backward: Count of ``forward`` and of ``vjp``.

    useful_macs: multiply-adds of a forward that computes visible pairs only, nnz·(d + e), or that forms no pairs and sums
    up the keys that are seen; None where visibility depends on the values of arrays. peak: an upper bound on the elements
    alive at once, inputs not counted, at the given block.
    """

    forward: Count
    backward: Count
    useful_macs: int | None
    peak: int
