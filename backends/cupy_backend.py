"""CuPy: the namespace, and which generic kernels are replaced.

This module imports without CuPy and without a GPU; ``backend()`` raises one ``BackendUnavailable`` if either is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refattn.errors import BackendUnavailable

INSTALL = "pip install 'refattn[cuda13]' (CUDA 13 driver) or 'refattn[cuda12]' (CUDA 12), never both"


@dataclass(frozen=True)
class CupyBackend:
    """Arrays on the current CUDA device; half precision is computed in float32."""

    cupy: Any
    xp: Any
    name: str = "cupy"
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    block: int | None = 256

    def lift(self, x: Any, like: Any = None) -> Any:
        return self.cupy.arange(x.start, x.stop, x.step) if isinstance(x, range) else self.cupy.asarray(x)

    def host(self, x: Any) -> Any:
        return self.cupy.asnumpy(x)

    def constant(self, x: Any) -> Any:
        return x

    def widen(self, x: Any) -> Any:
        return x.astype(self.cupy.float32) if x.dtype.name in ("float16", "bfloat16") else x

    def narrow(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype, copy=False)

    def settle(self, x: Any) -> Any:
        return x


def erf(x: Any) -> Any:
    """CuPy's, which compiles when it is first used."""
    return importlib.import_module("cupyx.scipy.special").erf(x)


def backend() -> CupyBackend:
    """The CuPy backend, once CuPy is installed and sees a device.

    Raises
    ------
    BackendUnavailable
        If CuPy is not installed, or finds no CUDA device.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise BackendUnavailable(f"CuPy is not installed ({error}): {INSTALL}") from None
    if not cupy.is_available():
        raise BackendUnavailable(
            f"CuPy {cupy.__version__} is installed but sees no CUDA device: it needs an NVIDIA GPU and its driver "
            "(the CUDA libraries come with 'cupy-cuda13x[ctk]'); the same call runs on NumPy arrays"
        )
    return CupyBackend(cupy, importlib.import_module("array_api_compat.cupy"), kernels={"erf": erf})
