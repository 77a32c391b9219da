"""Which size every axis of every input is, read off a draw at sizes that cannot be confused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn import tree

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
KNOWN = {}


def letters(row, variant):
    """Input → letters of its axes, "" for an axis of length one, "fixed" for one that no size of the variant changes:
    {"q": "bhnd", "bias": ("h", "", "m"), …}.
    """
    key = (row.name, str(variant))
    if key not in KNOWN:
        sizes = dict(zip(variant.sizes, PRIMES, strict=False))
        if {"h", "g"} <= sizes.keys():
            sizes["h"] = sizes["g"] * 3
        letter = {size: x for x, size in sizes.items()} | {1: ""}
        drawn = row.draw(replace(variant, sizes=sizes), 1)
        KNOWN[key] = {name: tuple(letter.get(size, "fixed") for size in x.shape) for name, x in tree.items(drawn)}
    return KNOWN[key]


def result_letters(row, variant):
    """The same for what ``laws.bounds.results`` returns: o is q with e for d, statistics have no last axis."""
    of = letters(row, variant)
    first, *others = variant.scheme.outputs
    lead = of["q" if "q" in of else "qk"][:-1]
    return {first: (*lead, "e"), **dict.fromkeys(others, lead), **{f"d{name}": axes for name, axes in of.items()}}


def take(x, axes, letter, index):
    """x with `index` taken along every axis that is a `letter`, else x."""
    return np.take(x, index, axis=axes.index(letter)) if letter in axes else x


def along(nest, of, letter, index):
    """An Inputs, or a dict of arrays, with `index` taken along the axes called `letter`."""
    if isinstance(nest, dict):
        return {name: take(x, of[name], letter, index) for name, x in nest.items()}
    return nest._replace(**{name: take(x, of[name], letter, index) for name, x in tree.items(nest)})

