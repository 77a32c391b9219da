"""The kernel of prefix_mix beside the generic text: chunks, dtypes, strides, shared heads, workers, NaN; runs of heads."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import refattn
from laws.bounds import distance, ratio
from laws.stand_in import computing_in
from refattn import Identity, Linear, load, set_threads
from refattn.backends.linear_engine import Mixer
from refattn.kernels import text
from refattn.precision import PRESETS

MIX, G = text("prefix_mix"), np.random.default_rng(0)
PRESET = {"float32": "fp32", "float64": "fp64"}


def draw(*shape, dtype="float64", groups=1, e=None):
    """q, k and v; each head of k and v serves so many of q."""
    *lead, n, d = shape
    q, k, v = (*lead, groups, n, d), (*lead, 1, n, d), (*lead, 1, n, d if e is None else e)
    return [G.normal(size=s).astype(dtype) for s in (q, k, v)]


def off(got, arrays, dtype, reverse):
    reading = load("rounding", precision=PRESETS[PRESET[dtype]])
    band = MIX(*(reading.lift(x.astype(np.float64)) for x in arrays), reverse=reverse)
    assert got.dtype == dtype
    return ratio(distance(got, band.value), band.bound)


@pytest.mark.parametrize("dtype", PRESET)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128, 130])
def test_lengths_around_the_chunk(dtype, reverse, n):
    arrays = draw(2, n, 5, dtype=dtype, groups=3, e=7)
    got = Mixer(short=0).prefix_mix(*arrays, reverse=reverse)
    assert off(got, arrays, dtype, reverse) <= 1.0


@pytest.mark.parametrize("chunk", [1, 3, 32, 1000])
def test_any_chunk_of_its_own(chunk):
    arrays = draw(1, 70, 4, dtype="float32")
    for reverse in (False, True):
        got = Mixer(short=0, chunk=chunk).prefix_mix(*arrays, reverse=reverse, chunk=2)
        assert off(got, arrays, "float32", reverse) <= 1.0


LAYOUTS = {
    "tokens first": lambda x: np.swapaxes(np.swapaxes(x, -2, -3).copy(), -2, -3),
    "backwards": lambda x: np.flip(np.flip(x, -2).copy(), -2),
    "gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "one token repeated": lambda x: np.broadcast_to(x[..., :1, :], x.shape),
    "read only": lambda x: (x.setflags(write=False), x)[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(layout):
    arrays = [LAYOUTS[layout](x) for x in draw(2, 70, 4)]
    copies = [np.array(x, order="C") for x in arrays]
    want = Mixer().prefix_mix(*copies)
    np.testing.assert_array_equal(Mixer().prefix_mix(*arrays), want)
    for x, y in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_it_leaves_to_the_generic_text(monkeypatch):
    mixer = Mixer(short=8)
    assert mixer.prefix_mix(*draw(1, 7, 4)) is NotImplemented
    assert mixer.prefix_mix(*draw(1, 8, 4)) is not NotImplemented
    assert mixer.prefix_mix(*draw(1, 8, 0)) is NotImplemented
    assert mixer.prefix_mix(*draw(1, 8, 4, e=0)) is NotImplemented
    assert Mixer(short=0).prefix_mix(*draw(1, 0, 4)) is NotImplemented
    assert mixer.prefix_mix(*(x.astype(np.float16) for x in draw(1, 8, 4))) is NotImplemented
    monkeypatch.setenv("REFATTN_NUMBA", "0")
    assert mixer.prefix_mix(*draw(1, 8, 4)) is NotImplemented
    monkeypatch.delenv("REFATTN_NUMBA")
    assert mixer.prefix_mix(*draw(0, 8, 4)).shape == (0, 1, 8, 4)


def test_the_same_bits_for_any_number_of_workers():
    arrays = draw(3, 200, 8, dtype="float32", groups=2)
    try:
        found = []
        for workers in (1, 2, 5):
            set_threads(workers)
            found += [Mixer().prefix_mix(*arrays, reverse=reverse) for reverse in (False, True)]
    finally:
        set_threads(None)
    for i, x in enumerate(found):
        np.testing.assert_array_equal(x, found[i % 2])


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_not_finite_reaches_no_other_chunk_against_the_order(reverse):
    q, k, v = draw(1, 192, 4)
    clean = Mixer().prefix_mix(q, k, v, reverse=reverse)
    k[..., 100, :] = np.nan
    q[..., 10, :] = np.inf
    got = Mixer().prefix_mix(q, k, v, reverse=reverse)
    before = slice(128, None) if reverse else slice(0, 64)
    rows = np.arange(192)[before] != 10
    np.testing.assert_array_equal(got[..., before, :][..., rows, :], clean[..., before, :][..., rows, :])
    assert np.isnan(got[..., 10, :]).all() or np.isinf(got[..., 10, :]).any()
    assert np.isnan(got[..., 100, :]).all()


def test_linear_runs_on_it_forward_and_backward(monkeypatch):
    """Where the generic text would do the same within rounding."""
    q, k, v, do = (G.normal(size=(2, h, 100, 8)) for h in (4, 2, 2, 4))
    assert "prefix_mix" in load("numpy").kernels
    scheme = Linear(causal=True)
    o, saved = scheme.forward(q, k, v)
    grads = scheme.vjp(saved, do)
    monkeypatch.setenv("REFATTN_NUMBA", "0")
    other, kept = scheme.forward(q, k, v)
    np.testing.assert_allclose(o, other, rtol=1e-11)
    for x, y in zip(grads[:3], scheme.vjp(kept, do)[:3], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


def test_a_second_process_reads_the_kernel_from_the_cache(tmp_path):
    code = "import refattn, numpy as np; x = np.ones((1, 64, 4), 'f4'); print(refattn.Linear(causal=True)(x, x, x).sum())"
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(refattn.__file__).parents[1]), "PATH": "/usr/bin"}
    kept = []
    for _ in range(2):
        done = subprocess.run((sys.executable, "-c", code), env=env, cwd=tmp_path, text=True, stdout=-1, check=True)
        assert float(done.stdout) == pytest.approx(256.0)
        kept.append({file.name: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nb[ic]")})
    assert kept[0] == kept[1]
    assert any("numba_linear.mix" in name for name in kept[0])


RUNS = [  # query heads, key heads, elements at a time, key heads of each run of an item
    (4, 4, 1, [1, 1, 1, 1]), (4, 4, 1600, [2, 2]), (6, 3, 1600, [1, 1, 1]), (6, 3, 3200, [2, 1]), (4, 4, 3200, [4]),
    (4, 1, 3200, [1]),
]  # fmt: skip


@pytest.mark.parametrize(("many", "few", "elements", "sizes"), RUNS)
@pytest.mark.parametrize("heads", ["grouped", "tiled"])
def test_how_many_heads_are_taken_at_a_time_does_not_matter(many, few, elements, sizes, heads):
    q, k, v, do = (G.normal(size=(4, 100, h, 8)).swapaxes(1, 2) for h in (many, few, few, many))
    valid, scheme, found = G.random((4, 100)) < 0.7, Linear(causal=True, eps=0.5, heads=heads), []
    for mixer in (Mixer(elements=10**9), Mixer(elements=elements)):
        with computing_in(replace(load("numpy"), kernels=mixer.kernels())):
            _, saved = scheme.forward(q, k, v, valid)
            found.append((saved.o, saved.z, *scheme.vjp(saved, do)[:3]))
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)
    runs = Mixer(elements=elements)._runs(q, k, scheme)
    if heads == "grouped" or many == few:
        assert [at.k[-1].stop - at.k[-1].start for at in runs] == sizes * 4
    else:
        assert len(runs) == 4 * few


def test_what_is_too_little_for_runs_of_heads():
    q, k = (np.zeros((2, 4, 8, 8)) for _ in range(2))
    assert len(Mixer(elements=64)._runs(q, k, Linear())) == 8
    assert Mixer(elements=64)._runs(q, k, Linear(normalise=False, feature=Identity())) == [], "nothing to save"
    assert Mixer(elements=129)._runs(q, k, Linear()) == [], "four runs could not be had"
    assert Mixer(elements=64)._runs(q, k[:, :0], Linear()) == []
    assert Mixer(elements=1)._runs(q[0, 0], k[0, 0], Linear()) == [], "one head"
    assert Mixer(elements=1)._runs(q[:1], k[:1, :1], Linear()) == [], "all heads read one"
    assert Mixer(elements=8000)._runs(*(np.zeros((500, 1, 8, 8)) for _ in range(2)), Linear()) == [], "many short items"


def test_features_of_all_heads_are_never_beside_each_other():
    """o is one input, gradients are three; NumPy tells tracemalloc what it allocates."""
    scheme, (q, k, v, do) = Linear(causal=True, eps=1e-6), G.normal(size=(4, 1, 8, 2048, 64)).astype(np.float32)
    scheme.vjp(scheme.forward(q, k, v)[1], do)
    set_threads(1)
    tracemalloc.start()
    try:
        _, saved = scheme.forward(q, k, v)
        forward = tracemalloc.get_traced_memory()[1] / q.nbytes
        scheme.vjp(saved, do)
        both = tracemalloc.get_traced_memory()[1] / q.nbytes
    finally:
        tracemalloc.stop()
        set_threads(None)
    assert 1.0 < forward < 2.2
    assert 4.0 < both < 5.2
