"""Bad input of every kind gets a clear error that shows the values and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, DtypeError, LibraryError, OptionError, ShapeError

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
]


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
