"""Edges: rows that see nothing, axes of length zero, poison where nobody looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import defined, outside, results
from laws.cases import ALL, CASES, PAIRED
from laws.order import needs_align
from laws.seen import key_heads, pairs
from refattn import rng, tree
from refattn.catalogue import ROWS

ZEROS = [
    pytest.param(row, replace(v, sizes={**v.sizes, **zero}), id=f"{row.name}-{v}-{'-'.join(zero)}")
    for row, v in ALL
    for zero in ({"n": 0}, {"m": 0}, {"n": 0, "m": 0}, {"d": 0}, {"e": 0}, {"b": 0}, {"h": 0, "g": 0})
    if zero.keys() <= v.sizes.keys()
]


def averages(scheme):
    """True if a row that sees nothing returns the mean of all values, on purpose."""
    return getattr(scheme, "empty", "zero") == "mean"


def equal(got, want):
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


@pytest.mark.parametrize(("row", "variant"), PAIRED)
def test_rows_that_see_nothing_are_zero_and_pull_nothing(row, variant, case):
    """Bit for bit: whatever their cotangents are, even infinite."""
    scheme, blind = case.scheme, ~pairs(case.scheme, case.inputs).any(axis=-1)
    assert blind.any() or "mask" not in variant.given
    for found in (case.run(), case.run(block=3), defined(scheme, case.inputs)):
        assert averages(scheme) or not found["o"][blind].any()
        if "lse" in found:
            assert (found["lse"][~blind] > -np.inf).all()
            assert "sink" in variant.given or (found["lse"][blind] == -np.inf).all()
    want = case.run()
    assert not want["dq" if "dq" in want else "dqk"][blind].any()
    assert all(np.isfinite(x).all() for name, x in want.items() if name != "lse")
    if averages(scheme) or "sink" in variant.given:
        return
    for wild in (1e30, np.inf, np.nan):
        rows = {3: blind, 4: blind[..., None]}
        loud = {n: np.where(rows[c.ndim], wild, c) for n, c in case.cotangents.items()}
        equal(results(scheme, case.inputs, loud), want)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "variant"), PAIRED)
def test_poison_in_slots_that_nobody_sees_changes_nothing(row, variant, case, poison):
    """In queries that see nothing, keys that no query of their head sees, and score terms of pairs that are not seen."""
    scheme, seen = case.scheme, pairs(case.scheme, case.inputs)
    blind, unseen = ~seen.any(axis=-1)[..., None], ~key_heads(scheme, seen, case.inputs.v.shape[-3])[..., None]
    terms = [n for n in ("bias",) if getattr(case.inputs, n, None) is not None]
    clean = case.inputs._replace(**{n: np.broadcast_to(getattr(case.inputs, n), seen.shape) for n in terms})
    both = {"q": blind, "k": unseen, "qk": blind & unseen} if blind.shape == unseen.shape else {"q": blind, "k": unseen}
    dirty = clean._replace(
        **{n: np.where(slots, poison, getattr(clean, n)) for n, slots in both.items() if n in clean._fields},
        v=clean.v if averages(scheme) else np.where(unseen, poison, clean.v),
        **{n: np.where(seen, getattr(clean, n), poison) for n in terms},
    )
    for block in (None, 3):
        want = results(scheme, clean, case.cotangents, block=block)
        equal(results(scheme, dirty, case.cotangents, block=block), want)
    equal(defined(scheme, dirty), defined(scheme, clean))


def test_some_slots_are_seen_by_nobody():
    """Else the laws above would say nothing."""
    assert {p.values[0].name for p in CASES} - {p.values[0].name for p in PAIRED} == {"linformer"}
    blind, unseen = {}, {}
    for row in ROWS:
        found = [pairs(p.values[1].scheme, row.draw(p.values[1], 1)) for p in PAIRED if p.values[0] is row]
        blind[row.name] = sum(not seen.any(axis=-1).all() for seen in found)
        unseen[row.name] = sum(not seen.any(axis=-2).all() for seen in found)
    for name in ("dense", "sparse", "linear", "lsh"):
        assert blind[name] >= 3, name
        assert unseen[name] >= 3, name
    for row in ROWS:
        if any("key_valid" in v.given for v in row.variants) and row.name != "linformer":
            assert unseen[row.name], f"{row.name}: no key of any variant is seen by nobody"
            assert blind[row.name], f"{row.name}: no query of any variant sees nothing"


@pytest.mark.parametrize(("row", "small"), ZEROS)
def test_axes_of_length_zero(row, small):
    scheme, inputs = allowed(small, row.draw(small, 1))
    case = make(scheme, inputs)
    got = case.run()
    assert outside(got, case.bands) == {}
    assert outside(defined(scheme, inputs), {name: case.bands[name] for name in scheme.outputs}) == {}
    for name, x in tree.items(inputs):
        if x.dtype.kind == "f" and name not in getattr(scheme, "fixed", ()):
            assert got[f"d{name}"].shape == x.shape
            assert np.isfinite(got[f"d{name}"]).all()
    if small.sizes.get("m") == 0 and "s" not in small.sizes:  # slots of no token are there, and zero
        assert not got["o"].any()
        assert "sink" in small.given or "lse" not in got or (got["lse"] == -np.inf).all()


def allowed(variant, inputs):
    """The scheme and inputs with what unequal numbers of queries and keys need."""
    scheme, sizes = variant.scheme, variant.sizes
    if sizes["n"] == sizes.get("m", sizes["n"]):
        return scheme, inputs
    if needs_align(scheme) and scheme.align is None and getattr(inputs, "q_positions", None) is None:
        scheme = replace(scheme, align="bottom_right")
    if "segment_ids" in variant.given and inputs.kv_segment_ids is None:
        inputs = inputs._replace(kv_segment_ids=rng.stream(1, "zero").integers(0, 3, (sizes["b"], sizes["m"])))
    return scheme, inputs
