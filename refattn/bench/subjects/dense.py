"""Softmax over all pairs, and over the causal ones: torch's attention is the yardstick, and the rate of matrix products."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np  # problems are drawn on the host

from refattn.bench.subject import (
    BOTH,
    FORWARD,
    GENERIC,
    NUMBA,
    OURS,
    Contender,
    Key,
    Pair,
    Problem,
    Subject,
    Target,
    on_torch,
)
from refattn.schemes.dense import Dense

SDPA, GEMM = "torch SDPA", "GEMM rate"


def problem(n: int, dtype: str, causal: bool = False, heads: int = 8, d: int = 64) -> Problem:
    """Normal inputs of one item."""
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((1, heads, n, d)).astype(dtype) for _ in range(4))
    return Problem(Dense(causal=causal), Dense.Inputs(q, k, v), do)


def torch_sdpa(p: Problem) -> Pair:
    """torch.nn.functional.scaled_dot_product_attention, whose default on a processor is its flash kernel."""
    torch = importlib.import_module("torch")
    return on_torch(p, lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.scheme.causal))


def flex(p: Problem) -> Pair | None:
    """torch's FlexAttention, compiled; it has no backward on processors, and no float64."""
    torch, module = importlib.import_module("torch"), importlib.import_module("torch.nn.attention.flex_attention")
    if p.dtype != "float32":
        return None
    n, mask = p.do.shape[-2], None
    if p.scheme.causal:
        mask = module.create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
    attention = torch.compile(module.flex_attention)
    return on_torch(p, lambda q, k, v: attention(q, k, v, block_mask=mask), backward=False)


def jax_attention(p: Problem) -> Pair:
    """jax.nn.dot_product_attention, jitted."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    q, k, v, do = (jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in (*p.inputs[:3], p.do))

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=p.scheme.causal)

    forward = jax.jit(attention)
    pull = jax.jit(lambda q, k, v, do: jax.vjp(attention, q, k, v)[1](do))
    return lambda: forward(q, k, v).block_until_ready(), lambda: jax.block_until_ready(pull(q, k, v, do))


def gemm(p: Problem) -> Pair:
    """The two matrix products of the forward and the five of the backward, in tiles, and nothing else."""
    q, k, v, do = (x[0] for x in (*p.inputs[:3], p.do))
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


def work(p: Problem, kind: str, who: str) -> float:
    """Two products forward and five backward, over visible pairs; the rate of products is measured over all of them."""
    _, heads, n, d = p.inputs.q.shape
    pairs = (n - n % min(256, n)) * n if who == GEMM else n * (n + 1) // 2 if p.scheme.causal else n * n
    return float(4 * heads * pairs * d) * (3.5 if kind == BOTH else 1.0)


CONTENDERS = {
    **OURS,
    SDPA: Contender("torch", torch_sdpa),
    "FlexAttention": Contender("torch", flex),
    "jax": Contender("jax", jax_attention, alone=True),
    GEMM: Contender("numpy", gemm),
}
TARGETS = {
    Key(NUMBA, SDPA, "float32", FORWARD, 512): Target(1.15, 1.00),
    Key(NUMBA, SDPA, "float32", BOTH, 512): Target(1.05, 0.95),
    Key(NUMBA, SDPA, "float64", FORWARD, 512): Target(1.00, 0.85),
    Key(NUMBA, SDPA, "float64", BOTH, 512): Target(0.80, 0.65),
    Key(NUMBA, GEMM, "float32", FORWARD, 512): Target(0.65, 0.80, upper=False),
    Key(NUMBA, GEMM, "float32", BOTH, 512): Target(0.72, 0.80, upper=False),
    Key(GENERIC, SDPA, "float32", BOTH, 512): Target(1.25, 1.05),
}
CAUSAL_TARGETS = {
    Key(NUMBA, SDPA, "float32", FORWARD, 512): Target(1.15, 0.95),
    Key(NUMBA, SDPA, "float32", BOTH, 512): Target(1.05, 0.90),
}


def causal(n: int, dtype: str, heads: int = 8, d: int = 64) -> Problem:
    """The same inputs under the causal order."""
    return problem(n, dtype, True, heads, d)


SHAPE = "b = 1, h = 8, d = 64"
BOTH_DTYPES = ("float32", "float64")
SUBJECTS = (
    Subject("dense", SHAPE, problem, CONTENDERS, work, (SDPA,), GEMM, dtypes=BOTH_DTYPES, targets=TARGETS,
            peak={4096: Target(5.0, 3.0)}, family=True),
    Subject("causal", SHAPE, causal, CONTENDERS, work, (SDPA,), GEMM, dtypes=BOTH_DTYPES, targets=CAUSAL_TARGETS),
)
