"""The staged kernel is Dense: a third implementation gives the same values and comparable bounds on every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import rng
from refattn.backend import load, using
from refattn.catalogue import DENSE, Variant
from refattn.precision import PRESETS
from refattn.testing.mutants import stored
from refattn.testing.staged import Staged, sum_of
from refattn.testing.tolerance import band, expect
from refattn.testing.verdicts import Band

Array = Any
SIDES = ("o", "lse", "dq", "dk", "dv")
VARIANTS = DENSE.variants


def drawn(variant: Variant, seed: int = 3) -> tuple[Any, Array, Array]:
    inputs = DENSE.draw(variant, seed)
    shape = (*inputs.q.shape[:-1], inputs.v.shape[-1])
    do, dlse = (rng.stream(seed, name).normal(size=s) for name, s in (("do", shape), ("dlse", shape[:-1])))
    return inputs, rng.short(do), rng.short(dlse)


def dense(variant: Variant, inputs: Any, do: Array, dlse: Array) -> dict[str, Array]:
    o, saved = variant.scheme.forward(*inputs)
    grads = variant.scheme.vjp(saved, do, dlse=dlse)
    return {"o": o, "lse": saved.lse, **{f"d{n}": g for n, g in grads._asdict().items() if g is not None}}


def bands(variant: Variant, inputs: Any, do: Array, dlse: Array, preset: str) -> dict[str, Band]:
    with using(load("rounding", precision=PRESETS[preset])) as b:
        lifted = type(inputs)(*(None if x is None else b.lift(x) for x in inputs))
        out = Staged(variant.scheme, lifted).run(b.lift(do), b.lift(dlse))
        return {name: band(stored(b, name, x)) for name, x in out.items()}


def differing(variant: Variant, patches: Any = None) -> dict[str, float]:
    """Tensor → largest difference between staged and Dense, where there is one beyond rounding."""
    inputs, do, dlse = drawn(variant)
    want = dense(variant, inputs, do, dlse)
    with np.errstate(all="raise", under="ignore"):
        got = Staged(variant.scheme, inputs, patches or {}).run(do, dlse)
    assert got.keys() == want.keys()
    assert {n: x.shape for n, x in got.items()} == {n: x.shape for n, x in want.items()}
    with np.errstate(invalid="ignore"):
        off = {n: np.abs(np.where(got[n] == want[n], 0.0, got[n] - want[n])).max(initial=0.0) for n in want}
    return {n: float(x) for n, x in off.items() if not x <= 1e-12 * (1.0 + np.abs(np.nan_to_num(want[n], neginf=0.0)).max())}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_staged_values_are_those_of_dense(variant: Variant) -> None:
    assert differing(variant) == {}


@pytest.mark.parametrize("preset", ["fp32", "flash-bf16", "eager-fp16", "tf32"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_staged_bounds_are_comparable_with_those_of_dense(variant: Variant, preset: str) -> None:
    """The same values, and bounds and spreads of the same size, since the same roundings are counted in another text."""
    inputs, do, dlse = drawn(variant)
    want = expect(variant.scheme, inputs, PRESETS[preset], do, dlse)
    got = bands(variant, inputs, do, dlse, preset)
    assert got.keys() == want.keys() >= set(SIDES)
    for name, w in want.items():
        g = got[name]
        finite = np.isfinite(w.value)
        assert np.array_equal(finite, np.isfinite(g.value)), name
        assert np.allclose(g.value[finite], w.value[finite], rtol=1e-12, atol=1e-12), name
        assert np.all((g.bound[finite] > 0) >= (w.bound[finite] > 1e-20)), f"{name}: staged counts no error where Dense does"
        some = finite & (w.bound > 1e-20)
        quotient = g.bound[some] / w.bound[some]
        assert 0.6 < np.median(quotient) < 1.7, (name, np.median(quotient))
        assert quotient.min() > 0.2, (name, quotient.min())
        assert quotient.max() < 5.0, (name, quotient.max())
        spread = some & (w.sigma > 0) & (g.sigma > 0)
        assert 0.5 < np.median(g.sigma[spread] / w.sigma[spread]) < 2.0, name


STAGES = {
    "scores": lambda k, usual, *a: usual(*a) * 1.001, "hide": lambda k, usual, s: s,
    "gauge": lambda k, usual, s: usual(s) + 0.5,
    "total": lambda k, usual, *a: usual(*a) * 1.001, "combine": lambda k, usual, *a: usual(*a) * 1.001,
    "statistic": lambda k, usual, *a: usual(*a) + 1e-3, "saved": lambda k, usual, lse: lse + 1e-3,
    "delta": lambda k, usual, *a: usual(*a) + 1e-3, "pull_weights": lambda k, usual, *a: usual(*a) * 1.001,
    "pull_scores": lambda k, usual, *a: usual(*a) * 1.001, "pull_q": lambda k, usual, *a: usual(*a) * 1.001,
    "pull_k": lambda k, usual, *a: usual(*a) * 1.001, "pull_v": lambda k, usual, *a: usual(*a) * 1.001,
    "drop": lambda k, usual, p: usual(p) * 1.001, "gather": lambda k, usual, x: usual(x) * 1.001,
    "pull_bias": lambda k, usual, ds: usual(ds) * 1.001, "pull_sink": lambda k, usual, *a: usual(*a) * 1.001,
    "bend": lambda k, usual, s: usual(s) * 1.001, "weights": None, "recompute": lambda k, usual, *a: usual(*a) * 1.001,
}  # fmt: skip


@pytest.mark.parametrize("stage", [s for s, patch in STAGES.items() if patch is not None])
def test_every_stage_is_used_and_can_be_overridden(stage: str) -> None:
    """A patch of a stage shows in the results, but for the gauge, from which softmax does not depend."""
    everything = next(v for v in VARIANTS if {"bias", "sink"} <= set(v.given))
    changed = differing(everything, {stage: STAGES[stage]})
    assert bool(changed) == (stage != "gauge"), changed


def test_patches_of_the_backward_leave_the_forward_alone() -> None:
    everything = next(v for v in VARIANTS if {"bias", "sink"} <= set(v.given))
    for stage in ("saved", "delta", "pull_weights", "pull_scores", "pull_q", "pull_k", "pull_v", "gather", "recompute"):
        assert not {"o", "lse"} & differing(everything, {stage: STAGES[stage]}).keys(), stage


def test_a_sum_of_parts_has_no_leading_zero() -> None:
    with using(load("rounding", precision=PRESETS["fp32"])) as b:
        x = b.lift(np.ones(3))
        assert sum_of([x]) is x
        assert np.array_equal(sum_of([x, x, x]).value, np.full(3, 3.0))
