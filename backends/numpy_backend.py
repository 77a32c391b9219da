"""NumPy: the namespace, and which generic kernels are replaced."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

HALF = ("float16", "bfloat16")


def erf(x: Any) -> Any:
    """SciPy's, which loads when it is first used."""
    return importlib.import_module("scipy.special").erf(x)


@dataclass(frozen=True)
class NumpyBackend:
    """Arrays in host memory; half precision is computed in float32."""

    name: str = "numpy"
    xp: Any = xp
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: {"erf": erf})
    block: int | None = 256

    def lift(self, x: Any, like: Any = None) -> Any:
        return np.arange(x.start, x.stop, x.step) if isinstance(x, range) else np.asarray(x)

    def host(self, x: Any) -> Any:
        return np.asarray(x)

    def constant(self, x: Any) -> Any:
        return x

    def widen(self, x: Any) -> Any:
        return x.astype(np.float32) if x.dtype.name in HALF else x

    def narrow(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype, copy=False)

    def settle(self, x: Any) -> Any:
        return x


def backend() -> NumpyBackend:
    """The NumPy backend."""
    return NumpyBackend()
