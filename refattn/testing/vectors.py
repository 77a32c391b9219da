"""Golden vectors: inputs, expected results that are certified, and what a kernel of each precision may be off by.

Expected values are the results of the scheme's text in ball arithmetic, rounded to the nearest float64 (``exact``), zeros
proved. Bounds are those of the ``rounding`` reading, rounded up to float32, plus half a unit in the last place of the
expected value. A digest covers inputs and expected values, which the same recipe gives bit for bit everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import load
from refattn.precision import PRESETS, Precision, for_dtype
from refattn.testing.cases import Case
from refattn.testing.diagnose import CERTAIN
from refattn.testing.match import match
from refattn.testing.mutants import applicable
from refattn.testing.staged import Staged
from refattn.testing.tolerance import expect
from refattn.testing.vectors_cases import DTYPES, Recipe, dtypes
from refattn.testing.verdicts import Band

Values = Any
Arrays = dict[str, Any]

CONTRACTS = ("fp64", "fp32", "tf32", "flash-bf16", "flash-fp16")
"""The presets whose bounds are stored."""
KILLING = ("fp32", "flash-bf16", "flash-fp16")
"""The presets for which a vector lists the known mistakes that it shows."""
FINITE, MINUS_INFINITY, EXACT = 0, 1, 2
"""Classes of an expected element: within its bound, −∞, or to be met exactly in every precision."""


@dataclass(frozen=True)
class Vector:
    """A recipe, its case, the expected results by name, their bounds by preset and name, and mutants seen by preset."""

    recipe: Recipe
    case: Case
    exact_in: tuple[str, ...]
    expected: Arrays
    bounds: Mapping[str, Arrays]
    kills: Mapping[str, tuple[str, ...]]

    def inputs(self) -> Arrays:
        """The given tensors by name as files hold them: float32, int32, bool; cotangents do and dlse among them."""
        given = {**self.case.inputs._asdict(), "do": self.case.do, "dlse": self.case.dlse}
        kinds = {"f": np.float32, "i": np.int32, "b": np.bool_}
        return {name: np.ascontiguousarray(x, kinds[x.dtype.kind]) for name, x in given.items() if x is not None}

    def classes(self, name: str) -> Values:
        """The class of each element of an expected result."""
        value = self.expected[name]
        exact = np.all([x[name] == 0 for x in self.bounds.values()], axis=0)
        return np.where(np.isneginf(value), MINUS_INFINITY, np.where(exact, EXACT, FINITE)).astype(np.uint8)

    def digests(self) -> dict[str, str]:
        return {"inputs": digest(self.inputs()), "expected": digest(self.expected)}


def vector(recipe: Recipe) -> Vector:
    """Everything about one recipe: some 0.1 s for 10⁵ pairs of query and key.

    Raises
    ------
    BackendUnavailable
        Without python-flint, the extra `exact`.
    """
    case = recipe.case()
    held = dtypes(case)
    expected = certified(case)
    presets = [PRESETS[name] for name in CONTRACTS if dtype_of(PRESETS[name]) in held]
    bands = {p.name: {n: Band(expected[n], b.bound, b.sigma) for n, b in read(case, p).items()} for p in presets}
    bounds = {p: {name: bound(b.value, b.bound) for name, b in of.items()} for p, of in bands.items()}
    kills = {p: killed(case, dtype_of(PRESETS[p]), bands[p]) for p in KILLING if p in bands}
    return Vector(recipe, case, held, expected, bounds, kills)


def dtype_of(precision: Precision) -> str:
    """The dtype of the inputs and results of kernels that keep a preset."""
    base = precision.name.partition("(")[0]
    return next(dtype for dtype in DTYPES if base in {p.name for p in for_dtype(dtype)})


def certified(case: Case, text: str = "forward") -> Arrays:
    """The correctly rounded results of a case by name, every zero proved; those of ``definition`` are o and lse alone."""
    scheme = case.scheme

    def results() -> Arrays:
        if text == "definition":
            return dict(zip(scheme.outputs, scheme.definition(*case.inputs), strict=True))
        _, saved = scheme.forward(*case.inputs)
        grads = scheme.vjp(saved, case.do, **({} if case.dlse is None else {"dlse": case.dlse}))
        found = {name: getattr(saved, name) for name in scheme.outputs}
        return found | {f"d{name}": g for name, g in grads._asdict().items() if g is not None}

    reading: Any = load("exact")
    return dict(reading.golden(results, prove=True).values)


def read(case: Case, precision: Precision) -> dict[str, Band]:
    """Values, bounds and deviations of a case in one precision."""
    return expect(case.scheme, case.inputs, precision, case.do, case.dlse)


def bound(value: Values, bounds: Values) -> Values:
    """Bounds around correctly rounded values, as float32 that are never smaller. 0 stays 0: only the value will do."""
    with np.errstate(over="ignore"):
        half = np.where(np.isfinite(value), np.spacing(np.abs(np.where(np.isfinite(value), value, 0.0))) / 2, 0.0)
        wide = np.where(bounds > 0, bounds + half, 0.0)
        near = wide.astype(np.float32)
        return np.where(near < wide, np.nextafter(near, np.float32(np.inf)), near).astype(np.float32)


def killed(case: Case, dtype: str, bands: Mapping[str, Band]) -> tuple[str, ...]:
    """The known mistakes that a correct kernel's errors can't hide on this case: those of power 30 or more."""
    mutants = applicable(case, dtype, True)
    if not mutants:
        return ()
    right = Staged(case.scheme, case.inputs)
    right.run()
    values = {name: b.value for name, b in bands.items()}
    return tuple(m.id for m in mutants if match(values, bands, m.values(case, dtype, right)).power >= CERTAIN)


CODES = {"float64": "F64", "float32": "F32", "int32": "I32", "bool": "BOOL", "uint8": "U8"}


def digest(tensors: Mapping[str, Values]) -> str:
    """SHA-256 over the tensors by name: a line ``name CODE s0,s1,…\\n``, then the bytes, little-endian, last axis first."""
    total = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        total.update(f"{name} {CODES[x.dtype.name]} {','.join(map(str, x.shape))}\n".encode())
        total.update(np.ascontiguousarray(x).astype(x.dtype.newbyteorder("<"), copy=False).tobytes())
    return total.hexdigest()


def suite_digest(vectors: Mapping[int, Mapping[str, str]]) -> str:
    """SHA-256 over the lines ``id inputs expected\\n`` of all cases, by id."""
    lines = (f"{number} {d['inputs']} {d['expected']}\n" for number, d in sorted(vectors.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def means(v: Vector) -> Iterator[tuple[str, str, float]]:
    """(preset, result, mean of its finite bounds) to six digits: what a later run is compared with, to one in a thousand."""
    for preset, tensors in v.bounds.items():
        for name, x in tensors.items():
            finite = x[np.isfinite(x)].astype(np.float64)
            yield preset, name, float(f"{finite.mean() if finite.size else 0.0:.6g}")
