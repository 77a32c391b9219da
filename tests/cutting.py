"""A boolean matrix as a list of tiles, for the tile engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np


def cut(see: Any, seed: int) -> list[Any]:
    """A boolean matrix as tiles of odd sizes in any order, of which some start and end where others do not."""
    rng, (n, m), out = np.random.default_rng(seed), see.shape, []
    rows = [0, *sorted(rng.choice(np.arange(1, n), 3, replace=False)), n]
    for q0, q1 in pairwise(rows):
        keys = [0, *sorted(rng.choice(np.arange(1, m), 3, replace=False)), m]
        out += [(int(q0), int(q1), int(a), int(b), see[q0:q1, a:b]) for a, b in pairwise(keys)]
    return [out[i] for i in rng.permutation(len(out))]
