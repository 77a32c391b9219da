"""Statements about attention put to the test: each test returns Claims that print themselves and can be drawn."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from refattn.errors import UsageError
from refattn.verify.claim import Claim, Curve, Picture

__all__ = ["Claim", "Curve", "Picture", "claims", "verify"]

_CLAIMS = {"growth": "how work and memory of each scheme grow with n, derived from exact counts"}
"""A module ``refattn.verify.<name>`` with ``run() -> tuple[Claim, ...]`` for each name."""


def claims() -> Mapping[str, str]:
    """What can be put to the test: a sentence for each name that ``verify`` takes."""
    return MappingProxyType(_CLAIMS)


def verify(name: str) -> tuple[Claim, ...]:
    """Run the test called `name` and return its claims.

    Raises
    ------
    UsageError
        If there is no such test; the message lists those there are.
    """
    if name not in _CLAIMS:
        raise UsageError(f"no claim is called {name!r}; there are {', '.join(_CLAIMS)}")
    run = importlib.import_module(f"refattn.verify.{name}").run
    found: tuple[Claim, ...] = tuple(run())
    return found
