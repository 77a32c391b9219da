"""What each kind of position is known to be: published code and formulas, invariances, edges, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg

from refattn import (
    Alibi,
    Dense,
    DtypeError,
    LibraryError,
    OptionError,
    RelativeShift,
    Rope,
    RotaryBias,
    ShapeError,
    Sinusoid,
    T5Bias,
    ToeplitzBias,
    alibi_slopes,
)
from refattn.position.rope import join, rotate, split
from refattn.position.toeplitz import diagonal_sums, toeplitz
from refattn.testing.tolerance import storage

G = np.random.default_rng(0)
FAR = 10**6


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_products_see_differences_of_positions_alone(pairs):
    q, k = G.normal(size=(2, 3, 5, 8)), G.normal(size=(2, 3, 7, 8))

    def scores(shift):
        rope = Rope(pairs, offset=shift)
        return rope(q) @ np.swapaxes(rope(k), -1, -2)

    np.testing.assert_allclose(scores(1000), scores(0), atol=1e-11)
    assert np.max(np.abs(scores(0) - q @ np.swapaxes(k, -1, -2))) > 0.1
    np.testing.assert_allclose(np.linalg.norm(Rope(pairs)(q), axis=-1), np.linalg.norm(q, axis=-1), rtol=1e-14)


def test_the_two_pairings_are_one_permutation_of_features_apart():
    x = G.normal(size=(4, 8))
    order = np.argsort(np.concatenate([np.arange(0, 8, 2), np.arange(1, 8, 2)]))
    turned = Rope("halves")(np.concatenate([x[:, 0::2], x[:, 1::2]], axis=-1))
    np.testing.assert_array_equal(turned[:, order], Rope("neighbours")(x))
    for pairs in ("halves", "neighbours"):
        np.testing.assert_array_equal(join(*split(x, pairs), pairs), x)


def test_rope_by_complex_numbers():
    x = G.normal(size=(5, 8))
    z = x[:, 0::2] + 1j * x[:, 1::2]
    y = z * np.exp(1j * np.arange(3, 8)[:, None] * 10000.0 ** (-np.arange(4) / 4))
    np.testing.assert_allclose(Rope("neighbours", offset=3)(x), np.stack([y.real, y.imag], -1).reshape(5, 8), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_angles_far_out_are_right_whatever_the_dtype(dtype):
    """One rounding of cosine and sine; a float32 angle would be off by 0.03 at a million, a float16 position is infinite."""
    x = np.ones((4, 16), dtype=dtype)
    want = Rope("halves", offset=FAR)(x.astype(np.float64))
    np.testing.assert_allclose(Rope("halves", offset=FAR)(x), want, atol=4 * np.finfo(dtype).eps)
    table = Sinusoid("halves", offset=FAR)(0 * x)
    np.testing.assert_allclose(table, Sinusoid("halves", offset=FAR)(0 * x.astype(np.float64)), atol=np.finfo(dtype).eps)
    exact = [math.cos(FAR * 10000.0 ** (-f / 8)) for f in range(8)]
    np.testing.assert_allclose(Sinusoid("halves", offset=FAR)(np.zeros((1, 16)))[0, 8:], exact, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_turned_in_float32(dtype):
    x = G.normal(size=(5, 8)).astype(storage(dtype))
    for turn in (Rope("halves", offset=9), Rope("neighbours").vjp):
        got = turn(x)
        assert got.dtype == storage(dtype)
        np.testing.assert_array_equal(got, turn(x.astype(np.float32)).astype(storage(dtype)))


def test_positions_per_item_are_offsets_of_items():
    x = G.normal(size=(2, 3, 4, 6))
    got = Rope("halves")(x, np.arange(4) + np.array([[7], [100]]))
    np.testing.assert_array_equal(got[0], Rope("halves", offset=7)(x[0]))
    np.testing.assert_array_equal(got[1], Rope("halves", offset=100)(x[1]))
    np.testing.assert_array_equal(Rope("halves")(x, np.arange(4) + 7), Rope("halves", offset=7)(x))


def test_what_is_not_turned_stays():
    x = G.normal(size=(5, 10))
    got = Rope("halves", width=4)(x)
    np.testing.assert_array_equal(got[:, 4:], x[:, 4:])
    np.testing.assert_array_equal(got[:, :4], Rope("halves")(x[:, :4]))
    np.testing.assert_array_equal(rotate(x, np.ones((5, 2)), np.zeros((5, 2)), "neighbours"), x)


def test_published_slopes():
    assert alibi_slopes(8) == tuple(2.0**-h for h in range(1, 9))
    assert alibi_slopes(4) == (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)
    assert alibi_slopes(12) == alibi_slopes(8) + tuple(2.0 ** (-h - 0.5) for h in range(4))
    assert alibi_slopes(6) == (*alibi_slopes(4), 2.0**-1, 2.0**-3)
    assert alibi_slopes(6, "geometric") == tuple(2.0 ** (-8 * h / 6) for h in range(1, 7))
    for heads in (0, 1, 2, 16, 64):
        assert alibi_slopes(heads) == alibi_slopes(heads, "geometric")
        assert len(alibi_slopes(heads)) == heads


def test_the_forms_of_alibi_give_the_same_weights_under_causal_order_and_other_lse():
    q, k, v = (G.normal(size=(3, 6, 4)) for _ in range(3))
    found = {}
    for form in ("distance", "last_key", "key"):
        bias = Alibi(form)(np.array(alibi_slopes(3)), 6, 6)
        found[form] = Dense(causal=True).forward(q, k, v, bias=bias)[1]
        full = Dense().forward(q, k, v, bias=bias)[0]
        found[form, "full"] = full
    np.testing.assert_allclose(found["key"].o, found["distance"].o, rtol=1e-12)
    np.testing.assert_allclose(found["last_key"].o, found["distance"].o, rtol=1e-12)
    assert np.max(np.abs(found["key"].lse - found["distance"].lse)) > 0.1
    assert np.max(np.abs(found["key", "full"] - found["distance", "full"])) > 0.01


def test_biases_at_given_positions_are_those_of_the_whole():
    slopes, at, to = np.array([0.5, 0.25]), np.array([[4, 0], [2, 5]]), np.array([[1, 0, 7], [5, 5, 2]])
    table = G.normal(size=(8, 2))
    for position, parameters in ((Alibi(), slopes), (T5Bias(8, 5), table), (T5Bias(8, 5, bidirectional=False), table)):
        whole = position(parameters, 8, 8)
        got = position(parameters, 2, 3, q_positions=at, k_positions=to)
        want = np.stack([whole[:, a][:, :, b] for a, b in zip(at, to, strict=True)])
        np.testing.assert_array_equal(got, want)
        db = G.normal(size=got.shape)
        spread = np.zeros((2, 8, 8))
        for item, a, b in zip(db, at, to, strict=True):
            np.add.at(spread, (slice(None), a[:, None], b[None, :]), item)
        pulled = position.vjp(parameters, db, q_positions=at, k_positions=to)
        np.testing.assert_allclose(pulled, position.vjp(parameters, spread), rtol=1e-12, atol=1e-12)
    last = Alibi("last_key")(slopes, 2, 3, k_positions=to)
    np.testing.assert_array_equal(last[1, 0, 1], 0.5 * (to[1] - 2))


def mesh_bucket(r, bidirectional, buckets, most):
    """The formula as published, r = key − query, in float64."""
    n, out = -r, 0
    if bidirectional:
        buckets //= 2
        out, n = (buckets if n < 0 else 0), abs(n)
    else:
        n = max(n, 0)
    exact = buckets // 2
    if n < exact:
        return out + n
    return out + min(exact + int(math.log(n / exact) / math.log(most / exact) * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (32, 100), (16, 64), (8, 50), (4, 3)])
def test_buckets_are_those_of_the_published_formula(bidirectional, buckets, most):
    bias = T5Bias(buckets, most, bidirectional)
    r = np.arange(-3 * most, 3 * most + 1)
    got = bias.bucket(r)
    want = np.array([mesh_bucket(int(x), bidirectional, buckets, most) for x in r])
    np.testing.assert_array_equal(got, want)
    side = buckets // 2 if bidirectional else buckets
    assert set(got) == set(range(buckets)) - ({side} if bidirectional else set())


def test_boundaries_that_are_whole_numbers():
    """8, 16, 32, 64 start buckets of (32, 128), where the logarithm is a whole number."""
    start = {r: int(T5Bias().bucket(np.array(-r))) for r in (8, 15, 16, 31, 32, 63, 64, 127, 128, 10**9)}
    assert start == {8: 8, 15: 9, 16: 10, 31: 11, 32: 12, 63: 13, 64: 14, 127: 15, 128: 15, 10**9: 15}


def test_toeplitz_is_scipys():
    for n, m in ((1, 1), (1, 4), (4, 1), (3, 3), (3, 6), (6, 3)):
        w = G.normal(size=n + m - 1)
        np.testing.assert_array_equal(toeplitz(w, n, m), scipy.linalg.toeplitz(w[n - 1 :: -1], w[n - 1 :]))
        dT = G.normal(size=(n, m))
        want = [np.trace(dT, t) for t in range(1 - n, m)]
        np.testing.assert_allclose(diagonal_sums(dT), want, rtol=1e-13, atol=1e-13)


def flash_code(w, n):
    """The published code below 512 tokens, n > 1: pad, tile, reshape, cut."""
    t = np.tile(np.pad(w, (0, n)), n)[:-n].reshape(n, 3 * n - 2)
    r = (2 * n - 1) // 2
    return t[..., r:-r]


@pytest.mark.parametrize("n", [2, 3, 7, 16])
def test_the_toeplitz_bias_is_the_published_one_and_one_token_has_one_number(n):
    w = G.normal(size=2 * n - 1)
    np.testing.assert_array_equal(ToeplitzBias()(w, n, n), flash_code(w, n))
    assert flash_code(w[:1], 1).shape == (1, 0)  # what the published code makes of one token
    np.testing.assert_array_equal(ToeplitzBias()(w[:1], 1, 1), [[w[0]]])
    longer = G.normal(size=31)
    np.testing.assert_array_equal(ToeplitzBias()(longer, n, n), ToeplitzBias()(longer[16 - n : 15 + n], n, n))


def test_the_rotary_bias_is_a_toeplitz_matrix():
    a, b = G.normal(size=(2, 128))
    T = RotaryBias()(a, b, 40, 40)
    np.testing.assert_allclose(T, toeplitz(np.concatenate([T[::-1, 0], T[0, 1:]]), 40, 40), atol=1e-11)
    np.testing.assert_allclose(np.diagonal(T), a @ b, rtol=1e-12)
    np.testing.assert_allclose(RotaryBias(offset=5)(a, b, 3, 8), T[5:8, :8], rtol=1e-10)


def test_the_shift_is_the_published_reshaping():
    raw = G.normal(size=(4, 7))
    padded = np.concatenate([np.zeros((4, 1)), raw], axis=1).reshape(8, 4)[1:].reshape(4, 7)
    np.testing.assert_array_equal(RelativeShift("wrapped")(raw), padded)
    np.testing.assert_array_equal(RelativeShift()(raw), np.tril(padded, 3))
    distance = np.broadcast_to(6.0 - np.arange(7), (4, 7))  # column c of raw belongs to distance m − 1 − c
    np.testing.assert_array_equal(RelativeShift()(distance), np.tril(np.arange(3, 7)[:, None] - np.arange(7.0), 3))


def flash_scaledsin(n, width):
    """The published code."""
    half = width // 2
    angle = np.arange(n)[:, None] * 10000.0 ** -(np.arange(half) / half)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def test_sinusoids_are_the_published_ones():
    x = np.zeros((9, 8))
    np.testing.assert_allclose(Sinusoid("halves")(x, np.asarray(8**-0.5)), flash_scaledsin(9, 8) * 8**-0.5, atol=1e-14)
    vaswani = [[math.sin(p / 10000 ** (c / 8)) if c % 2 == 0 else math.cos(p / 10000 ** ((c - 1) / 8)) for c in range(8)]
               for p in range(9)]  # fmt: skip
    np.testing.assert_allclose(Sinusoid("neighbours")(x), vaswani, atol=1e-14)
    y = G.normal(size=(2, 9, 8))
    np.testing.assert_array_equal(Sinusoid("halves")(y, None, np.arange(9)), Sinusoid("halves")(y))
    assert Sinusoid("halves").vjp(y, None, y)[1] is None


X = np.zeros((2, 5, 6))
REFUSED = [
    (lambda: Rope("thirds"), OptionError, "pairs='thirds'"),
    (lambda: Rope("halves", width=3), OptionError, "width=3"),
    (lambda: Rope("halves", base=0.0), OptionError, "base=0.0"),
    (lambda: Rope("halves", width=8)(X), ShapeError, "width=8 of the d=6"),
    (lambda: Rope("halves")(X[..., :5]), ShapeError, "d=5 features"),
    (lambda: Rope("halves")(X, np.arange(4)), ShapeError, "positions has shape"),
    (lambda: Rope("halves")(X, np.zeros((3, 5), int)), ShapeError, "leading axes before the head axis"),
    (lambda: Rope("halves", offset=2)(X, np.arange(5)), OptionError, "offset=2 and positions contradict"),
    (lambda: Rope("halves")(X.astype(int)), DtypeError, "x has dtype int64"),
    (lambda: Rope("halves")(X[0, 0]), ShapeError, "needs the axes"),
    (lambda: Alibi("linear"), OptionError, "form='linear'"),
    (lambda: Alibi()(X, 2, 2), ShapeError, "one slope for each head"),
    (lambda: Alibi(offset=1)(X[0, 0], 5, 5, q_positions=np.arange(5)), OptionError, "contradict"),
    (lambda: alibi_slopes(6, "next"), OptionError, "rule='next'"),
    (lambda: alibi_slopes(-1), OptionError, "heads=-1"),
    (lambda: T5Bias(30), OptionError, "multiple of 4"),
    (lambda: T5Bias(32, 8), OptionError, "larger than the 8 exact"),
    (lambda: T5Bias()(X[0], 5, 5), ShapeError, "32 buckets"),
    (lambda: ToeplitzBias()(X[0, 0], 3, 3), ShapeError, "odd number of entries, 5 or more, with"),
    (lambda: ToeplitzBias()(X[0, 0, :5], 4, 4), ShapeError, "7 or more"),
    (lambda: ToeplitzBias(offset=3)(X[0, 0, :5], 3, 3), ShapeError, "11 or more"),
    (lambda: RotaryBias()(X[0, 0, :5], X[0, 0, :5], 3, 3), ShapeError, "must be even"),
    (lambda: RotaryBias()(X[0, 0, :4], X[0, 0], 3, 3), ShapeError, "turned together"),
    (lambda: Rope("halves", base="a"), OptionError, "base='a'"),
    (lambda: Rope("halves", width=2.0), OptionError, "width=2.0: give a whole number"),
    (lambda: Rope("halves", offset=1.5), OptionError, "offset=1.5: give a whole number"),
    (lambda: RotaryBias(offset="1"), OptionError, "offset='1'"),
    (lambda: Alibi(offset=0.5), OptionError, "offset=0.5"),
    (lambda: ToeplitzBias(offset=None), OptionError, "offset=None"),
    (lambda: T5Bias(max_distance=128.5), OptionError, "max_distance=128.5"),
    (lambda: Sinusoid("halves", offset=True), OptionError, "offset=True"),
    (lambda: Sinusoid("halves")(X, np.ones(6)), ShapeError, "one number for the whole table"),
    (lambda: Sinusoid("halves").vjp(X, np.ones(6), X), ShapeError, "one number for the whole table"),
    (lambda: RelativeShift("garbage"), OptionError, "above='garbage'"),
    (lambda: RelativeShift()(X[0, 0]), ShapeError, "needs the axes"),
    (lambda: Sinusoid("halves")(X[..., :5]), OptionError, "width=5"),
    (lambda: Sinusoid("halves")(X, None, np.arange(4)), ShapeError, "one position for each token"),
]  # fmt: skip

S, T, W, AB = np.array([0.5, 0.25]), np.zeros((32, 2)), np.zeros(9), np.zeros(6)
SIZED = {
    "Alibi": lambda n, m: Alibi()(S, n, m),
    "Alibi, key": lambda n, m: Alibi("key").definition(S, n, m),
    "Alibi of positions": lambda n, m: Alibi()(S, n, m, q_positions=np.arange(2), k_positions=np.arange(3)),
    "T5Bias": lambda n, m: T5Bias()(T, n, m),
    "T5Bias.definition": lambda n, m: T5Bias().definition(T, n, m),
    "ToeplitzBias": lambda n, m: ToeplitzBias()(W, n, m),
    "ToeplitzBias.definition": lambda n, m: ToeplitzBias().definition(W, n, m),
    "toeplitz": lambda n, m: toeplitz(W[:4], n, m),
    "RotaryBias": lambda n, m: RotaryBias()(AB, AB, n, m),
    "RotaryBias.definition": lambda n, m: RotaryBias().definition(AB, AB, n, m),
    "Sinusoid.table": lambda n, m: Sinusoid("halves").table(X, 2 * m if isinstance(m, int) else m, n),
}
SIZES = [(-1, 3, "n=-1"), (2, -3, "(m=-3|width=-6)"), (2.0, 3, r"n=2\.0"), (2, "3", "(m|width)='3'"), (True, 3, "n=True")]
PLACED = {
    "Rope": lambda at, to: Rope("halves")(X[..., :2, :], at),
    "Rope.vjp": lambda at, to: Rope("halves").vjp(X[..., :3, :], to),
    "Rope.definition": lambda at, to: Rope("halves").definition(X[..., :2, :], X[..., :3, :], at, to),
    "Sinusoid": lambda at, to: Sinusoid("halves")(X[..., :2, :], None, at),
    "Sinusoid.table": lambda at, to: Sinusoid("halves").table(X, 6, 2, at),
    "Alibi": lambda at, to: Alibi()(S, 2, 3, q_positions=at, k_positions=to),
    "Alibi.vjp": lambda at, to: Alibi().vjp(S, X[:, :2, :3], k_positions=to),
    "T5Bias": lambda at, to: T5Bias()(T, 2, 3, q_positions=at, k_positions=to),
    "T5Bias.vjp": lambda at, to: T5Bias().vjp(T, X[:, :2, :3], q_positions=at),
}


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(("n", "m", "says"), SIZES)
def test_sizes_that_are_none_are_refused(name, n, m, says):
    assert SIZED[name](2, 3).shape[-2:] == ((2, 3) if name != "Sinusoid.table" else (2, 6))
    assert SIZED[name](np.int64(2), 3).shape[-2] == 2
    with pytest.raises(OptionError, match=f"{says}: give a whole number, 0 or more"):
        SIZED[name](n, m)


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("dtype", [bool, complex, "M8[s]", float, "list"])
def test_positions_that_are_no_numbers_are_refused(name, dtype):
    """A fraction is a place too, but for T5, whose differences are counted."""
    at, to = np.arange(2), np.arange(3)
    PLACED[name](at, to)
    at, to = (at.tolist(), to.tolist()) if dtype == "list" else (at.astype(dtype), to.astype(dtype))
    if dtype is float and "T5" not in name:
        assert np.isfinite(PLACED[name](at / 2, to / 2)).all()
        return
    error, says = (LibraryError, "not an array") if dtype == "list" else (DtypeError, "positions are (whole )?numbers")
    with pytest.raises(error, match=rf"positions .*{says}"):
        PLACED[name](at, to)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int8", "int32"])
def test_differences_of_positions_of_any_integer_dtype_have_a_sign(dtype):
    at, to, q, k = np.array([0, 100]), np.array([5, 127, 1]), G.normal(size=(2, 4)), G.normal(size=(3, 4))
    given = [x.astype(dtype) for x in (at, to)]
    for position, parameters in ((Alibi(), S), (T5Bias(), G.normal(size=(32, 2)))):
        want = position(parameters, 2, 3, q_positions=at, k_positions=to)
        np.testing.assert_array_equal(position(parameters, 2, 3, q_positions=given[0], k_positions=given[1]), want)
    want = Rope("halves").definition(q, k, at, to)
    np.testing.assert_array_equal(Rope("halves").definition(q, k, *given), want)


@pytest.mark.parametrize(("call", "error", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
def test_what_cannot_be_honoured_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()
