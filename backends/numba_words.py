"""The words that all Numba kernels are made of: matrix products by SciPy's BLAS, an exponential that vectorises, and what
a row of a softmax needs.

Numba's cache does not see a change here from a kernel in another file: after one, remove ``__pycache__/numba_*.nbi``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic, overload

Array = Any
F = TypeVar("F", bound=Callable[..., Any])
_jit: Any = njit  # whose stubs do not know all of its options
EXACT = {"contract", "nsz"}  # keeps NaN and ±inf, and the order of sums
SUMS = EXACT | {"reassoc"}  # sums may be taken in lanes
LANES = 64  # of a maximum, which does not vectorise by itself
N, T = np.int8(ord("N")), np.int8(ord("T"))


def word(fastmath: set[str] = EXACT, **options: Any) -> Callable[[F], F]:
    """A part of kernels, which only they call: ways in from Python and C would take as long to compile as all the rest."""
    made: Callable[[F], F] = _jit(nogil=True, fastmath=fastmath, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    return made


def kernel(text: Any, *takes: Any) -> Any:
    """A text compiled at once for arguments of these types, or read from the cache."""
    return _jit(types.void(*takes), nogil=True, cache=True, fastmath=EXACT, no_cfunc_wrapper=True)(text)


def gemm_address(dtype: str) -> int:
    """Where the BLAS of SciPy keeps its product of matrices of this dtype."""
    address: int = get_cython_function_address("scipy.linalg.cython_blas", {"float32": "sgemm", "float64": "dgemm"}[dtype])
    return address


def _word(code: Any) -> Any:
    """An intrinsic, as Numba calls instructions that a function emits."""
    return intrinsic(code)


@_word
def _gemm(context, address, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):  # type: ignore[no-untyped-def]
    """Fortran's xGEMM at an address, which as an argument does not keep a kernel from being cached."""
    real, whole, where, letter = alpha, types.int32, types.intp, types.int8
    signature = types.void(where, letter, letter, whole, whole, whole, real, where, whole, where, whole, real, where, whole)

    def emit(context, builder, _, args):  # type: ignore[no-untyped-def]
        put: Any = cgutils.alloca_once_value
        number = context.get_value_type(real).as_pointer()
        integer, character = ir.IntType(32).as_pointer(), ir.IntType(8).as_pointer()
        takes = [character, character, integer, integer, integer, number, number, integer, number, integer, number, number,
                 integer]
        gemm = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), takes).as_pointer())
        pointers = (6, 8, 11)  # a, b, c
        builder.call(gemm, [builder.inttoptr(x, number) if i in pointers else put(builder, x)
                            for i, x in enumerate(args[1:])])
        return context.get_dummy_value()

    return signature, emit


@word()
def lead(x: Array) -> Any:
    """Elements from one row to the next; rows are contiguous."""
    return np.int32(max(x.strides[0] // x.itemsize, x.shape[1], 1))


@word()
def times(gemm: int, alpha: Any, a: Array, b: Array, beta: Any, c: Array) -> None:
    """c ← alpha a b + beta c.   (n, m) (m, d) → (n, d)"""
    _gemm(gemm, N, N, np.int32(b.shape[1]), np.int32(a.shape[0]), np.int32(a.shape[1]), alpha, b.ctypes.data, lead(b),
          a.ctypes.data, lead(a), beta, c.ctypes.data, lead(c))


@word()
def times_turned(gemm: int, alpha: Any, a: Array, b: Array, beta: Any, c: Array) -> None:
    """c ← alpha a bᵀ + beta c.   (n, d) (m, d) → (n, m)"""
    _gemm(gemm, T, N, np.int32(b.shape[0]), np.int32(a.shape[0]), np.int32(a.shape[1]), alpha, b.ctypes.data, lead(b),
          a.ctypes.data, lead(a), beta, c.ctypes.data, lead(c))


@word()
def turned_times(gemm: int, alpha: Any, a: Array, b: Array, beta: Any, c: Array) -> None:
    """c ← alpha aᵀ b + beta c.   (n, m) (n, d) → (m, d)"""
    _gemm(gemm, N, T, np.int32(b.shape[1]), np.int32(a.shape[1]), np.int32(a.shape[0]), alpha, b.ctypes.data, lead(b),
          a.ctypes.data, lead(a), beta, c.ctypes.data, lead(c))


@_word
def _as_float(context, bits):  # type: ignore[no-untyped-def]
    """The float whose bits these are."""
    real: Any = {32: types.float32, 64: types.float64}[bits.bitwidth]

    def emit(context, builder, _, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], context.get_value_type(real))

    return real(bits), emit


@_word
def _bits(context, x):  # type: ignore[no-untyped-def]
    """The bits of a float."""
    whole: Any = {32: types.int32, 64: types.int64}[x.bitwidth]

    def emit(context, builder, _, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], context.get_value_type(whole))

    return whole(x), emit


_LOG2E = 1.4426950408889634


def exp(x: Any) -> Any:
    """eˣ = 2ⁿ eʳ, n = round(x log₂e) and r = x − n ln 2 in two steps (Cody and Waite), eʳ by a polynomial; 0 where the
    result is no normal number, +inf from n = 128 (1024) on, NaN for NaN. Relative error 8e-8 in float32, 3e-16 in float64.

    Adding 1.5·2²³ (2⁵²) rounds to an integer, which then stands in the lowest bits: no conversion, nothing undefined.
    """
    raise NotImplementedError("only inside of compiled functions")


# log₂e; ln 2 = HIGH + LOW with few bits in HIGH; where eˣ leaves the normal numbers; what rounds to an integer.
LOG2E32, HIGH32, LOW32, FLOOR32, CEILING32, ROUND32 = map(
    np.float32, (_LOG2E, 0.693359375, -2.12194440e-4, -87.33, 88.37, 1.5 * 2**23))
LOG2E64, HIGH64, LOW64, FLOOR64, CEILING64, ROUND64 = (
    _LOG2E, 6.93145751953125e-1, 1.42860682030941723212e-6, -708.39, 709.43, 1.5 * 2**52)
ZERO32, ONE32, INFINITE32 = map(np.float32, (0, 1, np.inf))
# (eʳ − 1 − r) / r²: the minimax polynomial of Cephes' expf, and Taylor's.
B0, B1, B2, B3, B4, B5 = map(np.float32, (5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3,
                                          1.3981999507e-3, 1.9875691500e-4))
A0, A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11 = (1 / math.factorial(i) for i in range(2, 14))


@overload(exp, inline="never", jit_options={"fastmath": EXACT})
def _exp(x):  # type: ignore[no-untyped-def]
    return _exp32 if x == types.float32 else _exp64


def _exp32(x):  # type: ignore[no-untyped-def]
    t = x * LOG2E32 + ROUND32
    n = t - ROUND32
    r = (x - n * HIGH32) - n * LOW32
    p = ((((B5 * r + B4) * r + B3) * r + B2) * r + B1) * r + B0
    y = ((p * r) * r + r + ONE32) * _as_float(np.int32((_bits(t) + np.int32(127)) << np.int32(23)))
    y = ZERO32 if x < FLOOR32 else y
    return INFINITE32 if x > CEILING32 else y


def _exp64(x):  # type: ignore[no-untyped-def]
    t = x * LOG2E64 + ROUND64
    n = t - ROUND64
    r = (x - n * HIGH64) - n * LOW64
    p = (((((A11 * r + A10) * r + A9) * r + A8) * r + A7) * r + A6) * r + A5
    p = ((((p * r + A4) * r + A3) * r + A2) * r + A1) * r + A0
    y = ((p * r) * r + r + 1.0) * _as_float(np.int64((_bits(t) + np.int64(1023)) << np.int64(52)))
    y = 0.0 if x < FLOOR64 else y
    return np.inf if x > CEILING64 else y


@word()
def largest(x: Array, lanes: Array) -> Any:
    """The largest of x, NaN left out; −∞ of nothing."""
    c0, top = 0, x.dtype.type(-np.inf)
    if x.shape[0] >= LANES:
        for c in range(LANES):
            lanes[c] = top
        while c0 + LANES <= x.shape[0]:
            for c in range(LANES):
                lanes[c] = x[c0 + c] if x[c0 + c] > lanes[c] else lanes[c]
            c0 += LANES
        for c in range(LANES):
            top = lanes[c] if lanes[c] > top else top
    for c in range(c0, x.shape[0]):
        top = x[c] if x[c] > top else top
    return top


@word(SUMS)
def exponentials(x: Array, top: Any) -> Any:
    """x ← eˣ⁻ᵗᵒᵖ and its sum."""
    total = x.dtype.type(0)
    for c in range(x.shape[0]):
        e = exp(x[c] - top)
        x[c] = e
        total += e
    return total


@word()
def keep_nan(x: Array) -> Any:
    """x ← 0 except NaN, and its sum: a row of which nothing finite is known yet."""
    total = x.dtype.type(0)
    for c in range(x.shape[0]):
        x[c] = x.dtype.type(0) if x[c] == x[c] else x[c]
        total += x[c]
    return total
