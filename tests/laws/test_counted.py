"""Every row read by the counting reading: stated costs are counted ones, at any size, any block, without values."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from laws.cases import tagged
from laws.order import needs_align
from laws.seen import pairs
from laws.spy import spying
from refattn import tree
from refattn.backend import load, using
from refattn.catalogue import row as named
from refattn.verify.sizes import at_sizes

REGIMES = [
    {"n": 1024, "m": 1024, "d": 64, "e": 64},
    {"n": 2048, "m": 2048, "d": 2, "e": 2},  # many blocks, narrow heads: what is kept for each block weighs most
    {"n": 64, "m": 64, "d": 512, "e": 512},
    {"n": 64, "m": 4096, "d": 32, "e": 64},
    {"n": 2048, "m": 64, "d": 64, "e": 16},
    {"n": 512, "m": 512, "d": 16, "e": 16, "b": 1, "h": 1, "g": 1},
    {"n": 512, "m": 512, "d": 16, "e": 16, "b": 1, "h": 12, "g": 1},
]
ONES = [{"n": 1}, {"m": 1}, {"n": 1, "m": 1}]
ZEROS = [{"n": 0}, {"m": 0}, {"n": 0, "m": 0}, {"d": 0}, {"e": 0}, {"b": 0}, {"h": 0, "g": 0}]
FEW = [  # what keys, masks and sinks hold does not vanish with the items, queries or heads that it is for
    {"b": 0, "h": 66, "g": 33},
    {"b": 4, "h": 0, "g": 33, "n": 33, "m": 1, "d": 0, "e": 33},
    {"b": 0, "n": 33, "m": 33},
    {"n": 0, "m": 33},
    {"n": 33, "m": 0, "d": 1, "e": 1},
]


@dataclass
class Run:
    """Tallies of forward and vjp, the results, and the reading."""

    forward: object
    backward: object
    saved: object
    grads: object
    reading: object


def count(scheme, given, block):
    """Forward and vjp of a scheme on an Inputs of shapes or arrays."""
    with using(load("counting")) as reading:
        inputs = reading.shaped(given, scheme.kinds)
        with reading.counted() as forward:
            _, saved = scheme.forward(*inputs, block=block)
        cotangents = {f"d{name}": reading.shaped(getattr(saved, name)) for name in scheme.outputs}
        cotangents["do"] = cotangents.pop(f"d{scheme.outputs[0]}")
        with reading.counted() as backward:
            grads = scheme.vjp(saved, **cotangents, block=block)
    return Run(forward, backward, saved, grads, reading)


SHAPES = {}


def resized(row, variant, **sizes):
    """The variant's shapes at other sizes, and a scheme that allows them."""
    sizes = {letter: size for letter, size in sizes.items() if letter in variant.sizes}
    scheme, at = variant.scheme, {**variant.sizes, **sizes}
    aligned = getattr(scheme, "align", None) is not None or "q_positions" in variant.given
    if needs_align(scheme) and "m" in variant.sizes and at["n"] != at["m"] and not aligned:
        scheme = replace(scheme, align="bottom_right")
    key = (row.name, str(variant))
    SHAPES[key] = SHAPES.get(key) or at_sizes(row, variant)
    given = SHAPES[key]({x: size for x, size in sizes.items() if x in at and x in variant.sizes})
    if "segment_ids" in variant.given and "kv_segment_ids" not in variant.given:
        given = given._replace(kv_segment_ids=(at["b"], at["m"]))
    return scheme, given


@pytest.mark.parametrize("block", [None, 3])
def test_stated_costs_are_counted_ones(row, variant, inputs, block):
    scheme = variant.scheme
    stated, run = scheme.cost(inputs, block=block), count(scheme, inputs, block)
    assert (run.forward.macs, run.forward.exps, run.forward.live) == tuple(vars(stated.forward).values())
    assert (run.backward.macs, run.backward.exps, run.backward.live) == tuple(vars(stated.backward).values())


def test_the_spying_namespace_counts_the_same(row, variant, inputs, cotangents):
    scheme = variant.scheme
    run = count(scheme, inputs, 3)
    with spying() as spy:
        _, saved = scheme.forward(*inputs, block=3)
        forward = dict(spy.seen)
        do, others = cotangents(scheme, saved)
        scheme.vjp(saved, do, **others, block=3)
    assert forward == {"macs": run.forward.macs, "exps": run.forward.exps}
    assert spy.seen == {"macs": run.reading.tally.macs, "exps": run.reading.tally.exps}


def test_shapes_are_those_of_values_and_definition_has_no_branch_on_data(row, variant, inputs, cotangents):
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    want = tree.map(lambda x: x.shape, scheme.vjp(saved, do, **others))
    run = count(scheme, inputs, 3)
    assert tree.map(lambda x: x.shape, run.grads) == want
    assert tree.map(lambda x: x.shape, run.saved) == tree.map(lambda x: x.shape, saved)
    with using(load("counting")):
        assert [x.shape for x in scheme.definition(*inputs)] == [getattr(saved, name).shape for name in scheme.outputs]


def test_work_depends_on_block_only_as_stated_and_nothing_stays_alive(row, variant, inputs):
    found = set()
    for block in (None, 1, 2, 5, 1000):
        run, stated = count(variant.scheme, inputs, block), variant.scheme.cost(inputs, block=block)
        work = (run.forward.macs, run.forward.exps, run.backward.macs, run.backward.exps)
        assert work == (stated.forward.macs, stated.forward.exps, stated.backward.macs, stated.backward.exps)
        found.add(work)
        reading = run.reading
        assert reading.tally.live == run.forward.live + run.backward.live > 0
        del run
        assert reading.tally.live == 0
    by_chunks = "streams" in row.tags and variant.scheme.causal
    assert (len(found) > 1) == by_chunks


@pytest.mark.parametrize("block", [None, 100, pytest.param(16, marks=pytest.mark.sweep)])
def test_peak_is_an_upper_bound_that_is_not_idle(row, variant, block):
    for sizes in REGIMES:
        scheme, given = resized(row, variant, **sizes)
        stated, run = scheme.cost(given, block=block), count(scheme, given, block)
        peak = max(run.forward.peak, run.backward.peak)
        print(f"{variant} {sizes} block {block}: peak {peak:,}, stated {stated.peak / peak:.2f} times that")
        assert stated.peak / 4 <= peak <= stated.peak, sizes
        assert run.forward.live == stated.forward.saved
        assert run.backward.live == stated.backward.saved


@pytest.mark.parametrize("block", [None, 3, pytest.param(1, marks=pytest.mark.sweep)])
def test_stated_costs_hold_at_the_smallest_sizes(row, variant, block):
    for sizes in ONES + ZEROS + FEW:
        scheme, given = resized(row, variant, **sizes)
        stated, run = scheme.cost(given, block=block), count(scheme, given, block)
        assert (run.forward.macs, run.forward.exps, run.forward.live) == tuple(vars(stated.forward).values()), sizes
        assert (run.backward.macs, run.backward.exps, run.backward.live) == tuple(vars(stated.backward).values()), sizes
        assert max(run.forward.peak, run.backward.peak) <= stated.peak, sizes


@pytest.mark.parametrize("block", [None, 32])
def test_counted_peaks_are_what_the_allocator_sees(row, variant, inputs, cotangents, block):
    """In bytes: a number takes 8, a truth value 1, and NumPy computes in place in the temporaries of one expression."""
    if variant.given:
        pytest.skip("truth values and integers are drawn with sizes; variants without them cover the texts")
    scheme = variant.scheme
    sizes = {**variant.sizes, "b": 2, "n": 320, "m": 320, "d": 16, "e": 16}
    large = row.draw(replace(variant, sizes=sizes), 1)
    run = count(scheme, large, block)
    _, saved = scheme.forward(*large)
    do, others = cotangents(scheme, saved)
    spent = allocated(lambda: scheme.forward(*large, block=block)), allocated(
        lambda: scheme.vjp(saved, do, **others, block=block)
    )
    for found, tally in zip(spent, (run.forward, run.backward), strict=True):
        print(f"{variant} block {block}: {found:,} bytes for {tally.peak:,} elements, {found / tally.peak:.2f} each")
        assert 5.0 <= found / tally.peak <= 8.1


def allocated(call):
    """Peak bytes that a call allocates."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@tagged("exact")
def test_useful_macs_count_visible_pairs(row, variant):
    for n in range(5):
        for m in range(5):
            scheme, given = resized(row, variant, n=n, m=m, d=3, e=2)
            useful = scheme.cost(given).useful_macs
            if useful is None:
                assert set(variant.given) & {"mask", "segment_ids", "key_valid", "q_positions", "is_global"}
                continue
            drawn = row.draw(replace(variant, sizes={**variant.sizes, "n": n, "m": m, "d": 3, "e": 2}), 1)
            assert useful == pairs(scheme, drawn).sum() * (3 + 2)


MILLION = 10**6


def test_dense_at_a_million_by_hand():
    scheme = replace(named("dense").scheme, causal=True)
    x = (2, 4, MILLION, 128)
    given = type(scheme).Inputs(q=x, k=(2, 2, MILLION, 128), v=(2, 2, MILLION, 64))
    run = count(scheme, given, None)
    pairs = 8 * MILLION**2
    assert (run.forward.macs, run.forward.exps) == (192 * pairs, pairs)
    assert (run.backward.macs, run.backward.exps) == ((3 * 128 + 2 * 64) * pairs, pairs)
    assert run.forward.live == 8 * MILLION * (64 + 1)
    assert run.backward.live == MILLION * (8 * 128 + 4 * 128 + 4 * 64)
    assert 10 * pairs < run.forward.moved < 20 * pairs
    assert scheme.cost(given, block=None).useful_macs == 192 * 8 * (MILLION * (MILLION + 1) // 2)
    print(f"forward: {run.forward}\nvjp:     {run.backward}")
    started = time.process_time()
    count(scheme, given, None)
    assert time.process_time() - started < 0.5
    assert np.iinfo(np.int64).max > run.reading.tally.macs == 704 * pairs
