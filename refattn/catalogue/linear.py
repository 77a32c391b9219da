"""Linear attention in the catalogue."""

from __future__ import annotations

from typing import Any

from refattn import rng
from refattn.catalogue.base import ODD, SQUARE, Row, Stated, Variant, softmax_sizes
from refattn.features.identity import Identity
from refattn.features.relu import Relu
from refattn.schemes.linear import Linear


def draw_linear(variant: Variant, seed: int) -> Any:
    """Normal q, k, v and uneven padding; no entry of q and k near 0, where relu has a kink."""
    b, h, g, n, m, d, e = (variant.sizes[a] for a in "bhgnmde")
    shapes = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, e)}
    inputs = {name: rng.short(rng.stream(seed, "linear", name).normal(size=shape)) for name, shape in shapes.items()}
    for name in "qk":
        x = inputs[name]
        inputs[name] = x + (abs(x) < 0.0625) * (0.0625 * (1 - 2 * (x < 0)) - x)
    inputs["key_valid"] = rng.stream(seed, "linear", "key_valid").random((b, m)) < 0.6
    return Linear.Inputs(**{name: inputs[name] for name in ("q", "k", "v", *variant.given)})


FACTORED = "Katharopoulos et al. 2020 (arXiv:2006.16236), §3.2.1: O(N) time and memory, keys summed up once"
RUNNING = "Katharopoulos et al. 2020 (arXiv:2006.16236), §3.3.1: O(N·C·M) time with a running state, here by chunks"
LINEAR = Row(
    name="linear",
    variants=(
        Variant(Linear(), ODD),
        Variant(Linear(causal=True), SQUARE),
        Variant(Linear(causal=True, align="bottom_right"), ODD, ("key_valid",)),
        Variant(Linear(causal=True, align="bottom_right"), softmax_sizes(1, 2, 2, 9, 4, 3, 5)),
        Variant(Linear(causal=True, align="top_left", heads="tiled"), ODD),
        Variant(Linear(eps=0.25), ODD, ("key_valid",)),
        Variant(Linear(causal=True, eps=0.25, eps_at="keys", scale=None), SQUARE, ("key_valid",)),
        Variant(Linear(causal=True, feature=Relu(0.125)), SQUARE),
        Variant(Linear(feature=Identity(), normalise=False, heads="tiled"), ODD),
        Variant(Linear(causal=True, feature=Identity(), normalise=False, scale=None), SQUARE, ("key_valid",)),
    ),
    draw=draw_linear,
    tags=frozenset({"rows_sum_to_one", "permutation_equivariant", "causal", "streams"}),
    paper="Katharopoulos et al. 2020, arXiv:2006.16236",
    growth=(
        Stated("exponentials of forward", "n", FACTORED, blocked=True),
        Stated("elements saved", "n", FACTORED),
        Stated("multiply-adds of forward", "n", RUNNING, blocked=True),
        Stated("multiply-adds of vjp", "n", RUNNING, blocked=True),
        Stated("elements moved by forward", "n", RUNNING, blocked=True),
        Stated("peak elements of forward", "n", RUNNING, blocked=True),
        Stated("peak elements of vjp", "n", RUNNING, blocked=True),
    ),
)
