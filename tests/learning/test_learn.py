"""Models of refattn.layers learn by their hand-written backward: the loop, its tasks, and (sweep) what comes out of it."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from learning.taught import learn, learn_pictures, learn_tasks
from refattn import rng, tree
from refattn.patterns.reach import reach

COPY, CHARACTERS, SCHEMES = learn_tasks.TASKS["copy"], learn_tasks.TASKS["characters"], learn_tasks.SCHEMES
SEEDS = [0, 1, 2]
ROUNDS = ("1", "2", "4", "8")


def run(task: Any, scheme: str, seed: int, **more: Any) -> Any:
    return learn.train(task, SCHEMES[scheme], seed, every=10**6, **more)


def accuracy(found: Any) -> float:
    return float(found["held_out"][-1][1])


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheme", ["dense", "strided"])
def test_the_copy_task_is_learned(scheme: str, seed: int) -> None:
    assert accuracy(run(COPY, scheme, seed)) >= 0.99


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_alone_stays_at_chance(seed: int) -> None:
    """The right symbol lies beyond it, and says nothing about the others: 1/64, and log 64 nats."""
    found = run(COPY, "window", seed)
    assert accuracy(found) <= 0.03
    assert abs(found["held_out"][-1][2] - math.log(64)) <= 0.1


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS)
def test_lsh_learns_the_copy_task_and_gains_by_rounds(seed: int) -> None:
    """Random buckets show what it owes to hashing. One symbol in 500 is granted where nothing is left to gain."""
    found = run(COPY, "lsh", seed)
    hashed, drawn = ([found[how][r] for r in ROUNDS] for how in ("rounds", "random"))
    assert accuracy(found) == hashed[ROUNDS.index(str(learn.ROUNDS))] >= 0.99
    assert hashed[-1] >= 0.99
    assert all(more >= fewer - 0.002 for fewer, more in itertools.pairwise(hashed)), hashed
    assert hashed[0] + 0.05 < hashed[1] < hashed[2], hashed
    assert all(h >= d + 0.2 for h, d in zip(hashed[:3], drawn, strict=False)), (hashed, drawn)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS)
def test_characters_are_learned_better_than_by_pairs(seed: int) -> None:
    assert run(CHARACTERS, "dense", seed)["held_out"][-1][2] <= CHARACTERS.of_pairs() - 0.5


def test_the_symbol_that_is_asked_for_is_out_of_the_windows_reach_and_in_that_of_the_others() -> None:
    ids, targets = COPY.held_out()
    i = np.arange(COPY.length + 1, COPY.n)
    assert COPY.symbols >= 64
    assert (targets[:, : COPY.length + 1] == learn_tasks.IGNORED).all()
    np.testing.assert_array_equal(targets[:, i], ids[:, i - COPY.length])
    assert set(np.unique(targets[:, i])) == set(range(1, COPY.symbols + 1))
    for name, wanted in (("window", False), ("strided", True)):
        layers = len(COPY.model(SCHEMES[name]).body.layers)
        assert (reach(SCHEMES[name].pattern, COPY.n, layers, residual=True)[i, i - COPY.length] == wanted).all()


def test_what_is_held_out_is_not_learned_from() -> None:
    assert not {row.tobytes() for row in CHARACTERS.rows[0]} & {row.tobytes() for row in CHARACTERS.rows[1]}
    assert CHARACTERS.held_out()[0].shape[0] >= 100
    ids, targets = CHARACTERS.held_out()
    np.testing.assert_array_equal(ids[:, 1:], targets[:, :-1])
    assert 2.0 < CHARACTERS.of_pairs() < 3.0


def test_more_rounds_begin_with_fewer() -> None:
    model = COPY.model(SCHEMES["lsh"])
    for name, items in (("rotations", 0), ("buckets", 3)):
        few, many = (getattr(learn_tasks.given(COPY, model, rng.stream(1), r, items).others.l0, name) for r in (2, 8))
        at = -3 if name == "rotations" else -2
        assert few.shape[at] == 2
        np.testing.assert_array_equal(few, many[:, :2] if name == "rotations" else many[:, :, :2])
    assert learn_tasks.given(COPY, COPY.model(SCHEMES["dense"]), rng.stream(1), 2) is None


def test_two_steps_of_adam() -> None:
    """By hand, for gradients 1 and then −3 at a step size of 0.1."""
    nest, moments = tree.row((np.array([5.0]),)), [(np.zeros(1), np.zeros(1))]
    nest, moments = learn.adam(nest, tree.row((np.array([1.0]),)), moments, 1, 0.1)
    np.testing.assert_allclose(nest.l0, 4.9, rtol=1e-8)
    nest, moments = learn.adam(nest, tree.row((np.array([-3.0]),)), moments, 2, 0.1)
    m, v = (0.9 * 0.1 + 0.1 * -3.0) / (1 - 0.81), (0.98 * 0.02 + 0.02 * 9.0) / (1 - 0.98**2)
    np.testing.assert_allclose(nest.l0, 4.9 - 0.1 * m / math.sqrt(v), rtol=1e-8)


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    kept = json.loads(learn_pictures.RESULTS.read_text(encoding="utf-8"))
    page = learn_pictures.DOCS.read_text(encoding="utf-8")
    shown = page.partition(learn_pictures.BEGIN)[2].partition(learn_pictures.END)[0].strip()
    assert shown == learn_pictures.tables(kept)
    assert {task: set(runs) for task, runs in kept.items()} == {task: set(SCHEMES) for task in learn_tasks.TASKS}
    for picture in sorted((ROOT / "docs" / "pictures").glob("learning_*.png")):
        assert picture.stat().st_size <= 60_000


def test_the_loop_is_short_enough_to_read() -> None:
    assert len((ROOT / "benchmarks" / "learn.py").read_text(encoding="utf-8").splitlines()) <= 100
