"""The texts use the 2024.12 standard alone: array_api_strict on its second device, which stands in for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import refattn
from refattn import tree


def test_texts_run_on_the_strict_device_with_equal_values(row, variant, inputs, cotangents, strict):
    there, back = strict
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs, block=3)
    do, others = cotangents(scheme, saved)
    want = (scheme.definition(*inputs), tree.leaves(saved), tree.leaves(scheme.vjp(saved, do, **others, block=3)))
    moved = there(inputs)
    _, far = scheme.forward(*moved, block=3)
    cot = {name: there(x) for name, x in others.items()}
    got = (scheme.definition(*moved), tree.leaves(far), tree.leaves(scheme.vjp(far, there(do), **cot, block=3)))
    for g, w in zip(got, want, strict=True):
        for x, y in zip(g, w, strict=True):
            np.testing.assert_array_equal(back(x), y)


def test_two_libraries_in_one_call_are_refused_and_both_named(row, variant, inputs, strict):
    there, _ = strict
    mixed = inputs._replace(**{inputs._fields[1]: there(inputs[1])})
    with pytest.raises(refattn.LibraryError, match=r"numpy.*array_api_strict"):
        variant.scheme.forward(*mixed)


def test_nothing_waits_for_the_device(row, variant, inputs, cotangents, strict, monkeypatch):
    """No truth value, number or host copy is made of an array that a text computes: each would stop a GPU's queue."""
    there, _ = strict
    moved = there(inputs)
    do, others = cotangents(variant.scheme, variant.scheme.forward(*inputs)[1])
    do, others = there(do), {name: there(x) for name, x in others.items()}
    asked = []
    for name in ("__bool__", "__int__", "__float__", "__complex__", "__index__", "to_device", "__dlpack__"):
        monkeypatch.setattr(type(do), name, lambda *_, name=name, **__: asked.append(name) or 1)
    _, saved = variant.scheme.forward(*moved, block=3)
    variant.scheme.vjp(saved, do, **others, block=3)
    assert asked == []


def test_cotangents_and_results_of_another_library_are_refused_and_both_named(row, variant, inputs, cotangents, strict):
    there, _ = strict
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    given = {"do": do, **others}
    far, moved = there(saved), {name: there(x) for name, x in given.items()}
    for name in given:
        with pytest.raises(refattn.LibraryError, match=rf"^{name} is of array_api_strict, but saved is of numpy"):
            scheme.vjp(saved, **{**given, name: moved[name]})
        with pytest.raises(refattn.LibraryError, match=rf"^{name} is of numpy, but saved is of array_api_strict"):
            scheme.vjp(far, **{**moved, name: given[name]})
    for name in scheme.outputs:
        with pytest.raises(refattn.LibraryError, match=rf"saved\.{name} is of array_api_strict.*numpy"):
            scheme.vjp(saved._replace(**{name: getattr(far, name)}), **given)
