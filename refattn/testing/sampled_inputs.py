"""Inputs for long sequences: which query rows are looked at, and draws in which those rows can be judged.

Among a million keys of equal weight none matters, and a bound that holds for every order of a sum of a million terms hides
it besides. So each chosen row has a few keys that carry most of its weight: the last that it sees, the first, the first of
the last tile, one at random. They point along an axis of a random basis, one axis for those that several rows share and
the others for the rows in turn, and a row's query points along its two. All other keys are short; together they carry
the rest. Everything is drawn in the candidate's dtype, block by block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from refattn import rng
from refattn.errors import OptionError
from refattn.testing.tolerance import storage

Values = Any
TILE = 128
BLOCK = 1 << 16
SHORT = 0.125  # of the length of the other keys
JITTER = 0.1


def sees(scheme: Any, i: int, n: int, m: int) -> int:
    """How many keys row i sees: the first so many."""
    if not scheme.causal:
        return m
    return min(max(i + 1 + start(scheme, n, m), 0), m)


def start(scheme: Any, n: int, m: int) -> int:
    """The position of query 0 among the keys."""
    return m - n if scheme.causal and scheme.align == "bottom_right" else 0


def chosen(count: int, n: int, m: int, scheme: Any) -> Values:
    """At most `count` rows of n, in order: the last and the first, both sides of the last tile's and of other boundaries
    (powers of two), and random ones. Rows that see nothing are chosen only where the scheme makes them 0.

    Raises
    ------
    OptionError
        If there is no row to choose.
    """
    if count < 1 or n < 1 or m < 1:
        raise OptionError(f"rows={count}, n={n}, m={m}: give at least one row, one query and one key")
    low = max(-start(scheme, n, m), 0) if scheme.empty != "zero" else 0
    if low >= n:
        raise OptionError(f"n={n} and m={m}: no query sees a key")
    half, tile = 1 << ((n - 1).bit_length() - 1 if n > 1 else 0), (n - 1) // TILE * TILE
    wanted = [n - 1, low, tile, half, tile - 1, half - 1, TILE, TILE - 1]
    rows = list(dict.fromkeys(r for r in wanted if low <= r < n))[:count]
    stream = rng.stream(0, "rows", n, m)
    while len(rows) < min(count, n - low):
        rows = list(dict.fromkeys([*rows, *map(int, stream.integers(low, n, count))]))[:count]
    return np.sort(np.array(rows, dtype=np.int64))


def heavy(keys: int, stream: np.random.Generator) -> set[int]:
    """The keys, of the first `keys`, that carry the weight of a row."""
    return {keys - 1, 0, (keys - 1) // TILE * TILE, int(stream.integers(0, keys))} if keys else set()


def draw(scheme: Any, sizes: Any, dtype: str, rows: Values) -> tuple[Any, Values]:
    """Inputs (1, heads, n, d) and so on, and do, which is 0 outside `rows`, as arrays of the candidate's dtype."""
    h, g, n, m, d, e = (int(sizes[a]) for a in "hgnmde")
    stream = rng.stream(0, "long", h, g, n, m, d, e)
    kind = storage(dtype)
    q, v = (_normal(stream, (1, *shape), kind) for shape in ((h, n, d), (g, m, e)))
    k = _normal(stream, (1, g, m, d), kind, SHORT)
    do = np.zeros((1, h, n, e), kind)
    do[:, :, rows] = stream.normal(size=(1, h, len(rows), e)).astype(kind)
    if d and scheme.scale != 0:
        counts = [sees(scheme, int(i), n, m) for i in rows]
        axes = _axes([heavy(count, stream) for count in counts], d)
        bases = [np.linalg.qr(stream.normal(size=(d, d)))[0] for _ in range(g)]
        for kv, basis in enumerate(bases):
            _lengthen(k[0, kv], axes, basis, stream)
        for head in range(h):
            basis = bases[kv_head(scheme, head, h, g)]
            for r, i in enumerate(rows):
                q[0, head, i] = _query(scheme, basis, _turn(r, d), max(counts[r], 1), stream).astype(kind)
    return scheme.Inputs(q, k, v), do


def kv_head(scheme: Any, head: int, h: int, g: int) -> int:
    """The key head that a query head reads."""
    return head % g if scheme.heads == "tiled" else head // (h // g)


def _turn(row: int, d: int) -> int:
    """The axis of a chosen row's own keys; axis 0 is that of shared ones."""
    return 1 + row % (d - 1) if d > 1 else 0


def _axes(places: list[set[int]], d: int) -> dict[int, int]:
    """Heavy key → its axis."""
    times = Counter(key for keys in places for key in keys)
    return {key: 0 if times[key] > 1 else _turn(r, d) for r, keys in enumerate(places) for key in sorted(keys)}


def _lengthen(k: Values, axes: Mapping[int, int], basis: Values, stream: np.random.Generator) -> None:
    """Heavy keys of one key head, of the usual length √d."""
    d = len(basis)
    for key, axis in axes.items():
        length = d**0.5 * (1.0 + JITTER * stream.random())
        k[key] = (length * basis[:, axis] + SHORT * JITTER * stream.normal(size=d)).astype(k.dtype)


def _query(scheme: Any, basis: Values, axis: int, count: int, stream: np.random.Generator) -> Values:
    """A query whose scores with its heavy keys outweigh `count` short keys, each heavy one about as much as all of them."""
    d = len(basis)
    scale = scheme.scale if scheme.scale is not None else d**-0.5
    score = np.log(count) + 1.0
    score += (SHORT * score) ** 2 / d  # the mean weight of short keys of random score
    along = {0, axis}
    return score / (scale * d**0.5) * basis[:, sorted(along)].sum(axis=1) + JITTER * stream.normal(size=d)


def _normal(stream: np.random.Generator, shape: tuple[int, ...], kind: Any, scale: float = 1.0) -> Values:
    """A normal array of `kind`, without a copy of it in another dtype."""
    out = np.empty(shape, kind)
    flat = out.reshape(-1, shape[-1])
    wide: Any = np.float64 if kind == np.float64 else np.float32
    for a in range(0, len(flat), BLOCK):
        some = stream.standard_normal(flat[a : a + BLOCK].shape, dtype=wide)
        flat[a : a + BLOCK] = (some * wide(scale)).astype(kind)
    return out


def one_by_one(scheme: Any) -> Any:
    """The scheme for rows whose positions are given."""
    return replace(scheme, align=None, empty="zero")
