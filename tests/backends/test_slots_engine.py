"""The kernels of LSH attention beside the generic texts: settings, chunks, tiles, dtypes, layouts, workers, odd numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from laws.bounds import distance, ratio
from laws.stand_in import computing_in
from refattn import LSH, load, set_threads, using
from refattn.backends import slots_engine
from refattn.backends.slots_engine import SlotsEngine
from refattn.precision import PRESETS

Array = Any
RNG = np.random.default_rng(3)
SMALL = SlotsEngine(short=0)
WINDOWS = [{"before": 1}, {"before": 2, "after": 1}, {"before": 0}, {"before": 7, "wrap": "rounds"}, {"wrap": "round"}]
KINDS = [{}, {"causal": True}, {"within_bucket": True, "self_score": None}, {"normalise": False, "scale": None}]


Drawn = tuple[LSH.Inputs, Array, Array]


def draw(n: int, rounds: int = 3, dtype: str = "float64", some: bool = False, **more: Any) -> Drawn:
    """Inputs of two heads, and cotangents of o and lse."""
    x, v, do = (RNG.normal(size=(2, n, d)).astype(dtype) for d in (6, 5, 5))
    valid = RNG.random(n) < 0.7 if some else None
    dlse = np.where(True if valid is None else valid, RNG.normal(size=(2, n)), 0.0).astype(dtype)
    return LSH.Inputs(x, v, buckets=RNG.integers(0, 3, (2, rounds, n)), key_valid=valid, **more), do, dlse


def run(scheme: LSH, drawn: Any, engine: SlotsEngine | None) -> dict[str, Array]:
    """Everything that forward and backward return; engine=None: of the generic texts."""
    inputs, do, dlse = drawn
    with computing_in(replace(load("numpy"), kernels={} if engine is None else engine.kernels())):
        _, saved = scheme.forward(*inputs)
        grads = scheme.vjp(saved, do, dlse=dlse)
    return {"o": saved.o, "lse": saved.lse, "top": saved.top, "z": saved.z, "dqk": grads.qk, "dv": grads.v}


class Taking(SlotsEngine):
    """An engine whose kernels may not decline."""

    def kernels(self) -> dict[str, Any]:
        def must(kernel: Any) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                found = kernel(*args, **options)
                assert found is not NotImplemented
                return found

            return call

        return {name: must(kernel) for name, kernel in super().kernels().items()}


def off(scheme: LSH, drawn: Any, got: dict[str, Array]) -> float:
    """The largest error of o, lse and the gradients, in units of the bound that float32 keeps."""
    inputs, do, dlse = drawn
    wide = LSH.Inputs(*(x.astype("float64") if x is not None and x.dtype.kind == "f" else x for x in inputs))
    with using(load("rounding", precision=PRESETS["fp32"])):
        _, saved = scheme.forward(*wide, block=None)
        grads = scheme.vjp(saved, do.astype("float64"), dlse=dlse.astype("float64"), block=None)
    bands = {"o": saved.o, "lse": saved.lse, "dqk": grads.qk, "dv": grads.v}
    return max(float(ratio(distance(got[name], x.value), x.bound)) for name, x in bands.items())


def same(got: dict[str, Array], want: dict[str, Array]) -> None:
    for name, x in want.items():
        assert got[name].dtype == x.dtype
        np.testing.assert_allclose(got[name], x, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("duplicates", ["counted", "once", "2020"])
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_every_setting_is_taken_and_gives_the_numbers_of_the_text(window: dict[str, Any], duplicates: str) -> None:
    for kind, n, some in product(KINDS, (5, 37), (False, True)):
        scheme, high = LSH(chunk=4, duplicates=duplicates, **window, **kind), int(RNG.integers(1, 6))
        more = {"positions": RNG.permutation(n)} if scheme.causal and some else {}
        drawn = draw(n, some=some, **more)
        same(run(scheme, drawn, Taking(short=0, high=high)), run(scheme, drawn, None))


@pytest.mark.parametrize("scheme", [LSH(chunk=16, causal=True), LSH(chunk=8, wrap="rounds", duplicates="once", scale=None)])
def test_float32_keeps_its_bound(scheme: LSH) -> None:
    drawn = draw(50, dtype="float32", some=True)
    got = run(scheme, drawn, SMALL)
    assert {x.dtype.name for x in got.values()} == {"float32"}
    assert off(scheme, drawn, got) <= 1.0
    assert off(scheme, drawn, got | {"dv": got["dv"] * 1.01}) > 1.0


def test_a_token_that_is_alone_returns_itself_also_in_float32() -> None:
    """Its top is −1e5: neither it nor what comes from later rounds may lose the digits of the others."""
    drawn = draw(40, dtype="float32")
    inputs = drawn[0]._replace(buckets=np.zeros((2, 3, 40), dtype=int))
    o = run(LSH(chunk=8, causal=True), (inputs, *drawn[1:]), SMALL)
    np.testing.assert_allclose(o["o"][:, 0], inputs.v[:, 0], rtol=3e-7)
    assert (o["top"][:, 0] == -1e5).all()
    assert (o["top"][:, 1:] > -100).all()


def test_padding_sees_nothing_is_not_seen_and_may_hold_anything() -> None:
    inputs, do, dlse = draw(40, some=True)
    scheme, none = LSH(chunk=8, causal=True), ~inputs.key_valid
    want = run(scheme, (inputs, do, dlse), SMALL)
    poison = inputs._replace(qk=np.where(none[:, None], np.nan, inputs.qk), v=np.where(none[:, None], np.inf, inputs.v))
    got = run(scheme, (poison, np.where(none[:, None], np.nan, do), np.where(none, np.inf, dlse)), SMALL)
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x)
    assert none.any()
    for name, x in (("o", 0.0), ("lse", -np.inf), ("top", 0.0), ("z", 1.0), ("dqk", 0.0), ("dv", 0.0)):
        assert (got[name][:, none] == x).all()


def test_scores_that_are_minus_infinity_and_nan() -> None:
    """A token whose scores are all −∞ sees nothing, and NaN is never hidden: as the text has it."""
    inputs, do, dlse = draw(16, rounds=2)
    scheme, x = LSH(chunk=4, self_score=None, normalise=False), inputs.qk.copy()
    x[..., 0] = -1.0
    x[0, 3] = np.inf, 0, 0, 0, 0, 0  # its scores with the others are −∞, with itself +∞
    x[1, 5] = np.nan
    drawn = inputs._replace(qk=x), do, dlse
    with np.errstate(invalid="ignore", over="ignore"):
        got, want = run(scheme, drawn, SMALL), run(scheme, drawn, None)
    for name in ("o", "lse"):
        np.testing.assert_array_equal(np.isfinite(got[name]), np.isfinite(want[name]), err_msg=name)
        fine = np.isfinite(want[name])
        np.testing.assert_allclose(got[name][fine], want[name][fine], rtol=1e-10, atol=1e-12)
    assert np.isnan(got["o"][1, 5]).all()


def test_tokens_whose_scores_are_all_minus_infinity_pull_nothing() -> None:
    """Whatever their cotangents are: products of 1e200 overflow, and the scale is negative."""
    inputs, do, dlse = draw(16, rounds=2)
    scheme = LSH(chunk=4, self_score=None, normalise=False, scale=-1.0)
    for engine in (SMALL, None):
        with np.errstate(over="ignore", invalid="ignore"):
            got = run(scheme, (inputs._replace(qk=np.full_like(inputs.qk, 1e200)), do * np.nan, dlse * np.inf), engine)
        for name, x in (("o", 0.0), ("lse", -np.inf), ("top", 0.0), ("z", 1.0), ("dqk", 0.0), ("dv", 0.0)):
            assert (got[name] == x).all(), name


LAYOUTS = {
    "tokens first": lambda x: np.swapaxes(np.swapaxes(x, 0, 1).copy(), 0, 1),
    "backwards": lambda x: np.flip(np.flip(x, 1).copy(), 1),
    "gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "one token repeated": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_matter_and_inputs_stay(layout: str) -> None:
    inputs, do, dlse = draw(30)
    odd = inputs._replace(**{name: LAYOUTS[layout](getattr(inputs, name)) for name in ("qk", "v", "buckets")})
    do = LAYOUTS[layout](do)
    before = [np.array(x) for x in (*odd[:2], odd.buckets, do)]
    got = run(LSH(chunk=4, causal=True, within_bucket=True, duplicates="once"), (odd, do, dlse), SMALL)
    plain = odd._replace(qk=before[0], v=before[1], buckets=before[2])
    want = run(LSH(chunk=4, causal=True, within_bucket=True, duplicates="once"), (plain, before[3], dlse), SMALL)
    same(got, want)
    for x, y in zip((*odd[:2], odd.buckets, do), before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_same_bits_for_any_number_of_workers() -> None:
    drawn = draw(200, dtype="float32")
    found = []
    try:
        for workers in (1, 2, 5):
            set_threads(workers)
            found.append(run(LSH(chunk=16, causal=True, wrap="rounds"), drawn, SMALL))
    finally:
        set_threads(None)
    for one in found[1:]:
        for name, x in one.items():
            np.testing.assert_array_equal(x, found[0][name])


def test_what_is_left_to_the_generic_text(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []

    def took(engine: SlotsEngine, **changed: Any) -> bool:
        inputs, do, dlse = draw(20)
        ran.clear()
        made = slots_engine._kernel
        with monkeypatch.context() as patch:
            patch.setattr(slots_engine, "_kernel", lambda *args: ran.append(args) or made(*args))
            run(LSH(chunk=4, causal=True), (inputs._replace(**changed), do, dlse), engine)
        return bool(ran)

    assert took(SMALL)
    assert [which for which, *_ in ran] == ["forward", "backward"]
    assert took(SMALL, positions=np.arange(20) - 10)
    assert not took(SMALL, positions=np.arange(20) + 2**31)
    assert not took(SlotsEngine(short=10**9))
    assert not took(SMALL, qk=np.zeros((2, 20, 0)))
    monkeypatch.setenv("REFATTN_NUMBA", "0")
    assert not took(SMALL)
