"""Inputs for long sequences: which query rows are looked at, and draws in which those rows can be judged.

Among a million keys of equal weight none matters, and a bound that holds for every order of a sum of a million terms hides
it besides. So each chosen row has a few keys that carry most of its weight: the last that it sees, the first, the first of
the last tile, one at random. All other keys are short; together they carry the rest. Everything is drawn in the
candidate's dtype, block by block.
"""

from __future__ import annotations

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
NEEDLES = 4


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


def needles(i: int, keys: int, most: int, stream: np.random.Generator) -> Values:
    """The keys, of the first `keys`, that carry the weight of row i: at most `most` of them."""
    if keys == 0:
        return np.zeros(0, dtype=np.int64)
    last = keys - 1
    places = [last, 0, last // TILE * TILE, int(stream.integers(0, keys))]
    return np.array(list(dict.fromkeys(places))[:most], dtype=np.int64)


def draw(scheme: Any, sizes: Any, dtype: str, rows: Values) -> tuple[Any, Values]:
    """Inputs (1, heads, n, d) and so on, and do, which is 0 outside `rows`, as arrays of the candidate's dtype."""
    h, g, n, m, d, e = (int(sizes[a]) for a in "hgnmde")
    stream = rng.stream(0, "long", h, g, n, m, d, e)
    kind = storage(dtype)
    q, v = (_normal(stream, (1, *shape), kind) for shape in ((h, n, d), (g, m, e)))
    k = _normal(stream, (1, g, m, d), kind, SHORT)
    do = np.zeros((1, h, n, e), kind)
    do[:, :, rows] = stream.normal(size=(1, h, len(rows), e)).astype(kind)
    places = [needles(int(i), sees(scheme, int(i), n, m), min(NEEDLES, d), stream) for i in rows]
    every = np.unique(np.concatenate(places))
    k[:, :, every] = stream.normal(size=(1, g, len(every), d)).astype(kind)
    for head in range(h):
        keys = k[0, kv_head(scheme, head, h, g)]
        for i, at in zip(rows, places, strict=True):
            if at.size and scheme.scale != 0 and d:
                q[0, head, i] = _query(scheme, keys[at].astype(np.float64), sees(scheme, int(i), n, m), stream).astype(kind)
    return scheme.Inputs(q, k, v), do


def kv_head(scheme: Any, head: int, h: int, g: int) -> int:
    """The key head that a query head reads."""
    return head % g if scheme.heads == "tiled" else head // (h // g)


def _query(scheme: Any, keys: Values, count: int, stream: np.random.Generator) -> Values:
    """The shortest query whose scores with `keys` outweigh `count` short keys."""
    scale = scheme.scale if scheme.scale is not None else keys.shape[-1] ** -0.5
    targets = np.log(count) + 1.0 + stream.random(len(keys))
    return np.linalg.pinv(keys) @ (targets / scale)


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
