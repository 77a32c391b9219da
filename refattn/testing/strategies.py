"""Hypothesis strategies for attention: q, k, v that fit together, masks, memory layouts, and configured schemes.

    @given(scheme_and_inputs=schemes(), layout=layouts())
    def test_mine(scheme_and_inputs, layout):
        scheme, inputs = scheme_and_inputs
        mine = my_attention(layout(inputs.q), layout(inputs.k), layout(inputs.v), ...)

Sizes are small and uneven, zero among them, and values short: multiples of 1/16 up to 4, exact in float16, bfloat16,
float32 and float64. Needs hypothesis (extra ``kit``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refattn.errors import BackendUnavailable
from refattn.schemes.dense import Dense
from refattn.testing.tolerance import storage

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ImportError as error:
    raise BackendUnavailable(f"hypothesis is not installed ({error}): pip install 'refattn[kit]'") from None

__all__ = ["QKV", "Layout", "Problem", "layouts", "masks", "qkv", "schemes"]

Array = Any
Size = int | st.SearchStrategy[int]
SIXTEENTHS = 64
FEW, SOME, WIDE = st.integers(1, 2), st.integers(1, 3), st.integers(1, 5)
LENGTH = st.integers(0, 7)


class QKV(NamedTuple):
    """q (items, H, n, d), k (items, H_kv, m, d), v (items, H_kv, m, e)."""

    q: Array
    k: Array
    v: Array


class Problem(NamedTuple):
    """A configured scheme and inputs that it takes, in float64."""

    scheme: Any
    inputs: Any


@dataclass(frozen=True)
class Layout:
    """Called with an array, it returns the same values in memory of its own, laid out as `name` says."""

    name: str
    apply: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        return self.apply(np.asarray(x))

    def __repr__(self) -> str:
        return f"Layout({self.name})"


def _of(size: Size) -> st.SearchStrategy[int]:
    return st.just(size) if isinstance(size, int) else size


def _values(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
    whole = hnp.arrays(np.int8, shape, elements=st.integers(-SIXTEENTHS, SIXTEENTHS))
    return whole.map(lambda x: x / 16.0)


def qkv(*, items: Size = FEW, kv_heads: Size = SOME, group: Size = FEW, n: Size = LENGTH, m: Size | None = LENGTH,
        d: Size = WIDE, e: Size = WIDE, dtype: str = "float64") -> st.SearchStrategy[QKV]:
    """Arrays of one dtype whose heads and widths fit; group: query heads for each key head; m=None: as many keys as queries.

    Sizes are numbers, or strategies of numbers.
    """

    @st.composite
    def drawn(draw: st.DrawFn) -> QKV:
        b, g, share, rows, width, out = (draw(_of(size)) for size in (items, kv_heads, group, n, d, e))
        keys = rows if m is None else draw(_of(m))
        shapes = ((b, g * share, rows, width), (b, g, keys, width), (b, g, keys, out))
        return QKV(*(draw(_values(shape)).astype(storage(dtype)) for shape in shapes))

    return drawn()


def masks(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
    """Booleans (True: may attend) that broadcast to `shape` = (..., n, m): random, banded, empty rows, full, nothing at all.

    Leading axes may be 1 or missing, as masks that items or heads share have them.
    """
    *lead, n, m = shape
    i, j = np.arange(n)[:, None], np.arange(m)[None, :]

    @st.composite
    def drawn(draw: st.DrawFn) -> Array:
        front = tuple(draw(st.sampled_from((1, a))) for a in lead)[draw(st.integers(0, len(lead))) :]
        kind = draw(st.sampled_from(("random", "band", "rows", "all", "none")))
        if kind == "random":
            return draw(hnp.arrays(bool, (*front, n, m)))
        if kind == "band":
            low, high = draw(st.integers(-m, n)), draw(st.integers(-n, m))
            return np.broadcast_to((j - i <= high) & (i - j <= low), (*front, n, m)).copy()
        if kind == "rows":
            return np.broadcast_to(draw(hnp.arrays(bool, (n, 1))), (*front, n, m)).copy()
        return np.full((*front, n, m), kind == "all")

    return drawn()


def _turned(x: Array) -> Array:
    return np.array(x.swapaxes(-3, -2), order="C").swapaxes(-3, -2) if x.ndim > 2 else _fortran(x)


def _fortran(x: Array) -> Array:
    return np.array(x, order="F")


def _gapped(x: Array) -> Array:
    """Rows one element apart, with NaN (or True, or the largest integer) between them."""
    fill: Any = np.iinfo(x.dtype).max if x.dtype.kind in "iu" else True if x.dtype.kind == "b" else np.nan
    wide = np.full((*x.shape[:-1], x.shape[-1] + 1), fill, x.dtype)
    wide[..., :-1] = x
    return wide[..., :-1]


def _reversed(x: Array) -> Array:
    rows = (..., slice(None, None, -1), slice(None)) if x.ndim > 1 else slice(None, None, -1)
    return np.array(x[rows], order="C")[rows]


def _read_only(x: Array) -> Array:
    y = np.array(x)
    y.flags.writeable = False
    return y


def _every_other(x: Array) -> Array:
    wide = np.repeat(x, 2, axis=-1)
    wide[..., 1::2] = 0
    return wide[..., ::2]


_LAYOUTS = (
    Layout("C order", lambda x: np.array(x, order="C")),
    Layout("Fortran order", _fortran),
    Layout("heads before the last axis", _turned),
    Layout("gaps between rows", _gapped),
    Layout("rows in reverse, negative stride", _reversed),
    Layout("every other channel", _every_other),
    Layout("read-only", _read_only),
)


def layouts() -> st.SearchStrategy[Layout]:
    """Ways to lay an array out in memory: C and Fortran order, turned, with gaps, reversed, strided, read-only."""
    return st.sampled_from(_LAYOUTS)


@st.composite
def _schemes(draw: st.DrawFn, optional: frozenset[str], sizes: Any) -> Problem:
    causal = draw(st.booleans())
    align = draw(st.sampled_from((None, "top_left", "bottom_right"))) if causal else None
    placed = causal and align is None and draw(st.booleans()) and "q_positions" in optional
    if causal and align is None and not placed:
        sizes = {**sizes, "m": None}
    x = draw(qkv(**sizes))
    (b, h, n, _), m = x.q.shape, x.k.shape[-2]
    shape = (b, h, n, m)
    arrays: dict[str, st.SearchStrategy[Array]] = {
        "mask": masks(shape),
        "bias": st.sampled_from(((h, 1, m), (1, n, m), shape)).flatmap(_values),
        "sink": _values((h,)),
        "keep": hnp.arrays(bool, (b, 1, n, m)),
        "key_valid": hnp.arrays(bool, (b, m)),
    }
    given = {name: draw(a) for name, a in arrays.items() if name in optional and draw(st.booleans())}
    if "segment_ids" in optional and draw(st.booleans()):
        for name, size in (("segment_ids", n), ("kv_segment_ids", m)):
            given[name] = draw(hnp.arrays(np.int64, (b, size), elements=st.integers(0, 2)))
    if placed:
        given["q_positions"] = draw(hnp.arrays(np.int64, (b, n), elements=st.integers(-1, m)))
    scheme = Dense(
        causal=causal, align=align, scale=draw(st.sampled_from((None, 0.25, 1.0, -0.5))),
        softcap=draw(st.sampled_from((None, None, 0.5, 8.0))), keep_rate=0.75 if "keep" in given else None,
        heads=draw(st.sampled_from(("grouped", "tiled"))), empty=draw(st.sampled_from(("zero", "mean"))),
    )  # fmt: skip
    return Problem(scheme, Dense.Inputs(*x, **given))


OPTIONAL = frozenset({"mask", "bias", "sink", "keep", "segment_ids", "key_valid", "q_positions"})


def schemes(optional: frozenset[str] | set[str] = OPTIONAL, **sizes: Size | None) -> st.SearchStrategy[Problem]:
    """A configured Dense with inputs that fit it; `optional` names the optional inputs that may be among them.

    sizes: those of ``qkv``, as ``schemes(n=st.integers(1, 40), d=8)``.
    """
    return _schemes(frozenset(optional), sizes)
