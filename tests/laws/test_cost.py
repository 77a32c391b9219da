"""Stated costs are counted ones: multiply-adds and exponentials by a spying namespace, peak by the allocator."""

from __future__ import annotations

import tracemalloc

import pytest

from laws.cases import tagged
from laws.seen import pairs
from laws.spy import spying
from refattn import tree


@pytest.mark.parametrize("block", [None, 3])
def test_stated_macs_and_exps_are_counted_ones(row, variant, inputs, cotangents, block):
    scheme = variant.scheme
    stated = scheme.cost(inputs, block=block)
    with spying() as spy:
        _, saved = scheme.forward(*inputs, block=block)
        forward = dict(spy.seen)
        do, others = cotangents(scheme, saved)
        grads = scheme.vjp(saved, do, **others, block=block)
        backward = {name: spy.seen[name] - forward[name] for name in forward}
    assert forward == {"macs": stated.forward.macs, "exps": stated.forward.exps}
    assert backward == {"macs": stated.backward.macs, "exps": stated.backward.exps}
    assert stated.forward.saved == sum(x.size for x in tree.leaves(saved._replace(inputs=None)))
    assert stated.backward.saved == sum(g.size for g in tree.leaves(grads))


@tagged("exact")
def test_useful_macs_count_visible_pairs(row, variant, inputs):
    scheme = variant.scheme
    useful = scheme.cost(inputs).useful_macs
    if useful is None:
        assert variant.given
        return
    assert useful == pairs(scheme, inputs).sum() * (inputs.q.shape[-1] + inputs.v.shape[-1])


def test_peak_is_an_upper_bound_that_is_not_idle(row, variant, cotangents):
    scheme = variant.scheme
    if "q_positions" in variant.given:
        pytest.skip("positions are redrawn with sizes; the other variants cover the texts")
    larger = type(variant)(scheme, {**variant.sizes, "n": 96, "m": 96, "d": 16, "e": 16}, variant.given)
    inputs = row.draw(larger, 1)
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    for block in (None, 16):
        limit = scheme.cost(inputs, block=block).peak * 8
        spent = max(
            allocated(lambda block=block: scheme.forward(*inputs, block=block)),
            allocated(lambda block=block: scheme.vjp(saved, do, **others, block=block)),
        )
        assert limit / 4 <= spent <= limit


def allocated(call):
    """Peak bytes that a call allocates."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
