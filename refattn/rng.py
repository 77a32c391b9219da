"""Randomness: drawn on the host by a counter-based generator, named by what it is for, the same on every backend."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """An independent generator for each (seed, path): ``stream(0, "dense", "q")``.

    Philox keyed by SHA-256 of the path, so that adding one draw never changes another.
    """
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], dtype=np.uint64)))


@dataclass(frozen=True)
class Source:
    """Initial values of parameters, each drawn from the stream of its own path: ``Source(0).at("layer", 3)``."""

    seed: int
    path: tuple[str | int, ...] = ()

    def at(self, *names: str | int) -> Source:
        """The source of what stands under these names."""
        return Source(self.seed, (*self.path, *names))

    def normal(self, shape: tuple[int, ...], deviation: float) -> Any:
        """Normal numbers of mean 0, float64."""
        return stream(self.seed, *self.path).normal(0.0, deviation, shape)

    def filled(self, shape: tuple[int, ...], value: float) -> Any:
        """One number everywhere, float64."""
        return np.full(shape, value)


class Shapes(Source):
    """A source that draws nothing: every array is its shape, so that parameters can be counted without making them."""

    def at(self, *names: str | int) -> Source:
        """The same source."""
        return self

    def normal(self, shape: tuple[int, ...], deviation: float) -> Any:
        """shape."""
        return tuple(shape)

    def filled(self, shape: tuple[int, ...], value: float) -> Any:
        """shape."""
        return tuple(shape)


def short(x: Any) -> Any:
    """x rounded to 4 significant bits and clipped to ±448, with steps of 2⁻⁹ below 2⁻⁶: the values of float8 e4m3.

    Such numbers are exact in float16, bfloat16, float32 and float64, so that one input serves every precision.
    """
    x = np.clip(np.asarray(x, dtype=np.float64), -448.0, 448.0)
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    step = np.ldexp(1.0, exponent - 3)
    return np.round(x / step) * step
