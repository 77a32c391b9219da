"""Tokens without an order: keys permuted with everything that is theirs change nothing, queries permute their rows."""

from __future__ import annotations

from laws.axes import along, letters, result_letters, take
from laws.bounds import Band, outside, results
from laws.cases import tagged
from laws.order import ordered
from refattn import rng


def unordered(letter):
    """Variants whose `letter` axis may be permuted: no order along it, and none that is told once for both axes."""

    def wanted(row, variant):
        inputs = row.draw(variant, 1)
        both = getattr(inputs, "segment_ids", None) is not None and inputs.kv_segment_ids is None
        return letter not in ordered(variant.scheme, inputs) and not both

    return wanted


def check(row, variant, case, letter):
    of, results_of = letters(row, variant), result_letters(row, variant)
    p = rng.stream(7, "permutation", letter).permutation(variant.sizes[letter])
    assert any(p != sorted(p))
    inputs, cotangents = along(case.inputs, of, letter, p), along(case.cotangents, results_of, letter, p)
    moved = {n: Band(*(take(x, results_of[n], letter, p) for x in (b.value, b.bound))) for n, b in case.bands.items()}
    assert outside(results(case.scheme, inputs, cotangents), moved) == {}


@tagged("permutation_equivariant", unordered("m"))
def test_keys_may_be_permuted(row, variant, case):
    check(row, variant, case, "m")


@tagged("permutation_equivariant", unordered("n"))
def test_queries_permute_with_their_rows(row, variant, case):
    check(row, variant, case, "n")

