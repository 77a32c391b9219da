"""prefix_mix: its sum by hand, its adjoints, either direction, and exact counts of its text."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import distance, ratio
from refattn import load, rng
from refattn.kernels import text
from refattn.precision import PRESETS
from refattn.prefix import mix_macs, prefix_mix, prefix_mix_vjp

MIX = text("prefix_mix")
SHAPES = [  # q, k, v, do
    ((7, 4), (7, 4), (7, 3), (7, 3)),
    ((2, 3, 2, 9, 4), (2, 3, 1, 9, 4), (2, 3, 1, 9, 5), (2, 3, 2, 9, 5)),
    ((1, 2), (1, 2), (1, 3), (1, 3)),
    ((0, 2), (0, 2), (0, 3), (0, 3)),
    ((5, 0), (5, 0), (5, 3), (5, 3)),
    ((5, 2), (5, 2), (5, 0), (5, 0)),
]


def drawn(shapes, seed=1):
    return [rng.short(rng.stream(seed, "prefix", i).normal(size=shape)) for i, shape in enumerate(shapes)]


def by_hand(q, k, v, reverse):
    n = q.shape[-2]
    see = np.tril(np.ones((n, n))) if not reverse else np.triu(np.ones((n, n)))
    return np.einsum("...ia,...ja,...jb,ij->...ib", q, k, v, see)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_sum_by_hand_for_any_chunk(shapes, reverse):
    q, k, v, _ = drawn(shapes)
    reading = load("rounding", precision=PRESETS["fp64"])
    band = MIX(*map(reading.lift, (q, k, v)), reverse=reverse)
    for chunk in (None, 1, 2, 3, 64):
        got = MIX(q, k, v, reverse=reverse, chunk=chunk)
        assert ratio(distance(got, band.value), band.bound) <= 1.0
        np.testing.assert_allclose(got, by_hand(q, k, v, reverse), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chunk", [None, 2])
def test_the_three_adjoints_are_the_word_itself(shapes, reverse, chunk):
    """⟨do, mix(q, k, v)⟩ is linear in each argument, so that its gradient times the argument is the value itself."""
    q, k, v, do = drawn(shapes)
    value = np.sum(do * prefix_mix(q, k, v, reverse=reverse, chunk=chunk))
    for x, dx in zip((q, k, v), prefix_mix_vjp(q, k, v, do, reverse=reverse, chunk=chunk), strict=True):
        assert np.sum(x * dx) == pytest.approx(value, rel=1e-12, abs=1e-12)
    other = drawn(shapes, seed=2)
    for i in range(3):
        moved = [q, k, v]
        moved[i] = other[i]
        dx = prefix_mix_vjp(q, k, v, do, reverse=reverse, chunk=chunk)[i]
        want = np.sum(do * prefix_mix(*moved, reverse=reverse, chunk=chunk))
        assert np.sum(other[i] * dx) == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_the_other_direction_is_a_flip():
    q, k, v, _ = (np.flip(x, axis=-2) for x in drawn(SHAPES[1]))
    np.testing.assert_allclose(MIX(q, k, v, reverse=True), np.flip(MIX(*drawn(SHAPES[1])[:3]), axis=-2), rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chunk", [None, 1, 2, 4, 100])
def test_multiply_adds_are_counted_ones(reverse, chunk):
    for shapes in SHAPES:
        reading = load("counting")
        with reading.counted() as tally:
            MIX(*map(reading.lift, drawn(shapes)[:3]), reverse=reverse, chunk=chunk)
        (*lead, n, d), e = shapes[0], shapes[2][-1]
        heads, shared = int(np.prod(lead)), int(np.prod(shapes[1][:-2]))
        assert tally.macs == mix_macs(n, d, e, heads, shared, reverse=reverse, chunk=chunk)


def test_work_and_memory_by_chunks_grow_with_the_tokens():
    found = []
    for n in (2**14, 2**15, 2**16):
        reading = load("counting")
        q = reading.shaped((n, 64))
        with reading.counted() as tally:
            MIX(q, q, q, chunk=64)
        found.append((tally.macs, tally.peak))
    assert found[2][0] - found[1][0] == 2 * (found[1][0] - found[0][0]) == 2 * 2**14 * (64 * 128 + 2 * 64 * 64)
    assert found[2][1] - found[1][1] == 2 * (found[1][1] - found[0][1])
