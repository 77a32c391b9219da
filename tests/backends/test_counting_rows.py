"""The counting rules of the words of rows: the counts of the generic texts, and no index is made."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from refattn import load, using
from refattn.patterns import Heads
from refattn.rows import LIMIT, Rows, row_max, row_scores, row_sum, row_sums, rows_of, spread, turn, weigh
from refattn.schemes.sparse import Sparse
from tabled import Band, Table

RNG = np.random.default_rng(3)
PATTERNS = {
    "band": (Band(7), 300, 300),
    "wide": (Band(90, 20), 700, 500),
    "twice": (Band(3, 2, times=2), 100, 200),
    "random": (Table.of(RNG.random((60, 50)) < 0.2), 60, 50),
    "nothing": (Table.of(np.zeros((5, 4))), 5, 4),
    "heads": (Heads((Band(2), Band(30), Band(2), Band(0, 3))), 90, 90),
}


def counted(scheme: Any, shapes: Any, rules: bool) -> tuple[Any, Any]:
    """Tallies of forward and vjp, by the rules or by the generic texts."""
    reading: Any = load("counting")
    if not rules:
        reading.kernels = {}
    with using(reading):
        inputs = reading.shaped(shapes, scheme.kinds)
        with reading.counted() as forward:
            saved = scheme.forward(*inputs)[1]
        with reading.counted() as backward:
            grads = scheme.vjp(saved, reading.shaped(saved.o), dlse=reading.shaped(saved.lse))
    assert reading.tally.live == forward.live + backward.live
    del saved, grads
    assert reading.tally.live == 0
    return forward, backward


@pytest.mark.parametrize("hidden", ["", "key_valid", "mask"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("d", [3, 64])
def test_rules_count_what_the_generic_texts_do(pattern: str, hidden: str, d: int) -> None:
    p, n, m = PATTERNS[pattern]
    shapes = Sparse.Inputs((2, 4, n, d), (2, 2, m, d), (2, 2, m, 5), key_valid=(2, m) if hidden == "key_valid" else None,
                           mask=(4, n, m) if hidden == "mask" else None)  # fmt: skip
    scheme = Sparse(p, align="top_left")
    for rule, text in zip(counted(scheme, shapes, True), counted(scheme, shapes, False), strict=True):
        for name in ("macs", "exps", "flops", "compares", "live"):
            assert getattr(rule, name) == getattr(text, name), name
        assert 0.9 <= rule.moved / text.moved <= (1.1 if text.macs else 2.0)  # without entries there are no rows to order
        assert 0.85 <= rule.peak / text.peak <= 1.25  # several slabs are gathered one by one, here all at once


def test_a_rule_that_counts_one_product_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reading: Any = load("counting")
    whole = dict(reading.kernels)

    def twice(q: Any, k: Any, rows: Any) -> Any:
        whole["row_scores"](q, k, rows)
        return whole["row_scores"](q, k, rows)

    monkeypatch.setattr(type(reading), "kernels", {**whole, "row_scores": twice})
    with pytest.raises(AssertionError, match="macs"):
        test_rules_count_what_the_generic_texts_do("band", "", 3)


def test_a_million_queries_need_no_index() -> None:
    n = 10**6

    def build() -> Any:
        raise AssertionError("an index was made")

    rows = Rows(n, n, Band(63).nnz(n, n), build, multiple=True)
    rows.__dict__["T"] = Rows(n, n, rows.nnz, build, multiple=True)
    reading: Any = load("counting")
    started = time.process_time()
    q, p = reading.shaped((3, n, 64)), reading.shaped((3, rows.nnz))
    with reading.counted() as tally:
        assert row_scores(q, q, rows).shape == (3, rows.nnz)
        assert row_sums(p, q, rows).shape == row_sums(p, q, rows.T).shape == (3, n, 64)
        assert row_sum(p, rows).shape == row_max(p, rows).shape == (3, n, 1)
        assert turn(p, rows).shape == weigh(p, rows).shape == spread(q[..., :1], rows).shape == (3, rows.nnz)
    assert time.process_time() - started < 0.5
    assert tally.macs == 3 * 3 * rows.nnz * 64
    assert tally.peak <= 3 * (rows.nnz + 2 * n * 64) + 3 * LIMIT


def test_a_window_over_a_million_keys_by_hand() -> None:
    """Work and memory of the pairs, and never of n²."""
    n, window = 10**6, 64
    scheme, shapes = Sparse(Band(window - 1)), Sparse.Inputs((1, n, 64), (1, n, 64), (1, n, 64))
    nnz = n * window - window * (window - 1) // 2
    forward, backward = counted(scheme, shapes, True)
    assert (forward.macs, forward.exps) == (128 * nnz, nnz)
    assert (backward.macs, backward.exps) == (320 * nnz, nnz)
    assert forward.live == 65 * n
    assert backward.live == 192 * n
    assert forward.peak <= 3 * nnz + 2 * n * 64 + 4 * n + 3 * LIMIT
    assert backward.peak <= 4 * nnz + n * (2 * 64 + 4 * 64) + 4 * n + 3 * LIMIT
    assert scheme.cost(shapes).useful_macs == 128 * nnz
    assert "lists" not in vars(rows_of(Band(window - 1), n, n))
