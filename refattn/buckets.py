"""Bucket sort: tokens in the order of their buckets, equal ones in the order in which they stand.

    order: the tokens, sorted by (bucket, token)          place_order_t = t, where each token stands in that order

A sort that keeps ties in order is the only one whose result says nothing about the machine that ran it.
"""

from __future__ import annotations

from typing import Any

from refattn.backend import of
from refattn.kernels import kernel

Array = Any


@kernel("bucket_sort")
def bucket_sort(buckets: Array) -> tuple[Array, Array]:
    """(order, place), both (..., n) permutations of 0 … n − 1, for whole numbers (..., n)."""
    xp = of(buckets).xp
    order = xp.argsort(buckets, axis=-1, stable=True)
    return order, xp.argsort(order, axis=-1, stable=True)
