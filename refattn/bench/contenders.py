"""Who is compared: the generic text, the compiled kernels, and other people's code for the same scheme, as far as installed.

A contender makes, for a problem, two functions without arguments, forward and forward with backward; None if it can't.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from refattn.schemes.dense import Dense

Array = Any
Pair = tuple[Callable[[], object], Callable[[], object] | None]


class Problem(NamedTuple):
    """A scheme with q, k, v and do of one shape (b, h, n, d)."""

    name: str
    scheme: Any
    arrays: tuple[Array, Array, Array, Array]

    @property
    def causal(self) -> bool:
        return bool(self.scheme.causal)


def problem(name: str, n: int, dtype: str, heads: int = 8, d: int = 64) -> Problem:
    """The problem called "dense" or "causal": normal inputs of one item."""
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((1, heads, n, d)).astype(dtype) for _ in range(4))
    return Problem(name, Dense(causal=name == "causal"), (q, k, v, do))


@contextmanager
def _numba(on: str) -> Iterator[None]:
    before = os.environ.get("REFATTN_NUMBA")
    os.environ["REFATTN_NUMBA"] = on
    try:
        yield
    finally:
        os.environ.pop("REFATTN_NUMBA")
        os.environ.update({} if before is None else {"REFATTN_NUMBA": before})


def _ours(p: Problem, numba: str) -> Pair:
    q, k, v, do = p.arrays

    def forward() -> object:
        with _numba(numba):
            return p.scheme.forward(q, k, v)

    def both() -> object:
        with _numba(numba):
            _, saved = p.scheme.forward(q, k, v)
            return p.scheme.vjp(saved, do)

    return forward, both


def generic(p: Problem) -> Pair:
    return _ours(p, "0")


def numba(p: Problem) -> Pair:
    return _ours(p, "1")


def _torch(p: Problem, attention: Callable[..., Any], backward: bool) -> Pair:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    q, k, v, do = (torch.tensor(x, requires_grad=backward and i < 3) for i, x in enumerate(p.arrays))

    def forward() -> object:
        with torch.no_grad():
            return attention(q, k, v)

    def both() -> object:
        return torch.autograd.grad(attention(q, k, v), (q, k, v), do)

    return forward, both if backward else None


def torch_sdpa(p: Problem) -> Pair:
    """torch.nn.functional.scaled_dot_product_attention, whose default on a processor is its flash kernel."""
    torch = importlib.import_module("torch")
    return _torch(p, lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.causal), True)


def flex(p: Problem) -> Pair | None:
    """torch's FlexAttention, compiled; it has no backward on processors, and no float64."""
    torch, module = importlib.import_module("torch"), importlib.import_module("torch.nn.attention.flex_attention")
    if p.arrays[0].dtype != np.float32:
        return None
    n, mask = p.arrays[0].shape[-2], None
    if p.causal:
        mask = module.create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
    compiled = torch.compile(module.flex_attention)
    return _torch(p, lambda q, k, v: compiled(q, k, v, block_mask=mask), False)


def jax_attention(p: Problem) -> Pair:
    """jax.nn.dot_product_attention, jitted."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    q, k, v, do = (jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in p.arrays)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=p.causal)

    forward = jax.jit(attention)
    pull = jax.jit(lambda q, k, v, do: jax.vjp(attention, q, k, v)[1](do))
    return lambda: forward(q, k, v).block_until_ready(), lambda: jax.block_until_ready(pull(q, k, v, do))


def gemm(p: Problem) -> Pair:
    """The two matrix products of the forward and the five of the backward, in tiles, and nothing else."""
    q, k, v, do = (x[0] for x in p.arrays)
    n, rows = q.shape[1], min(256, q.shape[1])
    keys = [slice(j, min(j + 512, n)) for j in range(0, n, 512)]
    shapes = (rows, 512), (rows, 512), (rows, v.shape[-1]), (512, q.shape[-1])
    s, dp, o, dk = (np.zeros(shape, q.dtype) for shape in shapes)

    def tiles(backward: bool) -> None:
        for h in range(len(q)):
            for i in range(0, n - rows + 1, rows):
                a, da = q[h, i:i + rows], do[h, i:i + rows]
                for at in keys:
                    w = at.stop - at.start
                    np.matmul(a, k[h, at].T, out=s[:, :w])
                    np.matmul(s[:, :w], v[h, at], out=o)
                    if backward:
                        np.matmul(a, k[h, at].T, out=s[:, :w])
                        np.matmul(da, v[h, at].T, out=dp[:, :w])
                        np.matmul(s[:, :w].T, da, out=dk[:w])
                        np.matmul(dp[:, :w], k[h, at], out=o)
                        np.matmul(dp[:, :w].T, a, out=dk[:w])

    return lambda: tiles(False), lambda: tiles(True)


CONTENDERS: dict[str, tuple[str, Callable[[Problem], Pair | None]]] = {
    "numba": ("numba", numba),
    "generic": ("numpy", generic),
    "torch SDPA": ("torch", torch_sdpa),
    "FlexAttention": ("torch", flex),
    "jax": ("jax", jax_attention),
    "GEMM rate": ("numpy", gemm),
}
"""By name, the library that it needs and how it is made."""


def installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
