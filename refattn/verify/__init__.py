"""Statements about attention put to the test: each test returns Claims that print themselves and can be drawn."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import MappingProxyType

from refattn.errors import UsageError
from refattn.verify.claim import Claim, Curve, Heat, Picture

__all__ = ["Claim", "Curve", "Heat", "Picture", "claims", "verify"]

_CLAIMS = {
    "growth": "how work and memory of each scheme grow with n, derived from exact counts",
    "jl": "random projections: laws of lengths and products, bounds on them, and what dimension which formula asks for",
    "linformer": "Linformer's theorems as printed and corrected, with counter-examples; its tables beside counts; residuals",
    "lsh": "how often the angular hash puts two vectors into one bucket, by their angle, by exact binomial tests",
    "spectrum": "singular values of attention maps: the best of any rank, a map without low rank, and a pretrained model's",
    "attention": "how near each approximation is to exact attention as its knob grows: rounds, window, slots",
}
"""A module ``refattn.verify.<name>`` with ``run() -> tuple[Claim, ...]`` for each name; ``run(seed=0)`` if it draws."""


def claims() -> Mapping[str, str]:
    """What can be put to the test: a sentence for each name that ``verify`` takes."""
    return MappingProxyType(_CLAIMS)


def verify(name: str, seed: int | None = None) -> tuple[Claim, ...]:
    """Run the test called `name` and return its claims; `seed`: of what it draws, None for the one that it always takes.

    Raises
    ------
    UsageError
        If there is no such test, which lists those there are, or it draws nothing that a seed would change.
    """
    if name not in _CLAIMS:
        raise UsageError(f"no claim is called {name!r}; there are {', '.join(_CLAIMS)}")
    run = importlib.import_module(f"refattn.verify.{name}").run
    if seed is not None and usual_seed(name) is None:
        raise UsageError(f"{name} draws nothing: a seed would change nothing")
    found: tuple[Claim, ...] = tuple(run() if seed is None else run(seed=seed))
    return found


def usual_seed(name: str) -> int | None:
    """The seed that the test called `name` takes if it is given none; None if it draws nothing."""
    run = importlib.import_module(f"refattn.verify.{name}").run
    taken = inspect.signature(run).parameters.get("seed")
    return None if taken is None else taken.default
