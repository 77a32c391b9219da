"""Any library that speaks the array API standard (torch, jax, array_api_strict, …): the generic path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

from refattn.errors import BackendUnavailable, OptionError


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
    try:
        module = importlib.import_module("jax.numpy" if library == "jax" else library)
    except ImportError as error:
        raise BackendUnavailable(f"{library} is not installed ({error}): pip install {library}") from None
    if array_api_compat.is_torch_namespace(module):
        return importlib.import_module("array_api_compat.torch")
    if not (hasattr(module, "asarray") and hasattr(module, "matmul")):
        raise OptionError(f"library={library!r} is no array API library: it has no asarray and matmul")
    return module


def _holds(library: str) -> Callable[[Any], bool]:
    """Whether the elements of what has the type of the library's arrays are in memory: those of sparse tensors are not."""
    if library == "torch":
        strided = importlib.import_module("torch").strided
        return lambda x: x.layout is strided
    return lambda x: True


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
    holds: Callable[[Any], bool]
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
    """The backend of an array API library, by the name of its root module.

    Raises
    ------
    BackendUnavailable
        If the library can't be imported.
    OptionError
        If `library` is no name of a root module, or that of a module that is no array API library.
    """
    if not isinstance(library, str) or not library.isidentifier():
        raise OptionError(f"library={library!r}: give the name of an array library's root module, as 'torch'")
    return ArrayApiBackend(library, _namespace(library), _stop_gradient(library), _holds(library), _kernels(library))
