"""How often the angular hash puts two vectors at angle θ into one bucket: laws, and binomial tests of the hash itself.

    two buckets    P_1(θ) = 1 − θ/π                            both vectors on one side of a random plane
    four buckets   P_2(θ) = (1 − θ/π)²                         |u| ≥ |v| and signs are the signs of u + v and u − v
    2w buckets     P_w(θ) = 2w ∫∫_{s,t>0} φ_ρ(s, t) F_ρ(s, t)^(w−1) ds dt,   ρ = cos θ,   F_ρ(s, t) = P(|S| < s, |T| < t)
    r rounds       1 − (1 − P)^r to meet in one at least       factors     Π_m P_(f_m/2)       any width d ≥ 2 of the vectors

(S, T) is normal with correlation ρ and density φ_ρ: what two vectors have with one column of R. Charikar (STOC 2002) has
P_1; Andoni et al. (arXiv:1509.02897), §3, the cross-polytope hash; the integral is over the product s of the winning column.
Each count of meetings is tested against its law by an exact two-sided binomial test; the tests of a claim share one chance
in a million of a false alarm.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.ops.angular_hash import angular_hash, widths
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.exact_tests import ALPHA, equal

TRIALS, WIDTH = 20_000, 8
ANGLES = tuple(math.pi * x for x in (0.05, 0.15, 0.25, 0.35, 0.5, 0.7, 0.9))
NODES, FAR = 64, 9.0  # of the quadrature; a normal number beyond 9 has a chance of 1e-19
_CHARIKAR = "Charikar 2002 (STOC), §3: P = 1 − θ/π for the sign of a random product"
_ANDONI = "Andoni et al. 2015 (arXiv:1509.02897), §3: the cross-polytope hash, here without making columns orthogonal"
_KITAEV = "Kitaev et al. 2020 (arXiv:2001.04451), §2: rounds make it unlikely that similar vectors never meet"
_TRAX = "trax/layers/research/efficient_attention.py, hash_vecs: a factorised hash is several hashes of their own columns"


@dataclass(frozen=True)
class Test:
    """Meetings counted at one angle, in so many trials, of which the law expects `expected` each."""

    angle: float
    expected: float
    met: int
    trials: int


def run(seed: int = 0) -> tuple[Claim, ...]:
    """A claim for each law, on draws of this seed."""
    count = functools.partial(measured, seed)
    factors, rounds = (4, 2, 6), (1, 2, 4, 8)
    whole = [("quadrature", w, ANGLES) for w in (3, 8, 32)]
    by_width = [(d, count(f"d={d}", 1.0, 4, d=d)) for d in (2, 3, 16, 64)]
    by_rounds = [(r, count(f"r={r}", 1.0, 2, rounds=r)) for r in rounds]
    return (
        _claim("two buckets", "vectors at angle θ meet with probability 1 − θ/π", _CHARIKAR,
               {"2 buckets": [count("two", a, 1) for a in ANGLES]}),
        _claim("four buckets", "vectors at angle θ meet with probability (1 − θ/π)²", _ANDONI,
               {"4 buckets": [count("four", a, 2) for a in ANGLES]}),
        quadrature(),
        _claim("2w buckets", "vectors at angle θ meet with the probability of the integral", _ANDONI,
               {f"{2 * w} buckets": [count(f"w={w}", a, w) for a in angles] for _, w, angles in whole}),
        _claim("width", "the probability to meet does not depend on the width of the vectors", _CHARIKAR,
               {"8 buckets, θ = 1": [t for _, t in by_width]}, ("width d", [float(d) for d, _ in by_width])),
        _claim("rounds", "r rounds meet at least once with probability 1 − (1 − P)^r", _KITAEV,
               {"4 buckets, θ = 1": [t for _, t in by_rounds]}, ("rounds", [float(r) for r in rounds])),
        _claim("factors", "a factorised hash meets with the product of the probabilities of its factors", _TRAX,
               {f"factors {factors}": [count("factors", a, 6, factors=factors) for a in ANGLES]}),
    )


def measured(seed: int, name: str, angle: float, w: int, *, d: int = WIDTH, rounds: int = 1,
             factors: tuple[int, ...] | None = None) -> Test:
    """TRIALS draws of `rounds` rotations: how often two vectors at this angle meet in one round at least."""
    xp, draws = load("numpy").xp, rng.stream(seed, "lsh", name, str(angle))
    pair = xp.zeros((2, d))
    pair[0, 0], pair[1, 0], pair[1, 1] = 1.0, math.cos(angle), math.sin(angle)
    met, step = 0, max(2**21 // (rounds * d * w), 1)
    for start in range(0, TRIALS, step):
        some = min(step, TRIALS - start)
        buckets = angular_hash(pair, draws.normal(size=(some, rounds, d, w)), factors)
        met += int(xp.sum(xp.any(buckets[..., 0] == buckets[..., 1], axis=-1)))
    p = math.prod(meeting(angle, f // 2) for f in widths(w, factors))
    return Test(angle, 1.0 - (1.0 - p) ** rounds, met, TRIALS)


def meeting(angle: float, w: int) -> float:
    """P_w(θ), in closed form for one and two columns."""
    return (1.0 - angle / math.pi) ** w if w <= 2 else integral(angle, w)


def integral(angle: float, w: int) -> float:
    """P_w(θ) by Gauss-Legendre quadrature of s, of z in t = ρ s + √(1 − ρ²) z, and within F of the first coordinate."""
    special: Any = importlib.import_module("scipy.special")
    xp, (nodes, weights) = load("numpy").xp, special.roots_legendre(NODES)
    rho, side = math.cos(angle), math.sin(angle)

    def density(x: Any) -> Any:
        return xp.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)

    s, of_s = (nodes + 1.0) * (FAR / 2.0), weights * (FAR / 2.0)
    low = xp.maximum(-FAR, -rho * s / side)  # t > 0
    half = xp.maximum(FAR - low, 0.0) / 2.0
    z, of_z = low[:, None] + (nodes + 1.0) * half[:, None], weights * half[:, None]
    t = xp.maximum(rho * s[:, None] + side * z, 0.0)[:, :, None]
    a = nodes * s[:, None, None]
    inside = special.ndtr((t - rho * a) / side) - special.ndtr((-t - rho * a) / side)
    f = xp.sum(density(a) * inside * weights, axis=-1) * s[:, None]
    found = 2.0 * w * xp.sum(of_s * density(s) * xp.sum(of_z * density(z) * f ** (w - 1), axis=-1))
    return float(found)


def quadrature() -> Claim:
    """The integral beside the closed forms that it has for one and two columns."""
    off = max(abs(integral(a, w) - meeting(a, w)) for a in ANGLES for w in (1, 2))
    return Claim(
        "lsh: quadrature:", "the integral is 1 − θ/π for two buckets and (1 − θ/π)² for four", _ANDONI, 1e-9, off,
        2 * len(ANGLES), off <= 1e-9,
    )  # fmt: skip


def _claim(name: str, statement: str, source: str, tests: dict[str, list[Test]],
           along: tuple[str, Sequence[float]] | None = None) -> Claim:
    every = [t for some in tests.values() for t in some]
    found = [equal(t.met, t.trials, t.expected, ALPHA / len(every)) for t in every]
    worst = max((abs(f.frequency - t.expected), f"{f.frequency:.4f} for {t.expected:.4f}")
                for f, t in zip(found, every, strict=True))[1]  # fmt: skip
    curves: list[Curve] = []
    for label, some in tests.items():
        x = tuple(t.angle / math.pi for t in some) if along is None else tuple(along[1])
        curves += [Curve(f"{name}: {label}, law", x, tuple(t.expected for t in some), bound=True),
                   Curve(f"{name}: {label}", x, tuple(t.met / t.trials for t in some))]
    return Claim(
        f"lsh: {name}:", statement, source, f"what each of {len(every)} binomial tests leaves possible",
        f"furthest off: {worst}; refuted: {sum(not f.holds for f in found)}", sum(t.trials for t in every),
        all(f.holds for f in found), false_alarm=ALPHA,
        power=f"a chance that is off by {max(f.off for f in found):.4f} anywhere",
        picture=Picture("angle θ / π" if along is None else along[0], "chance to meet", tuple(curves), logarithmic=False),
    )  # fmt: skip
