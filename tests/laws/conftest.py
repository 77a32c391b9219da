"""The catalogue as parameters, and a row's inputs and their bands as fixtures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laws.bounds import case as make_case
from laws.cases import CASES
from laws.stand_in import computing_in
from refattn import load, rng, tree
from refattn.backends.buckets_engine import BucketsEngine
from refattn.backends.linear_engine import Mixer
from refattn.backends.numpy_backend import WORDS, kernels
from refattn.backends.rows_engine import RowsEngine
from refattn.backends.slots_engine import SlotsEngine
from refattn.backends.tile_engine import Engine
from refattn.backends.tiled_rows import TiledRows

MADE = {}
# Laws on values: they hold for the generic texts and for the engines, here with many tiles in the shortest sequence.
ON_VALUES = {"batch", "bug_reports", "causal", "definition", "determinism", "dtypes", "edges", "layouts", "permutation",
             "rows_sum", "vjp"}
SMALL = Engine(short=0, rows=3, keys=2, back=2, corner=2)
FEW = RowsEngine(short=0, parts=2)
CUT = TiledRows(SMALL, short=0, heights=(3,), entry=1e9)  # always
MIX = Mixer(short=0, chunk=3, elements=1)
ALL_BUCKETS = BucketsEngine(short=0, tile=3, part=4)
ALL_SLOTS = SlotsEngine(short=0, high=3)
LOOPS = kernels(SMALL, pairs=0, rows=FEW, tiled=CUT, mixer=MIX, buckets=ALL_BUCKETS, slots=ALL_SLOTS)


def pytest_generate_tests(metafunc):
    chosen = {name for mark in metafunc.definition.iter_markers("parametrize") for name in mark.args[0]}
    if "variant" in metafunc.fixturenames and "variant" not in chosen:
        metafunc.parametrize(("row", "variant"), CASES)
    if metafunc.module.__name__.rpartition("test_")[2] in ON_VALUES:
        metafunc.parametrize("numpy_as", ["generic", "tiles"], indirect=True)


@pytest.fixture(autouse=True)
def numpy_as(request):
    """NumPy arrays with the generic texts alone, or with the loops: tiles, rows, and for what they leave head by head."""
    table = LOOPS if getattr(request, "param", "generic") == "tiles" else WORDS
    with computing_in(replace(load("numpy"), kernels=table)):
        yield


def drawn(row, variant, seed):
    """Read-only inputs, so that writing to them raises."""
    inputs = row.draw(variant, seed)
    for x in tree.leaves(inputs):
        x.flags.writeable = False
    return inputs


@pytest.fixture
def inputs(row, variant):
    return drawn(row, variant, 1)


@pytest.fixture
def case(row, variant):
    """The row's inputs and cotangents, and the bands of its results; read once, since laws share it."""
    key = (row.name, str(variant))
    if key not in MADE:
        MADE[key] = make_case(variant.scheme, drawn(row, variant, 1))
    return MADE[key]


@pytest.fixture
def another(row, variant):
    """The same variant with other inputs."""
    key = (row.name, str(variant), "another")
    if key not in MADE:
        MADE[key] = make_case(variant.scheme, drawn(row, variant, 4), seed=4)
    return MADE[key]


@pytest.fixture
def cotangents():
    """Random cotangents for the results in a Saved: do, and one for each further output (finite everywhere)."""

    def draw(scheme, saved, seed=2):
        shapes = {name: getattr(saved, name).shape for name in scheme.outputs}
        normal = {name: rng.stream(seed, "cotangent", name).normal(size=shape) for name, shape in shapes.items()}
        do = normal.pop(scheme.outputs[0])
        return do, {f"d{name}": x for name, x in normal.items()}

    return draw


@pytest.fixture
def strict():
    """(to the device, back to NumPy) for nests: array_api_strict on its second device, which refuses what a GPU refuses."""
    xp = pytest.importorskip("array_api_strict")
    xp.set_array_api_strict_flags(api_version="2024.12", boolean_indexing=False, data_dependent_shapes=False)
    device = xp.Device("device1")

    def there(nest):
        return tree.map(lambda x: xp.asarray(np.asarray(x), device=device), nest)

    def back(nest):
        return tree.map(lambda x: np.asarray(x.to_device(xp.Device("CPU_DEVICE"))), nest)

    return there, back
