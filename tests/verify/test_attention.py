"""Approximations against exact attention: claims come out as stated for every tagged row, and do not where one is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Local, OptionError, rng
from refattn.catalogue import ROWS, row
from refattn.verify import attention, rounds, slots, subsets, windows
from refattn.verify.claim import Claim


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.name: claim for claim in attention.run()}


def test_every_claim_comes_out_as_stated(claims: dict[str, Claim], undocumented: Any) -> None:
    assert undocumented(claims.values(), "") == []
    for claim in claims.values():
        print(claim)
        assert claim.as_stated
        assert bool(claim.power) == (claim.false_alarm > 0.0)
        assert claim.false_alarm in (0.0, 1e-6)
    assert {name for name, claim in claims.items() if not claim.stated} == {
        "sparse: window: never further:",
        "linformer: slots: random:",
        "lsh: rounds: counted:",
    }


def test_every_tagged_row_has_a_bound_and_an_end(claims: dict[str, Claim]) -> None:
    tagged = [r.name for r in ROWS if attention.TAG in r.tags]
    assert tagged == [name for name in ("sparse", "linformer", "lsh") if name in attention.KNOBS]
    assert set(tagged) == set(attention.KNOBS)
    for name in tagged:
        own = [claim for full, claim in claims.items() if full.startswith(f"{name}: ")]
        assert any("bound" in claim.name for claim in own)
        assert any("the end" in claim.name or "one bucket" in claim.name for claim in own)


def test_a_tagged_row_without_a_knob_is_refused() -> None:
    new = replace(row("linear"), tags=frozenset({attention.TAG}))
    with pytest.raises(OptionError, match="nothing is stated about the knob of linear: add it to KNOBS"):
        attention.run(rows=(new,))
    assert attention.run(rows=(replace(new, tags=frozenset()),)) == ()


def test_the_error_of_a_subset_is_the_weight_missed_times_the_distance_of_two_means() -> None:
    """Equality at two values: õ = 0, the mean of what is missed 2, so that the error is 2μ = μ·diam."""
    draws = rng.stream(1, "subset")
    q, k = draws.normal(size=(2, 6, 4))
    P = subsets.weights(q, k, 0.5)
    v, seen = np.repeat([[0.0], [2.0]], 3, axis=0), np.tile(np.arange(6) < 3, (6, 1))
    mass = subsets.missed(P, seen)
    near = (P * seen) @ v / (P * seen).sum(axis=-1, keepdims=True)
    error = near - P @ v
    assert abs(error[:, 0]) == pytest.approx(mass * subsets.diameter(v))
    assert subsets.worst(error, mass * subsets.diameter(v)) == pytest.approx(1.0)
    assert subsets.worst(1.01 * error, mass * subsets.diameter(v)) > 1.0
    assert subsets.worst(np.asarray([[1e-9]]), np.zeros(1)) > 1.0
    assert subsets.rms(np.asarray([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(12.5**0.5)


class Narrow:
    """A window that is one key narrower at the right than it says."""

    def __new__(cls, left: int, right: int) -> Any:
        return Local(left, max(right - 1, 0))


def test_a_window_with_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "Sparse", lambda pattern: windows_sparse(Narrow(pattern.left, pattern.right)))
    found = {claim.name: claim for claim in windows.claims(0)}
    assert not found["sparse: window: the end:"].as_stated or not found["sparse: window: bound:"].as_stated


windows_sparse = windows.Sparse


def test_windows_that_are_not_nested_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "Local", lambda left, right: Local(left, right) if left != 8 else Local(2, 2))
    assert not windows.claims(0)[1].as_stated


def drawn() -> tuple[Any, Any, Any, Any]:
    """x, v, P, rotations as rounds.claims has them."""
    draws = rng.stream(2, "x")
    x, v = draws.normal(size=(rounds.N, 8)), draws.normal(size=(rounds.N, 4))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return x, v, subsets.weights(x, x, rounds.SHARP, np.eye(rounds.N)), draws.normal(size=(rounds.ROUNDS[-1], 8, rounds.W))


def test_a_bound_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (windows, rounds):
        monkeypatch.setattr(module, "diameter", lambda v: 0.4 * subsets.diameter(v))
    assert not windows.claims(0)[0].as_stated
    assert not rounds.measured(*drawn())[0].as_stated


def test_hashes_that_meet_too_often_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer buckets than the law knows."""
    monkeypatch.setattr(rounds, "meeting", lambda angle, w: (1.0 - angle / np.pi) ** (w + 1))
    x, _, P, _ = drawn()
    assert not rounds.hidden_weight(x, P, 0, trials=2000).as_stated
    assert not rounds.counts(x, 0).as_stated


def test_each_key_counted_as_often_as_it_is_met_is_no_bounded_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rounds.scheme
    monkeypatch.setattr(rounds, "scheme", lambda duplicates, chunk=rounds.N: right("counted", chunk))
    x, v, P, rotations = drawn()
    assert not rounds.measured(x, v, P, rotations)[0].as_stated
    assert rounds.one_bucket(x, v).as_stated


def test_the_tolerance_of_the_corrected_bound_solves_its_equation() -> None:
    for k, n, delta in ((288, 512, 0.05), (2000, 512, 0.05), (5000, 10**6, 1e-6)):
        eps = slots.tolerance(k, n, delta)
        assert eps is not None
        assert 4.0 * np.log(2.0 * n / delta) / (eps**2 - eps**3) == pytest.approx(k)
        assert 0.0 < eps < 2.0 / 3.0
    assert slots.tolerance(267, 512, 0.05) is None
    assert slots.tolerance(269, 512, 0.05) is not None


def test_projections_that_are_off_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off:
        """Variance 4/k: lengths are twice what they were."""

        def matrix(self, k: int, n: int, draws: Any) -> Any:
            return 2.0 * slots.FAMILIES[0].matrix(k, n, draws)

    monkeypatch.setattr(slots, "GAUSSIAN", Off())
    P = subsets.weights(*rng.stream(3, "P").normal(size=(2, slots.N, 4)), 0.5)
    assert not slots.bound(P, rng.stream(3, "w").normal(size=slots.N), 0).as_stated


def test_a_map_nearer_than_its_rank_allows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = rng.stream(4, "qk").normal(size=(2, slots.N, 4))
    P = subsets.weights(q, k, 0.5)
    assert slots.floor(q, k, P, 0).as_stated
    monkeypatch.setattr(slots, "Linformer", lambda **_: lambda q, k, v, **E: P)
    assert not slots.floor(q, k, P, 0).as_stated


def test_random_slots_that_would_come_near_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = rng.stream(5, "qkv").normal(size=(3, slots.N, 4))
    near = slots.Dense()(q, k, v) * 1.1
    monkeypatch.setattr(slots, "Linformer", lambda **_: lambda q, k, v, **E: near)
    random, end = slots.attended(q, k, v, 0)
    assert not random.as_stated
    assert not end.as_stated
