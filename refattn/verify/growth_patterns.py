"""How many pairs patterns see: laws derived from their exact counts, for sizes up to n = 2²⁰ and beyond."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from refattn.patterns import Cross, Pattern, Split
from refattn.patterns.named import BigBird, LocalBlocks, LogTrans, Longformer, SparseTransformer
from refattn.verify.claim import Claim
from refattn.verify.forms import FORMS, SQUARE, Form, N, form
from refattn.verify.growth_claim import claim

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Stated:
    """What is said about the pairs of a pattern. make: the pattern at given sizes; count: of pairs, at those sizes."""

    name: str
    law: str
    source: str
    make: Callable[[Sizes], Pattern]
    sizes: tuple[Sizes, ...]
    forms: tuple[Form, ...] = FORMS


SQUARES: tuple[Sizes, ...] = tuple({"n": 4**k} for k in range(2, 14))
POWERS: tuple[Sizes, ...] = tuple({"n": 2**k} for k in range(2, 26))


def _grid(letter: str, *others: int) -> tuple[Sizes, ...]:
    """Sizes of two letters, n being 32 to 2¹⁵ times the largest of the other."""
    return tuple({"n": n, letter: x} for n, x in product((max(others) * 2**k for k in range(5, 16)), others))


N_W, W, W_W = form("n·w", n=1, w=1), form("w", w=1), form("w²", w=2)
N_B, B, B_B = form("n·b", n=1, b=1), form("b", b=1), form("b²", b=2)
SHARED = form("n²/blocks", n=2, blocks=-1)
ROOTS = "Child et al. 2019 (arXiv:1904.10509): O(n·√n) for l near √n"

STATED: tuple[Stated, ...] = (
    Stated("SparseTransformer.strided(√n)", "n·√n", ROOTS, lambda at: SparseTransformer.strided(_root(at)), SQUARES),
    Stated("SparseTransformer.fixed(√n)", "n·√n", ROOTS, lambda at: SparseTransformer.fixed(_root(at)), SQUARES),
    Stated(
        "CCNet.criss_cross(√n, √n)",
        "n·√n",
        "Huang et al. 2019 (arXiv:1811.11721): H + W − 1 keys for each of H·W positions",
        lambda at: Cross((_root(at), _root(at))),
        SQUARES,
    ),
    Stated(
        "LogTrans.formula()",
        "n·log n",
        "Li et al. 2019 (arXiv:1907.00235): O(L·log L) for L cells",
        lambda at: LogTrans.formula(),
        POWERS,
    ),
    Stated(
        "Longformer.sliding(w)",
        "n·w",
        "Beltagy et al. 2020 (arXiv:2004.05150): O(n·w)",
        lambda at: Longformer.sliding(at["w"]),
        _grid("w", 1, 4, 16, 61),
        (N_W, N, W_W, W),
    ),
    Stated(
        "LocalBlocks.own(b)",
        "n·b",
        "Liu et al. 2018 (arXiv:1801.10198): constant for each block of b, so linear in n",
        lambda at: LocalBlocks.own(at["b"]),
        _grid("b", 4, 16, 64),
        (N_B, N, B_B, B),
    ),
    Stated(
        "BigBird.itc(b, 3, 'multiset')",
        "n·b",
        "Zaheer et al. 2020 (arXiv:2007.14062): O(n), blocks of b; the code's lists have 8 blocks a row",
        lambda at: BigBird.itc(at["b"], 3, "multiset"),
        _grid("b", 4, 16, 64)[:24],  # random blocks are drawn, which takes long at more
        (N_B, N, B_B, B),
    ),
    Stated(
        "BlockBERT: Split(blocks)",
        "n²/blocks",
        "Qiu et al. 2020 (arXiv:1911.02972): 1/blocks of the memory of full attention",
        lambda at: Split(at["blocks"], 1),
        _grid("blocks", 2, 4, 8),
        (SHARED, SQUARE, N),
    ),
)
"""Every statement comes out as an identity."""


def pattern_claims() -> tuple[Claim, ...]:
    """A claim for each statement in STATED: the pairs, with multiplicities, of n queries and n keys."""
    made = []
    for s in STATED:
        points = [(at, s.make(at).weight(at["n"], at["n"])) for at in s.sizes]
        made.append(claim(f"{s.name}: pairs seen", s.law, s.source, points, s.forms))
    return tuple(made)


def _root(at: Sizes) -> int:
    """√n of a square."""
    return math.isqrt(at["n"])
