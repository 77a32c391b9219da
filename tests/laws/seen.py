"""Who sees whom, read out of a definition: equal scores and one-hot values make the output the weights themselves.

Queries and keys are ones: a weight of 0 there (as relu(0)², were they zeros) would be taken for a pair that is not seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn import tree
from refattn.features.elu import Elu

PLAIN = {"keep_rate": None, "empty": "zero", "feature": Elu(), "normalise": False}


def pairs(scheme, inputs):
    """(b, h, n, m) bool. What changes weights but not visibility is left out: score terms, sinks, feature maps, …"""
    if hasattr(scheme, "slot_counts"):  # a hash: tests/schemes/test_lsh.py holds these counts to lists of slots
        return scheme.slot_counts(*inputs) > 0.0
    m = inputs.v.shape[-2]
    terms = [n for n, x in tree.items(inputs) if n == "keep" or (x.dtype.kind == "f" and n not in ("q", "k", "v"))]
    eye = np.broadcast_to(np.eye(m), (*inputs.v.shape[:-2], m, m))
    probe = inputs._replace(q=inputs.q * 0 + 1, k=inputs.k * 0 + 1, v=eye, **dict.fromkeys(terms))
    plain = {name: value for name, value in PLAIN.items() if hasattr(scheme, name)}
    plain |= {"eps": 0.0} if "normalise" in plain else {}  # without a normaliser there is nothing that it is added to
    return replace(scheme, **plain).definition(*probe)[0] > 0.0


def key_heads(scheme, seen, few):
    """(b, g, m): keys that some query of a head that reads them may see."""
    b, h, _, m = seen.shape
    by_query = seen.any(axis=-2)
    if few == h:
        return by_query
    if scheme.heads == "tiled":
        return by_query.reshape(b, -1, few, m).any(axis=1)
    return by_query.reshape(b, few, -1, m).any(axis=2)
