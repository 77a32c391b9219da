"""Linear attention as published code has it, several fields at a time, and mistakes that happen before the feature map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refattn.backend import of
from refattn.features.elu import Elu
from refattn.features.relu import Relu
from refattn.schemes.linear import Linear
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant

Array = Any
FIELDS = ("feature", "scale", "normalise", "eps", "eps_at")
"""What a convention decides; order, alignment and heads are those of the scheme that is asked for."""


def _published(name: str, convention: str, title: str) -> Mutant:
    """A convention of which the scheme differs in two fields at least: one alone is a neighbour, which has its own name."""
    other = {field: getattr(Linear.conventions[convention], field) for field in FIELDS}

    def instead(scheme: Any) -> Any:
        return replace(scheme, **other)

    def applies(case: Case, dtype: str) -> bool:
        scheme = case.scheme
        near = isinstance(scheme.feature, Elu) and scheme.normalise and scheme.eps > 0
        return not near and sum(getattr(scheme, field) != x for field, x in other.items()) > 1

    return Mutant(name, "conventions", title, applies, lambda s, x, t: (instead(s), x), instead=instead)


def _curved(case: Case) -> bool:
    """Whether φ(c·x) is no multiple of φ(x), and φ(0) not 0."""
    feature = case.scheme.feature
    return isinstance(feature, Elu) or (isinstance(feature, Relu) and feature.epsilon > 0)


def _unmasked(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
    valid, k = inputs.key_valid, inputs.k
    hidden = of(k).xp.where(valid[..., None, :, None], k, 0.0)
    return scheme, inputs._replace(k=hidden, key_valid=None)


def _scaled(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
    return scheme, inputs._replace(q=inputs.q * float(inputs.q.shape[-1] ** -0.5))


def _of_unscaled(out: dict[str, Array], case: Case, dtype: str, tile: int) -> dict[str, Array]:
    scale = float(case.sizes["d"] ** -0.5)
    return {name: x * scale if name == "dq" else x for name, x in out.items()}


def _padded(case: Case, dtype: str) -> bool:
    return case.given("key_valid") is not None and _curved(case)


def _wide(case: Case, dtype: str) -> bool:
    return _curved(case) and case.sizes["d"] > 1


PUBLISHED = (
    _published("Cfla", "fla", "as fla and ONNX: no feature map, weights scaled by 1/√d, not divided by their sum"),
    _published("Cidiap", "fast-transformers", "as fast-transformers and Long Range Arena: φ = elu + 1, ε = 1e-6 on the sum of weights"),
    _published("Cperformer", "performer-pytorch", "as performer-pytorch: ε = 1e-6 is added to the sum of keys"),
)
BEFORE = (
    Mutant("R4b", "padding", "padded keys are set to 0 before the feature map and then count as any other", _padded, _unmasked),
    Mutant("R1b", "scale", "queries are divided by √d before the feature map", _wide, _scaled, after=_of_unscaled),
)
