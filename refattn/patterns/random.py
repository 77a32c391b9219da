"""Random keys: for every query a few keys of its own, drawn without repetition, the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.patterns import checks
from refattn.patterns.algebra import Entries, Pattern

Array = Any
ROUNDS, MANY_ROUNDS, FEW_BITS = 8, 24, 6
"""Few bits mix slowly: with 8 rounds some pairs of 5 keys come up 30 % too often, with 24 all as often as they should."""
_STEP, _ONE, _TWO = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, repr=False)
class Random(Pattern):
    """Query i sees `keys` distinct keys, drawn uniformly among all n by (seed, i, n); all n where there are fewer.

    The keys of query i are π(0) … π(keys − 1) for a pseudorandom permutation π of the n positions, a Feistel network that
    walks on until it is among them (Black and Rogaway 2002, doi:10.1007/3-540-45760-7_9); key j is seen if π⁻¹(j) < keys.
    Heads with draws of their own take seeds of their own: ``Heads((Random(3, seed=0), Random(3, seed=1)))``.
    """

    keys: int
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("Random", "keys", self.keys, 1)
        checks.between("Random", "seed", self.seed, 0, 2**63 - 1, "it is a 63-bit number")

    def _count(self, i: Array, j: Array, n: int) -> Array:
        inside = (j >= 0) & (j < n)
        if self.keys >= n:
            return inside & (i == i)
        i, j = np.broadcast_arrays(i, np.where(inside, j, 0))
        return self._walked(i.ravel(), j.ravel(), n, backward=True).reshape(i.shape) < self.keys

    def together(self, leaves: tuple[Pattern, ...], n: int, m: int, offset: int) -> int | None:
        """The pairs in closed form, if nothing else has to see them too."""
        return n * min(self.keys, m) if leaves == (self,) else None

    def entries(self, n: int, m: int, offset: int = 0) -> Entries:
        n, m, offset = checks.sizes(n, m, offset)
        each = min(self.keys, m)
        row = np.repeat(np.arange(offset, offset + n), each)
        place = np.tile(np.arange(each), n)
        col = place if each == m else np.sort(self._walked(row, place, m).reshape(n, each), axis=-1).ravel()
        return np.arange(n + 1) * each, col, None

    def _walked(self, i: Array, x: Array, n: int, backward: bool = False) -> Array:
        """π(x) of each row i, or its inverse: steps through the next power of two until the value is below n."""
        rounds = self._rounds(i, n)
        found = _network(x.astype(np.uint64), rounds, n, backward)
        while len(out := np.flatnonzero(found >= np.uint64(n))):
            found[out] = _network(found[out], [r[out] for r in rounds], n, backward)
        return found.astype(np.int64)

    def _rounds(self, i: Array, n: int) -> list[Array]:
        """A key for each row and round."""
        with np.errstate(over="ignore"):
            base = _mixed(_mixed(np.uint64(self.seed) + _STEP) ^ np.uint64(n)) ^ i.astype(np.uint64)
            base = _mixed(base)
            rounds = MANY_ROUNDS if n <= 1 << FEW_BITS else ROUNDS
            return [_mixed(base + np.uint64(r + 1) * _STEP) for r in range(rounds)]


def _network(x: Array, rounds: list[Array], n: int, backward: bool) -> Array:
    """Halves of the bits of x, each changed in turn by what the other one is."""
    bits = (n - 1).bit_length()
    low = np.uint64(bits - bits // 2)
    masks = np.uint64((1 << (bits // 2)) - 1), np.uint64((1 << int(low)) - 1)
    halves = [x >> low, x & masks[1]]
    for r in reversed(range(len(rounds))) if backward else range(len(rounds)):
        at = r % 2
        halves[at] = halves[at] ^ (_mixed(halves[1 - at] + rounds[r]) & masks[at])
    return halves[0] << low | halves[1]


def _mixed(x: Any) -> Any:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _ONE
        x = (x ^ (x >> np.uint64(27))) * _TWO
    return x ^ (x >> np.uint64(31))
