"""The operations in torch: the same functions of torch.nn.functional, forward and backward, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laws.operations import OPS, too_far
from refattn import tree

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
F = torch.nn.functional


def lengthened(x):
    """Without leading axes torch's convolutions take (d, n); with them (b, d, n)."""
    return x.transpose(-1, -2)


def depthwise(op, x, w, b=None):
    r = w.shape[0]
    left = r - 1 if op.padding == "causal" else r // 2
    x = F.pad(lengthened(x), (left, r - 1 - left))
    return lengthened(F.conv1d(x, w.T[:, None, :], b, groups=w.shape[1]))


def strided(op, x, w, b=None):
    more = 0
    if op.tail == "pad":
        more = -(x.shape[-2] + sum(op.padding) - w.shape[0]) % op.stride
    x = F.pad(lengthened(x), (op.padding[0], op.padding[1] + more))
    return lengthened(F.conv1d(x, w.permute(2, 1, 0), b, stride=op.stride))


def scale_norm(op, x, g):
    """The three codes as they are published, the last with both square roots inside the clamp."""
    if (op.length, op.guard) == ("norm", "max"):
        return g / torch.norm(x, dim=-1, keepdim=True).clamp(min=op.eps) * x
    if op.guard == "add":
        return g * x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + op.eps)
    return x / (torch.norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5).clamp(min=op.eps) * g


def seen(s, see):
    return s if see is None else s.masked_fill(~see, -math.inf)


def softmax(op, s, see=None):
    return torch.softmax(seen(s, see), -1).nan_to_num(0.0)  # a row that sees nothing is 0 here


def divergence(op, student, teacher):
    t = op.temperature
    kl = F.kl_div(torch.log_softmax(student / t, -1), torch.softmax(teacher / t, -1), reduction="none").sum(-1) * t**2
    return {"mean": kl.mean, "sum": kl.sum, "none": lambda: kl}[op.reduction]()


def entropy(op, logits, targets):
    flat = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction=op.reduction,
                           ignore_index=-100 if op.ignore is None else op.ignore)
    return flat.reshape(targets.shape) if op.reduction == "none" else flat


FUNCTIONS = {
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "laplace": lambda x: 0.5 * (1 + torch.erf((x - 0.5**0.5) / ((0.25 / math.pi) ** 0.5 * 2**0.5))),
}


def glu(op, value, gate):
    return F.glu(torch.cat([value, gate], -1)) if op.kind == "sigmoid" else value * FUNCTIONS[op.kind](gate)


PEERS = {
    "Projection": lambda op, x, w, b=None: F.linear(x, w.T, b),
    "Softmax": softmax,
    "LogSumExp": lambda op, s, see=None: torch.logsumexp(seen(s, see), -1),
    "LayerNorm": lambda op, x, g=None, b=None: F.layer_norm(x, x.shape[-1:], g, b, op.eps),
    "RMSNorm": lambda op, x, g=None: F.rms_norm(x, x.shape[-1:], g, op.eps),
    "ScaleNorm": scale_norm,
    "Activation": lambda op, x: FUNCTIONS[op.kind](x),
    "GLU": glu,
    "DepthwiseConv": depthwise,
    "StridedConv": strided,
    "Lookup": lambda op, table, ids: F.embedding(ids, table),
    "CrossEntropy": entropy,
    "TemperatureKL": divergence,
}


def test_every_operation_has_its_peer():
    assert {type(op.op).__name__ for op in OPS} == PEERS.keys()


@pytest.mark.parametrize("op", OPS, ids=str)
def test_torch_computes_the_same_forward_and_backward(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    given = [torch.tensor(np.array(x), requires_grad=x.dtype.kind == "f") for _, x in tree.items(inputs)]
    y = PEERS[type(op.op).__name__](op.op, *given)
    finite = torch.isfinite(y)
    torch.where(finite, y * torch.tensor(dy), 0.0).sum().backward()
    grads = {f"d{n}": x.grad for (n, _), x in zip(tree.items(inputs), given, strict=True) if x.requires_grad}
    got = {"y": y.detach().numpy()} | {name: g.nan_to_num(0.0).numpy() for name, g in grads.items()}
    assert too_far(got, op.bands("fp64", inputs, dy * finite.numpy()), times=2.0) == {}


@pytest.mark.parametrize("op", OPS, ids=str)
def test_torch_differentiates_our_text_to_our_vjp(op):
    inputs = op.draw()
    dy = op.cotangent(inputs)
    given = tree.map(lambda x: torch.tensor(np.array(x), requires_grad=x.dtype.kind == "f"), inputs)
    y, saved = op.op.forward(*given)
    finite = torch.isfinite(y)
    dy = torch.where(finite, torch.tensor(dy), 0.0)
    torch.where(finite, y * dy, 0.0).sum().backward()
    tape = {f"d{n}": x.grad.numpy() for n, x in tree.items(given) if x.requires_grad}
    with torch.no_grad():
        own = {f"d{n}": g.numpy() for n, g in tree.items(op.op.vjp(saved, dy))}
    bands = {n: b for n, b in op.bands("fp64", inputs, dy.numpy()).items() if n != "y"}
    assert too_far(tape, bands, times=2.0) == {}
    assert too_far(own, bands, times=2.0) == {}
