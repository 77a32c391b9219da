"""The catalogue as parameters, and copies of a row's inputs on every backend under test."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import rng, tree
from refattn.catalogue import ROWS

CASES = [pytest.param(row, v, id=f"{row.name}-{i}-{v}") for row in ROWS for i, v in enumerate(row.variants)]


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize(("row", "variant"), CASES)


@pytest.fixture
def inputs(row, variant):
    """The row's inputs, read-only, so that writing to them raises."""
    drawn = row.draw(variant, 1)
    for x in tree.leaves(drawn):
        x.flags.writeable = False
    return drawn


@pytest.fixture
def cotangents():
    """Random cotangents for the results in a Saved: do, and one for each further output (finite everywhere)."""

    def draw(scheme, saved, seed=2):
        shapes = {name: getattr(saved, name).shape for name in scheme.outputs}
        drawn = {name: rng.stream(seed, "cotangent", name).normal(size=shape) for name, shape in shapes.items()}
        do = drawn.pop(scheme.outputs[0])
        return do, {f"d{name}": x for name, x in drawn.items()}

    return draw


def strict_device():
    """array_api_strict on its second device, which refuses what a GPU refuses."""
    strict = pytest.importorskip("array_api_strict")
    strict.set_array_api_strict_flags(api_version="2024.12", boolean_indexing=False, data_dependent_shapes=False)
    return strict, strict.Device("device1")


@pytest.fixture
def strict():
    """(to the device, back to NumPy) for nests of arrays."""
    xp, device = strict_device()

    def there(nest):
        return tree.map(lambda x: xp.asarray(np.asarray(x), device=device), nest)

    def back(nest):
        return tree.map(lambda x: np.asarray(x.to_device(xp.Device("CPU_DEVICE"))), nest)

    return there, back
