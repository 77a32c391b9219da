"""Kernels: a generic text that defines a result, and what a backend may put in its place."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from refattn.backend import of

F = TypeVar("F", bound=Callable[..., Any])

GENERIC: dict[str, Callable[..., Any]] = {}
"""Every overridable function by name; ``__wrapped__`` is its generic text, which the override laws compare with."""


def compiling() -> bool:
    """Whether compiled kernels run: everything but REFATTN_NUMBA=0 means so."""
    return os.environ.get("REFATTN_NUMBA", "1").strip() != "0"


def text(name: str) -> Callable[..., Any]:
    """The generic text of a kernel, whatever a backend has in its place."""
    generic: Any = GENERIC[name]
    return cast(Callable[..., Any], generic.__wrapped__)


def kernel(name: str) -> Callable[[F], F]:
    """Mark a generic text as overridable: a backend whose table has `name` runs its own function instead.

    The override has the generic text's signature and structure of results; it returns ``NotImplemented`` for what it
    does not handle, and then the generic text runs.
    """

    def mark(generic: F) -> F:
        @functools.wraps(generic)
        def call(*args: Any, **options: Any) -> Any:
            override = of(*args).kernels.get(name)
            out = NotImplemented if override is None else override(*args, **options)
            return generic(*args, **options) if out is NotImplemented else out

        GENERIC[name] = call
        return cast(F, call)

    return mark
