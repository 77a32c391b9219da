"""Kernels beside torch: both in one process, in several threads at once, each with threads of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import refattn
from refattn import Dense

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def test_torch_and_kernels_at_once_give_what_they_give_alone() -> None:
    q, k, v, do = np.random.default_rng(0).standard_normal((4, 2, 4, 400, 32)).astype("float32")
    scheme, before, many = Dense(causal=True), refattn.get_threads(), torch.get_num_threads()

    def ours() -> list[bytes]:
        _, saved = scheme.forward(q, k, v)
        return [x.tobytes() for x in (saved.o, saved.lse, *scheme.vjp(saved, do)[:3])]

    def theirs() -> Any:
        tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
        o = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
        return torch.stack([o, *torch.autograd.grad(o, tensors, torch.tensor(do))]).detach().numpy()

    refattn.set_threads(2)
    torch.set_num_threads(2)
    try:
        alone, other = ours(), theirs()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: (ours, theirs)[i % 2](), range(16)))
        assert all(x == alone for x in found[::2])
        for x in found[1::2]:
            np.testing.assert_allclose(x, other, rtol=1e-4, atol=1e-5)
        assert torch.get_num_threads() == 2
    finally:
        refattn.set_threads(before)
        torch.set_num_threads(many)
