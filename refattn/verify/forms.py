"""Laws of growth derived from exact counts: count = Σ_f c_f · f(sizes) over a list of forms f, with rational c_f.

The forms are evaluated exactly, at sizes where they are whole numbers (√n at squares, log₂ n at powers of two). Gaussian
elimination over the rationals takes as many sizes as there are forms, smallest first, and finds the one solution; every
further size must obey it to the last digit. That is an *identity*: it was solved at small sizes and predicts the large
ones. A peak is the larger of several counts and may turn at small sizes, so an identity may begin later: from the smallest
size on that leaves enough to confirm it. Where there is none (a count with rounded-up parts, a form that is not in the
list) the best single form is *fitted*: the one whose ratio count/f moves least over the three largest sizes, and the law
says by how much it moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from refattn.errors import OptionError

Sizes = Mapping[str, int]
Point = tuple[Sizes, int]
HELD_OUT = 2
"""Sizes that an identity must predict at least."""


@dataclass(frozen=True)
class Form:
    """A product of powers of sizes, which may be halves, and logarithms to base 2: Form("n·√n", {"n": Fraction(3, 2)})."""

    name: str
    powers: Mapping[str, Fraction | int]
    logs: Mapping[str, int]

    def exact(self, sizes: Sizes) -> Fraction | None:
        """The value; None where a root or a logarithm is irrational."""
        value = Fraction(1)
        for letter, power in self.powers.items():
            twice = Fraction(power) * 2
            root = math.isqrt(sizes[letter])
            if twice % 2 == 0:
                value *= Fraction(sizes[letter]) ** int(twice // 2)
            elif root * root == sizes[letter]:
                value *= Fraction(root) ** int(twice)
            else:
                return None
        for letter, power in self.logs.items():
            log = sizes[letter].bit_length() - 1
            if 1 << log != sizes[letter]:
                return None
            value *= log**power
        return value

    def real(self, sizes: Sizes) -> float:
        powers = [math.pow(sizes[letter], power) for letter, power in self.powers.items()]
        return math.prod(powers + [math.pow(math.log2(sizes[letter]), power) for letter, power in self.logs.items()])


def form(name: str, logs: Mapping[str, int] | None = None, **powers: Fraction | int) -> Form:
    """A form by its powers, as ``form("n²/b", n=2, b=-1)``; `logs` are powers of logarithms."""
    return Form(name, powers, logs or {})


HALF = Fraction(1, 2)
ONE, LOG, ROOT = form("1"), form("log n", {"n": 1}), form("√n", n=HALF)
N, N_LOG, N_ROOT, SQUARE = form("n", n=1), form("n·log n", {"n": 1}, n=1), form("n·√n", n=3 * HALF), form("n²", n=2)
FORMS = (ONE, LOG, ROOT, N, N_LOG, N_ROOT, SQUARE)
"""Laws in one size, slowest first. All are exact at powers of four, all but the roots at powers of two."""


@dataclass(frozen=True)
class Law:
    """Terms (form, coefficient), fastest growing first. solved: sizes that fix an identity, 0 for a fit; held: sizes that
    confirm it; since: the smallest of them. drift: how far count/form moves, relatively, over the three largest sizes; 0
    for an identity.
    """

    terms: tuple[tuple[Form, Fraction], ...]
    solved: int
    held: int
    since: Sizes
    drift: float

    @property
    def leading(self) -> str:
        """The name of the form that grows fastest; "0" for nothing at all."""
        return self.terms[0][0].name if self.terms else "0"

    def real(self, sizes: Sizes) -> float:
        return sum(float(c) * f.real(sizes) for f, c in self.terms)

    def __str__(self) -> str:
        words = []
        for f, c in self.terms:
            size = f"{int(abs(c)):,}" if c.denominator == 1 else f"({abs(c)})" if self.solved else f"{float(abs(c)):.6g}"
            word = size if f.name == "1" else f.name if abs(c) == 1 else f"{size}·{f.name}"
            words.append(f"{'−' if c < 0 else '+'} {word}")
        return " ".join(words).removeprefix("+ ") or "0"


def derive(points: Sequence[Point], forms: Sequence[Form] = FORMS) -> Law:
    """The law that exact counts at `points`, small sizes first, obey: an identity in `forms`, else a fit of one of them.

    Raises
    ------
    OptionError
        If the sizes can't tell the forms apart, or leave fewer than two to confirm an identity.
    """
    if not any(_enough(points, some) for some in _choices(points, forms)):
        names = ", ".join(f.name for f in forms)
        raise OptionError(f"{len(points)} sizes can't tell {len(forms)} forms ({names}) apart and confirm a law: give "
                          f"{len(forms) + HELD_OUT} sizes where all are whole numbers")
    for start in range(len(points)):
        rest = points[start:]
        for some in _choices(rest, forms):
            found = _identity(rest, some) if _enough(rest, some) else None
            if found is not None:
                return found
    return _fitted(points, forms)


def _choices(points: Sequence[Point], forms: Sequence[Form]) -> tuple[list[Form], ...]:
    """All forms, for the sizes where all are exact; and those that are exact everywhere, for all sizes."""
    return list(forms), [f for f in forms if all(f.exact(sizes) is not None for sizes, _ in points)]


def _enough(points: Sequence[Point], forms: Sequence[Form]) -> bool:
    """Whether these sizes fix the coefficients of these forms and confirm them."""
    rows = [values for values in _values(points, forms) if None not in values]
    return bool(forms) and len(rows) >= len(forms) + HELD_OUT and _rank(rows) == len(forms)


def _values(points: Sequence[Point], forms: Sequence[Form]) -> list[list[Fraction | None]]:
    return [[f.exact(sizes) for f in forms] for sizes, _ in points]


def _rank(rows: Sequence[Sequence[Fraction | None]]) -> int:
    return len(_eliminated([[x or Fraction(0) for x in row] for row in rows]))


def _eliminated(rows: Sequence[Sequence[Fraction]]) -> dict[int, list[Fraction]]:
    """The reduced row echelon form: rows by the column of their leading 1."""
    reduced: dict[int, list[Fraction]] = {}
    for given in rows:
        row = list(given)
        for column, other in reduced.items():
            row = [x - row[column] * y for x, y in zip(row, other, strict=True)]
        pivot = next((column for column, x in enumerate(row) if x), None)
        if pivot is None:
            continue
        row = [x / row[pivot] for x in row]
        reduced = {c: [x - other[pivot] * y for x, y in zip(other, row, strict=True)] for c, other in reduced.items()}
        reduced[pivot] = row
    return reduced


def _identity(points: Sequence[Point], forms: Sequence[Form]) -> Law | None:
    """The one law in `forms` at the sizes where all of them are exact, if every size obeys it at which its terms are."""
    values = _values(points, forms)
    usable = [at for at, row in enumerate(values) if None not in row]
    reduced = _eliminated([[*(x or Fraction(0) for x in values[at]), Fraction(points[at][1])] for at in usable])
    if len(forms) in reduced:  # a leading 1 in the column of the counts: no solution
        return None
    largest = points[-1][0]
    terms = sorted(((forms[c], row[-1]) for c, row in reduced.items() if row[-1]), key=lambda term: -term[0].real(largest))
    kept = 0
    for sizes, count in points:
        exact = [f.exact(sizes) for f, _ in terms]
        if None not in exact:
            kept += 1
            if sum((c * (x or 0) for (_, c), x in zip(terms, exact, strict=True)), Fraction(0)) != count:
                return None
    return Law(tuple(terms), len(forms), kept - len(forms), points[0][0], 0.0)


def _fitted(points: Sequence[Point], forms: Sequence[Form]) -> Law:
    """The form whose ratio to the count moves least over the three largest sizes."""

    def ratios(f: Form) -> list[float]:
        return [count / f.real(sizes) for sizes, count in points[-3:]]

    def drift(f: Form) -> float:
        low, high = min(ratios(f)), max(ratios(f))
        return high / low - 1.0 if low > 0.0 else math.inf

    best = min(forms, key=drift)
    return Law(((best, Fraction(ratios(best)[-1])),), 0, 0, points[-3][0], drift(best))
