"""A backward takes what forward returned, or the same put together by hand, and refuses what does not fit together."""

from __future__ import annotations

import numpy as np
import pytest

import refattn
from refattn import load, tree, using


def test_what_forward_did_not_return_is_refused(row, variant, inputs):
    scheme = variant.scheme
    o, saved = scheme.forward(*inputs)
    for wrong in (o, (o, saved), None, saved.inputs, tuple(saved), saved._replace(inputs=tuple(inputs))):
        with pytest.raises(refattn.OptionError, match=r"o, saved = scheme\.forward|saved\.inputs is"):
            scheme.vjp(wrong, o)


def test_what_is_missing_is_named(row, variant, inputs):
    scheme = variant.scheme
    o, saved = scheme.forward(*inputs)
    for name in scheme.outputs:
        with pytest.raises(refattn.OptionError, match=rf"saved\.{name} is None"):
            scheme.vjp(saved._replace(**{name: None}), o)
    for name in set(inputs._fields) - set(inputs._field_defaults):
        partial = inputs._replace(**{name: None})
        with pytest.raises(refattn.LibraryError, match=rf"{name} is None: {type(scheme).__name__} needs it"):
            scheme.vjp(saved._replace(inputs=partial), o)
        with pytest.raises(refattn.LibraryError, match=rf"{name} is None: {type(scheme).__name__} needs it"):
            scheme.forward(*partial)


def test_results_of_another_shape_or_dtype_are_refused(row, variant, inputs):
    """Else they would broadcast, or be computed with in two precisions."""
    scheme = variant.scheme
    o, saved = scheme.forward(*inputs)
    for name in scheme.outputs:
        x = getattr(saved, name)
        for other in (x[..., :1], x[None, ...], x[..., None]):
            with pytest.raises(refattn.ShapeError, match=rf"saved\.{name} has shape"):
                scheme.vjp(saved._replace(**{name: other}), o)
        with pytest.raises(refattn.DtypeError, match=rf"saved\.{name} has dtype float32.*float64"):
            scheme.vjp(saved._replace(**{name: x.astype(np.float32)}), o)


def test_what_is_put_together_by_hand_is_as_good(row, variant, inputs, cotangents):
    """To the bit; and inside ``using`` it is lifted as inputs are."""
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    want = scheme.vjp(saved, do, **others)
    by_hand = scheme.Saved(scheme.Inputs(*inputs), *(x if x is None else x.copy() for x in saved[1:]))
    for got, x in zip(tree.leaves(scheme.vjp(by_hand, do, **others)), tree.leaves(want), strict=True):
        np.testing.assert_array_equal(got, x)
    with using(load("counting")):
        read = scheme.vjp(by_hand, do, **others)
    assert [(type(g).__name__, g.shape) for g in tree.leaves(read)] == [("Counted", g.shape) for g in tree.leaves(want)]
