"""Layers and stacks of them: gradients = autodiff, cost and parameters = counted, every reading, no leak from the future."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import ratio
from laws.operations import narrow, too_far
from laws.stacks import DEEP, EACH, FEW, HASHED, ONE, SEVERAL, SHALLOW, SINGLE, STACKS, TWICE, TWO
from refattn import load, rng, tree

HALF = ("float16", "bfloat16")


def names_of_floats(inputs):
    return [name for name, x in tree.items(inputs) if x.dtype.kind == "f"]


def with_leaves(nest, leaves):
    """The nest with its leaves of numbers, in order, replaced."""
    left = iter(leaves)
    return tree.map(lambda x: next(left) if x.dtype.kind == "f" else x, nest)


QUICK = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "True"}  # half the time to compile


def at_once(cases, swept):
    """The cases as parameters, those with these names in the sweep: jax compiles each, which takes seconds."""
    names = {case.name for case in cases}
    assert swept <= names, swept - names
    return [pytest.param(case, marks=[pytest.mark.sweep] if case.name in swept else [], id=str(case)) for case in cases]


# What these are made of is in the others.
SLOW = {"reversible-of-schemes", "checkpoint-shared-masks", "linformer-layerwise", "checkpoint-hashed", HASHED[0].name,
        *(case.name for case in FEW[1::2])}


@pytest.mark.parametrize("case_", at_once([*SINGLE, *DEEP, *FEW, *HASHED, *TWICE], SLOW))
def test_every_gradient_is_what_jax_differentiates_forward_to(case_):
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'refattn[test]'")
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    got = case_.results(inputs, dy)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        moved = tree.map(jax.numpy.asarray, inputs)

        def pulled(arrays, dy):
            return jax.vjp(lambda *a: case_.layer.forward(*with_leaves(moved, a))[0], *arrays)[1](dy)

        floats = [x for x in tree.leaves(moved) if x.dtype.kind == "f"]
        tape = jax.jit(pulled, compiler_options=QUICK)(floats, jax.numpy.asarray(dy))
        tape = {f"d{n}": np.asarray(g) for n, g in zip(names_of_floats(inputs), tape, strict=True)}
    finally:
        jax.config.update("jax_enable_x64", before)
    assert not any(g.any() for name, g in tape.items() if name.endswith("rotations"))  # a hash is a decision
    tape = {name: g for name, g in tape.items() if not name.endswith("rotations")}
    assert tape.keys() == got.keys() - {"y"}
    for name, want in tape.items():
        assert got[name].shape == want.shape
        size = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        assert np.max(np.abs(got[name] - want), initial=0.0) <= 1e-9 * size, name
    assert sum(bool(np.any(g)) for g in tape.values()) >= len(tape) - 2  # a bias of all keys shifts all scores alike


@SHALLOW
def test_a_float32_run_is_within_the_bound_of_fp32(case_):
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    got, bands = case_.results(narrow(inputs), narrow(dy)), case_.bands("fp32", inputs, dy)
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    assert too_far(got, bands) == {}
    assert np.max(bands["y"].bound) < 0.1 * np.max(np.abs(bands["y"].value))


@SEVERAL
def test_a_stack_keeps_float32(case_):
    """Within 1024 roundings of the largest entry: a bound grows fivefold with each layer, and says nothing of eight."""
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    got, want = case_.results(narrow(inputs), narrow(dy)), case_.results(inputs, dy)
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    for name, x in want.items():
        assert np.max(np.abs(got[name] - x)) <= 2.0**-14 * max(1.0, np.max(np.abs(x))), name


@SEVERAL
def test_the_strict_device_gives_the_values_of_a_stack(case_, strict):
    there, back = strict
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    got = case_.results(there(inputs), there(dy))
    assert {str(x.device) for x in got.values()} == {str(there(dy).device)}
    bands, run = case_.bands("fp64", inputs, dy), case_.results(inputs, dy)
    assert too_far({name: back(x) for name, x in got.items()}, bands) == {}
    assert too_far(run, bands) == {}
    for name, x in run.items():  # a bound may be wide: this is not
        assert np.max(np.abs(back(got[name]) - x), initial=0.0) <= 1e-9 * max(1.0, np.max(np.abs(x), initial=0.0)), name


@SHALLOW
def test_the_strict_device_gives_float32_within_its_bound(case_, strict):
    there, back = strict
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    got = case_.results(there(narrow(inputs)), there(narrow(dy)))
    assert {str(x.device) for x in got.values()} == {str(there(dy).device)}
    got = {name: back(x) for name, x in got.items()}
    assert {x.dtype for x in got.values()} == {np.dtype(np.float32)}
    assert too_far(got, case_.bands("fp32", inputs, dy)) == {}


def certified(case_):
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    truth, bands, run = case_.read(load("exact"), inputs, dy), case_.bands("fp64", inputs, dy), case_.results(inputs, dy)
    for name, ball in truth.items():
        assert ratio(ball.distance(bands[name].value), bands[name].bound) <= 1.0, name
        assert ratio(ball.distance(np.asarray(run[name])), bands[name].bound) <= 1.0, name
        assert np.max(ball.rad(), initial=0.0) < 1e-20, name


@ONE
def test_balls_are_within_the_bound_of_fp64(case_):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    certified(case_)


@pytest.mark.parametrize("case_", [case for case in STACKS if "-0-" in case.name], ids=str)
def test_balls_of_a_stack_are_within_the_bound_of_fp64(case_):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    certified(case_)


@EACH
def test_stated_costs_are_counted_ones(case_):
    reading, inputs = load("counting"), case_.draw(1)
    stated = case_.layer.cost(tree.map(lambda x: x.shape, inputs))
    given = reading.shaped(inputs)
    with reading.counted() as forward:
        y, saved = case_.layer.forward(*given)
    dy = reading.shaped(y)
    with reading.counted() as backward:
        grads = case_.layer.vjp(saved, dy)
    assert (forward.macs, forward.exps, forward.live) == tuple(vars(stated.forward).values())
    assert (backward.macs, backward.exps) == (stated.backward.macs, stated.backward.exps)
    if case_ not in [*STACKS, *HASHED]:  # there shared gradients are added, and that between blocks is freed
        assert backward.live == stated.backward.saved
    del y, saved, grads, dy, given
    assert reading.tally.live == 0


SIZES = {"d": 12, "f": 20, "v": 30, "L": 9}


@ONE
def test_stated_parameters_are_those_of_init(case_):
    for sizes in (SIZES, SIZES | {"k": 5, "e": 3, "c": 7}):
        made = case_.layer.init(sizes, rng.Source(0))
        assert sum(x.size for x in tree.leaves(made)) == case_.layer.parameters(sizes)


@TWO
def test_stated_parameters_of_a_stack_are_those_of_init(case_):
    for block in (case_.layer.one, case_.layer.two):
        sizes = SIZES | {"d": 12 * block.attention.heads, "k": 5, "e": 3}
        made = block.init(sizes, rng.Source(0))
        assert sum(x.size for x in tree.leaves(made)) == block.parameters(sizes)


@ONE
def test_init_is_the_same_every_time_and_different_everywhere(case_):
    first, again, other = (case_.layer.init(SIZES, rng.Source(seed)) for seed in (3, 3, 4))
    for x, y in zip(tree.leaves(first), tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)
    drawn = [x for x in tree.leaves(first) if np.unique(x).size > 1]
    assert len({float(x.ravel()[0]) for x in drawn}) == len(drawn) >= 1
    assert all(not np.array_equal(x, y) for x, y in zip(drawn, [y for y in tree.leaves(other) if np.unique(y).size > 1],
                                                        strict=True))


@ONE
@pytest.mark.parametrize("half", HALF)
def test_half_precision_is_computed_in_float32_and_stored_once(case_, half):
    dtype = np.dtype(half) if half == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    inputs = case_.draw(1)
    dy = case_.cotangent(inputs)
    halves = tree.map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, inputs)
    wide = tree.map(lambda x: x.astype(np.float32) if x.dtype not in (np.int64, np.bool_) else x, halves)
    got, want = case_.results(halves, dy.astype(dtype)), case_.results(wide, dy.astype(dtype).astype(np.float32))
    assert {x.dtype for x in got.values()} == {np.dtype(dtype)}
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x.astype(dtype))




def looks_back(scheme, n):
    """Whether no token sees a later one, by configuration or by pattern."""
    if getattr(scheme, "causal", False):
        return True
    pattern, i = getattr(scheme, "pattern", None), np.arange(n)[:, None]
    if pattern is None:
        return False
    return not any(np.any(p.contains(i, i.T, n) & (i < i.T)) for p in getattr(pattern, "patterns", (pattern,)))


CAUSAL = [case for case in STACKS if looks_back(case.layer.one.attention.scheme, 8)]


@pytest.mark.parametrize("case_", [case for case in CAUSAL if case.draw(1).context is None
                                   and not {"q_positions", "positions"} & set(tree.names(case.draw(1).others))], ids=str)
def test_nothing_leaks_from_later_tokens_through_a_stack(case_):
    inputs = case_.draw(1)
    y, _ = case_.layer.forward(*inputs)
    t = inputs.x.shape[-2] // 2
    later = inputs.x.copy()
    later[..., t:, :] = -later[..., t:, :] + 0.25
    z, saved = case_.layer.forward(*inputs._replace(x=later))
    np.testing.assert_array_equal(z[..., :t, :], y[..., :t, :])
    assert not np.array_equal(z[..., t:, :], y[..., t:, :])
    dy = np.zeros(y.shape)
    dy[..., :t, :] = 1.5
    pulled = case_.layer.vjp(saved, dy).x
    np.testing.assert_array_equal(pulled[..., t:, :], 0.0)
    assert pulled[..., :t, :].any()


@TWO
def test_items_do_not_see_each_other(case_):
    inputs = case_.draw(1)
    y, _ = case_.layer.forward(*inputs)
    x = inputs.x.copy()
    x[-1] += 0.5
    z, _ = case_.layer.forward(*inputs._replace(x=x))
    np.testing.assert_array_equal(z[:-1], y[:-1])
    assert not np.array_equal(z[-1], y[-1])


@ONE
def test_axes_of_length_zero(case_):
    inputs = case_.draw(1)
    for axis in (0, 1):
        name = inputs._fields[0]
        nothing = {name: np.take(getattr(inputs, name), [], axis=axis)}
        crossed = {n: x for n, x in inputs._asdict().items() if n in ("context", "values") and x is not None}
        if axis == 0:
            nothing |= {name: x[:0] for name, x in crossed.items()}
        if getattr(inputs, "positions", None) is not None:
            nothing["positions"] = np.take(inputs.positions, [], axis=axis)
        if axis == 1 and not crossed and getattr(inputs, "others", None) is not None:
            nothing["others"] = tree.map(lambda mask: mask[(slice(0),) * mask.ndim], inputs.others)
        empty = inputs._replace(**nothing)
        y, saved = case_.layer.forward(*empty)
        grads = case_.layer.vjp(saved, np.ones(y.shape))
        assert y.size == 0
        assert y.shape[:2] == getattr(empty, name).shape[:2]
        for x, g in zip(tree.leaves(grads.params), tree.leaves(inputs.params), strict=True):
            assert x.shape == g.shape
            assert not x.any()
