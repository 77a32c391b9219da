"""Lists of tiles: what they hold is what they were made of, the causal order is covered once, equal masks are kept once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutting import cut
from refattn.backends.tile_lists import FULL, Tiles, causal, dense, tiles

NONE = np.zeros((0, 0), np.uint8)


def held(them: Tiles, n: int, m: int) -> Any:
    """(n, m) how many tiles show each pair."""
    out = np.zeros((n, m), int)
    for tile, (q0, q1, k0, k1, _) in enumerate(them.at):
        mask = them.mask(tile)
        out[q0:q1, k0:k1] += 1 if mask is None else mask
    return out


@pytest.mark.parametrize("seed", range(8))
def test_tiles_hold_what_they_were_made_of_and_groups_hold_their_queries(seed: int) -> None:
    see = np.random.default_rng(seed).random((40, 57)) < (0.02, 0.5, 0.98)[seed % 3]
    see[:, 20:30] = seed % 2
    them = tiles(cut(see, seed))
    np.testing.assert_array_equal(held(them, 40, 57), see)
    assert len(them.at) == sum(last - first for _, _, first, last in them.groups)
    for (q0, q1, first, last), after in zip(them.groups, [*them.groups[1:], (40, 0, 0, 0)], strict=True):
        assert q1 <= after[0]
        assert (them.at[first:last, 0].min(), them.at[first:last, 1].max()) == (q0, q1)
    np.testing.assert_array_equal(them.seen(57, NONE), see.any(axis=0))
    further = np.random.default_rng(seed + 50).random((40, 57)) < 0.1
    np.testing.assert_array_equal(them.seen(57, further.view(np.uint8)), (see & further).any(axis=0))


def test_equal_masks_are_kept_once_spans_need_no_bits_and_what_shows_nothing_is_left_out() -> None:
    corner, holes = np.tri(8, dtype=bool), np.eye(8, dtype=bool) | np.eye(8, k=3, dtype=bool)
    diagonal = [(8 * i, 8 * i + 8, 8 * i, 8 * i + 8, corner) for i in range(5)]
    others = [(40, 48, 0, 8, holes), (48, 56, 8, 16, holes), (56, 64, 0, 8, corner & ~corner), (56, 64, 8, 16, holes | True)]
    them = tiles(diagonal + others)
    assert len(them.at) == 8
    assert them.at[:, 4].tolist() == [0, 0, 0, 0, 0, 1, 1, FULL]
    assert them.masks[:, 1].tolist() == [FULL, 0]
    assert len(them.bits) == 8


WIDE = np.ones((2, 3), dtype=bool)


@pytest.mark.parametrize("tile", [(0, 0, 0, 1, None), (0, 1, 2, 2, None), (-1, 1, 0, 1, None), (0, 2, 0, 2, WIDE)])
def test_tiles_that_are_none(tile: Any) -> None:
    with pytest.raises(ValueError, match=r"tile \("):
        tiles([tile])


@pytest.mark.parametrize("n", [0, 1, 5, 12])
@pytest.mark.parametrize("m", [0, 1, 5, 12, 40])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_all_pairs_and_the_causal_order_are_covered_once(n: int, m: int, rows: int) -> None:
    np.testing.assert_array_equal(held(dense(n, m, rows), n, m), np.ones((n, m), int))
    for offset in (0, m - n, -3, 2):
        for corner in (1, 3, 100):
            want = np.arange(m) <= np.arange(n)[:, None] + offset
            np.testing.assert_array_equal(held(causal(n, m, offset, rows, corner), n, m), want)


def test_the_causal_order_at_length_has_few_tiles_and_masks() -> None:
    them = causal(10_000, 10_000, 0, 256, 64)
    assert len(them.at) < 10_000 / 256 * 9
    assert len(them.masks) <= 2


@pytest.mark.parametrize("most", [1, 2, 4, 7])
def test_parts_cover_all_keys_and_split_no_mask(most: int) -> None:
    scattered = np.random.default_rng(0).random((50, 50)) < 0.5
    for them in (dense(50, 50, 8), causal(50, 50, 0, 16, 16), tiles(cut(scattered, 3))):
        parts = them.parts(50, most)
        assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])]
        assert parts[-1][1] == 50
        assert len(parts) <= most
        for _, _, k0, k1, mask in them.at:
            assert mask == FULL or any(first <= k0 and k1 <= last for first, last in parts)
    assert len(dense(50, 50, 8).parts(50, most)) == most
