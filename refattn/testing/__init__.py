"""The conformance kit: cases, derived tolerances, verdicts, mutants and diagnosis for attention kernels.

    from refattn.testing import assert_conforms, check
    assert_conforms(my_attention, Dense(causal=True), dtype="bfloat16")
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refattn.testing.check import assert_conforms, check
    from refattn.testing.sampled import check_rows
    from refattn.testing.verdicts import Report

__all__ = ["Report", "assert_conforms", "check", "check_rows"]
_HOMES = {"check": "check", "assert_conforms": "check", "check_rows": "sampled", "Report": "verdicts"}


class _Kit(ModuleType):
    """Importing a submodule sets it as an attribute of its package: not here, where the name is that of a function in it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Kit


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'refattn.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"refattn.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
