"""Words beyond the array standard for balls: what an equation means where floats only have the number nearest to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb

from .exact_array import Ball, at, balls, each

_erf = each(arb.erf)
_sqrt = each(arb.sqrt)


def inverse_root(like: Ball, d: int) -> Ball:
    """1/√d itself, not the float nearest to it."""
    with at(like.reading.bits):
        return Ball(like.reading, np.asarray(arb(d).rsqrt(), dtype=object))


def root(like: Ball, x: Any) -> Ball:
    """√x itself."""
    with at(like.reading.bits):
        return Ball(like.reading, _sqrt(balls(like.reading.lift(x).entries)))


def pi(like: Ball) -> Ball:
    """π to the bits of the reading."""
    out: Ball = like.reading.xp.pi
    return out


def erf(x: Ball) -> Ball:
    with at(x.reading.bits):
        return Ball(x.reading, _erf(balls(x.entries)))


def bounded(x: Ball, limit: float) -> Ball:
    """x as it is: no exponent of a ball overflows."""
    return x


KERNELS: dict[str, Callable[..., Any]] = {
    "inverse_root": inverse_root,
    "root": root,
    "pi": pi,
    "erf": erf,
    "bounded": bounded,
}
