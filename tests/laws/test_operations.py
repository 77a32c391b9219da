"""Every operation of refattn.ops: forward = definition, vjp = derivative, cost = counted, in every reading of one text."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import U, distance, ratio
from laws.operations import EACH, OPS, narrow, too_far
from refattn import load, tree

H = 2.0**-11


def float_names(inputs):
    return [name for name, x in tree.items(inputs) if x.dtype.kind == "f"]


@EACH
def test_forward_is_the_definition(op):
    for seed in (1, 2):
        inputs = op.draw(seed)
        band = op.bands("fp64", inputs, op.cotangent(inputs))["y"]
        want = np.asarray(op.definition(op.op, *(x for x in inputs if x is not None)))
        assert too_far({"y": want}, {"y": band}, times=2.0) == {}
        assert too_far({"y": op.op.forward(*inputs)[0]}, {"y": band}) == {}


def slope(op, inputs, dy, name, t):
    """Richardson's extrapolation of central differences of ⟨dy, y⟩ along t, twice: errors O(h⁴)."""

    def along(h):
        x = getattr(inputs, name)
        up, down = (op.op.forward(*inputs._replace(**{name: x + s * h * t}))[0] for s in (1, -1))
        return sum(float(np.sum(dy * np.where(np.isfinite(y), s * y, 0.0))) for s, y in ((1, up), (-1, down))) / (2 * h)

    once, twice, four = along(H), along(2 * H), along(4 * H)
    return (4 * once - twice) / 3, (4 * twice - four) / 3


@EACH
def test_vjp_is_the_adjoint_of_the_derivative(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    got, bands = op.results(inputs, dy), op.bands("fp64", inputs, dy)
    y = bands["y"]
    size = np.where(np.isfinite(y.value), np.abs(y.value), 0.0)
    noise = float(np.sum(np.abs(dy) * (y.bound + (dy.size + 1) * U * size)))
    names = float_names(inputs)
    assert {f"d{name}" for name in names} == got.keys() - {"y"}
    for name in names:
        g, t = got[f"d{name}"], np.asarray(np.random.default_rng(3).normal(size=getattr(inputs, name).shape))
        assert g.shape == t.shape
        near, far = slope(op, inputs, dy, name, t)
        rounding = 1.5 * (noise + 2 * U * float(np.sum(np.abs(g * getattr(inputs, name))))) / H
        own = float(np.sum(np.abs(t) * (bands[f"d{name}"].bound + t.size * U * np.abs(g))))
        allowed = abs(near - far) + rounding + own
        assert abs(float(np.sum(g * t)) - near) <= allowed, name
        assert allowed < 2e-3 * float(np.sum(np.abs(g * t))), name


@EACH
def test_the_vjp_is_what_jax_differentiates_forward_to(op):
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'refattn[test]'")
    inputs = op.draw()
    dy = op.cotangent(inputs)
    dy = dy * np.isfinite(op.op.forward(*inputs)[0])
    names, bands = float_names(inputs), op.bands("fp64", inputs, dy)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        moved = tree.map(jax.numpy.asarray, inputs)

        def y(*arrays):
            return op.op.forward(*moved._replace(**dict(zip(names, arrays, strict=True))))[0]

        @jax.jit
        def pulled(arrays, dy):
            return jax.vjp(y, *arrays)[1](dy)

        grads = pulled([getattr(moved, n) for n in names], jax.numpy.asarray(dy))
        got = {f"d{n}": np.asarray(g) for n, g in zip(names, grads, strict=True)}
    finally:
        jax.config.update("jax_enable_x64", before)
    assert too_far(got, {n: b for n, b in bands.items() if n != "y"}, times=2.0) == {}


@EACH
def test_balls_are_within_the_bound_of_fp64(op):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    inputs = op.draw()
    dy = op.cotangent(inputs)
    truth, bands, values = op.read(load("exact"), inputs, dy), op.bands("fp64", inputs, dy), op.results(inputs, dy)
    assert truth.keys() == bands.keys() == values.keys()
    for name, ball in truth.items():
        assert np.max(np.where(np.isfinite(ball.mid()), ball.rad(), 0.0), initial=0.0) < 1e-30, name
        assert ratio(ball.distance(bands[name].value), bands[name].bound) <= 1.0, name
        assert ratio(ball.distance(np.asarray(values[name])), bands[name].bound) <= 1.0, name


@EACH
def test_a_float32_run_is_within_the_bound_of_fp32(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    got = op.results(narrow(inputs), narrow(dy))
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    assert too_far(got, op.bands("fp32", inputs, dy)) == {}


@EACH
def test_the_bound_of_fp32_is_not_vacuous(op):
    """Somewhere in ten draws a float32 run comes within 1/125 of it, or there is nothing to round."""
    worst = {}
    for seed in range(10):
        inputs = op.draw(seed, short=False)
        dy = np.float32(op.cotangent(inputs, seed) * 1.1).astype(np.float64)
        got, bands = op.results(narrow(inputs), narrow(dy)), op.bands("fp32", inputs, dy)
        for name, band in bands.items():
            near = ratio(distance(got[name], band.value), band.bound)
            assert near <= 1.0
            worst[name] = max(worst.get(name, 0.0), 1.0 if not band.bound.any() else near)
    print(op, {name: f"{x:.3f}" for name, x in worst.items()})
    assert min(worst.values()) > 0.008


@EACH
def test_the_strict_device_gives_float32_within_its_bound(op, strict):
    there, back = strict
    inputs = op.draw()
    dy = op.cotangent(inputs)
    got = op.results(there(narrow(inputs)), there(narrow(dy)))
    assert {str(x.device) for x in got.values()} == {str(there(dy).device)}
    got = {name: back(x) for name, x in got.items()}
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    assert too_far(got, op.bands("fp32", inputs, dy)) == {}


@EACH
def test_stated_costs_are_counted_ones(op):
    for sizes in ({}, *({letter: size} for letter in op.sizes for size in (0, 1) if size or letter not in op.needs)):
        if refused(op, sizes):
            continue
        inputs, reading = op.draw(**sizes), load("counting")
        stated = op.op.cost(tree.map(lambda x: x.shape, inputs))
        assert op.op.cost(inputs) == stated
        shapes = reading.shaped(inputs)
        with reading.counted() as forward:
            y, saved = op.op.forward(*shapes)
        dy = reading.shaped(y)
        with reading.counted() as backward:
            grads = op.op.vjp(saved, dy)
        assert (forward.macs, forward.exps, forward.live) == tuple(vars(stated.forward).values()), sizes
        assert (backward.macs, backward.exps, backward.live) == tuple(vars(stated.backward).values()), sizes
        del y, saved, grads, dy, shapes
        assert reading.tally.live == 0


def refused(op, sizes):
    """A strided convolution refuses a tail unless it is told what to do with it."""
    if getattr(op.op, "tail", "") != "error":
        return False
    n, r = ({**op.sizes, **sizes}[a] for a in "nr")
    return n != 0 and (n < r or (n - r) % op.op.stride != 0)


@EACH
def test_axes_of_length_zero(op):
    for letter in op.sizes:
        if letter in op.needs or not any(letter in axes.split() for axes in op.axes.values()):
            continue
        inputs = op.draw(**{letter: 0})
        y, saved = op.op.forward(*inputs)
        want = np.asarray(op.definition(op.op, *(x for x in inputs if x is not None)))
        assert y.shape == want.shape, letter
        np.testing.assert_array_equal(y, want)
        grads = op.op.vjp(saved, np.ones(y.shape))
        for name in float_names(inputs):
            assert getattr(grads, name).shape == getattr(inputs, name).shape, (letter, name)
            assert np.isfinite(getattr(grads, name)).all()


@EACH
def test_large_inputs(op):
    inputs = op.draw()
    inputs = tree.map(lambda x: x * np.float32(op.large) if x.dtype.kind == "f" else x, inputs)
    inputs = tree.map(lambda x: x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x, inputs)
    dy = np.asarray(np.random.default_rng(5).choice([-1.0, 1.0], size=op.op.forward(*inputs)[0].shape))
    got = op.results(narrow(inputs), narrow(dy))
    finite = np.isfinite(op.op.forward(*op.draw())[0])  # what is not is −∞ by definition
    assert all(np.isfinite(x).all() for name, x in got.items() if name != "y")
    assert np.array_equal(np.isfinite(got["y"]), finite)
    assert too_far(got, op.bands("fp32", inputs, dy)) == {}


@EACH
def test_layouts_do_not_matter_and_nothing_is_written(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    bands = op.bands("fp64", inputs, dy)

    def turned(x):
        out = np.asarray(np.flip(np.flip(np.asarray(x)).copy(order="F")))
        out.flags.writeable = False
        return out

    assert too_far(op.results(tree.map(turned, inputs), turned(dy)), bands) == {}


def apart(op):
    """True if there are items, and each has a result of its own."""
    return any("b" in axes.split() for axes in op.axes.values()) and getattr(op.op, "reduction", "none") == "none"


@pytest.mark.parametrize("op", [op for op in OPS if apart(op)], ids=str)
def test_one_item_needs_no_leading_axis(op):
    inputs = op.draw()
    y, saved = op.op.forward(*inputs)
    dy = op.cotangent(inputs)
    for i in range(op.sizes["b"]):
        alone = inputs._replace(**{n: getattr(inputs, n)[i] for n, axes in op.axes.items() if "b" in axes.split()})
        bands = op.bands("fp64", alone, dy[i])
        grads = op.op.vjp(saved, dy)
        got = {"y": y[i]} | {f"d{n}": getattr(grads, n)[i] for n in float_names(inputs) if "b" in op.axes[n].split()}
        assert too_far(got, {n: bands[n] for n in got}, times=2.0) == {}


BLOCKED = [op for op in OPS if "block" in op.op.forward.__code__.co_varnames]


@pytest.mark.parametrize("op", BLOCKED, ids=str)
def test_blocks_do_not_matter(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    bands = op.bands("fp64", inputs, dy)
    for block in (1, 2, 3, 100, None):
        y, saved = op.op.forward(*inputs, block=block)
        got = {"y": y} | {f"d{n}": g for n, g in tree.items(op.op.vjp(saved, dy, block=block))}
        assert too_far(got, bands) == {}
