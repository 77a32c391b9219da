"""Singular values σ_1 ≥ … ≥ σ_n of attention maps; those of a pretrained model layer by layer, head by head, as a figure.

    c_j = Σ_{i≤j} σ_i / Σ σ_i       normalised cumulative singular values, of σ and not of σ²

This is the quantity of figure 1 of Wang et al. (arXiv:2006.04768). Every map is normalised before maps are averaged.
"""

from __future__ import annotations

from typing import Any

from refattn.backend import load
from refattn.verify import minilm
from refattn.verify.claim import Curve, Heat, Picture

Array = Any


def singular_values(P: Array) -> Array:
    """σ (..., n) of P (..., n, n), the largest first."""
    return load("numpy").xp.linalg.svdvals(P)


def cumulative(values: Array) -> Array:
    """c_j (..., n) of singular values (..., n), the largest first."""
    sums = load("numpy").xp.cumulative_sum(values, axis=-1)
    return sums / sums[..., -1:]


def spectra(n: int, passages: int, seed: int = 0) -> Array:
    """σ (passages, 6, 12, n) of the maps of a pretrained model on drawn passages of n tokens: layers, heads.

    Raises
    ------
    BackendUnavailable
        If the model is not installed, with the commands that do it.
    OptionError
        If the model does not read so many tokens.
    """
    model, xp = minilm.load(), load("numpy").xp
    drawn = model.passages(n, passages, seed)
    return xp.stack([xp.stack([singular_values(P) for P in model.maps(ids)]) for ids in drawn])


def heads(values: Array) -> Heat:
    """c at j = n/4 for every layer and head, averaged over passages: values (passages, layers, heads, n)."""
    n = values.shape[-1]
    mean = cumulative(values)[..., n // 4 - 1].mean(axis=0)
    title = f"c at j = n/4 = {n // 4}, {values.shape[0]} passages of {n} tokens"
    return Heat("head", "layer", title, tuple(tuple(map(float, row)) for row in mean))


def layers(values: Array) -> Picture:
    """c_j for every layer, averaged over heads and passages: values (passages, layers, heads, n)."""
    n = values.shape[-1]
    curves = cumulative(values).mean(axis=(0, 2))
    lines = (Curve(f"layer {i}", tuple(range(1, n + 1)), tuple(map(float, c)), bound=True) for i, c in enumerate(curves, 1))
    return Picture(f"j (of n = {n})", "c_j, mean over heads", tuple(lines), logarithmic=False)
