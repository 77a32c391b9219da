"""Members of each item: as a pattern with them among its global positions, linear work on NumPy, by blocks elsewhere."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import outside, results
from laws.stand_in import computing_in
from refattn import (
    Causal,
    Global,
    Heads,
    Local,
    OptionError,
    Self,
    ShapeError,
    Sparse,
    load,
    rng,
    using,
)
from refattn.patterns import All, Pattern

Array = Any
MEMBERS: tuple[tuple[int, ...], ...] = ((0, 4), ())
PLACES = [(9, 9, None), (7, 9, "bottom_right"), (9, 7, "top_left"), (9, 7, "bottom_right")]


def draw(n: int, m: int, b: int = 2, h: int = 4, g: int = 2) -> list[Array]:
    stream = rng.stream(0, "test_sparse_global")
    return [stream.normal(size=s) for s in ((b, h, n, 5), (b, g, m, 5), (b, g, m, 3))]


def flags(m: int, members: tuple[tuple[int, ...], ...] = MEMBERS) -> Array:
    found = np.zeros((len(members), m), dtype=bool)
    for item, at in enumerate(members):
        found[item, list(at)] = True
    return found


def written(pattern: Any, at: tuple[int, ...], within: Pattern | None) -> Any:
    """The members of one item in the pattern, with operators."""
    found = pattern | Global(at=at) if at else pattern
    return found if within is None else found & (within + within + within)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("within", [None, Causal()], ids=repr)
@pytest.mark.parametrize(("n", "m", "align"), PLACES)
@pytest.mark.parametrize(
    "pattern", [Local(2, 1), Local(2, 0) + Self() + Local(1, 1), Heads((Local(1, 0), All(), Local(1, 0), Self()))], ids=repr
)
def test_members_are_global_positions_of_their_item(
    pattern: Any, n: int, m: int, align: str | None, within: Any, kernels: bool
) -> None:
    """Outputs and gradients of each item as those of the pattern that names its members; no item has those of another."""
    q, k, v = draw(n, m)
    scheme = Sparse(pattern, align=align, within=within)
    whole = make(scheme, Sparse.Inputs(q, k, v, is_global=flags(m)))
    with computing_in(load("numpy") if kernels else replace(load("numpy"), kernels={})):
        got = whole.run(block=3)
    for b, at in enumerate(MEMBERS):
        alone = Sparse(written(pattern, at, within), align=align)
        want = make(alone, Sparse.Inputs(q[b], k[b], v[b]), cotangents={x: c[b] for x, c in whole.cotangents.items()}).bands
        assert outside({name: x[b] for name, x in got.items()}, want) == {}


def test_one_set_serves_all_items_and_a_single_head() -> None:
    q, k, v = draw(9, 9)
    shared, each = (Sparse(Local(1, 0)).forward(q, k, v, is_global=x)[0] for x in (flags(9)[0], flags(9)[[0, 0]]))
    np.testing.assert_allclose(shared, each, rtol=1e-13)
    single = Sparse(Local(1, 0)).forward(q[0, 0], k[0, 0], v[0, 0], is_global=flags(9)[0])[0]
    np.testing.assert_allclose(single, each[0, 0], rtol=1e-13)


def test_hidden_members_stay_hidden() -> None:
    """A padded member is seen by nobody, as any other key; segments and masks hide what members add."""
    q, k, v = draw(9, 9)
    valid = np.arange(9) != 4
    scheme, given = Sparse(Local(1, 0)), flags(9)
    want, _ = scheme.forward(q, np.where(valid[:, None], k, 7.0), np.where(valid[:, None], v, np.nan), is_global=given,
                             key_valid=valid)
    got, _ = scheme.forward(q, k, v, is_global=given, mask=np.broadcast_to(valid, (9, 9)))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_within_is_a_part_of_the_pattern_where_there_are_no_members() -> None:
    q, k, v = draw(9, 9)
    pattern = Local(2, 2) + Self()
    inputs = Sparse.Inputs(q, k, v)
    case = make(Sparse(pattern & (Causal() + Causal())), inputs)
    assert outside(results(Sparse(pattern, within=Causal()), inputs, case.cotangents), case.bands) == {}


def test_work_and_memory_on_numpy_are_those_of_the_pairs() -> None:
    """Five members of 2,000: a pair of float64 arrays (n, m) alone would be 64 MB."""
    n = 2000
    q, k, v = (rng.stream(0, "long", x).normal(size=(1, 1, n, 4)) for x in "qkv")
    scheme, given = Sparse(Local(7, 0)), flags(n, ((0, 3, 700, 701, 1999),))

    def run() -> None:
        o, saved = scheme.forward(q, k, v, is_global=given)
        scheme.vjp(saved, o)

    run()
    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] < 8 * 10 * (8 + 2 * 5) * n
    finally:
        tracemalloc.stop()


def test_members_are_counted_without_an_array_of_all_pairs() -> None:
    n, block = 20_000, 256
    reading: Any = load("counting")
    scheme = Sparse(Local(63, 0))
    with using(reading):
        inputs = reading.shaped(Sparse.Inputs((1, n, 8), (1, n, 8), (1, n, 8), is_global=(n,)), scheme.kinds)
        with reading.counted() as tally:
            _, saved = scheme.forward(*inputs, block=block)
            scheme.vjp(saved, reading.shaped(saved.o), block=block)
    assert tally.macs == n * n * (2 * 8 + 5 * 8)
    assert tally.peak < 8 * block * n + 20 * n * 8 < n * n / 4


def test_what_means_nothing_is_refused() -> None:
    q, k, v = draw(9, 7)
    with pytest.raises(OptionError, match="within='causal' is no pattern"):
        Sparse(Local(1, 0), within="causal")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"within=Heads.* is no pattern: give one for all heads"):
        Sparse(Local(1, 0), within=Heads((Causal(),)))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"is_global has shape \(2, 9\); its last axis is m \(keys\) and must be 7"):
        Sparse(Local(1, 0), align="top_left").forward(q, k, v, is_global=flags(9))
