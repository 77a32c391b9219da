"""The kernel of prefix_mix beside the generic text: chunks, dtypes, strides, shared heads, workers, NaN."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import refattn
from laws.bounds import distance, ratio
from refattn import Linear, load, set_threads
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
