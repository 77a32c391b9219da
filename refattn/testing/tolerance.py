"""What a correct kernel may return: the scheme's own text read by the rounding backend, tensor by tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.backend import load, using
from refattn.errors import BackendUnavailable
from refattn.precision import Precision
from refattn.testing.verdicts import Band

Values = Any


def expect(scheme: Any, inputs: Any, precision: Precision, do: Values = None, dlse: Values = None) -> dict[str, Band]:
    """Reference value, rigorous bound and predicted spread of every result of a kernel of this precision.

    inputs: the scheme's Inputs, floats in float64 holding values that are exact in the candidate's dtype. With ``do`` also
    the gradients of ⟨do, o⟩ (+ ⟨dlse, lse⟩), called d<input>.
    """
    with using(load("rounding", precision=precision)):
        _, saved = scheme.forward(*inputs)
        read = {name: getattr(saved, name) for name in scheme.outputs}
        if do is not None:
            grads = scheme.vjp(saved, do, **({} if dlse is None else {"dlse": dlse}))
            read |= {f"d{name}": g for name, g in grads._asdict().items() if g is not None}
    return {name: band(x) for name, x in read.items()}


def band(x: Any) -> Band:
    """An array of the rounding backend as plain float64 values, bounds and standard deviations."""
    value = np.asarray(x.value, dtype=np.float64)
    return Band(value, np.broadcast_to(x.bound, value.shape), np.broadcast_to(x.sigma, value.shape))


def exact_in(x: Values, dtype: str) -> Values:
    """x rounded to `dtype`, as float64: values that a candidate of that dtype receives unchanged."""
    if dtype == "bfloat16":
        return _bfloat16(x).astype(np.float64)
    return np.asarray(x, dtype=np.float64).astype(dtype).astype(np.float64)


def toward_zero(x: Values, dtype: str) -> Values:
    """x cut off to `dtype`, as float64: the nearest number of the dtype that is not larger in magnitude."""
    near, zero = exact_in(x, dtype), np.zeros(())
    if dtype == "bfloat16":
        lower = (near.astype(np.float32).view(np.uint32) - np.uint32(1 << 16)).view(np.float32)
    else:
        lower = np.nextafter(near.astype(dtype), zero.astype(dtype))
    return np.where(np.abs(near) > np.abs(x), lower.astype(np.float64), near)


def _bfloat16(x: Values) -> Values:
    """x rounded to bfloat16, as float32: the upper 16 bits, to nearest, ties to even. It needs no ml_dtypes."""
    with np.errstate(over="ignore"):
        near = np.asarray(x, dtype=np.float32)
    bits = near.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(near), near, rounded.view(np.float32))


def storage(dtype: str) -> Any:
    """The NumPy dtype called `dtype`; bfloat16 comes from ml_dtypes.

    Raises
    ------
    BackendUnavailable
        If it is bfloat16 and ml_dtypes is not installed.
    """
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise BackendUnavailable(f"NumPy has bfloat16 by ml_dtypes ({error}): pip install 'refattn[kit]'") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def largest(dtype: str) -> float:
    """The largest finite number of the dtype called `dtype`."""
    return (2.0 - 2.0**-7) * 2.0**127 if dtype == "bfloat16" else float(np.finfo(dtype).max)
