"""Memory does not matter: order of axes, direction, gaps, alignment, repeated axes; and nothing that is given is written."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import defined, keywords, outside, results
from refattn import tree


def transposed(x):
    """The last two axes swapped in memory."""
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2) if x.ndim > 1 else x.copy()


def tokens_first(x):
    """(..., H, n, d) as it lies in memory as (..., n, H, d)."""
    return x.swapaxes(-2, -3).copy().swapaxes(-2, -3) if x.ndim > 2 else x.copy()


def backwards(x):
    """Negative strides on every axis."""
    return np.flip(np.flip(x).copy())


def gaps(x):
    """Every second element of something longer, whose others are NaN, True or wild."""
    filler = {"f": np.nan, "b": True, "i": 77}[x.dtype.kind]
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), filler, dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def unaligned(x):
    """One byte off every boundary."""
    raw = np.zeros(x.nbytes + 1, dtype=np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


LAYOUTS = {
    "C": np.array,
    "Fortran": np.asfortranarray,
    "transposed": transposed,
    "tokens first": tokens_first,
    "backwards": backwards,
    "gaps": gaps,
    "unaligned": unaligned,
}


def laid_out(x, layout):
    y = layout(x).view()
    assert np.array_equal(x, y)
    y.flags.writeable = False
    return y


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_do_not_matter(row, variant, case, layout):
    inputs = tree.map(lambda x: laid_out(x, layout), case.inputs)
    cotangents = {name: laid_out(c, layout) for name, c in case.cotangents.items()}
    pairs = zip(tree.leaves(inputs), tree.leaves(case.inputs), strict=True)
    moved = [x.strides != y.strides or x.flags.aligned != y.flags.aligned for x, y in pairs]
    assert any(moved) == (layout is not np.array)
    assert outside(results(case.scheme, inputs, cotangents, block=3), case.bands) == {}
    assert outside(defined(case.scheme, inputs), {name: case.bands[name] for name in case.scheme.outputs}) == {}


@pytest.mark.parametrize("axis", [0, -1, -2])
def test_a_repeated_axis_of_stride_zero_is_a_copied_one(row, variant, case, axis):
    """In everything at once, cotangents too; every copy gets its own gradient."""

    def repeat(x):
        return np.broadcast_to(np.take(x, [0], axis=axis), x.shape) if x.ndim >= abs(axis) else x

    views, pulled = tree.map(repeat, case.inputs), {name: repeat(c) for name, c in case.cotangents.items()}
    assert any(0 in x.strides for x in tree.leaves(views))
    copies = make(case.scheme, tree.map(np.array, views), cotangents={name: np.array(c) for name, c in pulled.items()})
    assert outside(results(case.scheme, views, pulled), copies.bands) == {}


def test_nothing_that_is_given_is_written_and_results_are_new_memory(row, variant, case):
    """Inputs, cotangents and what was saved may be read-only, stay as they were, and share no memory with results."""
    scheme, inputs = case.scheme, case.inputs  # read-only: a write raises
    kept = tree.map(np.array, inputs)
    _, saved = scheme.forward(*inputs)
    outputs = [getattr(saved, name) for name in scheme.outputs]
    assert all(a is b for a, b in zip(saved.inputs, inputs, strict=True))
    for x in (*outputs, *case.cotangents.values()):
        x.flags.writeable = False
    before = [np.array(x) for x in (*outputs, *case.cotangents.values())]
    do, others = keywords(scheme, case.cotangents)
    grads = tree.leaves(scheme.vjp(saved, do, **others))
    definition = scheme.definition(*inputs)
    for x, y in zip(tree.leaves(inputs), tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip((*outputs, *case.cotangents.values()), before, strict=True):
        np.testing.assert_array_equal(x, y)
    given = [*tree.leaves(inputs), *case.cotangents.values()]
    assert not any(np.shares_memory(x, y) for x in (*outputs, *grads, *definition) for y in given)
    assert not any(np.shares_memory(x, y) for x in grads for y in outputs)
