"""Any library that speaks the array API standard (torch, jax, array_api_strict, …): the generic path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np


def _stop_gradient(library: str) -> Callable[[Any], Any]:
    """How the library is told that a value is a gauge; the identity where there is nothing to tell."""
    if library == "torch":
        return lambda x: x.detach()
    if library == "jax":
        stop: Callable[[Any], Any] = importlib.import_module("jax").lax.stop_gradient
        return stop
    return lambda x: x


def _namespace(library: str) -> Any:
    """The compat namespace of a library that has one, else the library itself."""
    if library == "jax":
        return sys.modules["jax.numpy"]
    if array_api_compat.is_torch_namespace(sys.modules[library]):
        return importlib.import_module("array_api_compat.torch")
    return sys.modules[library]


def _kernels(library: str) -> dict[str, Callable[..., Any]]:
    """The words beyond the standard that the library has itself, and differentiates."""
    homes = {"torch": "torch.special", "jax": "jax.scipy.special"}
    return {"erf": importlib.import_module(homes[library]).erf} if library in homes else {}


@dataclass(frozen=True)
class ArrayApiBackend:
    """Arrays of `name`; half precision is computed in float32; all rows at once, as an autodiff tape wants it."""

    name: str
    xp: Any
    constant: Callable[[Any], Any]
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    block: int | None = None

    def lift(self, x: Any, like: Any = None) -> Any:
        x = np.arange(x.start, x.stop, x.step) if isinstance(x, range) else np.asarray(x)
        device = None if like is None or self.name == "jax" else like.device  # jax tracers have no device
        return self.xp.asarray(x) if device is None else self.xp.asarray(x, device=device)

    def host(self, x: Any) -> Any:
        if self.name == "array_api_strict":
            return np.asarray(x.to_device(self.xp.Device("CPU_DEVICE")))
        return x.detach().cpu().numpy() if self.name == "torch" else np.asarray(x)

    def widen(self, x: Any) -> Any:
        half = str(x.dtype).rpartition(".")[2] in ("float16", "bfloat16")
        return self.xp.astype(x, self.xp.float32) if half else x

    def narrow(self, x: Any, like: Any) -> Any:
        return self.xp.astype(x, like.dtype, copy=False)

    def settle(self, x: Any) -> Any:
        return x


def backend(library: str) -> ArrayApiBackend:
    """The backend of an imported array API library, by the name of its root module."""
    return ArrayApiBackend(library, _namespace(library), _stop_gradient(library), _kernels(library))
