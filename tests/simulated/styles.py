"""Ways in which correct kernels are written, each with the precision that it keeps, its free choices drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from refattn.precision import PRESETS, Precision
from simulated.kernel import Kernel

TILES = (4, 8, 16, 32, 64)
HALVES = ("bfloat16", "float16")


def _free(rng: np.random.Generator, **fixed: object) -> Kernel:
    """A kernel with every choice that a precision leaves open drawn, but for the `fixed` ones."""
    free = {
        "base2": bool(rng.random() < 0.5),
        "scale_in": str(rng.choice(["scores", "query", "exponent"])),
        "apart": bool(rng.random() < 0.3),
        "delta_from": str(rng.choice(["output", "weights"])),
        "scale_ds": bool(rng.random() < 0.5),
        "seed": int(rng.integers(1 << 30)) if rng.random() < 0.5 else None,
        "tile": int(rng.choice(TILES)),
    }
    return Kernel(**{**free, **fixed})  # type: ignore[arg-type]


def naive(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """All scores at once, weights normalised before they meet v, the library's products."""
    return _free(rng, walk="whole", normalise="first", base2=False, scale_in="scores"), PRESETS["fp32"]


def sequential(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """Every sum in a loop, first to last or last to first."""
    return _free(rng, walk="whole", product=str(rng.choice(["sequential", "backwards"]))), PRESETS["fp32"]


def online(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """Tiles of keys in any order with a running maximum."""
    return _free(rng, walk="tiles", product=str(rng.choice(["blas", "interleaved"]))), PRESETS["fp32"]


def split(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """Key splits worked on apart, and merged by their lse."""
    return _free(rng, walk="splits", tile=int(rng.choice([16, 32, 64]))), PRESETS["fp32"]


def folded(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """exp2 with scale·log₂e in one constant, the maximum scaled apart, lse through base 2."""
    return _free(rng, walk="tiles", base2=True, scale_in="exponent", apart=True), PRESETS["fp32"]


def truncating(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """Half precision products in accumulators that cut off instead of rounding."""
    product = str(rng.choice(["truncating", "truncating_groups"]))
    return _flash(rng, str(rng.choice(HALVES)), product=product)


def flash_bf16(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """bfloat16 at rest, P and dS rounded to it, everything else in float32."""
    return _flash(rng, "bfloat16")


def flash_fp16(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """float16 at rest, P and dS rounded to it, everything else in float32."""
    return _flash(rng, "float16")


def _flash(rng: np.random.Generator, half: str, **fixed: object) -> tuple[Kernel, Precision]:
    walk = str(rng.choice(["whole", "tiles", "tiles", "splits"]))
    normalise = "first" if walk == "whole" and rng.random() < 0.5 else "last"
    kernel = _free(rng, **{"walk": walk, "normalise": normalise, "result": half, "operand": half, **fixed})
    return kernel, PRESETS["flash-bf16" if half == "bfloat16" else "flash-fp16"]


def eager(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """Every intermediate stored in half precision, one operation at a time."""
    half = str(rng.choice(HALVES))
    kernel = Kernel(
        result=half, every=half, normalise="first", delta_from=str(rng.choice(["output", "weights"])),
        scale_in=str(rng.choice(["scores", "query"])), product=str(rng.choice(["blas", "sequential"])),
    )
    return kernel, PRESETS["eager-bf16" if half == "bfloat16" else "eager-fp16"]


def tf32(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """float32 whose products round all their operands to ten bits."""
    walk = str(rng.choice(["whole", "tiles"]))
    return _free(rng, walk=walk, operand="tf32", given=True, product="blas"), PRESETS["tf32"]


def double(rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """float64 throughout."""
    walk, product = str(rng.choice(["whole", "tiles", "splits"])), str(rng.choice(["blas", "sequential"]))
    return _free(rng, walk=walk, product=product, compute="float64", result="float64"), PRESETS["fp64"]


STYLES: dict[str, Callable[[np.random.Generator], tuple[Kernel, Precision]]] = {
    f.__name__: f
    for f in (naive, sequential, online, split, folded, truncating, flash_bf16, flash_fp16, eager, tf32, double)
}


def draw(style: str, rng: np.random.Generator) -> tuple[Kernel, Precision]:
    """A kernel of a style and the precision it is judged under: a smaller tile than the preset's has to be declared."""
    kernel, precision = STYLES[style](rng)
    if kernel.walk != "whole" and kernel.tile < precision.tile:
        precision = replace(precision, tile=kernel.tile)
    return kernel, precision
