"""The results of a scheme by name, and what correct arithmetic may make of them: tolerances that nobody chose.

Two results a, b of one text agree if |a − b| ≤ bound(a) + bound(b), bounds being those of the rounding reading. A run may
also be compared with the reading itself: any order of summation and any blocking stays within bound of value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refattn import load, rng, tree, using
from refattn.precision import PRESETS

U = 2.0**-53


class Band(NamedTuple):
    """A value and how far a correct result may be from it."""

    value: Any
    bound: Any


@dataclass(frozen=True)
class Case:
    """A configured scheme with inputs, cotangents by output, and its results as the rounding reading has them in float64."""

    scheme: Any
    inputs: Any
    cotangents: Any
    bands: Any

    def run(self, **options):
        """Every output and gradient in float64."""
        return results(self.scheme, self.inputs, self.cotangents, **options)


def case(scheme, inputs, seed=1, cotangents=None):
    """Inputs with cotangents drawn for them, and the bands of all results."""
    cotangents = draw_cotangents(scheme, inputs, seed) if cotangents is None else cotangents
    return Case(scheme, inputs, cotangents, rounded("fp64", scheme, inputs, cotangents))


def draw_cotangents(scheme, inputs, seed=1):
    """One for each output, finite everywhere, of values that every precision holds."""
    _, saved = scheme.forward(*inputs)
    shapes = {name: getattr(saved, name).shape for name in scheme.outputs}
    return {n: rng.short(rng.stream(seed, "cotangent", n).normal(size=shape)) for n, shape in shapes.items()}


def keywords(scheme, cotangents):
    """(do, {"dlse": …}) as ``vjp`` takes them."""
    do, *others = (cotangents[name] for name in scheme.outputs)
    return do, {f"d{name}": x for name, x in zip(scheme.outputs[1:], others, strict=True)}


def results(scheme, inputs, cotangents, **options):
    """Every output and every gradient of a scheme, by name."""
    _, saved = scheme.forward(*inputs, **options)
    do, others = keywords(scheme, cotangents)
    grads = scheme.vjp(saved, do, **others, **options)
    out = {name: getattr(saved, name) for name in scheme.outputs}
    return out | {f"d{name}": g for name, g in tree.items(grads)}


def defined(scheme, inputs):
    """Every output of the definition, by name."""
    return dict(zip(scheme.outputs, scheme.definition(*inputs), strict=True))


def read(backend, *args):
    with using(backend):
        return results(*args)


def rounded(preset, *args):
    return read(load("rounding", precision=PRESETS[preset]), *args)


def ratio(error, bound):
    """max error ÷ bound; inf for an error where none is allowed, or where none is finite."""
    assert error.shape == bound.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0.0, 0.0, error / bound), initial=0.0))


def distance(a, b):
    """|a − b|, 0 between equal infinities."""
    assert a.shape == b.shape
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(np.asarray(a, np.float64) - b))


def outside(got, want):
    """By name, how many bounds off: what of `got` (arrays, or bands whose bound is added) is not within the bands `want`."""
    assert got.keys() == want.keys()
    found = {}
    for name, band in want.items():
        value, more = (got[name].value, got[name].bound) if hasattr(got[name], "bound") else (got[name], 0.0)
        found[name] = ratio(distance(value, band.value), band.bound + more)
    return {name: x for name, x in found.items() if not x <= 1.0}


def total(bands, axis=0):
    """The sum of a stack of bands: errors add, and so do the roundings of the sum."""
    value = np.sum(bands.value, axis=axis)
    terms = bands.value.size // max(value.size, 1)
    return Band(value, np.sum(bands.bound, axis=axis) + terms * U * np.sum(np.abs(bands.value), axis=axis))


def stacked(bands):
    return Band(np.stack([x.value for x in bands]), np.stack([x.bound for x in bands]))
