"""Gated linear unit: one half of the features lets the other half through.

    y = value ∘ f(gate)            f: sigmoid (GLU), relu (ReGLU), gelu (GEGLU), silu (SwiGLU), or any activation

value, gate, y: equal shapes. They are two inputs, since published layers disagree about which half comes first: the
gate is the second half in torch.nn.functional.glu. Dauphin et al. (arXiv:1612.08083); Shazeer (arXiv:2002.05202).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.cost import Count, Passes
from refattn.ops.activation import KINDS
from refattn.ops.base import axes, one_of, total

Array = Any


@dataclass(frozen=True)
class GLU:
    """y = value ∘ f(gate), f the activation that `kind` names; raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        value: Array
        gate: Array

    class Saved(NamedTuple):
        inputs: GLU.Inputs

    kind: str = "sigmoid"

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        one_of(KINDS, kind=self.kind)

    def forward(self, value: Array, gate: Array) -> tuple[Array, Saved]:
        """y; f(gate) is computed again by the backward."""
        inputs = self.Inputs(value, gate)
        axes(inputs, value="*", gate="*")
        return value * KINDS[self.kind].value(gate), self.Saved(inputs)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dvalue = dy ∘ f(gate),  dgate = dy ∘ value ∘ f′(gate)."""
        value, gate = saved.inputs
        kind = KINDS[self.kind]
        return self.Inputs(dy * kind.value(gate), kind.pull(gate, dy * value))

    def cost(self, shapes: Inputs) -> Passes:
        """No contraction; the exponentials of the activation, and of its slope too in the backward."""
        axes(shapes, value="*", gate="*")
        size, kind = total(shapes, "gate"), KINDS[self.kind]
        return Passes(Count(0, size * kind.exps, size), Count(0, size * (kind.exps + kind.pull_exps), 2 * size))
