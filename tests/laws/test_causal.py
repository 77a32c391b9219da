"""Nothing leaks from later tokens: earlier results keep their bits, and what earlier rows pull reaches no later token."""

from __future__ import annotations

import numpy as np
import pytest

from laws.axes import letters, result_letters
from laws.bounds import results
from laws.cases import tagged
from laws.order import after, positions, slots
from laws.seen import pairs
from refattn import tree

causal = tagged("causal", lambda row, variant: variant.scheme.causal)


def moments(case):
    """Positions that have queries before them and keys at or after them, with the masks of both."""
    places = positions(case.scheme, case.inputs)
    for moment in sorted(set(np.ravel(places["m"]).tolist())):
        late = after(places, moment)
        if not late["n"].all() and late["m"].any():
            yield late


def spliced(row, variant, case, late):
    """The inputs with every later slot taken from another draw, large; positions stay."""
    of, other = letters(row, variant), row.draw(variant, 9)
    new = {}
    for name, x in tree.items(case.inputs):
        y = getattr(other, name)
        y = 32.0 * y if y.dtype.kind == "f" else y
        new[name] = x if name.endswith("positions") else np.where(slots(of[name], late), y, x)
    return type(case.inputs)(**new)


@causal
@pytest.mark.parametrize("block", [None, 3])
def test_later_tokens_do_not_change_earlier_rows(row, variant, case, block):
    of, want, met = result_letters(row, variant), case.run(block=block), 0
    for late in moments(case):
        got = results(case.scheme, spliced(row, variant, case, late), case.cotangents, block=block)
        for name in case.scheme.outputs:
            early = np.broadcast_to(~slots(of[name], late), want[name].shape)
            np.testing.assert_array_equal(got[name][early], want[name][early])
            met += np.any(got[name] != want[name]) and np.any(want[name][early] != 0.0)
    assert met > 0


@causal
@pytest.mark.parametrize("block", [None, 3])
def test_earlier_rows_pull_nothing_from_later_tokens(row, variant, case, block):
    """Cotangents of earlier rows alone: gradients of later tokens are zero, the others don't know what came later."""
    of, pulled = result_letters(row, variant), 0
    for late in moments(case):
        early = {n: np.where(slots(of[n], late), 0.0, c) for n, c in case.cotangents.items()}
        want = results(case.scheme, case.inputs, early, block=block)
        got = results(case.scheme, spliced(row, variant, case, late), early, block=block)
        for name in [n for n in want if n not in case.scheme.outputs]:
            later = np.broadcast_to(slots(of[name], late), want[name].shape)
            assert not want[name][later].any(), name
            assert not got[name][later].any(), name
            np.testing.assert_array_equal(got[name][~later], want[name][~later])
            pulled += bool(later.any()) and bool(want[name].any())
    assert pulled > 0


@causal
def test_the_definition_sees_no_later_key(row, variant, case):
    places, seen = positions(case.scheme, case.inputs), pairs(case.scheme, case.inputs)
    order = places["n"][..., :, None] >= places["m"][..., None, :]
    order = order[:, None] if order.ndim > 2 else order
    assert not (seen & ~order).any()
    hidden = set(variant.given) & {"mask", "segment_ids", "key_valid"}
    assert hidden or (seen == order).all()
