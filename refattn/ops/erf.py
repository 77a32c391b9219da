"""The error function, and the numbers of its kind that a float can only come near: words that the array standard lacks.

    erf x = 2/√π ∫₀ˣ exp(−t²) dt

Backends put their library's function in its place, the exact reading a ball. The generic text is for the rest:

    |x| < 2:  erf x = 2/√π exp(−x²) Σ_k 2ᵏ x²ᵏ⁺¹ / (1·3·…·(2k + 1))            all terms have one sign, nothing cancels
    |x| ≥ 2:  erf x = 1 − 2h/π |x| exp(−x²) (1/2x² + Σ_k exp(−k²h²)/(k²h² + x²))           (and the sign of x)

DLMF (dlmf.nist.gov) 7.6.2; the trapezoidal rule of Chiarella and Reichel (Math. Comp. 22, 1968, 137-143) with h = 1/3,
whose neglected terms are below 10⁻¹⁶ from |x| = 2 on. Good to a few units of roundoff of 1.
"""

from __future__ import annotations

import math
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel

Array = Any

SWITCH = 2.0
ONE = 6.5  # from here on erf is 1 in any float
TERMS = 40
STEP = 1.0 / 3.0
NODES = 18


@kernel("erf")
def erf(x: Array) -> Array:
    """erf x, elementwise; one exponential for each element."""
    xp = of(x).xp
    size = xp.minimum(xp.abs(x), ONE)
    e = xp.exp(-(size * size))
    near = xp.minimum(size, SWITCH)
    double, total = 2.0 * near * near, xp.ones_like(near)
    for k in range(TERMS, 0, -1):
        total = 1.0 + total * double / (2.0 * k + 1.0)
    far = xp.maximum(size, SWITCH)
    square = far * far
    nodes = 0.5 / square
    for k in range(1, NODES):
        nodes = nodes + math.exp(-((k * STEP) ** 2)) / (square + (k * STEP) ** 2)
    small, large = (2.0 / math.sqrt(math.pi)) * near * e * total, 1.0 - (2.0 * STEP / math.pi) * far * e * nodes
    out = xp.where(size < SWITCH, small, large)
    return xp.where(x < 0.0, -out, out)


@kernel("pi")
def pi(like: Array) -> Any:
    """π, as a number."""
    return math.pi


@kernel("root")
def root(like: Array, x: Any) -> Any:
    """√x of a positive number, as a number."""
    return math.sqrt(x)


@kernel("bounded")
def bounded(x: Array, limit: float) -> Array:
    """x within ±limit, for functions that are constant beyond it and whose formula would overflow there."""
    xp = of(x).xp
    return xp.minimum(xp.maximum(x, -limit), limit)
