"""The reference evaluator of ONNX, judged on every node test of Attention."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense, rng
from refattn.precision import parse
from refattn.testing.judge import judge
from refattn.testing.tolerance import exact_in, expect, storage
from refattn.testing.verdicts import Level, TensorVerdict

pytest.importorskip("onnx", reason="needs onnx (extra test)")
from testing import onnx_cases

PRESETS = {"float32": "fp32", "float16": "eager-fp16", "bfloat16": "eager-bf16"}
FEATURES = {
    "3-D", "4-D", "float32", "float16", "bfloat16", "scale", "softcap", "is_causal", "left_window_size", "right_window_size",
    "kv_num_heads", "past_key", "present_key", "nonpad_kv_seqlen", "qk_matmul_output", "softmax_precision", "short mask",
    *(f"bool mask of rank {r}" for r in (1, 2, 4)), *(f"float mask of rank {r}" for r in (2, 3, 4)),
}  # fmt: skip
ONE_VALUE = {  # where every query averages the same values, these models are right
    "test_attention_3d_transpose_verification": {"mean of V", "previous row"},
    "test_attention_local_window_ext_cache_float16_mask": {"mean of V", "previous row"},
    "test_attention_4d_gqa_causal_nonpad_decode": {"previous row"},
    "test_attention_4d_gqa_causal_nonpad_decode_fp16": {"previous row"},
}


@pytest.fixture(scope="session")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the tests of neighbouring operators divides by zero
        return onnx_cases.node_cases()


def verdict(case: Any, got: Any = None, preset: str | None = None) -> TensorVerdict:
    precision = parse(preset or PRESETS[case.dtype])
    got = case.outputs["Y"] if got is None else got
    return judge("o", got, expect(case.scheme, case.inputs, precision)["o"], case.dtype)


def test_every_case_is_judged_and_right(cases: list[Any]) -> None:
    found = {case.name: verdict(case) for case in cases}
    count = Counter(PRESETS[case.dtype] for case in cases)
    worst = {p: max(found[c.name].max_ratio for c in cases if PRESETS[c.dtype] == p) for p in count}
    print(*(f"{n} cases under {p}: largest error {worst[p]:.2f} of the bound" for p, n in count.items()), sep="\n")
    assert {name: (t.level, t.reason) for name, t in found.items() if t.level != Level.OK} == {}
    assert len(found) == len(cases) == count.total() >= 90, "a node test has been lost"
    assert min(count.values()) >= 5
    assert frozenset().union(*(case.covers for case in cases)) >= FEATURES


def test_the_cache_is_handed_on_unchanged(cases: list[Any]) -> None:
    cached = [case for case in cases if "present_key" in case.outputs]
    assert len(cached) >= 18
    for case in cached:
        assert np.array_equal(case.outputs["present_key"].astype(float), case.inputs.k), case.name
        assert np.array_equal(case.outputs["present_value"].astype(float), case.inputs.v), case.name


def test_scores_and_weights_in_every_output_mode(cases: list[Any]) -> None:
    modes: Counter[int] = Counter()
    for case in cases:
        if "qk_matmul_output" in case.outputs:
            want = onnx_cases.scores(case, parse(PRESETS[case.dtype]))
            t = judge("scores", case.outputs["qk_matmul_output"], want, case.dtype)
            assert t.level == Level.OK, (case.name, t)
            modes[case.attributes.get("qk_matmul_output_mode", 0)] += 1
    assert set(modes) == {0, 1, 2, 3}


def test_models_without_attention_fail(cases: list[Any]) -> None:
    passing: dict[str, set[str]] = {}
    for case in cases:
        q, k, v = case.inputs[:3]
        right = case.scheme.forward(*case.inputs)[0]
        mean = np.repeat(v.mean(axis=-2, keepdims=True), q.shape[1] // k.shape[1], axis=1)
        models = {"zeros": 0 * right, "mean of V": 0 * right + mean, "previous row": np.roll(right, 1, axis=-2)}
        passed = {name for name, o in models.items() if verdict(case, o.astype(storage(case.dtype))).level < Level.FAIL}
        passing |= {case.name: passed} if passed else {}
    assert passing == ONE_VALUE


def shifted(case: Any) -> Any:
    return case.inputs._replace(q_positions=case.inputs.q_positions + 1)


ALTERED: dict[str, Callable[[Any], Any]] = {
    "mask": lambda c: replace(c, inputs=c.inputs._replace(mask=None)),
    "bias": lambda c: replace(c, inputs=c.inputs._replace(bias=None)),
    "key_valid": lambda c: replace(c, inputs=c.inputs._replace(key_valid=None)),
    "q_positions": lambda c: replace(c, inputs=shifted(c)),
    "align": lambda c: replace(c, scheme=replace(c.scheme, align="bottom_right")),
    "scale": lambda c: replace(c, scheme=replace(c.scheme, scale=None)),
    "softcap": lambda c: replace(c, scheme=replace(c.scheme, softcap=None)),
}
@pytest.mark.parametrize("what", ALTERED)
def test_no_other_reading_of_a_case_passes(cases: list[Any], what: str) -> None:
    having = [c for c in cases if getattr(c.inputs, what, None) is not None or getattr(c.scheme, what, None) is not None]
    others = [(c, ALTERED[what](c)) for c in having]
    telling = [(c, other) for c, other in others if not same(c, other)]
    assert len(telling) >= 2
    assert {c.name for c, other in telling if verdict(other, c.outputs["Y"]).level < Level.FAIL} == set()


def same(a: Any, b: Any) -> bool:
    """True if two readings of a case give the same numbers: what one of them hides is hidden, or alike, in the other too."""
    return np.array_equal(a.scheme.forward(*a.inputs)[0], b.scheme.forward(*b.inputs)[0])


def test_known_weakness_boolean_masks_that_hide_nothing(cases: list[Any]) -> None:
    """random() converted to bool is True throughout: these cases pass whatever an implementation does with its mask."""
    idle = {c.name for c in cases if c.inputs.mask is not None and c.inputs.mask.all()}
    assert idle == {"test_attention_4d_attn_mask_bool", "test_attention_4d_attn_mask_bool_4d"}


@pytest.mark.parametrize(("dtype", "preset"), [("float16", "flash-fp16"), ("bfloat16", "flash-bf16")])
def test_known_deviation_half_precision_stores_every_intermediate(cases: list[Any], dtype: str, preset: str) -> None:
    """Not a kernel's arithmetic: scores and weights are stored in half precision, so o leaves the flash contract."""
    worst = max(verdict(case, preset=preset).max_ratio for case in cases if case.dtype == dtype)
    assert 1.0 < worst < 1.4


@pytest.mark.parametrize(
    ("m", "least", "most"), [(128, 0.99, 1.01), (512, 1.1, 1.25), (1024, 1.6, 1.9)], ids=["m=128", "m=512", "m=1024"]
)
def test_known_deviation_bfloat16_sums_stop_at_256(m: int, least: float, most: float) -> None:
    """NumPy adds up the bfloat16 weights of a row one by one in bfloat16, where 256 + 1 = 256: o grows with the keys."""
    op = importlib.import_module("onnx.reference.ops.op_attention")
    q, k, v = (rng.stream(m, "onnx", name).normal(size=(1, 2, m, 16)) for name in "qkv")
    q, k, v = (exact_in(x, "bfloat16") for x in (0.4 * q, k, v + 2.0))
    o = op._compute_attention(*(x.astype(storage("bfloat16")) for x in (q, k, v)))[0]
    want = expect(Dense(), Dense.Inputs(q, k, v), parse("eager-bf16"))["o"]
    assert least < float(np.median(o.astype(float) / want.value)) < most
    assert judge("o", o, want, "bfloat16").level == (Level.FAIL if m > 256 else Level.WARN)
