"""Every variant of every row of the catalogue as a parameter, and those of the rows that carry a tag."""

from __future__ import annotations

import pytest

from refattn.catalogue import ROWS

ALL = [(row, variant) for row in ROWS for variant in row.variants]
CASES = [pytest.param(row, v, id=f"{row.name}-{i}-{v}") for row in ROWS for i, v in enumerate(row.variants)]
PAIRED = [p for p in CASES if not hasattr(p.values[1].scheme, "projection")]
"""Those whose queries see tokens, not slots that are mixtures of all tokens."""


def tagged(tag, wanted=lambda row, variant: True):
    """Parametrise a law over the variants of rows that carry `tag` and that are `wanted`."""
    chosen = [p for p in CASES if tag in p.values[0].tags and wanted(*p.values)]
    return pytest.mark.parametrize(("row", "variant"), chosen)
