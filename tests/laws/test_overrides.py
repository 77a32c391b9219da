"""generic = override: whatever a backend's table puts in a kernel's place stays within the rounding bound of the text."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from laws import overrides, overrides_features, overrides_rows, overrides_slots
from laws.bounds import case as make
from laws.bounds import outside
from laws.cases import ALL
from laws.conftest import ALL_BUCKETS, ALL_SLOTS, CUT, FEW, MIX, SMALL
from laws.stand_in import computing_in
from refattn import load
from refattn.backends.numpy_backend import kernels
from refattn.kernels import GENERIC

RIGHT = overrides.RIGHT | overrides_rows.RIGHT | overrides_slots.RIGHT | overrides_features.RIGHT
WRONG = overrides.WRONG | overrides_rows.WRONG | overrides_slots.WRONG | overrides_features.WRONG
WORDS = {"row_scores", "row_sums"}  # others: tests/ops/test_erf.py
TABLE = kernels(SMALL, pairs=0, rows=FEW, tiled=None, mixer=MIX, buckets=ALL_BUCKETS, slots=ALL_SLOTS)
OWN = {name: x for name, x in TABLE.items() if name in RIGHT.keys() | WORDS}
TILED = {"attend_rows": CUT.attend_rows, "attend_rows_vjp": CUT.attend_rows_vjp}
CHECKED = [
    pytest.param(name, kernel, id=f"{who}-{name}")
    for who, table in (("test", RIGHT), ("numpy", OWN), ("tiles", TILED))
    for name, kernel in table.items()
]


class Counted:
    """An override that counts how often it ran, not declining."""

    def __init__(self, kernel):
        self.kernel, self.runs = kernel, 0

    def __call__(self, *args, **options):
        out = self.kernel(*args, **options)
        self.runs += out is not NotImplemented
        return out


@functools.cache
def cases():
    """Every variant of every row with the bands of its results, which take longer than the results."""
    return [make(variant.scheme, row.draw(variant, 1)) for row, variant in ALL]


def disagreements(name, kernel):
    """(runs of the override, what is outside of its bound) over every variant of every row, blocks of 3 and whole."""
    counted, found = Counted(kernel), []
    for case in cases():
        with computing_in(replace(load("numpy"), kernels={name: counted})):
            found += [out for block in (None, 3) if (out := outside(case.run(block=block), case.bands))]
    return counted.runs, found


@pytest.mark.parametrize(("name", "kernel"), CHECKED)
def test_an_override_is_the_generic_text(name, kernel):
    assert name in GENERIC
    runs, found = disagreements(name, kernel)
    assert runs > 0
    assert found == []


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_override_is_found(mistake):
    runs, found = disagreements(*WRONG[mistake])
    assert runs > 0
    assert found != []


def test_the_generic_text_runs_where_an_override_declines(row, variant, case):
    want = case.run(block=3)
    asked = []

    def decline(*args, **options):
        asked.append(options)
        return NotImplemented

    with computing_in(replace(load("numpy"), kernels=dict.fromkeys(RIGHT, decline))):
        got = case.run(block=3)
    assert asked or row.name not in ("dense", "sparse", "linear", "lsh")  # others may be made of products alone
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x)
