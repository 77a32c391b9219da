"""The catalogue as parameters."""

from __future__ import annotations

import pytest

from refattn.catalogue import ROWS

CASES = [pytest.param(row, v, id=f"{row.name}-{i}-{v}") for row in ROWS for i, v in enumerate(row.variants)]


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize(("row", "variant"), CASES)
