"""Collision laws of the angular hash: they hold, their integral is right, and a hash with a mistake is found."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import rng
from refattn.ops.angular_hash import angular_hash
from refattn.verify import lsh, verify


@pytest.fixture(scope="module")
def claims() -> dict[str, Any]:
    return {claim.name.removeprefix("lsh: ").removesuffix(":"): claim for claim in verify("lsh")}


def test_every_law_holds(claims: dict[str, Any], undocumented: Any) -> None:
    assert undocumented(claims.values(), "lsh: ") == []
    assert [name for name, claim in claims.items() if not claim.as_stated] == []
    assert set(claims) == {"two buckets", "four buckets", "quadrature", "2w buckets", "width", "rounds", "factors"}
    for name, claim in claims.items():
        assert (claim.false_alarm, bool(claim.power)) == ((0.0, False) if name == "quadrature" else (1e-6, True))
    assert claims["2w buckets"].trials == 21 * lsh.TRIALS


def test_another_seed_draws_something_else(claims: dict[str, Any]) -> None:
    others = {claim.name.removeprefix("lsh: ").removesuffix(":"): claim for claim in verify("lsh", seed=1)}
    assert all(claim.as_stated for claim in others.values())
    assert others["width"].picture != claims["width"].picture


def test_the_integral_against_draws_of_its_own() -> None:
    """2w P(S and T of the first column are larger than all others in size), normal numbers drawn without any hash."""
    draws, n = rng.stream(1, "integral"), 400_000
    for angle, w in ((0.4, 3), (1.2, 4), (2.5, 2)):
        s, z = draws.normal(size=(2, n, w))
        t = math.cos(angle) * s + math.sin(angle) * z
        first = (s[:, 0] > 0) & (t[:, 0] > 0)
        first &= (np.abs(s[:, 1:]) < s[:, :1]).all(axis=1) & (np.abs(t[:, 1:]) < t[:, :1]).all(axis=1)
        p = lsh.integral(angle, w) / (2 * w)
        assert abs(first.mean() - p) < 5.0 * math.sqrt(p * (1.0 - p) / n)
    assert lsh.integral(0.3, 5) > lsh.integral(0.6, 5) > lsh.integral(0.6, 6)


def _one_sided(x: Any, turn: Any, factors: Any) -> Any:
    return np.argmax(x[..., None, :, :] @ turn, axis=-1)


def _biased(x: Any, turn: Any, factors: Any) -> Any:
    """Rotations that are the less centred the wider the vectors are."""
    return angular_hash(x, turn + turn.shape[-2] / 64.0, factors)


def _shared(x: Any, turn: Any, factors: Any) -> Any:
    """The same rotation in every round."""
    return angular_hash(x, turn[:, :1] + 0.0 * turn, factors)


def _overlapping(x: Any, turn: Any, factors: Any) -> Any:
    """Factors that share their first columns."""
    return angular_hash(x, np.concatenate([turn[..., :2], turn[..., :1], turn[..., :3]], axis=-1), factors)


FAULTS = {
    "two buckets": _one_sided, "four buckets": _one_sided, "2w buckets": _one_sided, "width": _biased, "rounds": _shared,
    "factors": _overlapping,
}  # fmt: skip


TWINS = {"four buckets", "2w buckets"}  # of "two buckets": the same fault


@pytest.mark.parametrize(("law", "fault"), [
    pytest.param(law, fault, marks=[pytest.mark.sweep] if law in TWINS else [], id=law) for law, fault in FAULTS.items()
])  # fmt: skip
def test_a_hash_with_a_mistake_is_found(law: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsh, "angular_hash", fault)
    monkeypatch.setattr(lsh, "TRIALS", 5_000)
    (claim,) = (claim for claim in lsh.run() if claim.name == f"lsh: {law}:")
    assert not claim.as_stated


def test_a_frequency_that_is_off_by_the_stated_power_is_found(claims: dict[str, Any]) -> None:
    off = float(re.findall(r"off by ([\d.]+)", claims["two buckets"].power)[0])
    assert off == pytest.approx(0.027, abs=0.001)
    right = lsh.measured(0, "two", math.pi / 4, 1)
    for sign in (1, -1):
        wrong = replace(right, met=right.met + sign * math.ceil(off * right.trials))
        assert lsh._claim("", "", "", {"": [right] * 7}).holds
        assert not lsh._claim("", "", "", {"": [*[right] * 6, wrong]}).holds
