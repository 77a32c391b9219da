"""Rounding rules of elementwise functions: how errors pass through them, and what computing them adds.

Every rule is rigorous, not first order: products of errors are kept, exp goes through expm1, log through log1p, and the
value's own float64 error (2⁻⁵³) is counted with the kernel's.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .rounding_array import (
    EXACT,
    U64,
    Rounded,
    Variance,
    finite_only,
    number,
    plus,
    repeated,
    scaled,
    seen,
    step_variance,
    stored,
    total,
)

Array = Any
STEEPEST = 2.0 / math.sqrt(math.pi)
CERTAIN_BITS = 32  # a longer constant was computed: two correct float64 programs may differ in its last bit


def constant_error(x: float, u: float) -> float:
    """How far the format's nearest number may be from a Python constant: 0 if the format holds it."""
    if x == 0.0 or not math.isfinite(x):
        return 0.0
    bits = min(round(-math.log2(u)) if u > 0.0 else CERTAIN_BITS, CERTAIN_BITS)
    return 0.0 if math.ldexp(math.frexp(x)[0], bits).is_integer() else abs(x) * (u + U64)


def whole(*arrays: Rounded) -> bool:
    """True if all hold given whole numbers, which every format adds and multiplies exactly until they grow too long."""
    return all(x.error is None and bool(np.all(x.value == np.rint(x.value))) for x in arrays)


def fits(r: Any, size: Array) -> bool:
    """True if whole numbers of this size are exact in the kernel's arithmetic and in its accumulators."""
    coarsest = max(r.precision.u, r.precision.acc, U64)
    return bool(float(np.max(size, initial=0.0)) * coarsest <= 1.0)


def _is_exact_factor(x: Rounded) -> bool:
    """A truth value, zero or a power of two: multiplying by it rounds nothing."""
    if x.error is not None:
        return False
    return bool(x.value.dtype.kind == "b" or (x.ndim == 0 and abs(math.frexp(float(x.value))[0]) in (0.0, 0.5)))


def _sum_of(sign: int) -> Callable[[Any, Any, Any], Rounded]:
    def rule(r: Any, a: Any, b: Any) -> Rounded:
        a, b = number(r.lift(a)), number(r.lift(b))
        value = a.value + b.value if sign > 0 else a.value - b.value
        if value.dtype.kind in "iu":
            return Rounded(r, value)
        if a.error is None and b.error is None and whole(a, b) and fits(r, np.abs(value)):
            return Rounded(r, value)
        error = total(a.error, b.error)
        # A constant may have been folded into each side before they met: q·scale, s·log₂e − c·log₂e.
        folded = repeated(r.precision.u, r.precision.slack) * (a.reach + b.reach)
        error = folded if error is None else error + folded
        variance = plus(seen(a, value.shape), seen(b, value.shape))
        return stored(Rounded(r, value, error, variance), r.precision.u, r.precision.tiny)

    return rule


def multiply(r: Any, a: Any, b: Any) -> Rounded:
    a, b = number(r.lift(a)), number(r.lift(b))
    value = a.value * b.value
    if value.dtype.kind in "iub" or (a.error is None and b.error is None and whole(a, b) and fits(r, np.abs(value))):
        return Rounded(r, value)
    error, variance = _product_error(a, b), _product_variance(a, b, value.shape)
    if _is_exact_factor(a) or _is_exact_factor(b):
        if error is None:
            return Rounded(r, value)
        flushed = error + r.precision.tiny * ((error != 0.0) | (value != 0.0))
        return Rounded(r, value, flushed, variance)
    return stored(Rounded(r, value, error, variance), r.precision.u, r.precision.tiny)


def _product_error(a: Rounded, b: Rounded) -> Array | None:
    """|a'b' − ab| ≤ e_a (|b| + e_b) + |a| e_b."""
    left = None if a.error is None else a.error * b.reach
    right = None if b.error is None else a.magnitude * b.error
    error = total(left, right)
    return error


def _product_variance(a: Rounded, b: Rounded, shape: tuple[int, ...]) -> Variance:
    left = EXACT if a.error is None else scaled(seen(a, shape), b.magnitude * b.magnitude)
    right = EXACT if b.error is None else scaled(seen(b, shape), a.magnitude * a.magnitude)
    return plus(left, right)


def divide(r: Any, a: Any, b: Any) -> Rounded:
    """Unbounded where the divisor's error reaches it; a reciprocal may be formed first, hence Precision.divide."""
    a, b = number(r.lift(a)), number(r.lift(b))
    if _is_exact_factor(b) and b.ndim == 0 and b.value:
        return multiply(r, a, Rounded(r, 1.0 / b.value.astype(np.float64)))
    value = a.value / b.value
    quotient = Rounded(r, value)
    error = None if a.error is None else a.error
    if b.error is not None:
        error = total(error, quotient.magnitude * b.error)
    if error is not None:
        least = b.magnitude if b.error is None else b.magnitude * (1.0 - 1e-10) - b.error
        error = np.where(least > 0.0, error / least, np.inf)
        error = np.where(a.reach == 0.0, 0.0, error)
    inverse = 1.0 / np.where(b.magnitude == 0.0, np.inf, b.magnitude) ** 2
    left = EXACT if a.error is None else scaled(seen(a, value.shape), inverse)
    right = EXACT if b.error is None else scaled(seen(b, value.shape), quotient.magnitude**2 * inverse)
    out = Rounded(r, value, error, plus(left, right))
    return stored(out, r.precision.u, r.precision.tiny, times=r.precision.divide)


def exp(r: Any, x: Any) -> Rounded:
    """exp(x') = exp(x) exp(x' − x); the exponent may be rounded as x·log₂e on its way to exp2."""
    x, p = r.lift(x), r.precision
    value, size = np.exp(x.value), x.magnitude
    exponent = (p.argument * p.u + U64) * x.reach
    exponent = exponent if x.error is None else exponent + x.error
    own = p.exp * (p.u + U64)
    error = value * (np.expm1(exponent) * (1.0 + own) + own) + p.tiny
    if not value.all():  # below float64's range, but perhaps not below the kernel's
        error = np.where(value == 0.0, np.exp(x.value + exponent) + p.tiny, error)
        error = np.where(np.isneginf(x.value), 0.0, error)
    squared = value * value
    alone = step_variance(value, p.u) + ((p.u**2 / 3.0) * squared) * (size * size)
    variance = scaled(x.variance, squared)
    variance = Variance(total(variance.alone, alone), *variance[1:])
    return Rounded(r, value, finite_only(value, error), variance)


def log(r: Any, x: Any) -> Rounded:
    """log(x') = log x + log1p((x' − x)/x); unbounded where the error reaches x."""
    return _logarithm(r, r.lift(x), np.log, 0.0)


def log1p(r: Any, x: Any) -> Rounded:
    return _logarithm(r, r.lift(x), np.log1p, 1.0)


def _logarithm(r: Any, x: Rounded, function: Callable[[Array], Array], shift: float) -> Rounded:
    p, value = r.precision, function(x.value)
    out, passed, variance = Rounded(r, value), 0.0, EXACT
    if x.error is not None:
        inverse = 1.0 / np.where(x.value + shift > 0.0, x.value + shift, np.inf)
        passed = -np.log1p(-np.minimum(x.error * inverse * (1.0 + 1e-10), 1.0))
        variance = scaled(x.variance, inverse * inverse)
    error = passed + (p.log * (p.u + U64)) * np.maximum(out.magnitude + passed, 1.0)
    alone = step_variance(np.maximum(out.magnitude, 1.0), p.u)
    variance = Variance(total(variance.alone, alone), *variance[1:])
    return Rounded(r, value, finite_only(value, error), variance)


def tanh(r: Any, x: Any) -> Rounded:
    """|tanh'| ≤ 1, and kernels that form it from exp are good to a few u of 1, not of the result."""
    x, p = r.lift(x), r.precision
    value = np.tanh(x.value)
    error = np.full(value.shape, p.tanh * (p.u + U64))
    if x.error is not None:
        wide = np.maximum(np.tanh(x.value + x.error) - value, value - np.tanh(x.value - x.error)) + 2 * U64
        error = error + np.minimum(wide, x.error)
    slope = 1.0 - value * value
    variance = plus(scaled(x.variance, slope * slope), Variance(step_variance(np.abs(value), p.u)))
    return Rounded(r, value, error, variance)


def erf(x: Rounded) -> Rounded:
    """|erf'| ≤ 2/√π, and kernels that form it from exp are good to a few u of 1: Precision.tanh says how many."""
    r, p = x.reading, x.reading.precision
    special = importlib.import_module("scipy.special")
    value = special.erf(x.value)
    error = np.full(value.shape, p.tanh * (p.u + U64))
    if x.error is not None:
        with np.errstate(all="ignore"):
            wide = np.maximum(special.erf(x.value + x.error) - value, value - special.erf(x.value - x.error)) + 4 * U64
            error = error + np.where(np.isnan(wide), 2.0, np.minimum(wide, STEEPEST * (1.0 + 1e-10) * x.error))
    with np.errstate(under="ignore", over="ignore"):
        slope = STEEPEST * np.exp(-(x.value * x.value))
    variance = plus(scaled(x.variance, slope * slope), Variance(step_variance(np.abs(value), p.u)))
    return Rounded(r, value, error, variance)


def _circular(function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Callable[[Any, Any], Rounded]:
    """cos, sin: |derivative| ≤ 1, and like tanh they are good to a few u of 1, not of the result; what is given is exact."""

    def rule(r: Any, x: Any) -> Rounded:
        x, p = r.lift(x), r.precision
        value = function(x.value)
        error = np.full(value.shape, p.tanh * (p.u + U64))
        if x.error is not None:
            error = error + np.minimum(x.error + U64 * x.magnitude, 2.0)
        passed = scaled(x.variance, slope(x.value) ** 2)
        return Rounded(r, value, finite_only(value, error), plus(passed, Variance(step_variance(np.abs(value), p.u))))

    return rule


def sqrt(r: Any, x: Any) -> Rounded:
    x = r.lift(x)
    value = np.sqrt(x.value)
    if x.error is None:
        return stored(Rounded(r, value), r.precision.u, r.precision.tiny)
    low = np.sqrt(np.maximum(x.value - x.error, 0.0))
    error = np.maximum(np.sqrt(x.value + x.error) - value, value - low) + 2 * U64 * value
    variance = scaled(x.variance, 0.25 / np.maximum(np.maximum(x.value, x.error), 1e-300))
    return stored(Rounded(r, value, error, variance), r.precision.u, r.precision.tiny)


def negative(r: Any, x: Any) -> Rounded:
    x = r.lift(x)
    return Rounded(r, -x.value, x.error, x.variance)


def absolute(r: Any, x: Any) -> Rounded:
    x = r.lift(x)
    return Rounded(r, np.abs(x.value), x.error, x.variance)


def square(r: Any, x: Any) -> Rounded:
    x = r.lift(x)
    error = None if x.error is None else x.error * (2.0 * x.magnitude + x.error)
    variance = scaled(x.variance, 4.0 * x.magnitude * x.magnitude)
    return stored(Rounded(r, x.value * x.value, error, variance), r.precision.u, r.precision.tiny)


RULES: dict[str, Callable[..., Any]] = {
    "add": _sum_of(1),
    "subtract": _sum_of(-1),
    "multiply": multiply,
    "divide": divide,
    "exp": exp,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "cos": _circular(np.cos, np.sin),
    "sin": _circular(np.sin, np.cos),
    "sqrt": sqrt,
    "square": square,
    "negative": negative,
    "abs": absolute,
}
KERNELS: dict[str, Callable[..., Any]] = {"erf": erf}
