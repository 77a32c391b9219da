"""The readings of one text check each other: values, rounding bounds, certified balls and autodiff."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laws.bounds import distance, draw_cotangents, ratio, read, results, rounded
from refattn import backend as backends
from refattn import load, tree, using
from refattn.catalogue import ROWS

CERTIFIABLE = [pytest.param(row, id=row.name) for row in ROWS if row.certifiable]
WITNESS = {"dense": 0.02}  # how near to a bound of fp64 the values of a row must come, for the bound to mean something
DIFFERENTIATED = [
    pytest.param(row, v, id=f"{row.name}-{v}") for row in ROWS for v in (*row.variants[:-1:3], row.variants[-1])
]


def exact(**options):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    return load("exact", **options)


def draw(row, variant, seed=1):
    inputs = row.draw(variant, seed)
    return inputs, draw_cotangents(variant.scheme, inputs, seed)


def certified(row, variant, seed=1):
    """By result: error of the rounding reading's values, and of a float64 run, against the balls, in bounds of fp64."""
    args = (variant.scheme, *draw(row, variant, seed))
    truth, bounds, values = read(exact(), *args), rounded("fp64", *args), results(*args)
    assert truth.keys() == bounds.keys() == values.keys()
    return {
        name: max(ratio(truth[name].distance(x), bounds[name].bound) for x in (bounds[name].value, values[name]))
        for name in truth
    }


def test_balls_are_within_the_bound_of_fp64(row, variant):
    if not row.certifiable:
        pytest.skip("balls cannot enclose this scheme")
    found = certified(row, variant)
    assert {name: x for name, x in found.items() if not x <= 1.0} == {}


@pytest.mark.parametrize("row_", CERTIFIABLE)
def test_the_bound_of_fp64_is_not_vacuous(row_):
    worst = {}
    for variant in row_.variants:
        for seed in (1, 2):
            for name, x in certified(row_, variant, seed).items():
                worst[name] = max(x, worst.get(name, 0.0))
    shown = "  ".join(f"{name} {x:.3f}" for name, x in worst.items())
    print(f"{row_.name}: max |float64 − exact| ÷ bound(fp64): {shown}")
    assert WITNESS.get(row_.name, 1e-3) <= max(worst.values()) <= 1.0
    assert min(worst.values()) > 0.0


def test_a_float32_run_is_within_the_bound_of_fp32(row, variant):
    scheme, inputs, cotangents = variant.scheme, *draw(row, variant)
    bounds = rounded("fp32", scheme, inputs, cotangents)
    narrow = {name: x.astype(np.float32) for name, x in cotangents.items()}
    inputs = tree.map(lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x, inputs)
    got = results(scheme, inputs, narrow)
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    found = {name: ratio(distance(got[name], x.value), x.bound) for name, x in bounds.items()}
    assert {name: x for name, x in found.items() if not x <= 1.0} == {}
    assert max(found.values()) > 1e-3


def test_definition_and_forward_hold_the_same_numbers(row, variant):
    """In balls the two texts agree to some 36 digits, not to 16."""
    if not row.certifiable:
        pytest.skip("balls cannot enclose this scheme")
    scheme, inputs = variant.scheme, row.draw(variant, 1)
    with using(exact()) as reading:
        _, saved = scheme.forward(*inputs)
        definition = dict(zip(scheme.outputs, scheme.definition(*inputs), strict=True))
        for name, want in definition.items():
            got = getattr(saved, name)
            same = got.mid() == want.mid()  # infinities among them
            gap = reading.xp.where(~np.isfinite(want.mid()), 0.0, got - want)
            assert same[~np.isfinite(want.mid())].all()
            assert np.all(np.abs(gap.mid()) <= gap.rad())
            size = np.where(np.isfinite(want.mid()), np.maximum(np.abs(want.mid()), 1.0), 1.0)
            assert np.max(gap.rad() / size, initial=0.0) < 1e-34


@pytest.fixture
def jax_in_float64():
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'refattn[test]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize(("row_", "variant_"), DIFFERENTIATED)
def test_the_vjp_is_what_jax_differentiates_forward_to(row_, variant_, jax_in_float64):
    jax, scheme = jax_in_float64, variant_.scheme
    inputs, cotangents = draw(row_, variant_)
    bounds = rounded("fp64", scheme, inputs, cotangents)
    moved = tree.map(jax.numpy.asarray, inputs)
    fixed = getattr(scheme, "fixed", ())
    names = [name for name, x in tree.items(inputs) if x.dtype.kind == "f" and name not in fixed]

    def outputs(*arrays):
        _, saved = scheme.forward(*moved._replace(**dict(zip(names, arrays, strict=True))))
        return tuple(getattr(saved, name) for name in scheme.outputs)

    @jax.jit  # one compilation; operation by operation takes four times as long
    def pulled(arrays, cotangents):
        return jax.vjp(outputs, *arrays)[1](cotangents)

    grads = pulled([getattr(moved, n) for n in names], tuple(jax.numpy.asarray(cotangents[n]) for n in scheme.outputs))
    found = {}
    for name, g in zip(names, grads, strict=True):
        assert g.dtype == np.float64
        found[name] = ratio(distance(np.asarray(g), bounds[f"d{name}"].value), 2.0 * bounds[f"d{name}"].bound)
    assert {name: x for name, x in found.items() if not x <= 1.0} == {}
    assert len(found) >= (3 if "k" in inputs._fields else 2)


def exp_off_by(relative):
    """NumPy's namespace with an exponential that is wrong by so much, one way or the other."""
    numpy = load("numpy")

    class Off:
        def __getattr__(self, name):
            return getattr(numpy.xp, name)

        def exp(self, x):
            return numpy.xp.exp(x) * (1.0 + relative * np.sign(np.cos(1e6 * x)))

    return replace(numpy, xp=Off())


@pytest.mark.parametrize("row_", CERTIFIABLE)
def test_an_exponential_wrong_in_the_thirteenth_digit_is_outside(row_, monkeypatch):
    variant = row_.variants[0]
    args = (variant.scheme, *draw(row_, variant))
    if not variant.scheme.cost(tree.map(lambda x: x.shape, args[1])).forward.exps:
        pytest.skip("no exponential in it")
    bounds = rounded("fp64", *args)
    off = exp_off_by(1e-13)
    monkeypatch.setitem(backends._FINDERS, np.ndarray, lambda _: off)
    found = {name: ratio(distance(x, bounds[name].value), bounds[name].bound) for name, x in results(*args).items()}
    assert max(found.values()) > 1.0


ZERO = [
    pytest.param(row, type(v)(v.scheme, {**v.sizes, **none}, v.given), id=f"{row.name}-{i}-{'-'.join(none)}")
    for row in ROWS
    for i, v in enumerate(row.variants)
    for none in ({"n": 0, "m": 0}, {"d": 0}, {"e": 0}, {"b": 0}, {"h": 0, "g": 0})
    if row.certifiable and none.keys() <= v.sizes.keys()
]


@pytest.mark.parametrize(("row_", "empty"), ZERO)
def test_balls_have_the_shapes_of_values_where_an_axis_has_length_zero(row_, empty):
    scheme, inputs, cotangents = empty.scheme, *draw(row_, empty)
    values, truth = results(scheme, inputs, cotangents), read(exact(), scheme, inputs, cotangents)
    for name, x in values.items():
        assert truth[name].shape == x.shape
        size = np.where(np.isfinite(x), np.maximum(np.abs(x), 1.0), 1.0)
        assert np.max(truth[name].distance(x) / size, initial=0.0) < 1e-12
