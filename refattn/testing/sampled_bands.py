"""What a correct kernel may return at chosen rows of a long sequence, and in all of dk and dv.

A row is read by itself, with its position, against all its keys: its o, lse and dq do not depend on other rows. Where do is
0 outside these rows, no other row adds to dk and dv, and some keys at a time can be read, since the sums are over queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refattn.backend import using
from refattn.precision import Precision
from refattn.testing import longkeys
from refattn.testing.sampled_inputs import kv_head, one_by_one, start
from refattn.testing.tolerance import band
from refattn.testing.verdicts import Band

Values = Any
ROW_ELEMENTS = 1 << 22  # scores that a step of rows has
KEY_ELEMENTS = 1 << 20  # scores that a step of keys has at most, and elements of dk and of dv
Step = Callable[[], None]


@dataclass(frozen=True)
class Rows:
    """The rows of one problem: inputs as given to the candidate, do with values at `at` alone, or None for the forward."""

    scheme: Any
    inputs: Any
    do: Values | None
    at: Values
    precision: Precision

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """h, g, n, m."""
        q, k = self.inputs.q.shape, self.inputs.k.shape
        return q[1], k[1], q[2], k[2]

    def heads(self, g: int) -> list[int]:
        """The query heads that read key head g."""
        h, kv, _, _ = self.sizes
        return [head for head in range(h) if kv_head(self.scheme, head, h, kv) == g]

    def positions(self, rows: Values) -> dict[str, Values]:
        """The input q_positions of these rows, where the scheme has a causal order."""
        _, _, n, m = self.sizes
        return {"q_positions": rows + np.int64(start(self.scheme, n, m))} if self.scheme.causal else {}

    def steps(self) -> list[Values]:
        """The rows, some at a time."""
        some = max(1, ROW_ELEMENTS // max(self.sizes[3], 1))
        return [self.at[a : a + some] for a in range(0, len(self.at), some)]


@dataclass(frozen=True)
class Expected:
    """Bands of o, lse, dq (1, h, rows, ·), and for each key head what its gradients are read from."""

    rows: Rows
    bands: Mapping[str, Band]
    reading: Any
    saved: tuple[tuple[Any, Any], ...]

    def gradients(self) -> Iterator[tuple[int, slice, dict[str, Band]]]:
        """(key head, keys, bands of dk and dv there, (1, 1, keys, ·)), over all keys of all key heads."""
        x, scheme = self.rows, one_by_one(self.rows.scheme)
        # In a sum over queries each chosen row lies in a tile of its own, however few there are besides.
        self.reading.precision = replace(x.precision, tile=1)
        h, g, _, m = x.sizes
        wide = max(len(x.at) * (h // g), x.inputs.k.shape[-1], x.inputs.v.shape[-1])
        some = max(1, KEY_ELEMENTS // wide)
        for head, (o, lse) in enumerate(self.saved):
            given: tuple[Any, Any] = (x.inputs.q, x.do)
            q, do = (_wide(y[0][x.heads(head)][:, x.at]) for y in given)
            for a in range(0, m, some):
                keys = slice(a, min(a + some, m))
                k, v = (_wide(y[0, head : head + 1, keys]) for y in (x.inputs.k, x.inputs.v))
                places = x.positions(x.at)
                if places:
                    places["k_positions"] = np.arange(keys.start, keys.stop, dtype=np.int64)
                with using(self.reading):
                    grads = scheme.vjp(scheme.Saved(_lifted(self.reading, scheme.Inputs(q, k, v, **places)), o, lse), do)
                yield head, keys, {"dk": _first(band(grads.k)), "dv": _first(band(grads.v))}


def _lifted(reading: Any, inputs: Any) -> Any:
    return type(inputs)(*(None if x is None else reading.lift(x) for x in inputs))


def _first(x: Band) -> Band:
    return Band(x.value[None], x.bound[None], x.sigma[None])


def _wide(x: Values) -> Values:
    return x.astype(np.float64)


def expect_rows(x: Rows, step: Step = lambda: None) -> Expected:
    """Read all rows of all heads; `step` is called after each step of a head."""
    reading = longkeys.reading(x.precision)
    h, kv, _, _ = x.sizes
    found: dict[int, dict[str, Any]] = {}
    with using(reading):
        for g in range(kv):
            k, v = (reading.lift(y[0, g]) for y in (x.inputs.k, x.inputs.v))
            for head in x.heads(g):
                parts = []
                for rows in x.steps():
                    parts.append(_read(x, head, k, v, rows))
                    step()
                found[head] = {name: reading.xp.concat([p[name] for p in parts], axis=0) for name in parts[0]}
            del k, v
        bands = {name: _stacked([band(found[head][name]) for head in range(h)]) for name in found[0]}
        saved = tuple((reading.xp.stack([found[head]["o"] for head in x.heads(g)]),
                       reading.xp.stack([found[head]["lse"] for head in x.heads(g)])) for g in range(kv))  # fmt: skip
    return Expected(x, bands, reading, saved)


def _read(x: Rows, head: int, k: Any, v: Any, rows: Values) -> dict[str, Any]:
    """o, lse and dq of a head's rows."""
    scheme = one_by_one(x.scheme)
    o, saved = scheme.forward(_wide(x.inputs.q[0, head, rows]), k, v, **x.positions(rows))
    out = {"o": o, "lse": saved.lse}
    if x.do is not None:
        out["dq"] = scheme.vjp(saved, _wide(x.do[0, head, rows])).q
    return out


def _stacked(bands: list[Band]) -> Band:
    return Band(*(np.stack([getattr(b, part) for b in bands])[None] for part in ("value", "bound", "sigma")))
