"""Divergence of a student from its teacher, both softened by a temperature.

    loss_t = T² Σ_v p_tv (log p_tv − log q_tv),      p = softmax(teacher/T),   q = softmax(student/T)
    reduction: "mean" over the rows, "sum", or "none"

student, teacher: (..., v), finite   loss: () or, for "none", (...).
Hinton et al. (arXiv:1503.02531), §2: T² keeps gradients of one size as T changes. There it is cross-entropy, which
differs by what does not depend on the student; as torch.nn.functional.kl_div(log q, p, reduction="batchmean")·T².
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.ops.base import axes, one_of, positive, total
from refattn.ops.cross_entropy import REDUCTIONS
from refattn.ops.softmax import row_max
from refattn.shapes import product

Array = Any


@dataclass(frozen=True)
class TemperatureKL:
    """temperature: T, positive; raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        student: Array  # (..., v)
        teacher: Array  # (..., v)

    class Saved(NamedTuple):
        inputs: TemperatureKL.Inputs
        lse: Array  # (..., 1), of student/T
        teacher_lse: Array  # (..., 1)

    temperature: float = 1.0
    reduction: str = "mean"

    kinds: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        positive(temperature=self.temperature)
        one_of(REDUCTIONS, reduction=self.reduction)

    def forward(self, student: Array, teacher: Array) -> tuple[Array, Saved]:
        """The loss, with log Σ exp of both saved."""
        inputs = self.Inputs(student, teacher)
        axes(inputs, student="* v", teacher="* v")
        xp = of(student, teacher).xp
        saved = self.Saved(inputs, *(self._log_sum(x) for x in inputs))
        p, _, apart = self._distributions(saved)
        loss = xp.sum(p * apart, axis=-1)
        if self.reduction != "none":
            loss = xp.sum(loss)
        return loss * (self.temperature**2 * self._share(student)), saved

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """With a = log p − log q:  dstudent = T (q − p) dloss,  dteacher = T p ∘ (a − Σ_v p a) dloss."""
        student = saved.inputs.student
        xp = of(student, dy).xp
        p, log_q, apart = self._distributions(saved)
        pull = (dy[..., None] if self.reduction == "none" else dy) * (self.temperature * self._share(student))
        mean = xp.sum(p * apart, axis=-1, keepdims=True)
        return self.Inputs((xp.exp(log_q) - p) * pull, p * (apart - mean) * pull)

    def cost(self, shapes: Inputs) -> Passes:
        """Three exponentials for each class forward, two backward; two numbers are saved for each row."""
        at = axes(shapes, student="* v", teacher="* v")
        rows = product(at["*"])
        loss, size = rows if self.reduction == "none" else 1, rows * at["v"]
        return Passes(Count(0, 3 * size, loss + 2 * rows), Count(0, 2 * size, total(shapes)))

    def _log_sum(self, x: Array) -> Array:
        xp, s = of(x).xp, x / self.temperature
        c = row_max(s, None)
        return c + xp.log(xp.sum(xp.exp(s - c), axis=-1, keepdims=True)) if x.shape[-1] else c

    def _distributions(self, saved: Saved) -> tuple[Array, Array, Array]:
        """p, log q, log p − log q."""
        student, teacher = (x / self.temperature for x in saved.inputs)
        log_q, log_p = student - saved.lse, teacher - saved.teacher_lse
        return of(student, teacher).xp.exp(log_p), log_q, log_p - log_q

    def _share(self, x: Array) -> float:
        return 1.0 / max(product(x.shape[:-1]), 1) if self.reduction == "mean" else 1.0
