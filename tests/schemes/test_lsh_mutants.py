"""Known mistakes of LSH kernels: each is outside of what a correct kernel may return, and is told from all the others.

A kernel with a mistake is the scheme with one thing changed, run in float32 or stored in bfloat16. It is *found* where a
result is beyond the bound of the rounding reading, and *named* by the mistake whose results are nearest, in units of the
predicted spread σ: 2⟨err, δ⟩ − ⟨δ, δ⟩ is largest and positive, err = candidate − reference and δ = mistake − reference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laws.bounds import distance
from laws.stand_in import computing_in
from refattn import LSH, load, rng, using
from refattn.kernels import text
from refattn.precision import PRESETS
from refattn.testing.tolerance import storage

COUNTED = LSH(chunk=8, causal=True, wrap="rounds", eps=1e-6)
ONCE = replace(COUNTED, duplicates="once")
SHAPE, ROUNDS, COLUMNS = (2, 48, 16), 3, 4
DTYPES = {"float32": "fp32", "bfloat16": "flash-bf16"}


def draw(hashed):
    """Tokens of which several are alike, so that scores matter; buckets, or rotations whose hashes are clear."""
    g = rng.stream(4, "mutants", "rotations" if hashed else "buckets")
    qk, v = rng.short(2.0 * g.normal(size=SHAPE)), rng.short(g.normal(size=(*SHAPE[:2], 8)))
    if not hashed:
        return LSH.Inputs(qk, v, buckets=g.integers(0, 5, (SHAPE[0], ROUNDS, SHAPE[1])))
    many, turn = rng.short(2.0 * g.normal(size=(40, *SHAPE))), rng.short(g.normal(size=(ROUNDS, SHAPE[-1], COLUMNS)))
    size = np.sort(np.abs(many[:, :, None] @ turn), axis=-1)
    clear = (size[..., -1] - size[..., -2] > 0.5).all(axis=2)
    return LSH.Inputs(np.take_along_axis(many, clear.argmax(axis=0)[None, ..., None], axis=0)[0], v, rotations=turn)


def run(scheme, inputs):
    _, saved = scheme.forward(*inputs)
    return {"o": saved.o, "lse": saved.lse}


def neighbour(**fields):
    return lambda scheme, inputs: run(replace(scheme, **fields), inputs)


def swapped(name, kernel):
    """The scheme with another kernel in place of a generic text."""

    def mistaken(scheme, inputs):
        with computing_in(replace(load("numpy"), kernels={name: kernel})):
            return run(scheme, inputs)

    return mistaken


def hidden_self(scheme, inputs):
    """−∞ for the score of a token with itself: whoever is alone sees nothing."""
    out, alone = run(scheme, inputs), run(scheme, inputs)["lse"] < 0.5 * scheme.self_score
    return {"o": np.where(alone[..., None], 0, out["o"]), "lse": np.where(alone, -np.inf, out["lse"])}


def rounds_apart(scheme, inputs):
    """The mean over rounds of each round's output, not weighted by exp(lse)."""
    alone = replace(scheme, wrap="round")
    parts = [run(alone, inputs._replace(buckets=inputs.buckets[:, r : r + 1]))["o"] for r in range(ROUNDS)]
    return {"o": np.mean(parts, axis=0, dtype=inputs.v.dtype), "lse": run(scheme, inputs)["lse"]}


def sorted_positions(scheme, inputs):
    """Causal by the place in the sort, of one round at a time; rounds are then one softmax again."""
    o, lse = [], []
    for r in range(ROUNDS):
        heads = []
        for h in range(SHAPE[0]):
            _, place = text("bucket_sort")(inputs.buckets[h, r])
            one = LSH.Inputs(inputs.qk[h], inputs.v[h], buckets=inputs.buckets[h, r : r + 1], positions=place)
            heads.append(run(replace(scheme, wrap="round"), one))
        o.append(np.stack([x["o"] for x in heads]))
        lse.append(np.stack([x["lse"] for x in heads]))
    top = np.max(lse, axis=0)
    w = np.exp(np.stack(lse) - top)
    return {"o": (w[..., None] * np.stack(o)).sum(axis=0) / w.sum(axis=0)[..., None], "lse": top + np.log(w.sum(axis=0))}


def one_sided(x, rotations, factors):
    return np.argmax(np.matmul(x[..., None, :, :], rotations), axis=-1)


def not_unsorted(buckets):
    order, place = text("bucket_sort")(buckets)
    return order, np.broadcast_to(np.arange(buckets.shape[-1]), place.shape)


def forward_permutation(buckets):
    order, _ = text("bucket_sort")(buckets)
    return order, order


def turned_ties(buckets):
    order = np.flip(np.argsort(np.flip(buckets, -1), axis=-1, kind="stable"), -1)
    order = buckets.shape[-1] - 1 - order
    return order, np.argsort(order, axis=-1)


MISTAKES = {
    "L1 keys are not normalised": neighbour(normalise=False),
    "L2 scores are divided by √d": neighbour(scale=None),
    "L3 a token sees itself as any other": neighbour(self_score=None),
    "L3b a token never sees itself": hidden_self,
    "L4 no look back": neighbour(before=0),
    "L5 the look back does not wrap": neighbour(wrap="none"),
    "L6 the sort is not undone": swapped("bucket_sort", not_unsorted),
    "L6b the sort is undone by itself": swapped("bucket_sort", forward_permutation),
    "L7 the mean over rounds": rounds_apart,
    "L8 duplicates are not discounted": neighbour(duplicates="counted"),
    "L8b duplicates are counted as in 2020": neighbour(duplicates="2020"),
    "L9 causal by sorted position": sorted_positions,
    "L10 argmax of xR alone": swapped("angular_hash", one_sided),
    "L11 ties in another order": swapped("bucket_sort", turned_ties),
    "not causal": neighbour(causal=False),
    "look ahead too": neighbour(after=1),
}
KINDS = {"buckets": (COUNTED, False), "buckets, once": (ONCE, False), "rotations": (COUNTED, True)}


def applies(name, scheme, hashed):
    """L7 and L9 take rounds apart, L10 needs a hash; pairs that are sorted wrongly have no count to be divided by."""
    only = {"L7": not hashed and scheme is COUNTED, "L9": not hashed and scheme is COUNTED, "L10": hashed,
            "L6": scheme is COUNTED, "L6b": scheme is COUNTED, "L8": scheme is ONCE, "L8b": scheme is ONCE}  # fmt: skip
    return only.get(name.split()[0], True)


def cast(inputs, dtype):
    return LSH.Inputs(*(x if x is None or x.dtype.kind == "i" else x.astype(storage(dtype)) for x in inputs))


def reference(scheme, inputs, dtype):
    """value, bound and σ of each result of a correct kernel of this dtype."""
    with using(load("rounding", precision=PRESETS[DTYPES[dtype]])):
        return run(scheme, inputs)


def found(candidate, right):
    """The results that are beyond their bounds, infinities where none belongs among them."""
    return [n for n, x in right.items() if (distance(candidate[n].astype(float), x.value) > x.bound).any()]


def named(candidate, right, mistakes):
    """The mistake that explains the candidate best; None if the reference does."""
    best, name = 0.0, None
    for known, values in mistakes.items():
        score = 0.0
        for n, x in right.items():
            err, delta = candidate[n].astype(float) - x.value, values[n] - x.value
            odd = ~(np.isfinite(err) & np.isfinite(delta))
            score += 1e12 * np.where(np.isfinite(err) == np.isfinite(delta), odd, -1.0 * odd).sum()
            err, delta, sigma = (np.where(odd, y, z) for y, z in ((0.0, err), (0.0, delta), (1.0, x.sigma + 1e-30)))
            score += np.sum((2.0 * err - delta) * delta / sigma**2)
        if score > best:
            best, name = score, known
    return name


@pytest.fixture(scope="module", params=[(kind, dtype) for kind in KINDS for dtype in DTYPES], ids="-".join)
def judged(request):
    """The scheme, inputs in the candidate's dtype, the reference, and what each mistake that applies returns exactly."""
    kind, dtype = request.param
    scheme, hashed = KINDS[kind]
    inputs = draw(hashed)
    mistakes = {name: wrong(scheme, inputs) for name, wrong in MISTAKES.items() if applies(name, scheme, hashed)}
    return scheme, cast(inputs, dtype), reference(scheme, inputs, dtype), mistakes


def test_a_correct_kernel_is_within_its_bounds_and_no_mistake_is_nearer(judged):
    scheme, inputs, right, mistakes = judged
    candidate = run(scheme, inputs)
    assert found(candidate, right) == []
    assert named(candidate, right, mistakes) is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_named(judged, mistake):
    scheme, inputs, right, mistakes = judged
    if mistake not in mistakes:
        pytest.skip("does not apply here")
    candidate = MISTAKES[mistake](scheme, inputs)
    assert found(candidate, right) != []
    assert named(candidate, right, mistakes) == mistake


def test_every_mistake_applies_somewhere():
    assert all(any(applies(name, *kind) for kind in KINDS.values()) for name in MISTAKES)
