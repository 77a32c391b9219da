"""Who sees whom as matrices: read out of a running scheme, counted by a pattern, or after several layers.

With q = k = 0 and v = I the output of a scheme is its matrix of weights: o_ij = p_ij. Query i sees key j where p_ij > 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from refattn.backend import load
from refattn.errors import OptionError, ShapeError
from refattn.ops.visibility import ALIGNS
from refattn.patterns import Alternate, Heads, Pattern
from refattn.patterns.reach import after, reach

Array = Any
LARGEST = 4096
"""v = I has m² elements, and the weights n·m."""


@dataclass(frozen=True)
class Panel:
    """One matrix (n, m) of counts, and what it shows where there are several."""

    label: str
    counts: Array


def panels(
    value: Any,
    n: int = 12,
    m: int | None = None,
    *,
    align: str | None = None,
    hops: int | None = None,
    residual: bool = False,
) -> list[Panel]:
    """The matrices of a scheme or a pattern: one, or one for each head and layer that differs.

    hops: what outputs of so many layers depend on, instead of what one layer sees; `residual` passes inputs on. align: as
    for schemes, but for patterns, which have none of their own.

    Raises
    ------
    OptionError
        For sizes beyond 4096, an `align` for a scheme, and `residual` without `hops`.
    ShapeError
        For a pattern with n ≠ m without `align`, and for `hops` with n ≠ m.
    """
    m = n if m is None else m
    _check(value, n, m, align, hops, residual)
    if hops is not None:
        return [Panel("", _reach(value, n, hops, residual))]
    if hasattr(value, "forward"):
        return [Panel("", sees(value, n, m))]
    offset = m - n if align == "bottom_right" else 0
    return [Panel(label, pattern.dense(n, m, offset)) for label, pattern in _named(value)]


def sees(scheme: Any, n: int = 12, m: int | None = None) -> Array:
    """The boolean matrix (n, m) of visible pairs of a scheme with inputs q, k and v; m defaults to n.

    A query without any key sees nothing, whatever the scheme returns for it. Raises OptionError for sizes beyond 4096, and
    whatever the scheme raises for its configuration (ShapeError for a causal scheme without `align` and n ≠ m).
    """
    m = n if m is None else m
    _check_sizes(n, m)
    if "qk" in scheme.Inputs._fields:
        raise OptionError(f"{type(scheme).__name__} decides by hashing who sees whom: no picture without its inputs, "
                          "whose matrix is slot_counts(qk, v, rotations)")
    b = load("numpy")
    q, k, v = b.xp.ones((1, 1, n, 1)), b.xp.ones((1, 1, m, 1)), b.xp.eye(m)[None, None]
    extra = needed(scheme, b.xp.ones((1, 1, n, m), dtype=b.xp.bool)) | _compressed(scheme, b.xp, m)
    o, saved = scheme.forward(q, k, v, **extra)
    weights = o[0, 0] > 0
    if "lse" in scheme.outputs:
        weights = weights & (saved.lse[0, 0][:, None] > -math.inf)
    return weights


def needed(scheme: Any, everything: Any) -> dict[str, Any]:
    """Inputs that a configuration can't do without, set so that they hide nothing: dropout that keeps every weight."""
    return {"keep": everything} if getattr(scheme, "keep_rate", None) is not None else {}


def _compressed(scheme: Any, xp: Any, m: int) -> dict[str, Any]:
    """E and F of a scheme that compresses keys, in which every token has a weight."""
    if "E" not in scheme.Inputs._fields:
        return {}
    if scheme.projection == "linear":
        return {"E": xp.ones((1, m))}
    if scheme.projection in ("mean", "max"):
        return {}
    if scheme.tail == "drop":
        raise OptionError("tail='drop' hides the last m % c tokens, and c is the length of E: no picture without it")
    both = {"E": xp.ones((1, 1)), "F": xp.ones((1, m))}
    return both if scheme.projection == "depthwise" else {"E": both["E"][None], "F": xp.eye(m)[None]}


def _check_sizes(n: int, m: int) -> None:
    for name, size in (("n", n), ("m", m)):
        if not 1 <= size <= LARGEST:
            raise OptionError(f"{name}={size}: a picture has 1 to {LARGEST} queries and keys")


def _check(value: Any, n: int, m: int, align: str | None, hops: int | None, residual: bool) -> None:
    _check_sizes(n, m)
    if align not in ALIGNS:
        raise OptionError(f"align={align!r}: choose None, 'top_left' or 'bottom_right'")
    if align is not None and hasattr(value, "forward"):
        raise OptionError(f"align={align!r} is for patterns; a scheme has its own, as Dense(causal=True, align={align!r})")
    if hops is not None and n != m:
        raise ShapeError(f"hops={hops}: layers follow each other where n = m, but n={n} and m={m}")
    if hops is None and residual:
        raise OptionError("residual=True says how layers are joined: give hops, the number of layers, too")
    if align is None and n != m and not hasattr(value, "forward"):
        raise ShapeError(f"n={n} queries and m={m} keys: a pattern needs align='top_left' or 'bottom_right'")


def _reach(value: Any, n: int, hops: int, residual: bool) -> Array:
    seen = after([sees(value, n)], n, hops, residual) if hasattr(value, "forward") else reach(value, n, hops, residual)
    return seen.astype("int64")


def _named(value: Any) -> list[tuple[str, Pattern]]:
    """The different patterns of a pattern, of heads and of layers, with the heads and layers that have them."""
    if isinstance(value, Alternate):
        layers = _grouped("layer", value.patterns)
        return [(", ".join(filter(None, (outer, inner))), p) for outer, x in layers for inner, p in _named(x)]
    return _grouped("head", value.patterns) if isinstance(value, Heads) else [("", value)]


def _grouped(word: str, patterns: tuple[Any, ...]) -> list[tuple[str, Any]]:
    places: dict[Any, list[int]] = {}
    for at, pattern in enumerate(patterns):
        places.setdefault(pattern, []).append(at)
    return [(f"{word}{'s' * (len(at) > 1)} {_listed(at)}", pattern) for pattern, at in places.items()]


def _listed(numbers: list[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    runs: list[list[int]] = []
    for x in numbers:
        if runs and runs[-1][-1] == x - 1:
            runs[-1].append(x)
        else:
            runs.append([x])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
