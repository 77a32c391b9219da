"""What is special to sparse attention: patterns beside masks of Dense, counts, causality, heads, memory, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import outside, results
from laws.stand_in import computing_in
from refattn import (
    All,
    Alternate,
    Causal,
    Dense,
    DtypeError,
    Fixed,
    Global,
    Heads,
    LibraryError,
    Local,
    OptionError,
    Random,
    Self,
    ShapeError,
    Sparse,
    Strided,
    load,
    rng,
    tree,
    using,
)
from refattn.rows import rows_of

Array = Any
PATTERNS = [
    Local(3, 0), Local(2, 2, dilation=2), Local(1, 1) | Global(first=2), Global(at=(3, 5), rows=False),
    Strided(3) & Causal(), Fixed(4), Random(3, seed=5), All(), ~All(), Local(4, 0) & ~Self(), Causal(),
]  # fmt: skip


def draw(n: int, m: int, h: int = 4, g: int = 2, seed: int = 0) -> list[Array]:
    stream = rng.stream(seed, "test_sparse")
    return [stream.normal(size=s) for s in ((2, h, n, 5), (2, g, m, 5), (2, g, m, 3))]


def cotangents(scheme: Any, inputs: Any) -> dict[str, Array]:
    return make(scheme, inputs).cotangents


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize(("n", "m", "align"), [(13, 13, None), (9, 14, "bottom_right"), (14, 9, "top_left")])
def test_a_pattern_is_the_mask_that_it_draws(pattern: Any, n: int, m: int, align: str | None) -> None:
    """Outputs and gradients of Dense under the same mask, each text within the bound of the other."""
    q, k, v = draw(n, m)
    see = pattern.dense(n, m, m - n if align == "bottom_right" else 0) > 0
    dense = make(Dense(), Dense.Inputs(q, k, v, mask=see))
    got = results(Sparse(pattern, align=align), Sparse.Inputs(q, k, v), dense.cotangents)
    assert outside(got, {name: dense.bands[name] for name in got}) == {}


def test_bounds_are_those_of_the_dense_text() -> None:
    """The same contract, so the same bound: no reading is easier on one of them."""
    q, k, v = draw(64, 64)
    see = Local(40, 0).dense(64, 64) > 0
    dense = make(Dense(), Dense.Inputs(q, k, v, mask=see))
    sparse = make(Sparse(Local(40, 0)), Sparse.Inputs(q, k, v), cotangents=dense.cotangents)
    for name, band in sparse.bands.items():
        assert 0.9 <= np.median(band.bound) / np.median(dense.bands[name].bound) <= 1.1, name


def test_a_count_is_that_many_equal_keys() -> None:
    q, k, v = draw(7, 7)
    scheme = Sparse(Local(2, 0) + Local(1, 1) + Self())
    counts = scheme.pattern.dense(7, 7)
    assert counts.max() == 3
    keys = np.repeat(np.arange(7), 3)
    mask = np.arange(3) < counts[:, :, None]
    dense = make(Dense(), Dense.Inputs(q, k[..., keys, :], v[..., keys, :], mask=mask.reshape(7, 21)))
    got = results(scheme, Sparse.Inputs(q, k, v), dense.cotangents)
    want = {name: dense.bands[name] for name in ("o", "lse", "dq")}
    assert outside({name: got[name] for name in want}, want) == {}
    for name in ("dk", "dv"):
        summed = np.sum(results(Dense(), dense.inputs, dense.cotangents)[name].reshape(2, 2, 7, 3, -1), axis=-2)
        np.testing.assert_allclose(got[name], summed, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("heads", ["grouped", "tiled"])
def test_each_head_has_its_own_pattern(heads: str) -> None:
    """Four query heads on two key heads: as four calls, and gradients of shared keys add up."""
    patterns = (Local(2, 0), Causal(), Local(2, 0), Global(first=1))
    q, k, v = draw(6, 6)
    scheme = Sparse(Heads(patterns), heads=heads)
    given = cotangents(scheme, Sparse.Inputs(q, k, v))
    got = results(scheme, Sparse.Inputs(q, k, v), given)
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    for h, pattern in enumerate(patterns):
        g = h % 2 if heads == "tiled" else h // 2
        inputs = Sparse.Inputs(q[:, h], k[:, g], v[:, g])
        alone = results(Sparse(pattern), inputs, {name: c[:, h] for name, c in given.items()})
        for name in ("o", "lse", "dq"):
            np.testing.assert_allclose(got[name][:, h], alone[name], rtol=1e-13, atol=1e-14)
        dk[:, g] += alone["dk"]
        dv[:, g] += alone["dv"]
    np.testing.assert_allclose(got["dk"], dk, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(got["dv"], dv, rtol=1e-12, atol=1e-13)


def test_heads_with_one_pattern_are_one_pattern() -> None:
    q, k, v = draw(6, 6)
    x, y = (Sparse(p).forward(q, k, v)[0] for p in (Local(2, 0), Heads((Local(2, 0),) * 4)))
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "pattern", [Local(3, 0), Strided(3) & Causal(), Heads((Local(1, 0), Causal(), Self(), Local(2, 0)))], ids=repr
)
def test_nothing_leaks_from_later_tokens(pattern: Any) -> None:
    """Bit for bit, forward and backward, where a pattern sees no later key."""
    q, k, v = draw(9, 9)
    scheme, given = Sparse(pattern), cotangents(Sparse(pattern), Sparse.Inputs(q, k, v))
    early = {"o": given["o"] * (np.arange(9) < 5)[:, None], "lse": given["lse"] * (np.arange(9) < 5)}
    want = results(scheme, Sparse.Inputs(q, k, v), early)
    other = [np.where((np.arange(9) < 5)[:, None], x, 32.0 * y) for x, y in zip((q, k, v), draw(9, 9, seed=1), strict=True)]
    got = results(scheme, Sparse.Inputs(*other), early)
    for name, axis in {"o": -2, "lse": -1, "dq": -2, "dk": -2, "dv": -2}.items():
        np.testing.assert_array_equal(*(np.take(x[name], range(5), axis=axis) for x in (got, want)))
        if name[0] == "d":
            assert not np.take(want[name], range(5, 9), axis=axis).any()


def test_decoding_by_alignment_is_the_last_row_of_the_whole() -> None:
    q, k, v = draw(9, 9)
    whole, saved = Sparse(Local(3, 0)).forward(q, k, v)
    o, last = Sparse(Local(3, 0), align="bottom_right").forward(q[..., 8:, :], k, v)
    np.testing.assert_allclose(o, whole[..., 8:, :], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(last.lse, saved.lse[..., 8:], rtol=1e-13)


def test_infinite_cotangents_of_queries_that_see_nothing_pull_nothing_and_warn_of_nothing() -> None:
    q, k, v = draw(6, 6)
    scheme = Sparse(Local(3, 0) & ~Self())
    o, saved = scheme.forward(q, k, v)
    assert (saved.lse[..., 0] == -np.inf).all()
    assert not o[..., 0, :].any()
    do = np.ones_like(o)
    want = scheme.vjp(saved, do)
    do[..., 0, :] = np.inf
    for x, y in zip(tree.leaves(scheme.vjp(saved, do)), tree.leaves(want), strict=True):
        np.testing.assert_array_equal(x, y)


def shapes_made(scheme: Any, inputs: Any) -> list[int]:
    """The sizes of all arrays that the generic texts of forward and vjp make, by a namespace that looks on."""
    made: list[int] = []
    numpy = load("numpy")

    class Watched:
        def __getattr__(self, name: str) -> Any:
            found = getattr(numpy.xp, name)
            if not callable(found):
                return found

            def call(*args: Any, **named: Any) -> Any:
                out = found(*args, **named)
                made.append(getattr(out, "size", 0))
                return out

            return call

    with computing_in(replace(numpy, xp=Watched(), kernels={})):
        o, saved = scheme.forward(*inputs)
        scheme.vjp(saved, o, dlse=saved.lse * 0.0)
    return made


def test_no_array_has_n_times_m_elements() -> None:
    n = 2000
    q, k, v = (rng.stream(0, "long", x).normal(size=(n, 2)) for x in "qkv")
    made = shapes_made(Sparse(Local(7, 0) | Global(first=1)), Sparse.Inputs(q, k, v))
    assert len(made) > 50
    assert max(made) <= 12 * n * 2 < n * n // 50


@pytest.mark.parametrize("more", [{}, {"key_valid": (10**6,)}, {"segment_ids": (10**6,)}], ids=str)
def test_peak_is_that_of_the_pairs(more: dict[str, Any]) -> None:
    """Counted at a million queries; 10¹² elements would be n·m."""
    n, d = 10**6, 64
    scheme, nnz = Sparse(Local(63, 0)), 64 * n
    reading: Any = load("counting")
    with using(reading):
        inputs = reading.shaped(Sparse.Inputs((1, n, d), (1, n, d), (1, n, d), **more), scheme.kinds)
        with reading.counted() as tally:
            _, saved = scheme.forward(*inputs)
            scheme.vjp(saved, reading.shaped(saved.o))
    assert tally.peak <= (4 if not more else 8) * nnz + n * (2 * d + 4 * d) + n * 4 * d + 3 * 2**18


def test_entries_are_made_once_for_all_calls() -> None:
    q, k, v = draw(6, 6)
    scheme = Sparse(Local(2, 0))
    o, saved = scheme.forward(q, k, v)
    rows = rows_of(Local(2, 0), 6, 6, 0)
    made = rows.lists
    scheme.vjp(saved, o)
    Sparse(Heads((Local(2, 0), Causal(), Causal(), Causal()))).forward(q, k, v)
    assert rows_of(Local(2, 0), 6, 6, 0).lists is made


@pytest.mark.parametrize("scalar", [np.float64, np.float32])
def test_a_numpy_scalar_in_the_configuration_widens_nothing(scalar: Any) -> None:
    q, k, v = (x.astype(np.float32) for x in draw(6, 6))
    o, saved = Sparse(Local(2, 0), scale=scalar(0.5)).forward(q, k, v)
    assert {o.dtype, saved.lse.dtype, *(g.dtype for g in Sparse(Local(2, 0), scale=scalar(0.5)).vjp(saved, o)[:3])} == {
        np.dtype(np.float32)
    }


Q, K, V = np.zeros((2, 4, 6, 3)), np.zeros((2, 2, 8, 3)), np.zeros((2, 2, 8, 5))
W = Sparse(Local(1, 0), align="top_left")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pattern": "local"}, "pattern='local' is no pattern.*Local"),
        ({"pattern": Alternate((Local(1, 0), Causal()))}, "differs from layer to layer.*at"),
        ({"align": "left"}, "align='left'.*top_left.*bottom_right"),
        ({"heads": "repeat"}, "heads='repeat'.*grouped.*tiled"),
        ({"scale": float("nan")}, "scale=nan is not finite"),
    ],
)
def test_configurations_that_mean_nothing_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Sparse(**{"pattern": Local(1, 0), **fields})


@pytest.mark.parametrize(
    ("scheme", "args", "named", "error", "said"),
    [
        (Sparse(Local(1, 0)), (Q, K, V), {}, ShapeError, r"n=6.*m=8.*align=.*q: \(2, 4, 6, 3\), k: \(2, 2, 8, 3\)"),
        (W, (Q, K[..., :2], V), {}, ShapeError, "d=3.*d=2"),
        (W, (Q, K[:, [0, 0, 0]], V[:, [0, 0, 0]]), {}, ShapeError, "H=4.*H_kv=3"),
        (Sparse(Heads((Self(), Self())), align="top_left"), (Q, K, V), {}, ShapeError, r"2 patterns.*H=4.*\(2, 4, 6, 3\)"),
        (Sparse(Heads((Self(), Self())), align="top_left"), (Q[0, 0], K[0, 0], V[0, 0]), {}, ShapeError, "2 patterns.*H=1"),
        (W, (Q, K, V), {"mask": np.ones((6, 7), bool)}, ShapeError, "mask has shape"),
        (W, (Q, K, V), {"mask": np.ones((6, 8), int)}, DtypeError, "mask has dtype int64.*bool.*compare it with 0 [^,]*$"),
        (W, (Q, K, V), {"key_valid": np.ones((2, 6), bool)}, ShapeError, "key_valid has shape.*must be 8"),
        (W, (Q, K, V), {"segment_ids": np.ones((2, 6), int)}, ShapeError, "n=6.*m=8.*kv_segment_ids"),
        (W, (Q, K, V), {"kv_segment_ids": np.ones((2, 8), int)}, OptionError, "without segment_ids"),
        (W, (Q, K, V), {"bias": V}, OptionError, "no input called bias; the inputs are q, k, v, mask, segment_ids"),
        (W, (Q.astype(np.float32), K, V), {}, DtypeError, "mixed float dtypes"),
        (W, (Q.tolist(), K, V), {}, LibraryError, "q is a list"),
    ],
)
def test_calls_that_can_not_be_honoured_are_refused(
    scheme: Any, args: Any, named: dict[str, Any], error: Any, said: str
) -> None:
    for method in (scheme.forward, scheme.definition):
        with pytest.raises(error, match=said):
            method(*args, **named)


def test_a_single_head_needs_no_pattern_of_its_own() -> None:
    """H = 1 without a head axis: Heads of one pattern."""
    q, k, v = (x[0, 0] for x in draw(6, 6))
    x, y = (Sparse(p).forward(q, k, v)[0] for p in (Local(2, 0), Heads((Local(2, 0),))))
    np.testing.assert_array_equal(x, y)
