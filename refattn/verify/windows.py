"""Sparse attention in a window against exact attention, as the window grows: Local(w, w) for Dense."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from refattn import rng
from refattn.backend import load
from refattn.patterns import Local
from refattn.schemes.dense import Dense
from refattn.schemes.sparse import Sparse
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.subsets import SOURCE, diameter, missed, rms, weights, worst

Array = Any
WIDTHS, N = (0, 1, 2, 4, 8, 16, 32, 64, 128, 191), 192
_SETS = "the windows are nested"


def claims(seed: int) -> tuple[Claim, ...]:
    """On drawn tokens that lie on a path, so that near ones are alike."""
    draws = rng.stream(seed, "attention", "window")
    x = draws.normal(size=(N, 16)).cumsum(axis=0)
    x = x / (1.0 + load("numpy").xp.arange(N)[:, None]) ** 0.5
    v = draws.normal(size=(N, 4)).cumsum(axis=0)
    return *measured(x, x + 0.3 * draws.normal(size=x.shape), v), never_further()


def measured(q: Array, k: Array, v: Array) -> tuple[Claim, Claim, Claim]:
    """Error, bound and missed weight at every width."""
    xp = load("numpy").xp
    P, wide, o = weights(q, k, q.shape[-1] ** -0.5), diameter(v), Dense()(q, k, v)
    at = xp.arange(N)
    masses = [missed(P, Local(w, w).contains(at[:, None], at, N)) for w in WIDTHS]
    errors = [Sparse(Local(w, w))(q, k, v) - o for w in WIDTHS]
    ratio = max(worst(e, m * wide) for e, m in zip(errors, masses, strict=True))
    means = [float(m.mean()) for m in masses]
    falls = all(bool((b <= a + 1e-15).all()) and b.sum() < a.sum() for a, b in pairwise(masses))
    size, last = rms(o), rms(errors[-1]) / rms(o)
    shown, x = _row([rms(e) / size for e in errors]), tuple(2 * w + 1 for w in WIDTHS)
    picture = Picture("keys in the window", "‖õ − o‖ / ‖o‖", (
        Curve("Local(w, w)", x[:-1], tuple(rms(e) / size for e in errors[:-1])),
        Curve("weight outside × diameter of the values", x[:-1],
              tuple(rms(m[:, None]) * wide / size for m in masses[:-1]), bound=True)))  # fmt: skip
    return (
        _claim("window: bound", f"every row is off by at most μ·diam(V), μ its weight outside (n = {N}, w = {_widths()})",
               SOURCE, 1.0, f"{ratio:.3f} of it at most; ‖õ − o‖/‖o‖ = {shown}", ratio <= 1.0,
               len(WIDTHS) * N, picture=picture),
        _claim("window: weight outside", f"a wider window leaves no row more weight outside, and all rows less together "
               f"(w = {_widths()})", _SETS, "falling", _row(means), falls, len(WIDTHS)),
        _claim("window: the end", f"the window of all keys is exact attention (n = {N}, w = {WIDTHS[-1]})",
               "equation of Sparse", 1e-14, last, last <= 1e-14),
    )  # fmt: skip


def never_further() -> Claim:
    """Equal scores, values 0, 1, −1: token 0 is exact by itself, and not with its neighbour."""
    xp = load("numpy").xp
    q, v = xp.zeros((3, 1)), xp.asarray([[0.0], [1.0], [-1.0]])
    errors = [float(abs(Sparse(Local(w, w))(q, q, v) - Dense()(q, q, v))[0, 0]) for w in (0, 1, 2)]
    holds = errors[0] >= errors[1] >= errors[2]
    return _claim("window: never further", "a row is never further off with a wider window (three tokens, equal scores)",
                  "counter-example by hand: v = 0, 1, −1", "falling", _row(errors), holds, 3, stated=False)  # fmt: skip


def _claim(name: str, statement: str, source: str, bound: Any, found: Any, holds: bool, trials: int = 1, **more: Any
           ) -> Claim:
    return Claim(f"sparse: {name}:", statement, source, bound, found, trials, holds, **more)


def _widths() -> str:
    return f"{WIDTHS[0]} to {WIDTHS[-1]}"


def _row(numbers: Any) -> str:
    return ", ".join(f"{x:.3g}" for x in numbers)
