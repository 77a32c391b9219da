"""Array libraries that candidates are written in: how an array is handed over, taken back, and differentiated.

A library is imported when it is opened, never before. Values travel bit for bit, bfloat16 as ml_dtypes arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from refattn import backend
from refattn.errors import BackendUnavailable, UsageError

Array = Any
Results = dict[str, Array]
Pull = Callable[[Array, Array], tuple[dict[str, Array], bool]]

DTYPES = ("float64", "float32", "float16", "bfloat16")


class Malformed(Exception):
    """The candidate ran, but what it returned is not what it should be; the message is the whole story."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype called `name`; ml_dtypes has bfloat16.

    Raises
    ------
    UsageError
        If kernels are not judged in it.
    BackendUnavailable
        If it is bfloat16 and ml_dtypes is not installed.
    """
    if name not in DTYPES:
        raise UsageError(f"dtype={name!r}: choose {', '.join(DTYPES)}")
    if name == "bfloat16":
        _need("ml_dtypes", "pip install 'refattn[kit]'")
    return np.dtype(name)


def statistic(name: str) -> np.dtype[Any]:
    """The dtype of lse beside outputs of dtype `name`: the accumulator's, float32 for half precision."""
    return np.dtype("float64" if name == "float64" else "float32")


def _need(module: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(f"{module} can't be imported ({error}): {install}") from None


def memory(x: Array, strided: bool) -> tuple[Array, Callable[[Array], Array]]:
    """A fresh C-ordered array, and how to see x in it: as it is, or through strides.

    Strided, heads and tokens are exchanged in memory; where that changes nothing (one head, one token, no heads), rows
    are one element longer than seen and end in NaN.
    """
    if strided and x.ndim > 2 and min(x.shape[-3:-1]) > 1:
        return np.array(x.swapaxes(-3, -2), order="C"), lambda y: y.swapaxes(-3, -2)
    if strided:
        wide = np.full((*x.shape[:-1], x.shape[-1] + 1), np.nan, x.dtype)
        wide[..., :-1] = x
        return wide, lambda y: y[..., :-1]
    return np.array(x, order="C"), lambda y: y


class Numpy:
    """NumPy itself, and what the other libraries have in common with it. kind: the type of its arrays, for messages."""

    kind = "numpy.ndarray"
    autograd = False

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    @contextmanager
    def session(self) -> Iterator[None]:
        """Stands around everything that the candidate does."""
        yield

    def give(self, x: Array, strided: bool = False) -> Array:
        """A copy of a NumPy array for the candidate, a non-contiguous view if strided."""
        data, view = memory(x, strided)
        return view(self.lift(data))

    def lift(self, x: Array) -> Array:
        """A NumPy array that nobody else holds, in this library."""
        return x

    def is_array(self, x: Any) -> bool:
        """True for arrays of this library."""
        return isinstance(x, np.ndarray)

    def host(self, x: Array) -> Array:
        """The same values in the same dtype as a NumPy array, which may share memory with x."""
        return np.asarray(x)

    def vjp(self, forward: Callable[[Mapping[str, Array]], Results], floats: Mapping[str, Array]) -> tuple[Results, Pull]:
        """Results of forward(floats), and a function of (do, dlse) to (gradients, whether lse carries a gradient)."""
        raise NotImplementedError(f"{self.kind} has no autograd")


class Cupy(Numpy):
    """CuPy on the current CUDA device."""

    kind = "cupy.ndarray"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        cupy: Any = backend.load("cupy")
        self.cupy = cupy.cupy
        try:
            self.lift(np.zeros(1, dtype_of(dtype)))
        except (TypeError, ValueError) as error:
            raise UsageError(f"this CuPy has no arrays of dtype {dtype} ({error}); choose another dtype") from None

    def lift(self, x: Array) -> Array:
        return self.cupy.array(x)

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.cupy.ndarray)

    def host(self, x: Array) -> Array:
        return self.cupy.asnumpy(x)


class Torch(Numpy):
    """torch; inputs are on the CPU, results are fetched from wherever they are."""

    kind = "torch.Tensor"
    autograd = True

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.torch = _need("torch", "pip install torch (or 'refattn[peers]')")

    def lift(self, x: Array) -> Array:
        if x.dtype.name == "bfloat16":
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(x)

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.torch.Tensor)

    def host(self, x: Array) -> Array:
        if x.dtype == self.torch.bfloat16:
            bits = x.detach().view(self.torch.int16).numpy(force=True)
            return bits.view(dtype_of("bfloat16"))
        return x.numpy(force=True)

    def vjp(self, forward: Callable[[Mapping[str, Array]], Results], floats: Mapping[str, Array]) -> tuple[Results, Pull]:
        leaves = {name: x.requires_grad_() for name, x in floats.items()}
        results = forward(leaves)

        def pull(do: Array, dlse: Array) -> tuple[dict[str, Array], bool]:
            o, lse = results["o"], results.get("lse")
            if not o.requires_grad:
                raise Malformed("o carries no gradient: it was detached, computed under no_grad, or left torch on the way")
            pairs = [(o, do)]
            carries = lse is not None and lse.requires_grad
            if carries and dlse is not None:
                pairs.append((lse, dlse))
            grads = self.torch.autograd.grad([y for y, _ in pairs], list(leaves.values()), [g.to(y) for y, g in pairs],
                                             allow_unused=True, materialize_grads=True)
            return dict(zip(leaves, grads, strict=True)), carries

        return results, pull


class Jax(Numpy):
    """jax on its default device, with 64-bit types on where the dtype is float64. Its arrays have no strides to choose."""

    kind = "jax.Array"
    autograd = True

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.jax = _need("jax", "pip install jax (or 'refattn[test]')")

    @contextmanager
    def session(self) -> Iterator[None]:
        if self.dtype != "float64":
            yield
            return
        home = self.jax if hasattr(self.jax, "enable_x64") else importlib.import_module("jax.experimental")
        with home.enable_x64(True):
            yield

    def give(self, x: Array, strided: bool = False) -> Array:
        return self.lift(np.array(x, order="C"))

    def lift(self, x: Array) -> Array:
        return self.jax.numpy.asarray(x)

    def is_array(self, x: Any) -> bool:
        return isinstance(x, self.jax.Array)

    def vjp(self, forward: Callable[[Mapping[str, Array]], Results], floats: Mapping[str, Array]) -> tuple[Results, Pull]:
        xp = self.jax.numpy

        def split(*xs: Array) -> tuple[Results, Results]:
            """Results that have a tangent, and decisions, which have none."""
            found = forward(dict(zip(floats, xs, strict=True)))
            smooth = {name: y for name, y in found.items() if xp.issubdtype(y.dtype, xp.floating)}
            return smooth, {name: y for name, y in found.items() if name not in smooth}

        smooth, pullback, decisions = self.jax.vjp(split, *floats.values(), has_aux=True)
        results = {**smooth, **decisions}

        def pull(do: Array, dlse: Array) -> tuple[dict[str, Array], bool]:
            cotangents = {name: xp.zeros_like(y) for name, y in smooth.items()}
            carries = False
            if "lse" in results:
                # stop_gradient leaves no trace but gradients of 0; where they are rightly 0 either answer is right.
                some = cotangents["lse"] + 1 if dlse is None else dlse.astype(results["lse"].dtype)
                carries = any(bool(xp.any(g != 0)) for g in pullback({**cotangents, "lse": some}))
                cotangents["lse"] = cotangents["lse"] if dlse is None else some
            cotangents["o"] = do.astype(results["o"].dtype)
            return dict(zip(floats, pullback(cotangents), strict=True)), carries

        return results, pull


LIBRARIES: dict[str, type[Numpy]] = {"numpy": Numpy, "torch": Torch, "jax": Jax, "cupy": Cupy}


def open_library(name: str, dtype: str) -> Numpy:
    """The library called `name`, imported, for arrays of `dtype`.

    Raises
    ------
    UsageError
        If there is no such library or dtype.
    BackendUnavailable
        If it is not installed or finds no device; the message says what to install.
    """
    if name not in LIBRARIES:
        raise UsageError(f"library={name!r}: choose {', '.join(LIBRARIES)}")
    dtype_of(dtype)
    return LIBRARIES[name](dtype)
