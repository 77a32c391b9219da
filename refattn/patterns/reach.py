"""Which inputs can reach which outputs through several layers of attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import Pattern
from refattn.patterns.chosen import Alternate, Heads

Array = Any


def reach(pattern: Any, n: int, layers: int, residual: bool = False) -> Array:
    """reach_ij (n, n): whether output i of `layers` layers depends on input j.

    A layer sees what any of its heads sees; layer r of an Alternate has its pattern number r mod len. residual: every layer
    also passes its input on, as residual connections do.

    Raises
    ------
    OptionError
        For what is no pattern, and for sizes that are no whole numbers.
    """
    checks.whole("reach", "n", n, 0)
    checks.whole("reach", "layers", layers, 0)
    if not isinstance(pattern, Pattern | Heads | Alternate):
        raise OptionError(f"{pattern!r} is no pattern: give a pattern, Heads or Alternate")
    several = pattern.patterns if isinstance(pattern, Alternate) else (pattern,)
    return after([_seen(p, n) for p in several], n, layers, residual)


def after(sees: list[Array], n: int, layers: int, residual: bool = False) -> Array:
    """The same for layers that are given as boolean matrices (n, n), used again and again in their order."""
    found = np.eye(n, dtype=bool)
    for r in range(layers):
        see = sees[r % len(sees)] | (np.eye(n, dtype=bool) if residual else False)
        found = np.matmul(see.astype(np.float32), found.astype(np.float32)) > 0
    return found


def _seen(pattern: Any, n: int) -> Array:
    return (pattern.dense(n, n) > 0).any(axis=0) if isinstance(pattern, Heads) else pattern.dense(n, n) > 0
