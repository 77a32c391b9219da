"""Leading axes are independent items, key heads are shared by copying, and an axis of length one is a repeated one."""

from __future__ import annotations

import numpy as np
import pytest

from laws.axes import along, letters, result_letters
from laws.bounds import Band, outside, results, stacked, total
from laws.bounds import case as make
from laws.cases import CASES, tagged
from refattn import tree

SHARING = [p for p in CASES if {"g", "h"} <= set(p.values[1].sizes) and p.values[1].sizes["g"] < p.values[1].sizes["h"]]


def test_items_alone_are_items_together(row, variant, case):
    """Each item without its leading axis; what has no such axis is shared, and its gradients add up."""
    of, results_of = letters(row, variant), result_letters(row, variant)
    got, want = case.run(), {}
    alone = [
        make(case.scheme, along(case.inputs, of, "b", i), cotangents=along(case.cotangents, results_of, "b", i))
        for i in range(variant.sizes["b"])
    ]
    for name in got:
        bands = stacked([x.bands[name] for x in alone])
        want[name] = bands if "b" in results_of[name] else total(bands)
    assert outside(with_bounds(got, case), want) == {}


def test_problems_stacked_along_a_new_axis_are_problems_alone(row, variant, case, another):
    """Two draws stacked in front of everything; inputs without leading axes are those of the first."""
    of, results_of = letters(row, variant), result_letters(row, variant)
    shared = [name for name, axes in of.items() if "b" not in axes]
    other = make(case.scheme, another.inputs._replace(**{n: getattr(case.inputs, n) for n in shared}), seed=4)
    both = {
        name: getattr(case.inputs, name) if name in shared else np.stack([getattr(x.inputs, name) for x in (case, other)])
        for name in tree.names(case.inputs)
    }
    cotangents = {name: np.stack([x.cotangents[name] for x in (case, other)]) for name in case.cotangents}
    together = make(case.scheme, type(case.inputs)(**both), cotangents=cotangents)
    got, want = together.run(block=3), {}
    for name in got:
        bands = stacked([x.bands[name] for x in (case, other)])
        want[name] = bands if "b" in results_of[name] else total(bands)
    assert outside(with_bounds(got, together), want) == {}


@pytest.mark.parametrize(("row", "variant"), SHARING)
def test_shared_key_heads_are_copied_ones(row, variant, case):
    """grouped: head h reads h // (H / H_kv); tiled: h % H_kv. The gradient of a shared head is the sum over its copies."""
    of, (h, g) = letters(row, variant), (variant.sizes["h"], variant.sizes["g"])
    reads = np.arange(h) % g if case.scheme.heads == "tiled" else np.arange(h) // (h // g)
    copied = make(case.scheme, along(case.inputs, of, "g", reads), cotangents=case.cotangents)
    got, want = case.run(), dict(copied.bands)
    for name, axes in result_letters(row, variant).items():
        if "g" in axes and name in want:  # what is a truth value has no gradient
            at = axes.index("g")
            bands = [Band(*(np.take(x, np.flatnonzero(reads == j), axis=at) for x in (want[name].value, want[name].bound)))
                     for j in range(g)]  # fmt: skip
            want[name] = Band(*(np.stack(x, axis=at) for x in zip(*(total(b, axis=at) for b in bands), strict=True)))
    assert outside(with_bounds(got, case), want) == {}


@pytest.mark.parametrize(("row", "variant"), SHARING)
def test_one_head_needs_no_head_axis(row, variant, case):
    """The first head of the first item with axes of length one, and without them (a sink is a number then)."""
    of, results_of = letters(row, variant), result_letters(row, variant)
    inputs, cotangents = case.inputs, case.cotangents
    for letter in "bhg":
        inputs, cotangents = along(inputs, of, letter, [0]), along(cotangents, results_of, letter, [0])
    bands = make(case.scheme, inputs, cotangents=cotangents).bands
    want = {n: Band(*(without(x, results_of[n], "bhg") for x in (b.value, b.bound))) for n, b in bands.items()}
    few = type(inputs)(*(None if x is None else without(x, of[n], "bhg") for n, x in inputs._asdict().items()))
    pulled = {name: without(c, results_of[name], "bhg") for name, c in cotangents.items()}
    assert outside(results(case.scheme, few, pulled), want) == {}


def without(x, axes, letters):
    """x less its axes, all of length one, that have these letters; a NumPy scalar if none is left."""
    return np.squeeze(x, axis=tuple(at for at, letter in enumerate(axes) if letter and letter in letters))[()]


@tagged("exact")
def test_an_axis_of_length_one_is_a_repeated_one(row, variant, case):
    """Optional inputs that belong to pairs (…, n | 1, m): one head, one query, or no leading axes at all."""
    of, shape = letters(row, variant), (*case.inputs.q.shape[:-1], case.inputs.k.shape[-2])
    for name, axes in of.items():
        if name in ("q", "k", "v") or len(axes) < 3 or axes[-1] != "m" or axes[-2] not in ("n", ""):
            continue
        x = getattr(case.inputs, name)
        for small in (x[..., :1, :, :], x[..., :1, :], x[..., :1, :, :].reshape(-1, *x.shape[-2:])[0]):
            inputs = case.inputs._replace(**{name: small})
            wide = inputs._replace(**{name: np.broadcast_to(small, shape)})
            want = dict(make(case.scheme, wide, cotangents=case.cotangents).bands)
            if f"d{name}" in want:
                want[f"d{name}"] = repeated(want[f"d{name}"], small.shape)
            assert outside(results(case.scheme, inputs, case.cotangents, block=3), want) == {}


def repeated(band, shape):
    """The band of the gradient of an array that was broadcast from `shape`."""
    while band.value.ndim > len(shape):
        band = total(band)
    for axis, size in enumerate(shape):
        if size == 1 != band.value.shape[axis]:
            band = Band(*(np.expand_dims(x, axis) for x in total(band, axis=axis)))
    return band


def with_bounds(got, case):
    return {name: Band(x, case.bands[name].bound) for name, x in got.items()}
