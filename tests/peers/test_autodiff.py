"""The hand-written vjp of Dense against torch's tape over its forward; Dense on torch's arrays against NumPy's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import rng, tree
from refattn.catalogue import ROWS

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")

CASES = [pytest.param(row, v, id=f"{row.name}-{i}-{v}") for row in ROWS for i, v in enumerate(row.variants)]
RELATIVE = 1e-11


def on_torch(inputs: Any) -> Any:
    """Copies as tensors, floats with a gradient."""
    return tree.map(lambda x: torch.from_numpy(np.array(x)).requires_grad_(x.dtype.kind == "f"), inputs)


def cotangents(scheme: Any, saved: Any) -> Any:
    return {name: rng.stream(7, "cotangent", name).normal(size=getattr(saved, name).shape) for name in scheme.outputs}


def close(got: Any, want: Any) -> bool:
    return bool(np.max(np.abs(got - want), initial=0.0) <= RELATIVE * np.max(np.abs(want), initial=0.0))


@pytest.mark.parametrize(("row", "variant"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_autograd_of_the_forward_is_the_vjp(row: Any, variant: Any, seed: Any) -> None:
    inputs = row.draw(variant, seed)
    _, saved = variant.scheme.forward(*inputs)
    given = cotangents(variant.scheme, saved)
    grads = variant.scheme.vjp(saved, given["o"], **{f"d{n}": x for n, x in given.items() if n != "o"})
    tensors = on_torch(inputs)
    _, tape = variant.scheme.forward(*tensors)
    total = torch.zeros((), dtype=torch.float64)
    for name, x in given.items():
        y = getattr(tape, name)
        total = total + torch.sum(torch.from_numpy(x) * torch.where(torch.isfinite(y), y, 0.0))
    fixed = getattr(variant.scheme, "fixed", ())
    leaves = {n: x for n, x in tensors._asdict().items() if x is not None and x.requires_grad and n not in fixed}
    found = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
    assert found.keys() == {n for n, g in grads._asdict().items() if g is not None}
    assert found.keys() >= {"q", "qk", "k", "v"} & set(inputs._fields)
    for name, g in found.items():
        assert close(g.numpy(), getattr(grads, name)), name


@pytest.mark.parametrize(("row", "variant"), CASES)
def test_torch_arrays_give_the_values_of_numpy(row: Any, variant: Any) -> None:
    inputs = row.draw(variant, 1)
    o, saved = variant.scheme.forward(*inputs)
    given = cotangents(variant.scheme, saved)
    with torch.no_grad():
        tensors = on_torch(inputs)
        got, kept = variant.scheme.forward(*tensors)
        more = {f"d{n}": torch.from_numpy(x) for n, x in given.items() if n != "o"}
        back = variant.scheme.vjp(kept, torch.from_numpy(given["o"]), **more)
    grads = variant.scheme.vjp(saved, given["o"], **{f"d{n}": x for n, x in given.items() if n != "o"})
    assert isinstance(got, torch.Tensor)
    assert close(got.numpy(), o)
    for x, y in zip(tree.leaves(kept._replace(inputs=None)), tree.leaves(saved._replace(inputs=None)), strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-12, atol=1e-13)
    for name, want in grads._asdict().items():
        g = getattr(back, name)
        assert (g is None) == (want is None), name
        assert want is None or close(g.numpy(), want), name


def test_what_the_tolerance_sees() -> None:
    """A statistic that is off by 1e-9 already makes the gradients differ."""
    variant = ROWS[0].variants[1]
    _, saved = variant.scheme.forward(*ROWS[0].draw(variant, 1))
    do = cotangents(variant.scheme, saved)["o"]
    grads, off = variant.scheme.vjp(saved, do), variant.scheme.vjp(saved._replace(lse=saved.lse + 1e-9), do)
    assert close(grads.q, grads.q)
    assert not close(off.q, grads.q)
