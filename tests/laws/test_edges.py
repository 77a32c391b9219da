"""Edges: rows that see nothing, axes of length zero, poison where nobody looks, inputs that stay as they were."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import rng, tree
from refattn.catalogue import ROWS, Variant

ZEROS = [
    pytest.param(row, Variant(v.scheme, {**v.sizes, **zero}, v.given), id=f"{row.name}-{i}-{'-'.join(zero)}")
    for row in ROWS
    for i, v in enumerate(row.variants)
    for zero in ({"n": 0}, {"m": 0}, {"n": 0, "m": 0}, {"d": 0}, {"e": 0}, {"b": 0}, {"h": 0, "g": 0})
]


def run(scheme, inputs, cotangents, **options):
    _, saved = scheme.forward(*inputs, **options)
    do, others = cotangents(scheme, saved)
    return saved, scheme.vjp(saved, do, **others, **options), do, others


def test_inputs_are_untouched(row, variant, inputs, cotangents):
    before = tree.map(np.array, inputs)
    scheme = variant.scheme
    saved, _, do, _ = run(scheme, inputs, cotangents)  # inputs are read-only: a write would raise
    scheme.definition(*inputs)
    for x, y in zip(tree.leaves(inputs), tree.leaves(before), strict=True):
        np.testing.assert_array_equal(x, y)
    kept = np.array(do), tree.map(np.array, saved)
    scheme.vjp(saved, do)
    np.testing.assert_array_equal(do, kept[0])
    for x, y in zip(tree.leaves(saved), tree.leaves(kept[1]), strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_that_see_nothing_are_zero_and_pull_nothing(row, variant, inputs, cotangents):
    scheme = variant.scheme
    saved, grads, do, others = run(scheme, inputs, cotangents)
    blind = ~np.isfinite(saved.lse)
    if "mask" in variant.given and "sink" not in variant.given:
        assert blind.any()
    if scheme.empty == "zero":
        assert not saved.o[blind].any()
    assert not grads.q[blind].any()
    for g in tree.leaves(grads):
        assert np.isfinite(g).all()
    wild = np.where(blind[..., None], 1e30, do)
    louder = scheme.vjp(saved, wild, **{n: np.where(blind, np.inf, x) for n, x in others.items()})
    if scheme.empty == "zero":
        for g, w in zip(tree.leaves(louder), tree.leaves(grads), strict=True):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_in_slots_that_nobody_sees_changes_nothing(row, variant, inputs, cotangents, poison):
    scheme = variant.scheme
    if scheme.empty == "mean":
        pytest.skip("empty='mean' averages all values on purpose")
    saved, grads, do, others = run(scheme, inputs, cotangents)
    blind, unseen = ~np.isfinite(saved.lse), unseen_keys(scheme, inputs)
    if "sink" in variant.given:
        blind = ~np.isfinite(scheme.forward(*inputs._replace(sink=None))[1].lse)
    dirty = inputs._replace(
        q=np.where(blind[..., None], poison, inputs.q),
        k=np.where(unseen[..., None], poison, inputs.k),
        v=np.where(unseen[..., None], poison, inputs.v),
    )
    _, again = scheme.forward(*dirty)
    np.testing.assert_array_equal(again.o, saved.o)
    np.testing.assert_array_equal(again.lse, saved.lse)
    for got, want in zip(scheme.definition(*dirty), scheme.definition(*inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    do = do if "sink" in variant.given else np.where(blind[..., None], poison, do)
    for g, w in zip(tree.leaves(scheme.vjp(again, do, **others)), tree.leaves(grads), strict=True):
        np.testing.assert_array_equal(g, w)


def unseen_keys(scheme, inputs):
    """(b, g, m): keys that no query of any head that reads them may see, found with one-hot values."""
    m = inputs.v.shape[-2]
    eye = np.broadcast_to(np.eye(m), (*inputs.v.shape[:-2], m, m))
    probe = inputs._replace(q=inputs.q * 0, k=inputs.k * 0, v=eye, bias=None, keep=None)
    weights = type(scheme)(**{**vars(scheme), "keep_rate": None}).forward(*probe)[0]
    seen = (weights > 0).any(axis=-2)
    few = inputs.k.shape[-3]
    seen = np.reshape(seen, (seen.shape[0], -1, few, m) if scheme.heads == "tiled" else (seen.shape[0], few, -1, m))
    return ~seen.any(axis=1 if scheme.heads == "tiled" else 2)


@pytest.mark.parametrize(("row", "small"), ZEROS)
def test_axes_of_length_zero(row, small, cotangents):
    inputs = row.draw(small, 1)
    scheme = small.scheme
    if scheme.causal and scheme.align is None and "q_positions" not in small.given and small.sizes["n"] != small.sizes["m"]:
        scheme = type(scheme)(**{**vars(scheme), "align": "bottom_right"})
    if "segment_ids" in small.given and "kv_segment_ids" not in small.given and small.sizes["n"] != small.sizes["m"]:
        inputs = inputs._replace(kv_segment_ids=rng.stream(1, "zero").integers(0, 3, (small.sizes["b"], small.sizes["m"])))
    saved, grads, _, _ = run(scheme, inputs, cotangents)
    for name, want in zip(scheme.outputs, scheme.definition(*inputs), strict=True):
        np.testing.assert_allclose(getattr(saved, name), want, atol=1e-13)
    if small.sizes["m"] == 0:
        assert not saved.o.any()
        assert "sink" in small.given or np.all(saved.lse == -np.inf)
    for name, g in grads._asdict().items():
        if g is not None:
            assert g.shape == getattr(inputs, name).shape
            assert np.isfinite(g).all()
