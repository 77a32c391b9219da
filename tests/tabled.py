"""Patterns that are written out, for tests of what takes patterns: a table of counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refattn.patterns import Pattern


@dataclass(frozen=True)
class Table(Pattern):
    """counts[i][j]: how often query number i sees key j, whatever the offset; 0 beyond the table."""

    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, counts):
        return cls(tuple(map(tuple, np.asarray(counts).astype(int).tolist())))

    @property
    def most(self):
        return max((c for row in self.counts for c in row), default=0)

    def dense(self, n, m, offset=0):
        out = np.zeros((n, m), dtype=np.int64)
        for i, row in enumerate(self.counts[:n]):
            out[i, : len(row)] = row[:m]
        return out

    def nnz(self, n, m, offset=0):
        return int(np.count_nonzero(self.dense(n, m)))

    def entries(self, n, m, offset=0):
        counts = self.dense(n, m)
        i, j = np.nonzero(counts)
        start = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(i, minlength=n), out=start[1:])
        return start, j, counts[i, j] if self.most > 1 else None


@dataclass(frozen=True)
class Band(Pattern):
    """Query i at position i + offset sees keys i + offset − left … i + offset + right, `times` times each."""

    left: int
    right: int = 0
    times: int = 1

    @property
    def most(self):
        return self.times

    def dense(self, n, m, offset=0):
        d = np.arange(m) - (np.arange(n)[:, None] + offset)
        return self.times * ((-self.left <= d) & (d <= self.right))

    def ends(self, n, m, offset):
        i = np.arange(n) + offset
        low, high = np.clip(i - self.left, 0, m), np.clip(i + self.right + 1, 0, m)
        return low, np.maximum(high, low)

    def nnz(self, n, m, offset=0):
        low, high = self.ends(n, m, offset)
        return int((high - low).sum())

    def entries(self, n, m, offset=0):
        low, high = self.ends(n, m, offset)
        length = high - low
        start = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(length, out=start[1:])
        col = np.arange(start[-1]) - np.repeat(start[:-1] - low, length)
        return start, col, None if self.times == 1 else np.full(start[-1], self.times)

