"""Bad input of every kind gets a clear error that shows the values and what to do."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from refattn import Dense, DtypeError, LibraryError, OptionError, ShapeError
from refattn.backend import AUTO

Q = np.zeros((2, 4, 6, 3))
K = np.zeros((2, 2, 8, 3))
V = np.zeros((2, 2, 8, 5))

FIELDS = [
    ({"causal": "no"}, "causal='no': give True or False"),
    ({"align": "left", "causal": True}, "align='left'.*top_left.*bottom_right"),
    ({"align": "top_left"}, "align='top_left' with causal=False would be ignored"),
    ({"heads": "repeat"}, "heads='repeat'.*grouped.*tiled"),
    ({"empty": "nan"}, "empty='nan'.*zero.*mean"),
    ({"scale": float("inf")}, "scale=inf is not finite"),
    ({"softcap": 0.0}, "softcap=0.0 must be positive"),
    ({"softcap": -1.0}, "softcap=-1.0"),
    ({"keep_rate": 0.0}, r"keep_rate=0.0 must be in \(0, 1\]"),
    ({"keep_rate": 1.5}, "keep_rate=1.5"),
    ({"scale": "a"}, "scale='a' is a str, not a number"),
    ({"scale": 1j}, "scale=1j is a complex, not a number"),
    ({"scale": True}, "scale=True is a bool, not a number"),
    ({"scale": np.ones(2)}, r"scale=array\(\[1., 1.\]\) is a ndarray, not a number"),
    ({"scale": 10**400}, "scale is beyond the largest float"),
    ({"scale": 10**5000}, "scale is beyond the largest float"),
    ({"scale": float("nan")}, "scale=nan is not finite"),
    ({"softcap": "a"}, "softcap='a' is a str"),
    ({"softcap": True}, "softcap=True is a bool"),
    ({"softcap": float("inf")}, "softcap=inf is not finite"),
    ({"keep_rate": "x"}, "keep_rate='x' is a str"),
    ({"keep_rate": np.bool_(True)}, "keep_rate=True is a bool"),
    ({"empty": np.ones(2)}, "empty=array.*zero.*mean"),
    ({"heads": np.ones(2)}, "heads=array.*grouped.*tiled"),
    ({"align": np.ones(2), "causal": True}, "align=array.*top_left"),
]

CALLS = [
    (Dense(causal=True), (Q, K, V), {}, ShapeError, r"n=6.*m=8.*align=.*q: \(2, 4, 6, 3\), k: \(2, 2, 8, 3\)"),
    (Dense(), (Q, K[..., :2], V), {}, ShapeError, r"d=3.*d=2.*q: \(2, 4, 6, 3\)"),
    (Dense(), (Q, K, V[..., :7, :]), {}, ShapeError, r"m=8.*m=7"),
    (Dense(), (Q, K[:, [0, 0, 0]], V[:, [0, 0, 0]]), {}, ShapeError, "H=4.*H_kv=3"),
    (Dense(), (Q, K, V[:, :1]), {}, ShapeError, "g=2.*g=1"),
    (Dense(), (Q[0], K, V), {}, ShapeError, "leading axes"),
    (Dense(), (Q[0, 0, 0], K, V), {}, ShapeError, "q has shape"),
    (Dense(), (Q, K, V), {"mask": np.ones((6, 7), bool)}, ShapeError, r"mask has shape \(6, 7\).*\(2, 4, 6, 8\)"),
    (Dense(), (Q, K, V), {"mask": np.ones((6, 8), int)}, DtypeError, "mask has dtype int64.*bool.*bias"),
    (Dense(), (Q, K, V), {"mask": np.ones((6, 8))}, DtypeError, "mask has dtype float64"),
    (Dense(), (Q, K, V), {"bias": np.ones((5, 8))}, ShapeError, "bias has shape"),
    (Dense(), (Q, K, V), {"sink": np.ones(2)}, ShapeError, r"sink has shape \(2,\).*\(4,\)"),
    (Dense(), (Q, K, V), {"key_valid": np.ones((2, 6), bool)}, ShapeError, "key_valid has shape.*must be 8"),
    (Dense(), (Q, K, V), {"key_valid": np.ones((3, 8), bool)}, ShapeError, "key_valid has shape"),
    (Dense(), (Q, K, V), {"segment_ids": np.ones((2, 6), int)}, ShapeError, "n=6.*m=8.*kv_segment_ids"),
    (Dense(), (Q, K, V), {"kv_segment_ids": np.ones((2, 8), int)}, OptionError, "without segment_ids"),
    (Dense(), (Q, K, V), {"q_positions": np.ones((2, 6), int)}, OptionError, "q_positions without causal=True"),
    (Dense(causal=True), (Q, K, V), {"k_positions": np.ones((2, 8), int)}, OptionError, "without q_positions"),
    (Dense(causal=True, align="top_left"), (Q, K, V), {"q_positions": np.ones((2, 6), int)}, OptionError, "contradict"),
    (Dense(causal=True), (Q, K, V), {"q_positions": np.ones((2, 6))}, DtypeError, "q_positions has dtype float64"),
    (Dense(), (Q, K, V), {"keep": np.ones((6, 8), bool)}, OptionError, "keep is given and keep_rate=None"),
    (Dense(keep_rate=0.5), (Q, K, V), {}, OptionError, "keep is missing and keep_rate=0.5"),
    (Dense(), (Q.astype(np.float32), K, V), {}, DtypeError, "mixed float dtypes.*q: float32.*k: float64"),
    (Dense(), (Q.astype(int), K, V), {}, DtypeError, "q has dtype int64"),
    (Dense(), (Q.astype(complex), K, V), {}, DtypeError, "q has dtype complex128"),
    (Dense(), (Q.tolist(), K, V), {}, LibraryError, "q is a list, not an array"),
    (Dense(), (Q, K, V), {"biass": V}, OptionError, "no input called biass; the inputs are q, k, v, mask"),
    (Dense(), (Q, K), {}, OptionError, "missing 1 required.*'v'"),
    (Dense(), (Q, K, V), {"block": 0}, OptionError, "block=0"),
    (Dense(), (Q, K, V), {"block": 2.5}, OptionError, "block=2.5"),
    (Dense(), (Q, K, V), {"block": "x"}, OptionError, "block='x'"),
    (Dense(), (None, K, V), {}, LibraryError, "q is None: Dense needs it"),
    (Dense(), (Dense.Inputs(Q, K, None),), {}, LibraryError, "v is None: Dense needs it"),
    (Dense(), (np.ma.masked_array(Q), K, V), {}, LibraryError, "q is a MaskedArray, not an array: its mask would be"),
    (Dense(), (Q, K, V), {"mask": np.ma.ones((6, 8), bool)}, LibraryError, "mask is a MaskedArray"),
    (Dense(), (Q[0, 0].view(np.matrix), K[0, 0], V[0, 0]), {}, LibraryError, r"q is a matrix, .*give numpy\.asarray of it"),
    (Dense(causal=True), (Q, K, V), {"q_positions": np.ones((2, 6), np.uint64)}, DtypeError,
     "q_positions has dtype uint64; it must be one of int8, .*int64"),
]
OF_COSTS = [
    ((3, 4), 256, r"cost takes the shapes of all inputs as Dense\.Inputs.*not a tuple"),
    (None, 256, r"as Dense\.Inputs, not None"),
    (Dense.Inputs((6, 3.5), (8, 3.5), (8, 5)), 256, r"q=\(6, 3.5\) is no shape"),
    (Dense.Inputs((6, 3), (-8, 3), (-8, 5)), 256, r"k=\(-8, 3\) is no shape"),
    (Dense.Inputs((6, 3), 8, (8, 5)), 256, "k=8 is no shape"),
    (Dense.Inputs((6, 3), (8, 3), "ab"), 256, "v='ab' is no shape"),
    (Dense.Inputs((6, 3), (8, 3), (8, 5)), 0, "block=0: give a positive number"),
    (Dense.Inputs((6, 3), (8, 3), (8, 5)), -3, "block=-3"),
    (Dense.Inputs((6, 3), (8, 3), (8, 5)), "x", "block='x'"),
]
# A number that is 0 or infinite in float32 would make NaN of finite results: tanh(0)·∞, 0·∞, 0/0.
BEYOND_FLOAT32 = [{"softcap": 1e39}, {"softcap": 10**39}, {"softcap": 1e-50}, {"scale": -1e39}, {"keep_rate": 1e-50}]


@pytest.mark.parametrize(("fields", "says"), FIELDS)
def test_fields_that_mean_nothing_are_refused(fields, says):
    with pytest.raises(OptionError, match=says):
        Dense(**fields)


@pytest.mark.parametrize(("scheme", "arrays", "named", "kind", "says"), CALLS)
def test_inputs_that_do_not_fit_are_refused(scheme, arrays, named, kind, says):
    with pytest.raises(kind, match=says):
        scheme.forward(*arrays, **named)


def test_cotangents_are_checked():
    scheme = Dense()
    o, saved = scheme.forward(Q, K, V)
    with pytest.raises(ShapeError, match=r"do has shape \(2, 4, 6, 4\), but o has shape \(2, 4, 6, 5\)"):
        scheme.vjp(saved, o[..., :4])
    with pytest.raises(DtypeError, match="do has dtype float32, but o has dtype float64"):
        scheme.vjp(saved, o.astype(np.float32))
    with pytest.raises(ShapeError, match="dlse has shape"):
        scheme.vjp(saved, o, dlse=o)
    with pytest.raises(OptionError, match="no cotangent dz; it has do, dlse"):
        scheme.vjp(saved, o, dz=o)
    with pytest.raises(LibraryError, match="do is a list"):
        scheme.vjp(saved, o.tolist())


@pytest.mark.parametrize(("shapes", "block", "says"), OF_COSTS)
def test_costs_of_what_has_no_shape_are_refused(shapes, block, says):
    with pytest.raises(OptionError, match=says):
        Dense().cost(shapes, block)


def test_costs_take_arrays_lists_and_numpy_integers():
    want = Dense().cost(Dense.Inputs((4, 6, 3), (2, 8, 3), (2, 8, 5)))
    assert Dense().cost(Dense.Inputs(Q[0], K[0], V[0])) == want
    assert Dense().cost(Dense.Inputs([4, 6, 3], [2, 8, 3], (2, np.int64(8), 5)), block=AUTO) == want
    with pytest.raises(LibraryError, match="k is None: Dense needs it"):
        Dense().cost(Dense.Inputs(Q, None, V))


def test_numbers_may_be_written_in_any_way():
    q, k, v = Q[0, 0] + 1.0, K[0, 0] + 1.0, V[0, 0] + 1.0
    for scale in (Fraction(1, 2), np.float32(0.5), np.array(0.5)):
        assert Dense(scale=scale) == Dense(scale=0.5)
        assert Dense(scale=scale)(q, k, v).dtype == np.float64
    assert repr(Dense(softcap=30).softcap) == "30"
    assert Dense(softcap=10**39)(q, k, v).dtype == np.float64


@pytest.mark.parametrize("fields", BEYOND_FLOAT32)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_that_the_dtype_cannot_hold_are_refused(fields, dtype):
    keep = {"keep": np.ones((6, 8), bool)} if "keep_rate" in fields else {}
    wide = [x + 1.0 for x in (Q, K, V)]
    name, value = next(iter(fields.items()))
    for text in (Dense(**fields).forward, Dense(**fields).definition):
        with pytest.raises(OptionError, match=rf"{name}=.*{np.dtype(dtype)} inputs are computed in float32, whose numbers"):
            text(*(x.astype(dtype) for x in wide), **keep)
    o, lse = Dense(**fields).definition(*wide, **keep)  # float64 has room for it
    got, saved = Dense(**fields).forward(*wide, **keep)
    np.testing.assert_allclose(got, o, rtol=1e-12)
    np.testing.assert_allclose(saved.lse, lse, rtol=1e-12)
    assert np.isfinite(o).all(), value


def test_the_largest_softcap_that_float32_holds_caps_nothing():
    q, k, v = (np.linspace(-1, 1, x.size, dtype=np.float32).reshape(x.shape) for x in (Q, K, V))
    o, saved = Dense(softcap=3.4e38).forward(q, k, v)
    want, lse = Dense().definition(q, k, v)
    np.testing.assert_allclose(o, want, atol=1e-5)
    np.testing.assert_allclose(saved.lse, lse, atol=1e-5)


def test_a_saved_that_the_configuration_does_not_take_is_refused():
    """What shapes and inputs tell; causal or not, scale and the map of heads leave no trace in a Saved."""
    o, saved = Dense().forward(Q, K, V)
    with pytest.raises(ShapeError, match=r"n=6 but k has m=8.*align="):
        Dense(causal=True).vjp(saved, o)
    with pytest.raises(OptionError, match=r"keep is missing and keep_rate=0\.5"):
        Dense(keep_rate=0.5).vjp(saved, o)
    o, saved = Dense(keep_rate=0.5).forward(Q, K, V, keep=np.ones((6, 8), bool))
    with pytest.raises(OptionError, match="keep is given and keep_rate=None"):
        Dense().vjp(saved, o)


def test_statistics_of_half_precision_are_those_of_the_accumulator():
    o, saved = Dense().forward(*(x.astype(np.float16) for x in (Q, K, V)))
    Dense().vjp(saved, o)
    with pytest.raises(DtypeError, match=r"saved\.lse has dtype float16; for inputs of float16 forward keeps it in float32"):
        Dense().vjp(saved._replace(lse=saved.lse.astype(np.float16)), o)
