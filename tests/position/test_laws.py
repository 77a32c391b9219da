"""Positions: forward = the explicit n × n form, vjp = autodiff, and all readings of one text agree."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import distance, ratio
from position.table import CASES
from refattn import load, rng
from refattn.precision import PRESETS
from refattn.testing.tolerance import storage


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    return request.param


def cotangent(case):
    return rng.short(rng.stream(6, "cotangent").normal(size=case.forward(*case.arrays).shape))


def results(case, arrays, dy):
    """forward, then one gradient for each array."""
    return [case.forward(*arrays), *case.vjp(*arrays, dy)]


def lifted(reading, case):
    return [reading.lift(x) for x in case.arrays], reading.lift(cotangent(case))


def bands(preset, case):
    return results(case, *lifted(load("rounding", precision=PRESETS[preset]), case))


def off(got, want, times=1.0):
    assert [x.shape for x in got] == [x.shape for x in want]
    return [ratio(distance(np.asarray(x), y.value), times * y.bound) for x, y in zip(got, want, strict=True)]


def test_forward_is_the_explicit_form(case):
    bound = bands("fp64", case)[0]
    reading = load("rounding", precision=PRESETS["fp64"])
    other = case.definition(*(reading.lift(x) for x in case.arrays))
    got = case.definition(*case.arrays)
    assert got.shape == case.forward(*case.arrays).shape
    assert ratio(distance(got, bound.value), bound.bound + other.bound) <= 1.0
    assert max(off([case.forward(*case.arrays)], [bound])) <= 1.0


def test_the_vjp_is_what_autodiff_makes_of_forward(case):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'refattn[peers]'")
    arrays, dy = [torch.tensor(x, requires_grad=True) for x in case.arrays], cotangent(case)
    out = case.forward(*arrays)
    out.backward(torch.tensor(dy))
    pulled = [np.zeros(x.shape) if t.grad is None else t.grad.numpy() for t, x in zip(arrays, case.arrays, strict=True)]
    got = [x.detach().numpy() for x in case.vjp(*(x.detach() for x in arrays), torch.tensor(dy))]
    want = bands("fp64", case)
    assert max(off([out.detach().numpy(), *got], want)) <= 1.0
    assert max(off(pulled, want[1:], 2.0)) <= 1.0
    assert [np.shape(g) for g in case.vjp(*case.arrays, dy)] == [x.shape for x in case.arrays]


def test_jax_differentiates_to_the_same(case):
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'refattn[test]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        arrays, dy = [jax.numpy.asarray(x) for x in case.arrays], jax.numpy.asarray(cotangent(case))
        pulled = jax.jit(lambda arrays, dy: jax.vjp(case.forward, *arrays)[1](dy))(arrays, dy)
        assert max(off([np.asarray(x) for x in pulled], bands("fp64", case)[1:], 2.0)) <= 1.0
    finally:
        jax.config.update("jax_enable_x64", before)


def test_the_strict_device_gives_equal_values(case):
    xp = pytest.importorskip("array_api_strict")
    xp.set_array_api_strict_flags(api_version="2024.12", boolean_indexing=False, data_dependent_shapes=False)
    device, host = xp.Device("device1"), xp.Device("CPU_DEVICE")
    dy = cotangent(case)
    far = results(case, [xp.asarray(x, device=device) for x in case.arrays], xp.asarray(dy, device=device))
    far.append(case.definition(*(xp.asarray(x, device=device) for x in case.arrays)))
    near = [*results(case, case.arrays, dy), case.definition(*case.arrays)]
    for x, y in zip(far, near, strict=True):
        assert x.device == device
        np.testing.assert_array_equal(np.asarray(x.to_device(host)), y)


def test_balls_are_within_the_bound_of_fp64_and_hold_what_the_explicit_form_holds(case):
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    reading = load("exact")
    arrays, dy = lifted(reading, case)
    truth, bounds, values = results(case, arrays, dy), bands("fp64", case), results(case, case.arrays, cotangent(case))
    for t, b, x in zip(truth, bounds, values, strict=True):
        assert max(ratio(t.distance(y), b.bound) for y in (b.value, x)) <= 1.0
    gap = truth[0] - case.definition(*arrays)
    assert np.all(np.abs(gap.mid()) <= gap.rad())
    assert np.max(gap.rad(), initial=0.0) < 1e-33


def test_a_float32_run_is_within_the_bound_of_fp32(case):
    got = results(case, [x.astype(np.float32) for x in case.arrays], cotangent(case).astype(np.float32))
    assert {x.dtype for x in got} == {np.dtype(np.float32)}
    assert max(off(got, bands("fp32", case))) <= 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", [case for name, case in CASES.items() if not name.startswith("rope")])
def test_half_precision_is_computed_in_float32_and_rounded_once(case, dtype):
    small, wide = storage(dtype), np.float32
    arrays, dy = [x.astype(small) for x in case.arrays], cotangent(case).astype(small)
    got, want = results(case, arrays, dy), results(case, [x.astype(wide) for x in arrays], dy.astype(wide))
    for x, y in zip(got, want, strict=True):
        assert x.dtype == small
        np.testing.assert_array_equal(x, y.astype(small))


def test_shapes_alone_are_enough(case):
    reading = load("counting")
    with reading.counted() as tally:
        got = results(case, *lifted(reading, case))
    assert [x.shape for x in got] == [x.shape for x in results(case, case.arrays, cotangent(case))]
    del got
    assert tally.peak > 0 or all(x.size == 0 for x in case.arrays)
    assert reading.tally.live == 0


def test_nothing_that_is_given_is_written_or_handed_out(case):
    arrays, dy = [np.array(x) for x in case.arrays], np.array(cotangent(case))
    for x in (*arrays, dy):
        x.flags.writeable = False
    for out in case.vjp(*arrays, dy):
        assert not any(np.shares_memory(out, x) for x in (*arrays, dy))
