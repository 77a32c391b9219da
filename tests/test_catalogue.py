"""The catalogue: rows that draw, expressions that name its schemes."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, OptionError, rng, tree
from refattn.catalogue import ROWS, constructors, row, scheme


@pytest.mark.parametrize("drawn", ROWS, ids=lambda r: r.name)
def test_rows_draw_short_values_that_their_variants_take(drawn):
    for variant in drawn.variants:
        inputs, again = drawn.draw(variant, 3), drawn.draw(variant, 3)
        variant.scheme.check(inputs)
        assert set(variant.given) <= set(tree.names(inputs))
        for x, y in zip(tree.leaves(inputs), tree.leaves(again), strict=True):
            np.testing.assert_array_equal(x, y)
            if x.dtype.kind == "f":
                np.testing.assert_array_equal(x, rng.short(x))
    assert len({str(v) for v in drawn.variants}) == len(drawn.variants)
    assert row(drawn.name) is drawn


def test_expressions_name_the_schemes_of_the_catalogue():
    assert scheme("Dense(causal=True)") == Dense(causal=True)
    assert scheme(Dense()) == Dense()
    assert constructors() == {"Dense": Dense}
    with pytest.raises(OptionError, match="nothing is called 'Nothing'"):
        scheme("Nothing()")
    with pytest.raises(OptionError, match="is not a scheme; there is Dense"):
        scheme("1.5")
