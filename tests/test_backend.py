"""Finding a backend: by array type, by name, inside ``using``; libraries are never mixed."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest

import refattn
from refattn import Dense, tree
from refattn import backend as backends
from refattn.backend import AUTO, active, is_array, load, of, using
from refattn.kernels import GENERIC, kernel


def test_the_array_decides():
    assert of(np.ones(2)).name == "numpy"
    assert of(None, 3, np.float32(2)).name == "numpy"
    assert of(array_api_strict.asarray([1.0])).name == "array_api_strict"
    assert is_array(np.ones(2))
    assert not is_array([1.0, 2.0])
    assert repr(AUTO) == "AUTO"


def test_a_plug_in_called_like_the_library_has_its_arrays(monkeypatch):
    """As docs/add-a-backend.md says: a file <library>_backend.py, and nothing else."""
    made = refattn.load("array_api", library="array_api_strict")
    own = replace(made, kernels={"attend": lambda *args, **options: NotImplemented})
    plug_in = SimpleNamespace(backend=lambda: own)
    names = [*backends._all(), "array_api_strict"]
    monkeypatch.setattr(backends, "_all", lambda: names)
    monkeypatch.setattr(backends, "_FINDERS", {})
    monkeypatch.setattr(backends, "_known", load)
    monkeypatch.setitem(sys.modules, "refattn.backends.array_api_strict_backend", plug_in)
    assert of(array_api_strict.asarray([1.0])) is own
    assert of(np.ones(1)).name == "numpy"


def test_two_libraries_and_none_are_refused():
    with pytest.raises(refattn.LibraryError, match=r"numpy and array_api_strict; move them"):
        of(np.ones(2), array_api_strict.asarray([1.0]))
    with pytest.raises(refattn.LibraryError, match="no array among NoneType, list"):
        of(None, [1.0])


def test_an_unknown_backend_lists_those_that_exist():
    known = "array_api, counting, cupy, exact, numpy, rounding"
    with pytest.raises(refattn.BackendUnavailable, match=f"'nunpy'; there are {known}"):
        load("nunpy")


@pytest.mark.parametrize("name", [3, "", ".", "../numpy", "array_api_backend.x", None])
def test_what_is_no_name_of_a_backend_is_refused(name):
    with pytest.raises(refattn.BackendUnavailable, match="no backend is called"):
        load(name)


OPTIONS = [
    ("array_api", {}, "missing a required argument: 'library'; its options are library"),
    ("counting", {"foo": 3}, "unexpected keyword argument 'foo'; its options are block"),
    ("numpy", {"block": 3}, "unexpected keyword argument 'block'; it has no options"),
    ("array_api", {"library": "math"}, "library='math' is no array API library"),
    ("array_api", {"library": 3}, "library=3: give the name"),
    ("array_api", {"library": "torch.nn"}, "library='torch.nn': give the name"),
]


@pytest.mark.parametrize(("name", "options", "says"), OPTIONS)
def test_options_that_a_backend_does_not_have_are_refused(name, options, says):
    with pytest.raises(refattn.OptionError, match=says):
        load(name, **options)


def test_a_library_that_is_not_installed_says_what_to_install():
    with pytest.raises(refattn.BackendUnavailable, match=r"zzz is not installed.*pip install zzz"):
        load("array_api", library="zzz")
    assert load("array_api", library="array_api_strict").xp is array_api_strict


def test_what_only_looks_like_an_array_is_none():
    for x in (np.ma.masked_array([1.0]), np.ones((1, 1)).view(np.matrix)):
        assert not is_array(x)
        with pytest.raises(refattn.LibraryError, match="no array among"):
            of(x)
    assert is_array(np.array([1.0]).view(type("Mine", (np.ndarray,), {})))


def test_sparse_tensors_are_refused_and_dense_ones_are_not():
    torch = pytest.importorskip("torch")
    x = torch.ones((2, 3))
    assert is_array(x)
    assert not is_array(x.to_sparse())
    with pytest.raises(refattn.LibraryError, match=r"k is a Tensor, not an array: .*x\.to_dense\(\)"):
        Dense()(x, x.to_sparse(), x)


def test_cupy_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(refattn.BackendUnavailable, match=r"CuPy is not installed.*refattn\[cuda13\]"):
        load("cupy")


def test_cupy_without_a_device_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(is_available=lambda: False, __version__="14.2.0"))
    with pytest.raises(refattn.BackendUnavailable, match=r"CuPy 14.2.0 is installed but sees no CUDA device"):
        load("cupy")


def test_inside_using_numpy_arrays_are_lifted():
    q = np.ones((2, 3))
    with using(load("rounding", precision=refattn.PRESETS["fp32"])) as b:
        assert active() is b
        o, saved = Dense().forward(q, q, q)
        assert type(o).__name__ == "Rounded"
        assert Dense().vjp(saved, np.ones_like(q)).v.shape == (2, 3)
    assert active() is None
    with pytest.raises(refattn.LibraryError, match=r"rounding and numpy|numpy and rounding"):
        Dense().forward(o, q, q)


def test_a_kernel_override_is_used_and_may_decline(monkeypatch):
    numpy = load("numpy")
    calls = []

    def doubled(x, *, decline=False):
        calls.append(decline)
        return NotImplemented if decline else 2 * x

    @kernel("test_backend.same")
    def same(x, *, decline=False):
        return x

    monkeypatch.setitem(numpy.kernels, "test_backend.same", doubled)
    monkeypatch.setattr("refattn.backend._FINDERS", {np.ndarray: lambda _: numpy})
    assert same(np.float64(3) * np.ones(1)).item() == 6
    assert same(np.ones(1), decline=True).item() == 1
    assert calls == [False, True]
    assert GENERIC["test_backend.same"].__wrapped__(np.ones(1)).item() == 1
    assert {"attend", "attend_vjp"} <= set(GENERIC)


def test_import_pulls_in_nothing_heavy_and_unknown_names_are_named():
    with pytest.raises(AttributeError, match=r"no attribute 'Dens'; it has Alibi, .*BackendUnavailable, .*Dense, "):
        refattn.Dens  # noqa: B018 - the access is the test
    assert "Dense" in dir(refattn)
    for name in refattn.__all__:
        assert getattr(refattn, name) is not None


def test_a_scheme_of_the_catalogue_needs_no_other_list_and_modules_are_none(monkeypatch):
    known = {"Wanted": Dense}
    monkeypatch.setattr("refattn.catalogue.constructors", lambda: known)
    assert refattn.Wanted is Dense
    for name in ("Missing", "wanted"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(refattn, name)
    monkeypatch.setattr("refattn.catalogue.constructors", lambda: pytest.fail("asked for a module"))
    with pytest.raises(AttributeError):
        refattn.wanted  # noqa: B018 - the access is the test


def test_trees_keep_names_and_absent_leaves():
    inputs = Dense.Inputs(1, 2, 3, bias=4)
    assert tree.names(inputs) == ["q", "k", "v", "bias"]
    assert tree.leaves(tree.map(lambda x: 10 * x, inputs)) == [10, 20, 30, 40]
    assert tree.map(str, inputs).mask is None
    assert tree.names(Dense.Saved(inputs, 5, None)) == ["inputs.q", "inputs.k", "inputs.v", "inputs.bias", "o"]
