"""vjp against central differences of the forward: ⟨cotangents, (f(x + h t) − f(x − h t)) / 2h⟩ = ⟨vjp, t⟩ for random t."""

from __future__ import annotations

import numpy as np

from laws.bounds import Band, U, keywords, outside, rounded
from refattn import rng, tree

H = 2.0**-11


def functional(scheme, inputs, cotangents):
    """Σ ⟨cotangent, output⟩ over finite entries (an lse of −∞ has no gradient)."""
    _, saved = scheme.forward(*inputs, block=None)
    found = {name: getattr(saved, name) for name in scheme.outputs}
    return sum(float(np.sum(cotangents[name] * np.where(np.isfinite(x), x, 0.0))) for name, x in found.items())


def slopes(case, name, t):
    """Richardson's extrapolation of central differences along t, with steps H, 2H and with 2H, 4H: errors O(h⁴)."""
    x = getattr(case.inputs, name)

    def central(h):
        up, down = (
            functional(case.scheme, case.inputs._replace(**{name: x + s * h * t}), case.cotangents) for s in (1, -1)
        )
        return (up - down) / (2.0 * h)

    once, twice, four = central(H), central(2.0 * H), central(4.0 * H)
    return (4.0 * once - twice) / 3.0, (4.0 * twice - four) / 3.0


def noise(case, name, g):
    """What the functional may be off by: outputs within their bounds, a sum of products, and x ± h t rounded."""
    off = 0.0
    for output in case.scheme.outputs:
        band, c = case.bands[output], np.abs(case.cotangents[output])
        size = np.where(np.isfinite(band.value), np.abs(band.value), 0.0)
        off += float(np.sum(c * (band.bound + (c.size + 1) * U * size)))
    return off + 2.0 * U * float(np.sum(np.abs(g * getattr(case.inputs, name))))


def test_vjp_is_the_adjoint_of_the_derivative(row, variant, case):
    got = case.run(block=3)
    checked = []
    for name, x in tree.items(case.inputs):
        if x.dtype.kind != "f" or name in getattr(case.scheme, "fixed", ()):
            assert f"d{name}" not in got
            continue
        g, t = got[f"d{name}"], rng.stream(3, "tangent", name).normal(size=x.shape)
        assert g.shape == x.shape
        near, far = slopes(case, name, t)
        rounding = 1.5 * noise(case, name, g) / H  # (4·2/2H + 2/4H) / 3
        own = float(np.sum(np.abs(t) * (case.bands[f"d{name}"].bound + t.size * U * np.abs(g))))
        assert abs(float(np.sum(g * t)) - near) <= abs(near - far) + rounding + own, name
        assert abs(near - far) + rounding + own < 1e-3 * float(np.sum(np.abs(g * t))), name
        checked.append(name)
    assert len(checked) >= (3 if "k" in case.inputs._fields else 2)


def test_the_vjp_is_linear_in_its_cotangents(row, variant, case):
    scheme, first = case.scheme, case.scheme.outputs[0]
    only = {n: c if n == first else np.zeros_like(c) for n, c in case.cotangents.items()}
    rest = {n: np.zeros_like(c) if n == first else c for n, c in case.cotangents.items()}
    _, saved = scheme.forward(*case.inputs)
    do, others = keywords(scheme, rest)
    names = [f"d{name}" for name in tree.names(scheme.vjp(saved, case.cotangents[first]))]
    parts = [dict(zip(names, tree.leaves(g), strict=True)) for g in (
        scheme.vjp(saved, case.cotangents[first]),  # a cotangent that is not given is zero
        scheme.vjp(saved, do, **others),
    )]  # fmt: skip
    bands = [rounded("fp64", scheme, case.inputs, c) for c in (only, rest)]
    summed = {n: Band(parts[0][n] + parts[1][n], bands[0][n].bound + bands[1][n].bound) for n in names}
    assert outside(summed, {n: case.bands[n] for n in names}) == {}
