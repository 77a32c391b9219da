"""What training a layer needs in memory and work, counted by running its own text on arrays that are only shapes.

    peak = the most elements alive at once in a forward and a backward, beside inputs, parameters and dy
    split = model P, optimiser 3P (gradient and two moments), activations A          share = A / (4P + A)

P parameters, A activations, in elements of one size, as of fp32 throughout. The split is that of Qiu et al.
(arXiv:1911.02972), §2, who measured 87.6 % of activations for BERT-base with a profiler; here A is counted, under the
assumption that every array that the forward makes is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refattn import tree
from refattn.backend import load
from refattn.errors import OptionError
from refattn.shapes import Shape, shape_of


@dataclass(frozen=True)
class Memory:
    """Of one forward and one backward: elements that are alive after the forward, the peak, and multiply-adds."""

    parameters: int
    kept: int
    peak: int
    macs: int


@dataclass(frozen=True)
class Split:
    """Elements held in training: the model, gradients and two moments of it, activations."""

    model: int
    activations: int

    @property
    def optimiser(self) -> int:
        """Gradient, first and second moment of every parameter."""
        return 3 * self.model

    @property
    def share(self) -> float:
        """Activations of the whole."""
        return self.activations / (self.model + self.optimiser + self.activations)

    def __str__(self) -> str:
        whole = self.model + self.optimiser + self.activations
        parts = (("model", self.model), ("optimiser", self.optimiser), ("activations", self.activations))
        lines = [f"{name:<11} {4 * x / 2**30:6.2f} GiB {100 * x / whole:5.1f} %" for name, x in parts]
        return "\n".join([*lines, "fp32; optimiser: gradient and two moments; every array of the forward is kept"])


class _Shapes:
    """A source of shapes where rng.Source gives numbers: parameters of any size at no cost."""

    def at(self, *_: Any) -> _Shapes:
        return self

    def normal(self, shape: Shape, _: float) -> Shape:
        return shape

    def filled(self, shape: Shape, _: float) -> Shape:
        return shape


def parameters(layer: Any, sizes: Mapping[str, int]) -> Any:
    """The shapes of a layer's parameters, in their nest."""
    return layer.init(sizes, _Shapes())


def measure(layer: Any, sizes: Mapping[str, int], x: Shape, block: int | None = 256, **more: Any) -> Memory:
    """Count a forward and a backward of x of this shape, `block` rows of queries at a time; more: shapes of other inputs.

    Micro-batches accumulate: each part goes backward before the next goes forward, and `kept` is then 0.
    """
    reading: Any = load("counting", block=block)
    given = reading.shaped(layer.Inputs(x, parameters(layer, sizes), **more))
    kept = 0
    with reading.counted() as tally:
        if hasattr(layer, "accumulate"):
            layer.accumulate(given, lambda y, _: reading.shaped(y.shape))
        else:
            y, saved = layer.forward(*given)
            kept = reading.tally.live
            dy = reading.shaped(layer.result(tree.map(shape_of, given)))
            layer.vjp(saved, dy)
            del y, saved
    return Memory(layer.parameters(sizes), kept, tally.peak, tally.macs)


def everything(layer: Any, sizes: Mapping[str, int], x: Shape) -> int:
    """How many elements all arrays have that a forward makes, whole rows of queries at once; views have none."""
    reading: Any = load("counting", block=None)
    make, arrays = reading.new, []

    def made(*args: Any, **named: Any) -> Any:
        arrays.append(make(*args, **named))
        return arrays[-1]

    reading.new = made
    with reading.counted() as tally:
        layer.forward(*reading.shaped(layer.Inputs(x, parameters(layer, sizes))))  # `arrays` holds what it drops
    live: int = tally.live
    return live


def batch_of(share: float, model: int, item: int) -> float:
    """The batch, not a whole number as a rule, whose activations are this share; `item`: activations of one example."""
    if not 0.0 < share < 1.0:
        raise OptionError(f"share={share!r}: give a number between 0 and 1")
    return 4 * model * share / (1.0 - share) / item
