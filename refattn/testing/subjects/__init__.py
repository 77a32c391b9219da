"""What the kit has to know of each scheme that it judges: one file for each, named like that of the scheme."""

from __future__ import annotations

import importlib
from typing import Any

from refattn.errors import OptionError
from refattn.expression import written
from refattn.testing.subjects.base import Decisions, Subject

__all__ = ["Decisions", "Subject", "kernel_of", "subject_of"]

HOMES = {
    "Dense": "dense",
    "Linear": "linear",
    "LSH": "lsh",
    "Sparse": "sparse",
    "Linformer": "linformer",
}
"""Scheme → the file here whose SUBJECT describes it."""


def subject_of(scheme: Any) -> Subject:
    """What the kit knows of a configured scheme, or of a class of schemes.

    Raises
    ------
    OptionError
        For a scheme that it has no cases for.
    """
    kind = scheme if isinstance(scheme, type) else type(scheme)
    for base in kind.__mro__:
        if base.__name__ in HOMES and base.__module__.startswith("refattn.schemes."):
            found: Subject = importlib.import_module(f"refattn.testing.subjects.{HOMES[base.__name__]}").SUBJECT
            return found
    shown = kind.__name__ if kind is scheme else written(scheme)
    *others, last = HOMES
    judged = f"{', '.join(others)} and {last}"
    raise OptionError(f"{shown}: the kit judges kernels of {judged}, it has no cases for {kind.__name__}")


def kernel_of(scheme: Any) -> Any:
    """The staged kernel of a scheme: called with (scheme, inputs, patches, dtype, tile)."""
    return subject_of(scheme).kernel
