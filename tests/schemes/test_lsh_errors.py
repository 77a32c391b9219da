"""Bad input of every kind gets a clear error that shows the values and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import LSH, DtypeError, OptionError, ShapeError, draw

X, V = np.ones((2, 3, 8, 4)), np.ones((2, 3, 8, 5))
B, R = np.zeros((3, 2, 8), dtype=int), np.ones((2, 4, 3))

FIELDS = [
    ({"chunk": 0}, "chunk=0: give a whole number, 1 or more"),
    ({"chunk": 4.0}, r"chunk=4\.0"),
    ({"before": -1}, "before=-1: give a whole number, 0 or more"),
    ({"after": True}, "after=True"),
    ({"wrap": "cyclic"}, "wrap='cyclic': choose 'none', 'round', 'rounds'"),
    ({"duplicates": "twice"}, "duplicates='twice': choose 'counted', 'once', '2020'"),
    ({"causal": 1}, "causal=1: give True or False"),
    ({"self_score": -np.inf}, "self_score=-inf is not finite; None lets a token see itself"),
    ({"scale": np.nan}, "scale=nan is not finite"),
    ({"eps": -1e-6}, "eps=-1e-06"),
    ({"eps": "1e-6"}, "eps='1e-6' is a str, not a number"),
    ({"eps": None}, "eps=None must be finite"),
    ({"scale": True}, "scale=True is a bool, not a number"),
    ({"self_score": "-1e5"}, "self_score='-1e5' is a str, not a number"),
    ({"factors": 6}, "factors=6: give even whole numbers"),
    ({"factors": (4, 3)}, r"factors=\(4, 3\): give even whole numbers"),
    ({"factors": ()}, r"factors=\(\)"),
]
CALLS = [
    (LSH(), {}, OptionError, "rotations or buckets: neither is given"),
    (LSH(), {"buckets": B, "rotations": R}, OptionError, "both are given"),
    (LSH(), {"buckets": B[..., :7]}, ShapeError, r"buckets has shape \(3, 2, 7\), .*n=8"),
    (LSH(), {"buckets": B[:, :0]}, ShapeError, "at least one round"),
    (LSH(), {"buckets": B[:2]}, ShapeError, "buckets has shape .* does not broadcast"),
    (LSH(), {"buckets": B * 1.0}, DtypeError, "buckets has dtype float64"),
    (LSH(), {"rotations": R[:, :3]}, ShapeError, r"rotations has shape \(2, 3, 3\), .*d=4"),
    (LSH(factors=(4, 4)), {"rotations": R}, OptionError, r"factors=\(4, 4\) need 4 columns of rotations, but there are 3"),
    (LSH(), {"buckets": B, "positions": np.arange(8)}, OptionError, "positions without causal=True"),
    (LSH(causal=True), {"buckets": B, "positions": np.arange(7)}, ShapeError, "positions has shape .* must be 8"),
    (LSH(), {"buckets": B, "key_valid": np.ones((3, 8), bool)}, ShapeError, "key_valid"),
    (LSH(), {"buckets": B, "key_valid": np.ones(8)}, DtypeError, "key_valid has dtype float64"),
]


@pytest.mark.parametrize(("fields", "message"), FIELDS)
def test_fields(fields, message):
    with pytest.raises(OptionError, match=message):
        LSH(**fields)


@pytest.mark.parametrize(("scheme", "given", "error", "message"), CALLS)
def test_inputs(scheme, given, error, message):
    with pytest.raises(error, match=message):
        scheme.forward(X, V, **given)


def test_tokens_and_values_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"n=8.*n=7"):
        LSH().forward(X, V[..., :7, :], buckets=B)


def test_what_needs_inputs_to_be_drawn_says_so():
    with pytest.raises(OptionError, match="LSH decides by hashing who sees whom"):
        draw.as_text(LSH(), n=4)
