"""Known mistakes at the ends of long rows: keys that are dropped at the tail or at the diagonal, or seen beyond it.

Such a mistake changes who is seen by a few keys S, so that a row needs no second pass over all keys:

    keys S dropped   w = exp(lse_S − lse)    o' = (o − w o_S) / (1 − w)    lse' = lse + log(1 − w)
    keys S added                             o' = (o + w o_S) / (1 + w)    lse' = lse + log(1 + w)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refattn.expression import written
from refattn.testing.judge import ratios
from refattn.testing.match import match, out_of_class
from refattn.testing.mutants import TILES, everything
from refattn.testing.sampled_bands import Expected, Rows
from refattn.testing.sampled_inputs import kv_head, sees
from refattn.testing.verdicts import Band, Naming

Values = Any
MOST = 1 << 16  # keys that a mistake may concern in a row
ROOM = 2.0  # a mistake's own bound is near the reference's, not equal to it
POWER, LOW, HIGH = 30.0, 0.7, 1.4


@dataclass(frozen=True)
class Ends:
    """A mistake by its id in the dictionary: row i sees the keys first(i, m) … last(seen, i, n, m) − 1."""

    id: str
    first: Callable[[int], int]
    last: Callable[[int, int, int, int], int]
    instead: Any = None


def mistakes(scheme: Any, n: int, m: int) -> Iterator[Ends]:
    """Those that change something for this scheme and these sizes."""
    if scheme.causal:
        yield Ends("F20", lambda i: 0, lambda seen, i, n, m: seen - 1)
        yield Ends("F21", lambda i: 0, lambda seen, i, n, m: min(seen + 1, m))
    if scheme.causal and scheme.align is not None and n != m:
        other = replace(scheme, align="top_left" if scheme.align == "bottom_right" else "bottom_right")
        yield Ends("F22", lambda i: 0, lambda seen, i, n, m: sees(other, i, n, m), other)
    yield Ends("F30", lambda i: 1, lambda seen, i, n, m: seen)
    yield Ends("F30l", lambda i: 0, lambda seen, i, n, m: min(seen, m - 1))
    for tile in TILES:
        if m % tile:
            yield Ends(f"F28@{tile}", lambda i: 0, _before(m // tile * tile))
        yield Ends(f"F28l@{tile}", lambda i: 0, _before((m - 1) // tile * tile))


def _before(key: int) -> Callable[[int, int, int, int], int]:
    return lambda seen, i, n, m: min(seen, key)


def names(expected: Expected, got: Mapping[str, Values]) -> list[Naming]:
    """What the rows look like, best first."""
    x = expected.rows
    ref = {name: expected.bands[name] for name in ("o", "lse")}
    titles = {m.id: m.title for m in everything()}
    found = []
    for mistake in mistakes(x.scheme, *x.sizes[2:]):
        values = _values(x, ref, mistake)
        if values is None:
            continue
        # A kernel may return anything for a row that sees nothing by this mistake.
        rows = np.isfinite(values["lse"]).all(axis=(0, 1))
        mine, want, bands = (_at(x, rows) for x in (got, values, ref))
        here = match(mine, bands, want)
        likely = here.power >= POWER and LOW <= here.amplitude <= HIGH
        if likely and all(_near(mine[name], want[name], bands[name]) for name in want if name in mine):
            instead = None if mistake.instead is None else written(mistake.instead)
            naming = Naming(mistake.id, titles[mistake.id], here.amplitude, here.power, "filter", instead)
            found.append((round(here.residual, 3), naming))
    return [naming for _, naming in sorted(found, key=lambda f: f[0])]


def _at(x: Mapping[str, Any], rows: Values) -> dict[str, Any]:
    """Of every tensor or band these rows."""
    return {name: Band(*(part[:, :, rows] for part in vars(y).values())) if isinstance(y, Band) else y[:, :, rows]
            for name, y in x.items()}  # fmt: skip


def _near(got: Values, value: Values, ref: Band) -> bool:
    near = Band(value, ROOM * ref.bound, ref.sigma)
    return not (out_of_class(got, value).any() or (ratios(got, near) > 1).any())


def _values(x: Rows, ref: Mapping[str, Band], mistake: Ends) -> dict[str, Values] | None:
    """o and lse of all rows under a mistake; None if it concerns too many keys, or none in any row."""
    h, g, n, m = x.sizes
    out = {name: b.value.copy() for name, b in ref.items()}
    touched = False
    for r, i in enumerate(map(int, x.at)):
        seen = sees(x.scheme, i, n, m)
        low, high = mistake.first(i), max(mistake.last(seen, i, n, m), 0)
        gone = [*range(0, min(low, seen)), *_span(max(high, low), seen)]
        more = [*_span(seen, high)]
        if len(gone) + len(more) > MOST:
            return None
        for keys, sign in ((gone, -1.0), (more, 1.0)):
            touched |= bool(keys)
            for head in range(h if keys else 0):
                at = (0, head, r)
                some = _some(x, head, i, kv_head(x.scheme, head, h, g), np.array(keys))
                out["o"][at], out["lse"][at] = _changed(out["o"][at], out["lse"][at], *some, sign)
    return out if touched else None


def _span(a: int, b: int) -> range:
    return range(a, max(a, b))


def _some(x: Rows, head: int, i: int, g: int, keys: Values) -> tuple[Values, float]:
    """o and lse of a row over some keys alone."""
    scheme = replace(x.scheme, causal=False, align=None, empty="zero")
    q, k, v = (y.astype(np.float64) for y in (x.inputs.q[0, head, i][None], x.inputs.k[0, g, keys], x.inputs.v[0, g, keys]))
    o, saved = scheme.forward(q, k, v)
    return o[0], float(saved.lse[0])


def _changed(o: Values, lse: float, o_some: Values, lse_some: float, sign: float) -> tuple[Values, float]:
    if lse == -np.inf:
        return (o_some, lse_some) if sign > 0 else (o, lse)
    w = sign * float(np.exp(lse_some - lse))
    if 1.0 + w < 1e-9:
        return np.zeros_like(o), -np.inf
    return (o + w * o_some) / (1.0 + w), lse + float(np.log1p(w))
