"""The operations of refattn.ops as one table: how inputs are drawn, and the plain definition. The laws run over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from laws import plain
from laws.bounds import distance, ratio
from refattn import load, rng, tree
from refattn.ops.activation import KINDS, Activation
from refattn.ops.cross_entropy import CrossEntropy
from refattn.ops.depthwise_conv import DepthwiseConv
from refattn.ops.glu import GLU
from refattn.ops.layer_norm import LayerNorm
from refattn.ops.logsumexp import LogSumExp
from refattn.ops.lookup import Lookup
from refattn.ops.projection import Projection
from refattn.ops.rms_norm import RMSNorm
from refattn.ops.scale_norm import ScaleNorm
from refattn.ops.softmax import Softmax
from refattn.ops.strided_conv import StridedConv
from refattn.ops.temperature_kl import TemperatureKL
from refattn.precision import PRESETS


def away_from_kinks(g, shape, sizes):
    """Numbers whose sign a small step does not change."""
    x = rng.short(g.normal(size=shape))
    return np.where(np.abs(x) < 0.1, 0.5, x)


def some(g, shape, sizes):
    """Truth values, the first row of which is all False."""
    out = g.random(shape) < 0.6
    out[: min(len(out), 1)] = False
    return out


def classes(g, shape, sizes):
    """Whole numbers below v, several of them equal, and a few that are ignored by default."""
    ids = g.integers(0, max(sizes["v"] - 1, 1), shape)
    return np.where(g.random(shape) < 0.2, -100, ids)


def ids(g, shape, sizes):
    return g.integers(0, max(sizes["v"] - 1, 1), shape)


@dataclass(frozen=True)
class Op:
    """op: the operation. axes: the letters of every input that is given. sizes: of the letters. needs: letters that may
    not be 0. large: what float inputs can be multiplied with while the result is finite in float32."""

    op: Any
    definition: Callable[..., Any]
    axes: Mapping[str, str]
    sizes: Mapping[str, int]
    draws: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    needs: str = ""
    large: float = 1e15

    def __str__(self) -> str:
        return f"{self.op}-{'-'.join(self.axes)}"

    def draw(self, seed: int = 1, short: bool = True, **sizes: int) -> Any:
        """Inputs in float64, read-only, of values that every precision (short=False: float32) holds."""
        at, made = {**self.sizes, **sizes}, {}
        for name, letters in self.axes.items():
            shape = tuple(at[a] for a in letters.split())
            g = rng.stream(seed, str(self), name)
            x = self.draws[name](g, shape, at) if name in self.draws else rng.short(g.normal(size=shape))
            made[name] = np.asarray(x if short or x.dtype.kind != "f" else np.float32(x * 1.1).astype(np.float64))
            made[name].flags.writeable = False
        return self.op.Inputs(**made)

    def cotangent(self, inputs: Any, seed: int = 1) -> Any:
        y, _ = self.op.forward(*inputs)
        return rng.short(rng.stream(seed, str(self), "dy").normal(size=y.shape))

    def results(self, inputs: Any, dy: Any) -> dict[str, Any]:
        """y and every gradient, by name."""
        y, saved = self.op.forward(*inputs)
        return {"y": y} | {f"d{name}": g for name, g in tree.items(self.op.vjp(saved, dy))}

    def read(self, reading: Any, inputs: Any, dy: Any) -> dict[str, Any]:
        return self.results(tree.map(reading.lift, inputs), reading.lift(dy))

    def bands(self, preset: str, inputs: Any, dy: Any) -> dict[str, Any]:
        return self.read(load("rounding", precision=PRESETS[preset]), inputs, dy)


BND = {"b": 2, "n": 5, "d": 4}
CONV = {"b": 2, "n": 7, "d": 3, "r": 4}
STRIDED = {"b": 2, "n": 9, "r": 3, "d": 4, "e": 2}
SCORES = {"b": 3, "n": 4, "m": 6}
LOGITS = {"b": 3, "n": 5, "v": 6}
XWB = {"x": "b n d", "w": "r d e", "b": "e"}
LARGEST = {"relu": 1e30, "sigmoid": 1e30, "silu": 1e30, "gelu": 1e30, "gelu_tanh": 1e30, "laplace": 1e30}


def activations():
    for kind in KINDS:
        draws = {"x": away_from_kinks} if "relu" in kind else {}
        yield Op(Activation(kind), plain.activation, {"x": "b n d"}, BND, draws, large=LARGEST.get(kind, 1e15))


OPS = [
    Op(Projection(), plain.projection, {"x": "b n d", "w": "d e", "b": "e"}, BND | {"e": 3}),
    Op(Projection(), plain.projection, {"x": "n d", "w": "d e"}, {"n": 5, "d": 4, "e": 3}),
    Op(Softmax(), plain.softmax, {"s": "b n m"}, SCORES, large=1e30),
    Op(Softmax(), plain.softmax, {"s": "b n m", "see": "n m"}, SCORES, {"see": some}, large=1e30),
    Op(LogSumExp(), plain.logsumexp, {"s": "b n m"}, SCORES, large=1e30),
    Op(LogSumExp(), plain.logsumexp, {"s": "b n m", "see": "n m"}, SCORES, {"see": some}, large=1e30),
    Op(LayerNorm(), plain.layer_norm, {"x": "b n d", "g": "d", "b": "d"}, BND),
    Op(LayerNorm(eps=0.5), plain.layer_norm, {"x": "n d"}, BND),
    Op(RMSNorm(), plain.rms_norm, {"x": "b n d", "g": "d"}, BND),
    Op(RMSNorm(eps=0.5), plain.rms_norm, {"x": "n d"}, BND),
    *(Op(ScaleNorm.conventions[name], plain.scale_norm, {"x": "b n d", "g": ""}, BND) for name in ScaleNorm.conventions),
    Op(ScaleNorm(eps=2.0), plain.scale_norm, {"x": "b n d", "g": ""}, BND),  # some rows are held by the guard
    Op(ScaleNorm("rms", eps=1.0), plain.scale_norm, {"x": "b n d", "g": ""}, BND),
    *activations(),
    *(Op(GLU(kind), plain.glu, {"value": "b n d", "gate": "b n d"}, BND) for kind in ("sigmoid", "gelu", "silu")),
    Op(GLU("relu"), plain.glu, {"value": "b n d", "gate": "b n d"}, BND, {"gate": away_from_kinks}),
    Op(DepthwiseConv(), plain.depthwise_conv, {"x": "b n d", "w": "r d", "b": "d"}, CONV, needs="r"),
    Op(DepthwiseConv("same"), plain.depthwise_conv, {"x": "b n d", "w": "r d"}, CONV, needs="r"),
    Op(DepthwiseConv("same"), plain.depthwise_conv, {"x": "n d", "w": "r d", "b": "d"}, CONV | {"r": 5}, needs="r"),
    Op(DepthwiseConv(), plain.depthwise_conv, {"x": "b n d", "w": "r d"}, CONV | {"n": 3, "r": 6}, needs="r"),
    Op(StridedConv(3), plain.strided_conv, XWB, STRIDED, needs="r"),
    Op(StridedConv(2), plain.strided_conv, XWB, STRIDED, needs="r"),
    Op(StridedConv(4, tail="drop"), plain.strided_conv, {"x": "n d", "w": "r d e"}, STRIDED | {"n": 10}, needs="r"),
    Op(StridedConv(2, (2, 1), "pad"), plain.strided_conv, XWB, STRIDED | {"r": 5, "n": 8}, needs="r"),
    Op(StridedConv(3, tail="pad"), plain.strided_conv, XWB, STRIDED | {"n": 10}, needs="r"),
    Op(StridedConv(2, (1, 0), "drop"), plain.strided_conv, XWB, STRIDED | {"n": 7, "r": 5}, needs="r"),
    Op(Lookup(), plain.lookup, {"table": "v d", "ids": "b n"}, LOGITS | {"d": 3}, {"ids": ids}, needs="v"),
    Op(Lookup(), plain.lookup, {"table": "v d", "ids": "n"}, {"v": 3, "d": 2, "n": 40}, {"ids": ids}, needs="v"),
    *(Op(CrossEntropy(way), plain.cross_entropy, {"logits": "b n v", "targets": "b n"}, LOGITS, {"targets": classes}, "v",
         1e30) for way in ("mean", "sum", "none")),
    Op(CrossEntropy(ignore=None), plain.cross_entropy, {"logits": "n v", "targets": "n"}, LOGITS, {"targets": ids}, "v",
       1e30),
    *(Op(TemperatureKL(t, way), plain.temperature_kl, {"student": "b n v", "teacher": "b n v"}, LOGITS, large=1e30)
      for t, way in ((1.0, "mean"), (2.5, "sum"), (4.0, "none"))),
]
EACH = pytest.mark.parametrize("op", OPS, ids=str)


def too_far(got, bands, times=1.0):
    """By name, how many times its bound each result is off, where that is more than `times`."""
    assert got.keys() == bands.keys()
    found = {name: ratio(distance(np.asarray(got[name]), band.value), band.bound) for name, band in bands.items()}
    return {name: x for name, x in found.items() if not x <= times}


def narrow(nest):
    """Numbers in float32."""
    return tree.map(lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x, nest)
