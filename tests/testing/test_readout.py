"""The mask read out of kernels whose mask is known to be wrong: in words, with a picture, and nothing where it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.testing.readout import describe, picture, read_mask, shape
from refattn.testing.worker import open_candidate

Array = Any
CAUSAL = Dense(causal=True, align="bottom_right")


def kernel(see: Any, dtype: str = "float32") -> Any:
    """Dense with a mask of its own: see(i, j, n, m)."""

    def forward(q: Array, k: Array, v: Array) -> Array:
        n, m = q.shape[-2], k.shape[-2]
        if m % 128 == 3 and see is none_at_131:
            raise NotImplementedError("n = 131")
        mask = see(np.arange(n)[:, None], np.arange(m)[None, :], n, m)
        return Dense().forward(q, k, v, mask=np.broadcast_to(mask, (n, m)))[0].astype(q.dtype)

    return forward


def right(i: Array, j: Array, n: int, m: int) -> Array:
    return j <= i + m - n


def none_at_131(i: Array, j: Array, n: int, m: int) -> Array:
    return right(i, j, n, m)


def read(see: Any, scheme: Dense = CAUSAL, dtype: str = "float32") -> str:
    with open_candidate(kernel(see), dtype=dtype) as runner:
        return read_mask(runner, scheme, dtype, False)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_right_mask_says_nothing(dtype: str) -> None:
    assert read(right, dtype=dtype) == ""
    assert read(none_at_131, dtype=dtype) == "", "sizes that the candidate does not take are passed over"


@pytest.mark.parametrize(("see", "text"), [
    (lambda i, j, n, m: j <= i + m - n + 1, "(n = 12, m = 12): sees keys that it must not: the diagonal j − i = 1\n"),
    (lambda i, j, n, m: j < i + m - n, "(n = 12, m = 12): does not see keys that it must: the diagonal j − i = 0\n"),
    (lambda i, j, n, m: j <= i,
     "(n = 7, m = 12): does not see keys that it must: 35 pairs, queries 0…6 (the tail), keys 1…11"),
    (lambda i, j, n, m: right(i, j, n, m) | (j > i + m - n + 3),
     "sees keys that it must not: 36 pairs, queries 0…7, keys 4…11"),
    (lambda i, j, n, m: right(i, j, n, m) & (j < m // 64 * 64 + 64 * (m < 64)),
     "(n = 70, m = 70): does not see keys that it must: "
     "21 pairs, queries 64…69 (the tail behind a multiple of 64), keys 64…69 (the tail behind a multiple of 64)"),
    (lambda i, j, n, m: right(i, j, n, m) & (j < m // 128 * 128 + 128 * (m < 128)), "(n = 131, m = 131): does not see keys"),
    (lambda i, j, n, m: (j <= i + m - n + 1) & (j > 0), "sees keys that it must not: the diagonal j − i = 1; "
     "does not see keys that it must: 12 pairs, queries 0…11 (the tail), keys 0\n"),
])  # fmt: skip
def test_a_wrong_mask_is_described(see: Any, text: str) -> None:
    assert text in read(see)


def test_the_picture_shows_every_pair() -> None:
    text = read(lambda i, j, n, m: (j <= i + m - n + 1) & (j > 0))
    rows = text.splitlines()[1:13]
    assert rows[0] == "  −+··········"
    assert rows[1] == "  −█+·········"
    assert rows[11] == "  −███████████"
    assert "+ seen, must not be" in text.splitlines()[13]


def test_large_masks_have_no_picture() -> None:
    assert "\n" not in read(lambda i, j, n, m: right(i, j, n, m) & (j < m // 64 * 64 + 64 * (m < 64)))


def test_without_alignment_only_equal_lengths_are_read() -> None:
    assert read(lambda i, j, n, m: j <= i, Dense(causal=True)) == ""
    assert "(n = 12, m = 12)" in read(lambda i, j, n, m: j < i, Dense(causal=True))


def test_nothing_is_read_where_weights_are_dropped_or_nothing_comes_back() -> None:
    with open_candidate(kernel(lambda i, j, n, m: j < i)) as runner:
        assert read_mask(runner, Dense(keep_rate=0.5), "float32", False) == ""

    def crashing(q: Array, k: Array, v: Array) -> Array:
        raise ValueError("no")

    for f in (crashing, lambda q, k, v: q[..., :1]):
        with open_candidate(f) as runner:
            assert read_mask(runner, CAUSAL, "float32", False) == ""


def test_nan_counts_as_not_seen() -> None:
    got = read(lambda i, j, n, m: (j <= i) & (i > 0), Dense(causal=True))
    assert "does not see keys that it must: the diagonal j − i = 0" in got

    def poisoned(q: Array, k: Array, v: Array) -> Array:
        o = Dense(causal=True).forward(q, k, v)[0].astype(q.dtype)
        o[..., 3, :] = np.nan
        return o

    with open_candidate(poisoned) as runner:
        assert "4 pairs, queries 3, keys 0…3" in read_mask(runner, Dense(causal=True), "float32", False)


def test_the_words_for_a_set_of_pairs() -> None:
    off = np.zeros((8, 8), bool)
    off[2, 3] = off[4, 5] = True
    assert shape(off) == "the diagonal j − i = 1"
    off[7, 7] = True
    assert shape(off) == "3 pairs, queries 2, 4, 7, keys 3, 5, … (every 2nd)"
    want = np.tril(np.ones((3, 3), bool))
    assert picture(want, want).splitlines()[:3] == ["  █··", "  ██·", "  ███"]
    assert describe(want.T, want).startswith("mask read out with q = k = 0, V = I (n = 3, m = 3): sees keys")
