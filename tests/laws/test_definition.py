"""forward = definition, and the number of rows at a time changes nothing but the order of sums."""

from __future__ import annotations

import pytest

from laws.bounds import defined, outside
from refattn import load, using
from refattn.precision import PRESETS


def test_forward_equals_definition(row, variant, case):
    scheme, outputs = case.scheme, {name: case.bands[name] for name in case.scheme.outputs}
    values = defined(scheme, case.inputs)
    with using(load("rounding", precision=PRESETS["fp64"])):
        bands = defined(scheme, case.inputs)
    forward = {name: x for name, x in case.run(block=3).items() if name in outputs}
    assert {x.dtype for x in values.values()} == {x.dtype for x in forward.values()}
    assert outside(values, outputs) == {}
    assert outside(forward, bands) == {}
    assert outside(bands, outputs) == {}


@pytest.mark.parametrize("block", [None, 1, 2, 5, 1000])
def test_block_does_not_matter(row, variant, case, block):
    assert outside(case.run(block=block), case.bands) == {}
