"""The catalogue: rows that draw, expressions that name its schemes."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import LSH, All, Dense, Elu, Heads, Linear, Linformer, Local, OptionError, Relu, Sparse, rng, tree
from refattn.catalogue import FEATURES, PATTERNS, ROWS, constructors, row, scheme, scheme_or_pattern


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
    assert scheme("LSH(chunk=32, factors=(4, 8))") == LSH(chunk=32, factors=(4, 8))
    assert scheme("LSH.conventions['trax2020']") == LSH.conventions["trax2020"]
    assert scheme("Linear(feature=Relu(epsilon=0.5))") == Linear(feature=Relu(0.5))
    assert Linear().feature == Elu()
    schemes = [type(r.scheme) for r in ROWS]
    assert schemes[:5] == [Dense, Sparse, Linear, Linformer, LSH]
    assert list(constructors().values()) == [*schemes, *FEATURES, *PATTERNS]
    with pytest.raises(OptionError, match="nothing is called 'Nothing'"):
        scheme("Nothing()")
    for text in ("1.5", "Local(1, 2)"):
        with pytest.raises(OptionError, match=r"is not a scheme; there is Dense, Sparse, Linear, Linformer, LSH"):
            scheme(text)


def test_expressions_name_patterns_too():
    assert scheme_or_pattern("Dense()") == Dense()
    assert scheme_or_pattern("Local.total(5) | ~All()") == Local(2, 2) | ~All()
    heads = Heads((All(),))
    assert scheme_or_pattern(heads) is heads
    with pytest.raises(OptionError, match="3 is neither a scheme nor a pattern; there is Dense, Sparse, Linear, Linformer"):
        scheme_or_pattern("3")
    with pytest.raises(OptionError, match="& has no meaning for Dense and Local"):
        scheme_or_pattern("Dense() & Local(1, 1)")
