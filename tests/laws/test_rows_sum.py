"""Weights of a row sum to one: constant values come out unchanged, and what a row pulls its values receive."""

from __future__ import annotations

import numpy as np

from laws.bounds import Band, defined, outside, results, rounded, total
from laws.cases import tagged
from laws.seen import pairs


def whole(row, variant):
    """Without a sink or an ε, which take a share, and without dropout, whose rows sum to one on average."""
    given, scheme = set(variant.given) & {"sink", "keep"}, variant.scheme
    return not given and not getattr(scheme, "eps", 0.0) and getattr(scheme, "normalise", True)


def rows_with_weights(case):
    """(b, h, n): queries that see something, or average everything because they see nothing."""
    seen = pairs(case.scheme, case.inputs).any(axis=-1)
    return seen | (getattr(case.scheme, "empty", "zero") == "mean")


@tagged("rows_sum_to_one", whole)
def test_ones_come_out_as_ones(row, variant, case):
    first, inputs = case.scheme.outputs[0], case.inputs._replace(v=np.ones_like(case.inputs.v))
    band = rounded("fp64", case.scheme, inputs, case.cotangents)[first]
    want = {first: Band(np.broadcast_to(1.0 * rows_with_weights(case)[..., None], band.value.shape), band.bound)}
    assert outside({first: results(case.scheme, inputs, case.cotangents)[first]}, want) == {}
    assert outside({first: defined(case.scheme, inputs)[first]}, want) == {}
    low = getattr(case.scheme, "self_score", None)  # next to a score of −10⁵ five digits are lost
    assert np.max(band.bound) < (1e-12 if low is None else 1e-9)


@tagged("rows_sum_to_one", whole)
def test_values_receive_what_their_rows_pull(row, variant, case):
    """Σ_j dv_j = Σ_i do_i over queries that see something, each sum over the heads too that read one another's values."""
    do = case.cotangents[case.scheme.outputs[0]] * rows_with_weights(case)[..., None]
    pulled = total(Band(do, np.zeros_like(do)), axis=(1, 2))
    received = total(Band(case.run()["dv"], case.bands["dv"].bound), axis=(1, 2))
    assert outside({"dv": received}, {"dv": pulled}) == {}

