"""The counting reading against NumPy: the same shapes, kinds, views and errors on drawn arguments, and what is counted."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import array_api_compat.numpy as numpy_xp
import numpy as np
import pytest

from refattn.backend import load, of
from refattn.backends import counting_backend, rounding_backend
from refattn.errors import DtypeError, LibraryError, OptionError

Array = Any
F, I, B = np.float64, np.int64, np.bool_


def a(*shape: int, kind: Any = F) -> Array:
    return np.ones(shape, kind)


# Without axes NumPy takes axis 0 all the same; the standard does not, and neither does the reading.
SHAPES = [(), (1,), (3,), (0,), (3, 1), (4, 3), (1, 4, 3), (2, 1, 1), (5, 4, 3), (0, 3), (2, 0, 3)]
COMPARED = ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal")
AXES = (0, -1)
PARTS = [(s, t) for s in SHAPES for t in [(4, 3), (4, 1), (0, 3), (3,), ()]]
ALONG = [(4, 2), (1, 2), (2, 3), (4,), (4, 0)]
TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum", *COMPARED)
LOGIC = ("logical_and", "logical_or", "bitwise_and", "bitwise_or")
MATRICES = [s for s in SHAPES if len(s) > 1]
FLAT = [(-1,), (12,), (3, 4), (2, 6), (0,), (), (1, 1)]
KINDS = [(k, m) for k in (F, I, B) for m in (F, I, B)]
ONE = ("exp", "log", "log1p", "tanh", "cos", "sin", "sqrt", "square", "negative", "abs", "isfinite", "isnan",
       "isinf")
ORDERS = ("sort", "argsort")
REDUCED = ("sum", "max", "min", "any", "all")

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (a(*s), a(*t)), {}) for name in TWO for s in SHAPES for t in SHAPES),
    *((name, (a(4, 3, kind=k), a(3, kind=m)), {}) for name in TWO if name != "subtract" for k in (F, I) for m in (F, I, B)),
    *((name, (a(4, 3, kind=k), 2), {}) for name in TWO for k in (F, I)),
    *((name, (a(4, 3, kind=I), 2.0), {}) for name in TWO),
    *((name, (a(4, 3, kind=k), a(1, 3, kind=k)), {}) for name in LOGIC for k in (B, I)),
    *((name, (a(4, 3), a(3)), {}) for name in ("bitwise_and", "bitwise_or")),
    *((name, (a(*s),), {}) for name in ONE for s in SHAPES),
    *((name, (a(3, kind=I),), {}) for name in ("exp", "sqrt", "negative", "abs", "square", "isnan", "bitwise_invert")),
    *((name, (a(3, kind=B),), {}) for name in ("logical_not", "bitwise_invert")),
    *(("where", (a(*s, kind=B), a(*t), a(3)), {}) for s in SHAPES for t in SHAPES),
    *(("where", (a(3, kind=B), a(3, kind=k), m), {}) for k in (F, I) for m in (0, 0.0)),
    *(("matmul", (a(*s), a(*t)), {}) for s in MATRICES for t in [*MATRICES, (3, 2), (2, 3, 4), (5, 3, 0)]),
    *(
        (name, (a(*s, kind=k),), {"axis": axis, "keepdims": keep})
        for name in REDUCED
        for s in SHAPES[1:]
        for k in (F, I, B)
        for axis in (None, 0, -1, -2, 2, (0, 1), (-1, 0), (0, 0))
        for keep in (False, True)
    ),
    *(
        (name, (a(*s),), {"axis": axis, "keepdims": keep})
        for name in ("argmax", "argmin")
        for s in SHAPES[1:]
        for axis in (None, 0, -1, -3)
        for keep in (False, True)
    ),
    *((name, (a(*s, kind=k),), {"axis": x}) for name in ORDERS for s in SHAPES[1:] for k in (F, I) for x in AXES),
    *(("searchsorted", (a(n), a(*s)), {"side": side}) for n in (0, 4) for s in SHAPES[1:] for side in ("left", "right")),
    ("searchsorted", (a(4, 3), a(3)), {}),
    *(("cumulative_sum", (a(*s, kind=k),), {"axis": -1}) for s in SHAPES[1:] for k in (F, I)),
    ("cumulative_sum", (a(4, 3),), {"axis": 0, "include_initial": True}),
    ("cumulative_sum", (a(4),), {}),
    ("sum", (a(3),), {"dtype": F}),
    *(("reshape", (a(*s), t), {"copy": c}) for s in SHAPES for t in FLAT for c in (None, True)),
    *(("reshape", (a(4, 3).T, t), {"copy": c}) for t in [(12,), (3, 2, 2), (3, 4, 1)] for c in (None, False)),
    *(("reshape", (a(8, 6)[:, ::2], t), {}) for t in [(24,), (2, 4, 3), (8, 3, 1)]),
    *(("reshape", (np.broadcast_to(a(3, 1), (3, 4)), t), {}) for t in [(12,), (3, 2, 2)]),
    *((name, (a(*s),), {}) for name in ("matrix_transpose", "flip") for s in SHAPES),
    *((name, (a(*s),), {}) for name in ("tril", "triu") for s in [(), *MATRICES]),
    *(("permute_dims", (a(5, 4, 3), axes), {}) for axes in [(2, 0, 1), (0, 1), (0, 0, 1), (-1, 0, 1)]),
    *(("moveaxis", (a(5, 4, 3), *axes), {}) for axes in [(0, -1), ((0, 1), (1, 2)), (3, 0)]),
    *(("expand_dims", (a(4, 3),), {"axis": axis}) for axis in (0, -1, 1, 3)),
    *(("squeeze", (a(4, 1, 3, 1), axis), {}) for axis in (1, -1, 0, (1, 3), 5)),
    *(("broadcast_to", (a(*s), t), {}) for s in SHAPES for t in [(4, 3), (2, 4, 3), (0,), (0, 3)]),
    *(("flip", (a(4, 3),), {"axis": axis}) for axis in (0, (0, 1), 2)),
    *(("roll", (a(4, 3), 1), {"axis": axis}) for axis in (None, 0, -1, 2)),
    *(("take", (a(*s), np.array([0, 0, 0, 0, 0, 0])), {"axis": x}) for s in SHAPES if s for x in (0, -1, 1)),
    ("take", (a(4), np.array([1, 2])), {}),
    *(("take_along_axis", (a(4, 3), np.zeros(s, I)), {"axis": x}) for s in ALONG for x in AXES),
    *(("repeat", (a(4, 3), n), {"axis": x}) for n in (0, 2, -1) for x in (None, 0, -1, 2)),
    *(("concat", ([a(*s), a(*t)],), {"axis": x}) for s, t in PARTS for x in (0, -1, None)),
    ("concat", ([a(4, 3), a(4, 3, kind=I)],), {}),
    ("concat", ([],), {}),
    *(("stack", ([a(*s), a(*t)],), {"axis": x}) for s in SHAPES for t in [(4, 3), ()] for x in (0, -1, 1, 3)),
    ("stack", ([],), {}),
    *(("astype", (a(3, kind=k), m), {"copy": c}) for k, m in KINDS for c in (True, False)),
    *(("asarray", (a(3),), {"copy": c}) for c in (None, True)),
    ("asarray", ([1, 2],), {}),
    *((name, (s,), {}) for name in ("zeros", "ones") for s in [3, (), (2, 3), (-1, 2)]),
    *(("full", ((2, 3), value), {}) for value in (1, 1.0, True)),
    *(("arange", args, {}) for args in [(5,), (2, 5), (5, 2), (0, 7, 3), (0.0, 1.0, 0.3), (7, 0, -2)]),
    *(("eye", args, {}) for args in [(3,), (3, 4)]),
    *((name, (a(3, kind=k),), {}) for name in ("zeros_like", "ones_like") for k in (F, I, B)),
    *((name, (a(3),), {"dtype": I}) for name in ("zeros_like", "ones_like")),
    ("full_like", (a(3), 2.0), {}),
]  # fmt: skip
KEYS = [
    *(0, -1, 4, slice(1, 3), slice(None, None, -2), None, ..., (..., 0), (slice(None), None, 1), (0, 1, 2), (0, 1, 2, 3)),
    *((..., None, slice(0, 0)), (..., ...), slice(10, 20)),
    *((np.array([0, 1]), np.array([[1], [2]]), 0), (np.array([0, 1]), 0, 0)),
]


def lifted(reading: Any, x: Any) -> Any:
    """The argument as the reading's: arrays become shapes that lie in memory alike."""
    if isinstance(x, list) and x and isinstance(x[0], np.ndarray):
        return [lifted(reading, part) for part in x]
    if not isinstance(x, np.ndarray):
        return x
    root = x if x.base is None else x.base
    out = reading.shaped(root.shape, {})
    if x.base is not None:  # the strides of x, as NumPy made them
        items = np.array(x.strides) // x.itemsize
        out = out.view(lambda layout: np.lib.stride_tricks.as_strided(np.empty((), "V0"), x.shape, items))
    out.dtype = x.dtype
    return out


def outcome(call: Any) -> Any:
    """The result, or the class of error that a caller would catch."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except (IndexError, ValueError, TypeError) as error:
            return next(kind for kind in (TypeError, IndexError, ValueError) if isinstance(error, kind)), error


def compare(reading: Any, got: Any, want: Any, given: tuple[Any, ...]) -> None:
    if isinstance(want, tuple):
        assert isinstance(got, tuple), f"NumPy refuses: {want[1]}; the reading gives {got}"
        assert got[0] is want[0] or issubclass(np.exceptions.AxisError, (got[0], want[0])), (got, want)
        return
    assert not isinstance(got, tuple), f"NumPy gives {np.shape(want)}; the reading refuses: {got[1]}"
    want = np.asarray(want)
    assert (got.shape, got.dtype.kind) == (want.shape, want.dtype.kind)
    if want.base is None and want.ndim == 0:  # NumPy hands out a number where the standard has an array
        return
    shares = want.size == 0 or any(isinstance(x, np.ndarray) and np.may_share_memory(want, x) for x in given)
    assert shares if got.own == 0 and got.size else got.own in (0, got.size)
    if shares and want.size:
        assert got.own == 0


def test_every_rule_has_numpys_shapes_kinds_views_and_errors() -> None:
    assert {name for name, _, _ in CALLS} >= set(counting_backend.RULES) - {"getitem", "broadcast_arrays"}
    reading = load("counting")
    for name, args, named in CALLS:
        given = tuple(lifted(reading, x) for x in args)
        want = outcome(lambda: getattr(numpy_xp, name)(*args, **named))  # noqa: B023
        got = outcome(lambda: getattr(reading.xp, name)(*given, **named))  # noqa: B023
        try:
            compare(reading, got, want, args)
        except AssertionError as error:
            shown = [x.shape if isinstance(x, np.ndarray) else x for x in args]
            raise AssertionError(f"{name}({shown}, {named}): {error}") from None


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(key: Any) -> None:
    reading, x = load("counting"), a(4, 3, 5)
    got = outcome(lambda: reading.lift(x)[key])
    compare(reading, got, outcome(lambda: x[key]), (x,))


def test_the_rules_are_those_of_the_rounding_reading() -> None:
    assert set(counting_backend.RULES) == set(rounding_backend.RULES)
    with pytest.raises(AttributeError, match=r"no rule for 'svd'; it has abs, add, all"):
        _ = load("counting").xp.svd


def test_operators_are_the_functions_of_the_namespace() -> None:
    x = load("counting").shaped((4, 3))
    assert ((1.0 - x) * 2 / x)[..., None].shape == (4, 3, 1)
    assert (np.ones(3) + x).shape == (4, 3)
    assert (~(x > 0) & (x <= 1)).dtype == bool
    assert (x @ x.mT).shape == (4, 4)
    assert x.reading.tally.macs == 4 * 4 * 3
    assert of(x) is x.reading


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (bool, "no truth value"),
        (float, r"shape, \(1,\), but no values: __float__"),
        (int, "no values: __int__"),
        (complex, "no values: __complex__"),
        (range, "no values: __index__"),
        (list, "no values: iteration"),
        (np.asarray, "no values: __array__"),
        (lambda x: x.item(), r"no values: item\(\)"),
        (lambda x: 1.0 in x, "no values: iteration"),
        (lambda x: x[x > 0.0], r"choose by where\(condition, a, b\), not by x\[condition\]"),
        (lambda x: 1 if x > 0 else 2, "no truth value"),
        (lambda x: x.reading.host(x), "no values to bring to the host"),
        (lambda x: x.reading.xp.repeat(x, x.reading.xp.astype(x, int)), "no values: __index__"),
        (lambda x: x.__setitem__(0, 1.0), "__setitem__"),
    ],
)
def test_what_depends_on_values_raises(use: Any, message: str) -> None:
    with pytest.raises((TypeError, AttributeError), match=message):
        use(load("counting").shaped((1,)))


def test_counts_by_hand() -> None:
    reading = load("counting")
    xp, q, k = reading.xp, *reading.shaped(Pair((2, 5, 3), (7, 3)))
    with reading.counted() as product:
        s = xp.matmul(q, xp.matrix_transpose(k))
    assert (product.macs, product.moved, product.live, product.peak) == (2 * 5 * 7 * 3, 30 + 21 + 70, 70, 70)
    with reading.counted() as softmax:
        e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    assert (softmax.macs, softmax.exps, softmax.flops, softmax.compares) == (0, 70, 70, 70)
    assert (softmax.live, softmax.peak) == (70, 140)  # while exp runs: its argument and its result; the row maxima are gone
    assert softmax.moved == (70 + 10) + (70 + 10 + 70) + (70 + 70)
    with reading.counted() as ordered:
        xp.sort(e, axis=-1)
        xp.argmax(e, axis=0)
    assert ordered.compares == 70 * 3 + 70
    with reading.counted() as free:
        kept = [e[0, 1:], xp.reshape(e, (14, 5)), xp.flip(e), xp.broadcast_to(e, (9, 2, 5, 7)), reading.lift(np.ones(10**4))]
    assert kept
    assert vars(free) == dict.fromkeys(vars(free), 0)


class Pair(NamedTuple):
    a: Any
    b: Any


def test_a_view_keeps_its_base_alive_and_the_last_reference_frees_it() -> None:
    reading = load("counting")
    x = reading.xp.ones((10, 10))
    row = reading.xp.matrix_transpose(x[2:, :])[0]
    del x
    assert (row.own, reading.tally.live) == (0, 100)
    del row
    assert (reading.tally.live, reading.tally.peak) == (0, 100)


def test_nothing_is_kept_in_a_cycle() -> None:
    gc.disable()
    try:
        reading = load("counting")
        x = reading.xp.ones((3,)) + 1.0
        with pytest.raises(ValueError, match="broadcast"):
            x + reading.xp.ones((4,))
        del x
        assert reading.tally.live == 0
    finally:
        gc.enable()


def test_counted_blocks_nest_and_peaks_are_their_own() -> None:
    reading = load("counting")
    ones = reading.xp.ones
    with reading.counted() as outer:
        ones((90,))
        kept = ones((50,))
        with reading.counted() as inner:
            ones((20,))
        ones((7,))
    assert kept.size == 50
    assert (inner.peak, inner.live, outer.live) == (20, 0, 50)
    assert (outer.peak, reading.tally.peak) == (90, 90)


def test_lift_and_shaped() -> None:
    reading = load("counting")
    assert repr(reading.lift(range(2, 8, 2))) == "Counted((3,), int64)"
    assert reading.tally.live == 0
    assert [reading.lift(x).dtype.kind for x in (1, 1.0, True, np.float32(1), np.ones(2, np.float16))] == list("ifbff")
    pair = reading.shaped(Pair((2, 3), (4,)), {"b": "bool"})
    assert (pair.a.dtype, pair.b.dtype) == (np.float64, np.bool_)
    assert reading.shaped(Pair(np.ones(3, np.int32), None)).a.dtype == np.int64
    with pytest.raises(OptionError, match=r"\(2, -3\) is no shape"):
        reading.shaped(Pair((2, -3), None))
    with pytest.raises(DtypeError, match="complex128"):
        reading.lift(np.ones(2, complex))
    with pytest.raises(LibraryError, match="cannot lift a str"):
        reading.lift("x")
    with pytest.raises(LibraryError, match="two counting readings"):
        load("counting").xp.exp(pair.a)
    with pytest.raises(OptionError, match="block=0"):
        load("counting", block=0)


def test_sizes_have_no_limit() -> None:
    reading = load("counting")
    x = reading.shaped((10**10, 10**10))
    y = reading.xp.reshape(reading.xp.exp(x)[..., :7], (10**10, 7, 1))
    assert (y.own, reading.tally.exps, reading.tally.peak) == (0, 10**20, 10**20)
