"""LSH attention against lists of slots in plain Python, its identities, and the mistakes that published code has made."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from refattn import LSH, Dense, load, rng, using
from refattn.errors import Undecided
from refattn.ops.angular_hash import angular_hash
from refattn.precision import PRESETS


def draw(seed, *shape):
    return rng.stream(seed, "lsh test").normal(size=shape)


def chunks_of(scheme, buckets, valid):
    """The chunks of all rounds as lists of (round, token), by Python's sort, and (chunk, slot) is where a token stands."""
    n, found = len(valid), []
    for r, row in enumerate(buckets.tolist()):
        order = sorted(range(n), key=lambda t, row=row: (not valid[t], row[t] if valid[t] else 0, t))
        found += [[(r, t) for t in order[a : a + scheme.chunk]] for a in range(0, n, scheme.chunk)]
    return found


def slots_of(scheme, buckets, valid, i):
    """The tokens of all the slots that token i sees, with repetitions, causal order aside."""
    chunks, rounds = chunks_of(scheme, buckets, valid), len(buckets)
    each, seen = len(chunks) // rounds, []
    for at, chunk in enumerate(chunks):
        for r in [r for r, t in chunk if t == i]:
            for o in range(-scheme.before, scheme.after + 1):
                inside = at % each + o
                if scheme.wrap == "none" and not 0 <= inside < each:
                    continue
                to = (at + o) % len(chunks) if scheme.wrap == "rounds" else at - at % each + inside % each
                own = [(s, t) for s, t in chunks[to] if s == r and buckets[r][t] == buckets[r][i]]
                seen += [t for _, t in (own if scheme.within_bucket else chunks[to])]
    return [t for t in seen if valid[t]]


def counted_in_2020(scheme, buckets, valid, i, j):
    """[same chunk] + [the chunk before], of each round, as the code of February 2020 has it."""
    chunks, found = chunks_of(scheme, buckets, valid), 0
    for r in range(len(buckets)):
        of_i, of_j = (next(at for at, chunk in enumerate(chunks) if (r, t) in chunk) for t in (i, j))
        same = not scheme.within_bucket or buckets[r][i] == buckets[r][j]
        found += same * ((of_i == of_j) + (of_i == (of_j + 1) % len(chunks)))
    return found


def by_lists(scheme, x, v, buckets, valid, positions):
    """o and lse of one head, one slot after another."""
    o, lse = np.zeros(v.shape), np.full(len(x), -np.inf)
    length = np.sqrt(np.sum(x * x, axis=-1) + x.shape[-1] * scheme.eps)
    k = x / length[:, None] if scheme.normalise else x
    scale = x.shape[-1] ** -0.5 if scheme.scale is None else scheme.scale
    for i in np.flatnonzero(valid):
        seen = [j for j in slots_of(scheme, buckets, valid, i) if not scheme.causal or positions[i] >= positions[j]]
        times, logits = Counter(seen), []
        for j in seen:
            s = scheme.self_score if i == j and scheme.self_score is not None else scale * float(x[i] @ k[j])
            if scheme.duplicates == "once":
                s -= math.log(times[j])
            if scheme.duplicates == "2020":
                s -= math.log(counted_in_2020(scheme, buckets, valid, i, j) + 1e-9)
            logits.append(s)
        top = max(logits)
        z = math.fsum(math.exp(s - top) for s in logits)
        o[i] = sum(math.exp(s - top) * v[j] for s, j in zip(logits, seen, strict=True)) / z
        lse[i] = top + math.log(z)
    return o, lse


SCHEMES = [
    LSH(chunk=4), LSH(chunk=4, causal=True), LSH(chunk=3, before=2, after=1, duplicates="once"), LSH(chunk=5, before=0),
    LSH(chunk=4, wrap="round", causal=True, scale=None), LSH(chunk=4, wrap="rounds", self_score=-5e4, eps=1e-6),
    LSH(chunk=4, wrap="rounds", duplicates="once", self_score=None),
    LSH(chunk=2, wrap="rounds", before=9, duplicates="once"),
    LSH(chunk=4, wrap="rounds", duplicates="2020", causal=True), LSH(chunk=4, within_bucket=True, duplicates="once"),
    LSH(chunk=4, wrap="rounds", within_bucket=True, duplicates="2020", causal=True), LSH(chunk=64, wrap="rounds"),
    LSH(chunk=4, wrap="rounds", within_bucket=True, before=5, normalise=False),
]  # fmt: skip


@pytest.mark.parametrize("n", [1, 8, 11])
@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_slot_by_slot_in_plain_python(scheme, n):
    x, v = draw(1, n, 4), draw(2, n, 3)
    buckets = rng.stream(3, "buckets").integers(0, 3, (3, n))
    for valid, positions in ((np.ones(n, bool), np.arange(n)), (np.arange(n) % 4 != 1, np.arange(n)[::-1])):
        if not scheme.causal:
            positions = None
        o, saved = scheme.forward(x, v, buckets=buckets, key_valid=valid, positions=positions)
        want = by_lists(scheme, x, v, buckets, valid, positions)
        np.testing.assert_allclose(o, want[0], atol=1e-13)
        np.testing.assert_allclose(saved.lse, want[1], rtol=1e-13, atol=1e-13)
        counts = scheme.slot_counts(x, v, buckets=buckets, key_valid=valid, positions=positions)
        for i in range(n):
            seen = Counter(slots_of(scheme, buckets, valid, i) if valid[i] else [])
            later = [j for j in range(n) if scheme.causal and positions[i] < positions[j]]
            assert counts[i].tolist() == [0 if j in later else seen[j] for j in range(n)]


def test_every_slot_is_counted():
    """r·n·chunk·(1 + before + after) where chunks wrap, and fewer where the first one has none before it."""
    x, buckets = draw(1, 2, 16, 4), rng.stream(3, "buckets").integers(0, 5, (2, 3, 16))
    assert LSH(chunk=4, wrap="rounds").slot_counts(x, x, buckets=buckets).sum() == 2 * 3 * 16 * 8
    assert LSH(chunk=4).slot_counts(x, x, buckets=buckets).sum() == 2 * 3 * (16 * 8 - 4 * 4)


def test_one_bucket_and_one_chunk_is_full_attention_with_shared_queries_and_keys():
    x, v = draw(1, 2, 3, 7, 4), draw(2, 2, 3, 7, 5)
    k, others = x / np.linalg.norm(x, axis=-1, keepdims=True), ~np.eye(7, dtype=bool)
    buckets = np.zeros((1, 7), dtype=int)
    o = LSH(chunk=7)(x, v, buckets=buckets)
    np.testing.assert_allclose(o, Dense(scale=1.0)(x, k, v, mask=others), rtol=1e-13)
    o = LSH(chunk=7, causal=True, self_score=None)(x, v, buckets=buckets)
    np.testing.assert_allclose(o, Dense(scale=1.0, causal=True)(x, k, v), rtol=1e-13)


def test_the_union_of_rounds_is_one_softmax_over_the_pairs_that_meet():
    x, v = draw(1, 9, 4), draw(2, 9, 5)
    buckets = rng.stream(3, "buckets").integers(0, 3, (4, 9))
    scheme = LSH(chunk=3, wrap="rounds", duplicates="once", self_score=None)
    k, met = x / np.linalg.norm(x, axis=-1, keepdims=True), scheme.slot_counts(x, v, buckets=buckets)
    np.testing.assert_allclose(scheme(x, v, buckets=buckets), Dense(scale=1.0)(x, k, v, mask=met > 0), rtol=1e-13)
    o = replace(scheme, duplicates="counted")(x, v, buckets=buckets)
    bias = np.log(np.where(met > 0, met, 1.0))
    np.testing.assert_allclose(o, Dense(scale=1.0)(x, k, v, mask=met > 0, bias=bias), rtol=1e-13)
    assert (met > 1).any()
    assert (met == 0).any()


def test_the_count_of_2020_misses_pairs_that_meet_across_rounds():
    """Such a pair counts 0 times, and its score grows by −log(1e-9) = 20.72; with the bucket mask there are none."""
    x, v = draw(1, 16, 4), np.eye(16)
    buckets = rng.stream(3, "buckets").integers(0, 4, (2, 16))
    union, early = LSH(chunk=4, wrap="rounds", duplicates="once"), LSH(chunk=4, wrap="rounds", duplicates="2020")
    a, b = union(x, v, buckets=buckets), early(x, v, buckets=buckets)
    rows = (np.abs(a - b) > 0.2).any(axis=-1)
    assert rows.any()
    union, early = (replace(scheme, within_bucket=True) for scheme in (union, early))
    np.testing.assert_allclose(union(x, v, buckets=buckets), early(x, v, buckets=buckets), atol=1e-8)


PADS = [(0, 4), (4, 0), (3, 1), (1, 2)]


@pytest.mark.parametrize(("front", "behind"), PADS)
@pytest.mark.parametrize("scheme", [LSH(chunk=4, causal=True), LSH(chunk=4, duplicates="once", after=1)], ids=repr)
def test_padding_does_not_displace_tokens(scheme, front, behind):
    """Before or behind a sequence, padding changes neither results nor gradients, whatever it holds."""
    x, v, do = draw(1, 2, 8, 4), draw(2, 2, 8, 3), draw(4, 2, 8, 3)
    buckets = rng.stream(3, "buckets").integers(0, 3, (2, 2, 8))

    def pad(a, axis, filler):
        return np.insert(np.insert(a, [8] * behind, filler, axis=axis), [0] * front, filler, axis=axis)

    valid = pad(np.ones(8, bool), 0, False)
    o, saved = scheme.forward(pad(x, 1, np.nan), pad(v, 1, np.inf), buckets=pad(buckets, 2, 1), key_valid=valid)
    short, kept = scheme.forward(x, v, buckets=buckets)
    np.testing.assert_allclose(o[:, valid], short, rtol=1e-13)
    assert not o[:, ~valid].any()
    assert (saved.lse[:, ~valid] == -np.inf).all()
    grads, want = scheme.vjp(saved, pad(do, 1, np.nan)), scheme.vjp(kept, do)
    for got, g in ((grads.qk, want.qk), (grads.v, want.v)):
        np.testing.assert_allclose(got[:, valid], g, rtol=1e-12, atol=1e-14)
        assert not got[:, ~valid].any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_padding_is_behind_the_largest_bucket_that_there_is(dtype):
    """No number of the dtype is larger: a sort by max + 1 would put padding first."""
    x, v, scheme = draw(1, 2, 12, 4), draw(2, 2, 12, 3), LSH(chunk=4)
    buckets = rng.stream(3, "buckets").integers(0, 2, (2, 2, 12)) * np.iinfo(dtype).max
    valid = np.arange(12) % 4 != 1  # three, no whole chunk
    o, _ = scheme.forward(x, v, buckets=buckets.astype(dtype), key_valid=valid)
    want = scheme.definition(x, v, buckets=np.minimum(buckets, 1), key_valid=valid)[0]
    np.testing.assert_allclose(o, want, rtol=1e-12)


def test_later_tokens_do_not_matter_while_buckets_stay():
    x, v = draw(1, 3, 12, 4), draw(2, 3, 12, 5)
    buckets = rng.stream(3, "buckets").integers(0, 3, (3, 2, 12))
    scheme = LSH(chunk=4, causal=True, wrap="rounds")
    o = scheme(x, v, buckets=buckets)
    later = np.arange(12)[:, None] >= 5
    got = scheme(np.where(later, 9.0 - x, x), np.where(later, 7.0, v), buckets=buckets)
    np.testing.assert_array_equal(got[:, :5], o[:, :5])
    assert (got[:, 5:] != o[:, 5:]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_token_that_is_alone_returns_itself_and_keeps_its_digits(dtype):
    """Its lse is −1e5 + log 3, whose neighbours in float32 are 0.0078 apart; P = exp(s − lse) would be off by 0.4 %."""
    x, v, do = (a.astype(dtype) for a in (draw(1, 6, 4), draw(2, 6, 5), draw(4, 6, 5)))
    scheme, buckets = LSH(chunk=6, causal=True), np.zeros((3, 6), dtype=int)
    o, saved = scheme.forward(x, v, buckets=buckets)
    tight = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(o[0], v[0], rtol=tight)
    only = np.where(np.arange(6)[:, None] == 0, do, 0)
    grads = scheme.vjp(saved, only.astype(dtype))
    np.testing.assert_allclose(grads.v[0], do[0], rtol=tight)
    assert not grads.v[1:].any()
    assert not grads.qk.any()


def test_values_that_are_constant_come_out_unchanged():
    x, buckets = draw(1, 2, 11, 4), rng.stream(3, "buckets").integers(0, 3, (2, 3, 11))
    for scheme in SCHEMES:
        np.testing.assert_allclose(scheme(x, np.ones((2, 11, 2)), buckets=buckets), 1.0, rtol=1e-13)


def test_a_hash_is_the_largest_of_both_directions_and_factors_are_digits():
    x, turn = draw(1, 2, 9, 5), draw(2, 3, 5, 6)
    found = angular_hash(x, turn, (4, 2, 6))
    for item, r, t in np.ndindex(2, 3, 9):
        p = x[item, t] @ turn[r]
        digits = [int(np.argmax([*p[a:b], *-p[a:b]])) for a, b in ((0, 2), (2, 3), (3, 6))]
        assert found[item, r, t] == digits[0] + 4 * digits[1] + 8 * digits[2]
    assert angular_hash(x, turn, None).max() < 12
    np.testing.assert_array_equal(angular_hash(3.0 * x, turn, None), angular_hash(x, turn, None))
    assert not angular_hash(0.0 * x, turn, (4, 2, 6)).any()


def test_the_backward_does_not_hash_anew():
    x, v, do, turn = draw(1, 2, 9, 4), draw(2, 2, 9, 3), draw(3, 2, 9, 3), draw(4, 2, 4, 3)
    scheme = LSH(chunk=4)
    _, saved = scheme.forward(x, v, rotations=turn)
    assert saved.buckets.shape == (2, 2, 9)
    want = scheme.vjp(saved, do)
    assert want.rotations is None
    turned = scheme.vjp(saved._replace(inputs=saved.inputs._replace(rotations=turn[:, ::-1])), do)
    np.testing.assert_array_equal(turned.qk, want.qk)
    _, given = scheme.forward(x, v, buckets=saved.buckets)
    np.testing.assert_array_equal(scheme.vjp(given, do).qk, want.qk)
    assert given.buckets is None


@pytest.mark.parametrize(("preset", "some"), [("fp64", False), ("eager-bf16", True)])
def test_the_rounding_reading_says_which_hashes_are_open(preset, some):
    x, v, turn = draw(1, 64, 16), draw(2, 64, 3), draw(4, 2, 16, 8)
    with using(load("rounding", precision=PRESETS[preset])) as reading:
        LSH(chunk=8).forward(x, v, rotations=turn)
    (open_,) = (doubtful for name, items, doubtful in reading.log if name == "argmax" and items == 128)
    assert (open_ > 0) == some


def test_the_exact_reading_refuses_to_guess_a_hash():
    pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")
    x, turn = np.array([[1.0, 2.0**-70]]), np.array([[[1.0, 1.0], [0.0, 1.0]]])
    with using(load("exact", bits=64)), pytest.raises(Undecided):
        LSH(chunk=1).forward(x, x, rotations=turn)
    with using(load("exact", bits=128)):
        _, saved = LSH(chunk=1).forward(x, x, rotations=turn)
    assert saved.buckets.entries.item() == 1  # 1 + 2⁻⁷⁰ is the larger one


def test_conventions_of_published_code():
    """What tells them apart: temperature, self score, and whether a token met twice counts twice."""
    c = LSH.conventions
    x, v = draw(1, 300, 16), draw(2, 300, 8)
    buckets = rng.stream(3, "buckets").integers(0, 8, (2, 300))
    found = {name: scheme(x, v, buckets=buckets) for name, scheme in c.items()}
    same = LSH(chunk=64, wrap="rounds", causal=True, self_score=-5e4, scale=16**-0.5)
    np.testing.assert_allclose(found["lucidrains"], same(x, v, buckets=buckets), rtol=1e-12)
    for name in ("paper", "trax", "trax2020", "lucidrains"):
        assert np.max(np.abs(found[name] - found["huggingface"])) > 0.01, name
