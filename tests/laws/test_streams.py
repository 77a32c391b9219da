"""Streams: token by token, or several at a time, gives what the whole gives; the state does not grow and keeps its dtype."""

from __future__ import annotations

import numpy as np
import pytest

from laws.axes import letters, take
from laws.bounds import outside
from laws.cases import tagged
from refattn import tree
from refattn.testing.tolerance import storage

streams = tagged("streams", lambda row, variant: variant.scheme.causal and variant.scheme.align is None)
CUTS = {"one by one": (1,) * 8, "several": (3, 1, 4), "all at once": (8,), "none among them": (2, 0, 6)}


def pieces(of, inputs, sizes):
    """The inputs cut along their tokens."""
    start = 0
    for size in sizes:
        at = np.arange(start, start + size)
        cut = {name: take(take(x, of[name], "n", at), of[name], "m", at) for name, x in tree.items(inputs)}
        yield inputs._replace(**cut)
        start += size


def stepped(row, variant, inputs, sizes):
    """o of all pieces together, and the states on the way, the first one too."""
    states, out = [variant.scheme.start(*inputs)], []
    for token in pieces(letters(row, variant), inputs, sizes):
        state, o = variant.scheme.step(states[-1], *token)
        states.append(state)
        out.append(o)
    return np.concatenate(out, axis=-2), states


@streams
@pytest.mark.parametrize("sizes", CUTS.values(), ids=CUTS)
def test_stepping_is_the_whole(row, variant, case, sizes):
    o, states = stepped(row, variant, case.inputs, sizes)
    assert outside({"o": o}, {"o": case.bands["o"]}) == {}
    shapes = [tree.map(lambda x: (x.shape, x.dtype), state) for state in states]
    assert all(shape == shapes[0] for shape in shapes)
    assert not any(x.any() for x in tree.leaves(states[0]))
    assert max(x.shape[-2] for x in tree.leaves(states[0])) <= max(variant.sizes.values())


@streams
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_state_keeps_the_dtype_of_the_accumulator(row, variant, case, dtype):
    inputs = tree.map(lambda x: x.astype(storage(dtype)) if x.dtype.kind == "f" else x, case.inputs)
    o, states = stepped(row, variant, inputs, CUTS["several"])
    whole = variant.scheme.forward(*inputs)[0]
    assert o.dtype == storage(dtype)
    assert {x.dtype for state in states for x in tree.leaves(state)} == {np.dtype(np.float32)}
    close = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-18}[dtype]
    np.testing.assert_allclose(o.astype(float), whole.astype(float), rtol=close, atol=close)


@streams
def test_streams_run_on_the_strict_device(row, variant, case, strict):
    there, back = strict
    state = variant.scheme.start(*there(case.inputs))
    want, _ = stepped(row, variant, case.inputs, CUTS["several"])
    out = []
    for token in pieces(letters(row, variant), case.inputs, CUTS["several"]):
        state, o = variant.scheme.step(state, *there(token))
        out.append(back(o))
    np.testing.assert_allclose(np.concatenate(out, axis=-2), want, rtol=1e-12, atol=1e-12)
