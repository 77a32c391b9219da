"""vjp against central differences of the forward: ⟨cotangents, (f(x + h t) − f(x − h t)) / 2h⟩ = ⟨vjp, t⟩ for random t."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import rng

H = 2.0**-13


def functional(scheme, inputs, do, others):
    """⟨do, o⟩ + ⟨dlse, lse⟩ over finite entries (an lse of −∞ has no gradient)."""
    _, saved = scheme.forward(*inputs, block=None)
    total = float(np.sum(do * saved.o))
    for name, cotangent in others.items():
        x = getattr(saved, name[1:])
        total += float(np.sum(cotangent * np.where(np.isfinite(x), x, 0.0)))
    return total


def slope(scheme, inputs, name, t, do, others):
    """Richardson-extrapolated central difference, so that what is left is rounding: error O(h⁴) + ε/h."""

    def central(h):
        x = getattr(inputs, name)
        up, down = (functional(scheme, inputs._replace(**{name: x + s * h * t}), do, others) for s in (1, -1))
        return (up - down) / (2 * h)

    return (4 * central(H) - central(2 * H)) / 3


def test_vjp_is_the_adjoint_of_the_derivative(row, variant, inputs, cotangents):
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    grads = scheme.vjp(saved, do, **others, block=3)
    checked = 0
    for name in inputs._fields:
        x, g = getattr(inputs, name), getattr(grads, name)
        if x is None or x.dtype.kind != "f":
            assert g is None
            continue
        t = rng.stream(3, "tangent", name).normal(size=x.shape)
        want, got = slope(scheme, inputs, name, t, do, others), float(np.sum(g * t))
        size = float(np.sum(np.abs(g * t))) + sum(float(np.sum(np.abs(c))) for c in (do, *others.values()))
        assert g.shape == x.shape
        assert got == pytest.approx(want, rel=0, abs=size * (1e-10 + 64 * np.finfo(float).eps / H))
        checked += 1
    assert checked >= 3


def test_the_vjp_is_linear_in_its_cotangents(row, variant, inputs, cotangents):
    scheme = variant.scheme
    _, saved = scheme.forward(*inputs)
    do, others = cotangents(scheme, saved)
    whole = scheme.vjp(saved, do, **others)
    alone = scheme.vjp(saved, do)
    rest = scheme.vjp(saved, np.zeros_like(do), **others)
    for w, a, r in zip(whole, alone, rest, strict=True):
        if w is not None:
            np.testing.assert_allclose(a + r, w, rtol=0, atol=1e-13 * (1 + np.max(np.abs(w), initial=0.0)))
