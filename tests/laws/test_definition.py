"""forward = definition, for every output; both in float64, so the difference is a few roundings of the sums."""

from __future__ import annotations

import numpy as np


def assert_same(got, want, terms):
    """Equal up to `terms` roundings of float64 at the size of the largest entry; infinities in the same places."""
    finite = np.isfinite(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got[~finite], want[~finite])
    size = np.max(np.abs(want[finite]), initial=1.0)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=terms * 2.0**-52 * size)


def test_forward_equals_definition(row, variant, inputs):
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs, block=3)
    for name, want in zip(scheme.outputs, scheme.definition(*inputs), strict=True):
        assert_same(getattr(saved, name), want, terms=8 * max(variant.sizes.values()))


def test_block_does_not_matter(row, variant, inputs, cotangents):
    scheme = variant.scheme
    _, whole = scheme.forward(*inputs, block=None)
    do, others = cotangents(scheme, whole)
    want = scheme.vjp(whole, do, **others, block=None)
    for block in (1, 2, 5, 1000):
        _, saved = scheme.forward(*inputs, block=block)
        for name in scheme.outputs:
            assert_same(getattr(saved, name), getattr(whole, name), terms=8 * max(variant.sizes.values()))
        got = scheme.vjp(whole, do, **others, block=block)
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if w is not None:
                assert_same(g, w, terms=32 * max(variant.sizes.values()))
