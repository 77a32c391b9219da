"""Mistakes of heads, of memory layout, and of what is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.cases import Case
from refattn.testing.mutants import LAYOUT, Mutant, add
from refattn.testing.mutants_forward import placed

Array = Any


def _swapped(x: Array) -> Array:
    """A (B, H, n, d) buffer read as (B, n, H, d)."""
    xp, (b, h, n, d) = of(x).xp, x.shape
    return xp.permute_dims(xp.reshape(x, (b, n, h, d)), (0, 2, 1, 3))


def _swap_back(out: Any, case: Case, dtype: str, tile: int) -> Any:
    xp, o = of(out["o"]).xp, out["o"]
    return {"o": xp.reshape(xp.permute_dims(o, (0, 2, 1, 3)), o.shape)}


def _exchanged(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
    xp = of(inputs.q).xp
    return scheme, type(inputs)(*(xp.permute_dims(x, (0, 2, 1, 3)) for x in inputs[:3]))


def _exchange_back(out: Any, case: Case, dtype: str, tile: int) -> Any:
    """lse is left out: it has another shape."""
    return {"o": of(out["o"]).xp.permute_dims(out["o"], (0, 2, 1, 3))}


def exchangeable(case: Case, dtype: str) -> bool:
    """True if tokens may be taken for heads and heads for tokens: the numbers fit, and no input says which is which."""
    (n, m, h, g), i = (case.sizes[a] for a in "nmhg"), case.inputs
    plain = all(x is None for x in i[3:]) and not hasattr(case.option("pattern"), "patterns")  # one for each head
    ordered = not placed(case) or case.option("align") is not None or h == g
    return plain and ordered and n % m == 0 and h > 0 and (n, h) != (1, 1)


def as_if_contiguous(x: Array) -> Array:
    """What lies in the memory of a view transposed from (B, m, H, d), read in order."""
    xp = of(x).xp
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), x.shape)


def _last_rows(out: Any, case: Case, dtype: str, tile: int) -> Any:
    """Rows of o behind the last full tile (no tile: the last row) stay zero."""
    n = case.sizes["n"]
    keep = np.arange(n)[:, None] < (n // tile * tile if tile else n - 1)
    return {**out, "o": of(out["o"]).xp.where(keep, out["o"], 0.0)}


def _head(out: Any, case: Case, dtype: str, tile: int) -> Any:
    xp = of(out["o"]).xp
    return {name: xp.concat([x[:, :-1, ...], x[:, :1, ...]], axis=1) for name, x in out.items()}


def shared(case: Case, dtype: str) -> bool:
    return case.sizes["g"] != case.sizes["h"] and case.sizes["g"] > 1


def _other(scheme: Any) -> Any:
    return replace(scheme, heads="grouped" if scheme.heads == "tiled" else "tiled")


add(
    Mutant("F37", "heads", "query head h reads key head h mod H_kv (tiled) where h // (H / H_kv) (grouped) is asked, or the reverse",
           shared, lambda s, x, t: (_other(s), x), instead=_other),
    Mutant("F38", "heads", "the last head repeats the first", lambda c, _: c.sizes["h"] > 1, after=_head),
    Mutant("F39", "layout", "a (B, H, n, d) buffer is read as (B, n, H, d)",
           lambda c, _: c.sizes["h"] > 1 and c.sizes["n"] > 1 and not c.strided,
           lambda s, x, t: (s, x._replace(q=_swapped(x.q), k=_swapped(x.k), v=_swapped(x.v))), after=_swap_back),
    Mutant(LAYOUT, "layout", "tokens are taken for heads: (B, H, n, d) is read, and o returned, as (B, n, H, d)", exchangeable,
           _exchanged, after=_exchange_back),
    Mutant("F40", "layout", "v is taken for contiguous", lambda c, _: c.strided and c.sizes["g"] > 1,
           lambda s, x, t: (s, x._replace(v=as_if_contiguous(x.v)))),
    Mutant("F40k", "layout", "k is taken for contiguous", lambda c, _: c.strided and c.sizes["g"] > 1,
           lambda s, x, t: (s, x._replace(k=as_if_contiguous(x.k)))),
    Mutant("F41", "layout", "the last query is not stored", lambda c, _: c.sizes["n"] > 1, after=_last_rows),
    Mutant("F41t", "layout", "queries behind the last full tile of {tile} are not stored", tile=-1,
           applies=lambda c, _: c.sizes["n"] > 16 and c.sizes["n"] % 128 != 0, after=_last_rows),
)  # fmt: skip
