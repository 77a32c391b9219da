"""The conformance kit: cases, derived tolerances, verdicts, mutants and diagnosis for attention kernels.

    from refattn.testing import assert_conforms, check
    assert_conforms(my_attention, Dense(causal=True), dtype="bfloat16")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refattn.testing.check import assert_conforms, check
    from refattn.testing.sampled import check_rows
    from refattn.testing.verdicts import Report

__all__ = ["Report", "assert_conforms", "check", "check_rows"]
_HOMES = {"check": "check", "assert_conforms": "check", "check_rows": "sampled", "Report": "verdicts"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'refattn.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"refattn.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
