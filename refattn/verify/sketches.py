"""Random matrices that keep lengths and products on average: E[SᵀS] = I, S: (k, n).

    gaussian     normal entries of variance 1/k                                         κ = 3
    rademacher   ±1/√k                                                                  κ = 1
    sparse(q)    ±√(q/k) with probability 1/(2q) each, 0 else; Achlioptas: q = 3        κ = q
    countsketch  one ±1 in each column, in a uniform row                                as κ = 1

κ = k² E[r⁴] of an entry r, and  Var⟨Sx, Sy⟩ = (‖x‖²‖y‖² + ⟨x, y⟩² + (κ − 3) Σ x_i² y_i²) / k.
Achlioptas 2003 (J. Comput. Syst. Sci. 66), theorem 1.1; Li, Hastie, Church 2006; Clarkson and Woodruff (arXiv:1207.6365).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from scipy.linalg import clarkson_woodruff_transform

Array = Any
Law = dict[Fraction, Fraction]  # value → probability
Vector = Sequence[int]


@dataclass(frozen=True)
class Sketch:
    """name: "gaussian", "rademacher", "sparse" or "countsketch"; q: of "sparse"."""

    name: str
    q: int = 1

    @property
    def kappa(self) -> int:
        return {"gaussian": 3, "rademacher": 1, "sparse": self.q, "countsketch": 1}[self.name]

    def __str__(self) -> str:
        return {"sparse": f"sparse(q = {self.q})"}.get(self.name, self.name)

    def apply(self, x: Array, k: int, draws: Any) -> Array:
        """S x (k, columns) of x (n, columns), for an S of its own drawn from the generator `draws`."""
        if self.name == "countsketch":
            return clarkson_woodruff_transform(x, k, draws)
        return self.matrix(k, x.shape[0], draws) @ x

    def matrix(self, k: int, n: int, draws: Any) -> Array:
        """S, of independent entries."""
        if self.name == "gaussian":
            return draws.normal(size=(k, n)) / k**0.5
        sign = 2.0 * draws.integers(0, 2, (k, n)) - 1.0
        if self.name == "rademacher":
            return sign / k**0.5
        return sign * (draws.integers(0, self.q, (k, n)) == 0) * (self.q / k) ** 0.5

    def variance(self, x: Vector, y: Vector, k: int) -> Fraction:
        """Var⟨Sx, Sy⟩ by the formula, of whole numbers, exactly."""
        square = sum(a * a * b * b for a, b in zip(x, y, strict=True))
        dot = _dot(x, y)
        return Fraction(_dot(x, x) * _dot(y, y) + dot * dot + (self.kappa - 3) * square, k)

    def law(self, x: Vector, y: Vector, k: int) -> Law:
        """The law of ⟨Sx, Sy⟩, outcome by outcome. The Gaussian's is that of entries with the same moments up to the fifth.

        Three nodes of Gauss–Hermite quadrature, 0 and ±√3 of weights 2/3 and 1/6, integrate polynomials up to the fifth
        degree in each entry exactly, and the variance is one of the fourth. They are the entries of Achlioptas.
        """
        if self.name == "countsketch":
            return _countsketch_law(x, y, k)
        q = 3 if self.name == "gaussian" else 1 if self.name == "rademacher" else self.q
        half = Fraction(1, 2 * q)
        entries = [(1, half), (-1, half), *([(0, 1 - 2 * half)] if q > 1 else [])]
        row: Law = {}
        for chosen in product(entries, repeat=len(x)):
            signs = [sign for sign, _ in chosen]
            _add(row, Fraction(q * _dot(signs, x) * _dot(signs, y), k), prod((p for _, p in chosen), start=Fraction(1)))
        law: Law = {Fraction(0): Fraction(1)}
        for _ in range(k):  # rows are independent
            law, before = {}, law
            for (a, p), (b, r) in product(before.items(), row.items()):
                _add(law, a + b, p * r)
        return law


def _countsketch_law(x: Vector, y: Vector, k: int) -> Law:
    law: Law = {}
    each = Fraction(1, (2 * k) ** len(x))
    for chosen in product(product(range(k), (1, -1)), repeat=len(x)):
        total = 0
        for row in range(k):
            a, b = (sum(s * z for (r, s), z in zip(chosen, side, strict=True) if r == row) for side in (x, y))
            total += a * b
        _add(law, Fraction(total), each)
    return law


def moments(law: Law) -> tuple[Fraction, Fraction]:
    """Mean and variance."""
    mean = sum((v * p for v, p in law.items()), start=Fraction(0))
    return mean, sum(((v - mean) ** 2 * p for v, p in law.items()), start=Fraction(0))


def _add(law: Law, value: Fraction, p: Fraction) -> None:
    law[value] = law.get(value, Fraction(0)) + p


def _dot(x: Vector, y: Vector) -> int:
    return sum(a * b for a, b in zip(x, y, strict=True))


FAMILIES = (Sketch("gaussian"), Sketch("rademacher"), Sketch("sparse", 3), Sketch("sparse", 8), Sketch("countsketch"))
