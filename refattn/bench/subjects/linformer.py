"""Linformer with its projections to heads and back: lucidrains' layer of the same weights is the yardstick."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, NamedTuple

import numpy as np  # problems are drawn on the host

from refattn.bench.subject import BOTH, NUMBA, OURS, Contender, Key, Pair, Problem, Subject, Target
from refattn.layers.attention import Attention
from refattn.schemes.linformer import Linformer

Array = Any
LUCIDRAINS, HEADS, D, SLOTS = "lucidrains", 8, 512, 256


class Layer:
    """Attention to slots as a function of plain arrays."""

    class Inputs(NamedTuple):
        x: Array  # (1, n, 512)
        w_q: Array
        w_k: Array
        w_v: Array
        w_o: Array
        b_o: Array
        E: Array  # (256, n)
        F: Array

    inner: ClassVar[Any] = Attention(Linformer(), HEADS)

    def given(self, x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, b_o: Array, E: Array, F: Array) -> Any:
        """The layer's own inputs."""
        scheme = Linformer.Inputs(None, None, None, E, F)
        return self.inner.Inputs(x, self.inner.Params(w_q, w_k, w_v, w_o, b_o=b_o, scheme=scheme))

    def forward(self, *arrays: Array) -> tuple[Array, Any]:
        """y, with what the layer saves."""
        y, saved = self.inner.forward(*self.given(*arrays))
        return y, saved

    def vjp(self, saved: Any, dy: Array) -> Any:
        """The gradients of every array."""
        x, p = self.inner.vjp(saved, dy)[:2]
        return self.Inputs(x, p.w_q, p.w_k, p.w_v, p.w_o, p.b_o, p.scheme.E, p.scheme.F)


def problem(n: int, dtype: str) -> Problem:
    """Normal weights under which activations keep their size; one item, no more slots than half of the tokens."""
    rng, s = np.random.default_rng(0), min(SLOTS, max(n // 2, 1))
    x, do = (rng.standard_normal((1, n, D)) for _ in range(2))
    weights = [rng.standard_normal((D, D)) / D**0.5 for _ in range(4)]
    E, F = (rng.standard_normal((s, n)) / n**0.5 for _ in range(2))
    arrays = [a.astype(dtype) for a in (x, *weights, np.zeros(D), E, F)]
    return Problem(Layer(), Layer.Inputs(*arrays), do.astype(dtype))


def lucidrains(p: Problem) -> Pair:
    """linformer.LinformerSelfAttention with our weights, gradients of x and of all of them by autograd."""
    torch, peer = importlib.import_module("torch"), importlib.import_module("linformer")
    torch.set_num_threads(1)
    i = p.inputs
    module = peer.LinformerSelfAttention(D, i.x.shape[1], k=len(i.E), heads=HEADS).to(torch.tensor(i.x).dtype)
    order = [module.to_q.weight, module.to_k.weight, module.to_v.weight, module.to_out.weight, module.to_out.bias,
             module.proj_k, module.proj_v]  # fmt: skip
    with torch.no_grad():
        for parameter, ours in zip(order, i[1:], strict=True):
            parameter.copy_(torch.tensor(ours.T.copy()))
    x, do = torch.tensor(i.x, requires_grad=True), torch.tensor(p.do)

    def forward() -> object:
        with torch.no_grad():
            return module(x)

    def both() -> object:
        y = module(x)
        grads = torch.autograd.grad(y, (x, *order), do)
        return y, (grads[0], *(g.t() for g in grads[1:]))

    return forward, both


def work(p: Problem, kind: str, who: str) -> float:
    """Two for each multiply-add that the layer states."""
    cost = p.scheme.inner.cost(p.scheme.given(*p.inputs))
    return float(2 * (cost.forward.macs + (cost.backward.macs if kind == BOTH else 0)))


SUBJECTS = (
    Subject("linformer", f"a layer: b = 1, h = {HEADS}, d = 64, {SLOTS} slots", problem,
            {**OURS, LUCIDRAINS: Contender("linformer", lucidrains)}, work, (LUCIDRAINS,), lengths=(2048,),
            targets={Key(NUMBA, LUCIDRAINS, "float32", BOTH): Target(0.9, 0.5)}),
)  # fmt: skip
