"""The public strategies: what they draw fits together, covers the corners, and Dense keeps its definition on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from refattn import Dense
from refattn.testing.strategies import OPTIONAL, Layout, Problem, layouts, masks, qkv, schemes

# The same examples in every run, and others at length in the sweeps.
LAW = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
AT_LENGTH = settings(LAW, derandomize=False, max_examples=2000)
SOME = {"n": st.integers(1, 9), "m": st.integers(1, 9)}


def laid_out(layout: Layout, inputs: Any) -> Any:
    return type(inputs)(*(None if x is None else layout(x) for x in inputs))


def forward_is_the_definition(problem: Problem, layout: Layout) -> None:
    scheme, inputs = problem
    o, saved = scheme.forward(*laid_out(layout, inputs), block=3)
    want, lse = scheme.definition(*inputs)
    np.testing.assert_allclose(o, want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(saved.lse, lse, rtol=1e-9, atol=1e-11)


test_forward_is_the_definition_in_any_layout = LAW(given(schemes(), layouts())(forward_is_the_definition))
test_forward_is_the_definition_at_length = pytest.mark.sweep(
    AT_LENGTH(given(schemes(), layouts())(forward_is_the_definition))
)


@LAW
@given(schemes(optional={"mask"}, n=4, m=5, d=3), st.randoms(use_true_random=False))
def test_an_invisible_key_changes_nothing(problem: Problem, random: Any) -> None:
    scheme, inputs = problem
    shape = (*inputs.q.shape[:-1], inputs.k.shape[-2])
    mask = np.broadcast_to(True if inputs.mask is None else inputs.mask, shape).copy()
    key = random.randrange(shape[-1])
    mask[..., key] = False
    other = inputs._replace(mask=mask, k=inputs.k.copy(), v=inputs.v.copy())
    other.k[..., key, :], other.v[..., key, :] = np.nan, np.inf
    if scheme.empty == "zero":
        np.testing.assert_array_equal(scheme(*other), scheme(*inputs._replace(mask=mask)))


@LAW
@given(schemes(optional={"mask", "bias", "sink"}, dtype="float32", n=3))
def test_what_is_drawn_fits_the_scheme(problem: Problem) -> None:
    scheme, inputs = problem
    scheme.check(inputs)
    assert inputs.q.shape[-2] == 3
    assert {str(x.dtype) for x in inputs[:3]} == {"float32"}
    assert {name for name, x in inputs._asdict().items() if x is not None} <= {"q", "k", "v", "mask", "bias", "sink"}


@LAW
@given(qkv(dtype="bfloat16", items=2, kv_heads=3, group=2, m=None))
def test_q_k_v_fit_together_and_are_short(x: Any) -> None:
    b, h, n, d = x.q.shape
    assert (b, h) == (2, 6)
    assert x.k.shape == (2, 3, n, d)
    assert x.v.shape[:-1] == (2, 3, n)
    assert {y.dtype.name for y in x} == {"bfloat16"}
    for y in (z.astype(float) * 16 for z in x):
        assert np.all((y == np.rint(y)) & (np.abs(y) <= 64))


@LAW
@given(masks((2, 3, 4, 5)))
def test_masks_broadcast(mask: Any) -> None:
    assert mask.dtype == bool
    assert np.broadcast_shapes(mask.shape, (2, 3, 4, 5)) == (2, 3, 4, 5)


@LAW
@given(layouts(), st.sampled_from([(0, 3), (4,), (2, 3), (2, 3, 4), (1, 1, 1, 1), (2, 3, 4, 5)]), st.sampled_from("fbi"))
def test_a_layout_keeps_values_and_shares_nothing(layout: Layout, shape: tuple[int, ...], kind: str) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype({"f": float, "b": bool, "i": int}[kind])
    y = layout(x)
    np.testing.assert_array_equal(y, x)
    assert y.dtype == x.dtype
    assert not np.shares_memory(x, y)


QUICK = settings(deadline=None, derandomize=True, max_examples=2000, database=None, phases=[Phase.generate])
ARRAY = np.arange(120.0).reshape(2, 3, 4, 5)
CORNERS = {
    "a row that sees nothing": (masks((4, 5)), lambda m: m.ndim == 2 and not m.any(axis=-1).all() and m.any()),
    "a mask that heads share": (masks((2, 3, 4, 5)), lambda m: m.ndim == 4 and m.shape[1] == 1),
    "negative strides": (layouts(), lambda f: min(f(ARRAY).strides) < 0),
    "read-only": (layouts(), lambda f: not f(ARRAY).flags.writeable),
    "no contiguous rows": (layouts(), lambda f: f(ARRAY).strides[-1] != 8),
    "heads turned": (layouts(), lambda f: f(ARRAY).strides[1] < f(ARRAY).strides[2]),
    "no queries": (qkv(), lambda x: x.q.shape[-2] == 0 and x.k.shape[-2] > 0),
    "grouped heads": (qkv(), lambda x: x.q.shape[1] > x.k.shape[1] > 1),
    "the other corner": (schemes(), lambda p: p.scheme.align == "bottom_right" and p.inputs.k.size > p.inputs.q.size),
    "softcap and bias": (schemes(), lambda p: p.scheme.softcap is not None and p.inputs.bias is not None),
    "dropout": (schemes(), lambda p: p.scheme.keep_rate is not None),
    **{name: (schemes(), lambda p, name=name: getattr(p.inputs, name) is not None) for name in sorted(OPTIONAL)},
}


@pytest.mark.parametrize("corner", CORNERS)
def test_the_corners_are_drawn(corner: str) -> None:
    strategy, reached = CORNERS[corner]
    assert reached(find(strategy, reached, settings=QUICK))


def test_sizes_are_numbers_or_strategies_and_others_are_refused() -> None:
    x = find(qkv(n=st.integers(5, 6), m=2), lambda x: True, settings=QUICK)
    assert (x.q.shape[-2], x.k.shape[-2]) == (5, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        find(schemes(width=3), lambda p: True, settings=QUICK)
    assert isinstance(find(schemes(), lambda p: True, settings=QUICK).scheme, Dense)
