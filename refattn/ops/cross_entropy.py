"""Cross-entropy: what the softmax of a row of logits leaves to be said about its target.

    loss_t = log Σ_v exp(s_tv) − s_t(target_t)            0 for a target that is ignored
    reduction: "mean" over the targets that count (0 if none does), "sum", or "none"

logits: (..., v)   targets: (...), whole numbers 0 … v − 1 or `ignore`   loss: () or, for "none", (...).
As torch.nn.functional.cross_entropy, whose ignore_index is −100; the mean over no target is NaN there. NumPy's targets are
checked; on other devices what becomes of a target that names no class is up to the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.ops.base import axes, matches, one_of, total
from refattn.ops.softmax import row_max
from refattn.shapes import product, shape_of

Array = Any
REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class CrossEntropy:
    """ignore: the target that does not count, or None; raises OptionError or ShapeError."""

    class Inputs(NamedTuple):
        logits: Array  # (..., v)
        targets: Array  # (...), int

    class Saved(NamedTuple):
        inputs: CrossEntropy.Inputs
        lse: Array  # (..., 1)

    reduction: str = "mean"
    ignore: int | None = -100

    kinds: ClassVar[Mapping[str, str]] = {"targets": "int"}

    def __post_init__(self) -> None:
        one_of(REDUCTIONS, reduction=self.reduction)
        if self.ignore is not None and (isinstance(self.ignore, bool) or not isinstance(self.ignore, int)):
            raise OptionError(f"ignore={self.ignore!r}: give the target that does not count, a whole number, or None")

    def forward(self, logits: Array, targets: Array) -> tuple[Array, Saved]:
        """The loss, with log Σ exp saved."""
        inputs = self.Inputs(logits, targets)
        self._check(inputs)
        xp = of(logits, targets).xp
        c = row_max(logits, None)
        lse = c + xp.log(xp.sum(xp.exp(logits - c), axis=-1, keepdims=True))
        counts, named = self._targets(targets)
        self._within(named, logits.shape[-1])
        loss = (lse - xp.take_along_axis(logits, named[..., None], axis=-1))[..., 0]
        loss = loss if counts is None else xp.where(counts, loss, 0.0)
        if self.reduction != "none":
            loss = xp.sum(loss)
        return loss * self._share(lse, counts), self.Saved(inputs, lse)

    def vjp(self, saved: Saved, dy: Array) -> Inputs:
        """dlogits_tv = (softmax(s_t)_v − [v = target_t]) dloss_t, dloss_t = dy [counts] (/ how many for "mean")."""
        (logits, targets), lse = saved
        b = of(logits, targets, dy)
        xp = b.xp
        counts, named = self._targets(targets)
        pull = dy * self._share(lse, counts)
        pull = pull[..., None] if self.reduction == "none" else pull
        p = xp.exp(logits - lse)
        hit = named[..., None] == b.lift(range(logits.shape[-1]), logits)
        ds = xp.where(hit, p - 1.0, p) * pull
        return self.Inputs(ds if counts is None else xp.where(counts[..., None], ds, 0.0), None)

    def cost(self, shapes: Inputs) -> Passes:
        """One exponential for each logit and pass; log Σ exp is saved."""
        at = self._check(shapes)
        rows = product(at["*"])
        loss = rows if self.reduction == "none" else 1
        return Passes(Count(0, rows * at["v"], rows + loss), Count(0, rows * at["v"], rows * at["v"]))

    def _check(self, inputs: Inputs) -> dict[str, Any]:
        at = axes(inputs, logits="* v")
        matches("targets", shape_of(inputs.targets), at["*"], logits=shape_of(inputs.logits))
        if at["v"] == 0 and total(inputs, "targets"):
            raise ShapeError(f"logits has shape {shape_of(inputs.logits)}: no class, but there are targets")
        return at

    def _within(self, named: Array, classes: int) -> None:
        """Refuse NumPy's targets that name no class; on other devices that would mean to wait for them."""
        if product(named.shape) and of(named).name == "numpy":
            least, most = int(named.min()), int(named.max())
            if least < 0 or most >= classes:
                raise OptionError(f"targets from {least} to {most}, but the classes are 0 … {classes - 1} and ignore="
                                  f"{self.ignore}")

    def _targets(self, targets: Array) -> tuple[Array | None, Array]:
        """Which targets count (None: all), and targets that all name a class."""
        if self.ignore is None:
            return None, targets
        counts = targets != self.ignore
        return counts, of(targets).xp.where(counts, targets, 0)

    def _share(self, lse: Array, counts: Array | None) -> Any:
        """What one target weighs: 1 over how many count, for "mean"."""
        if self.reduction != "mean":
            return 1.0
        if counts is None:
            return 1.0 / max(product(lse.shape), 1)
        xp = of(lse, counts).xp
        many = xp.sum(xp.where(counts, xp.ones_like(lse[..., 0]), 0.0))
        return 1.0 / xp.maximum(many, 1.0)
