"""Activations: functions of one number, applied to every element, with their slopes.

    relu max(x, 0)                    squared_relu max(x, 0)²              sigmoid σ(x) = 1/(1 + exp(−x))
    silu x σ(x)                       gelu x Φ(x) = ½ x (1 + erf(x/√2))
    gelu_tanh ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    laplace ½ (1 + erf((x − μ)/(σ√2))), μ = √½, σ = 1/√(4π), that is ½ (1 + erf(√(2π) (x − √½)))

The slope of relu at 0 is 0. So et al. (arXiv:2109.08668) for the squared relu, Hendrycks and Gimpel (arXiv:1606.08415)
for both gelus, Elfwing et al. (arXiv:1702.03118) for silu, Ma et al. (arXiv:2209.10655) for laplace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import one_of, total
from refattn.ops.erf import bounded, erf, pi, root

Array = Any
FAR = 100.0  # beyond it Φ, σ and tanh are 0 or 1 in any float
CUBE = 0.044715


def sigmoid(x: Array) -> Array:
    """exp(min(x, 0)) / (1 + exp(−|x|)): overflows nowhere, and loses no digit where it is small."""
    xp = of(x).xp
    return xp.exp(xp.minimum(x, 0.0)) / (1.0 + xp.exp(-xp.abs(x)))


def _relu(x: Array) -> Array:
    return of(x).xp.maximum(x, 0.0)


def _relu_pull(x: Array, dy: Array) -> Array:
    return of(x, dy).xp.where(x > 0.0, dy, 0.0)


def _squared_relu(x: Array) -> Array:
    up = _relu(x)
    return up * up


def _sigmoid_slope(x: Array) -> Array:
    s = sigmoid(x)
    return s * (1.0 - s)


def _silu(x: Array) -> Array:
    return x * sigmoid(x)


def _silu_slope(x: Array) -> Array:
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x * root(x, 0.5)))


def _gelu_slope(x: Array) -> Array:
    """Φ(x) + x φ(x), φ the density of the normal distribution."""
    near = bounded(x, FAR)
    density = of(x).xp.exp(-0.5 * (near * near)) / root(x, 2.0 * pi(x))
    return 0.5 * (1.0 + erf(x * root(x, 0.5))) + x * density


def _tanh_part(x: Array) -> tuple[Array, Array]:
    """t = tanh(√(2/π) (x + 0.044715 x³)), and the derivative of what it is the tanh of."""
    near, factor = bounded(x, FAR), root(x, 2.0 / pi(x))
    square = near * near
    t = of(x).xp.tanh(near * (1.0 + CUBE * square) * factor)
    return t, (1.0 + (3.0 * CUBE) * square) * factor


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + _tanh_part(x)[0])


def _gelu_tanh_slope(x: Array) -> Array:
    t, inner = _tanh_part(x)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


def _laplace(x: Array) -> Array:
    return 0.5 * (1.0 + erf((x - root(x, 0.5)) * root(x, 2.0 * pi(x))))


def _laplace_slope(x: Array) -> Array:
    """√2 exp(−2π (x − √½)²), the density of a normal distribution of mean √½ and variance 1/4π."""
    away = bounded(x - root(x, 0.5), FAR)
    return of(x).xp.exp(-(away * away) * (2.0 * pi(x))) * root(x, 2.0)


class Kind(NamedTuple):
    """f, (x, dy) ↦ dy f′(x), and the exponentials that each takes for one element."""

    value: Callable[[Array], Array]
    pull: Callable[[Array, Array], Array]
    exps: int
    pull_exps: int


def _times(slope: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, dy: dy * slope(x)


KINDS: dict[str, Kind] = {
    "relu": Kind(_relu, _relu_pull, 0, 0),
    "squared_relu": Kind(_squared_relu, lambda x, dy: 2.0 * dy * _relu(x), 0, 0),
    "sigmoid": Kind(sigmoid, _times(_sigmoid_slope), 2, 2),
    "silu": Kind(_silu, _times(_silu_slope), 2, 2),
    "gelu": Kind(_gelu, _times(_gelu_slope), 1, 2),
    "gelu_tanh": Kind(_gelu_tanh, _times(_gelu_tanh_slope), 0, 0),
    "laplace": Kind(_laplace, _times(_laplace_slope), 1, 1),
}


@dataclass(frozen=True)
class Activation:
    """y = f(x), f the one of the module's functions that `kind` names; OptionError if there is none."""

    class Inputs(NamedTuple):
        x: Array

    class Saved(NamedTuple):
        inputs: Activation.Inputs

    kind: str = "gelu"

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        one_of(KINDS, kind=self.kind)

    def forward(self, x: Array) -> tuple[Array, Saved]:
        """y; the backward needs x alone."""
        return KINDS[self.kind].value(x), self.Saved(self.Inputs(x))

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dx = dy f′(x)."""
        return self.Inputs(KINDS[self.kind].pull(saved.inputs.x, dy))

    def cost(self, shapes: Inputs) -> Passes:
        """No contraction; the exponentials of the function and of its slope."""
        size, kind = total(shapes), KINDS[self.kind]
        return Passes(Count(0, size * kind.exps, size), Count(0, size * kind.pull_exps, size))
