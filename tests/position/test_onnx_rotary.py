"""ONNX's reference evaluator, judged on every node test of RotaryEmbedding (opset 23), which takes cosines and sines."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest

from refattn import load
from refattn.position.rope import rotate
from refattn.precision import PRESETS
from refattn.testing.judge import judge
from refattn.testing.tolerance import band
from refattn.testing.verdicts import Level

onnx = pytest.importorskip("onnx", reason="needs onnx (extra test)")
INPUTS = ("input", "cos_cache", "sin_cache", "position_ids")


@pytest.fixture(scope="session")
def cases():
    """(name, attributes, inputs by slot, output of the evaluator)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the tests of neighbouring operators divides by zero
        importlib.import_module("onnx.backend.test.case.node.rotaryembedding")
        found = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    own = [t for t in found if len(t.model.graph.node) == 1 and t.model.graph.node[0].op_type == "RotaryEmbedding"]
    return [case(t.name, t.model, inputs) for t in own for inputs, _ in t.data_sets]


def case(name, model, given):
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    node = model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes.keys() <= {"interleaved", "rotary_embedding_dim", "num_heads"}, attributes
    x = dict(zip([slot for slot, there in zip(INPUTS, node.input, strict=False) if there], given, strict=True))
    (got,) = evaluator(model).run(None, dict(zip([i for i in node.input if i], given, strict=True)))
    return name, attributes, x, got


def verdict(attributes, x, got, interleaved):
    """The output against ``rotate`` under fp32: heads of packed inputs apart, caches looked up at the positions."""
    y, heads = x["input"].astype(np.float64), attributes.get("num_heads")
    if y.ndim == 3:
        y, got = (z.reshape(*z.shape[:2], heads, -1).swapaxes(1, 2) for z in (y, got))
    cos, sin = (x[name].astype(np.float64) for name in ("cos_cache", "sin_cache"))
    if "position_ids" in x:
        cos, sin = cos[x["position_ids"]], sin[x["position_ids"]]
    assert cos.shape[-1] == (attributes.get("rotary_embedding_dim") or y.shape[-1]) // 2
    reading = load("rounding", precision=PRESETS["fp32"])
    turned = rotate(*map(reading.lift, (y, cos[:, None], sin[:, None])), "neighbours" if interleaved else "halves")
    return judge("y", got, band(reading.narrow(turned)), "float32")


def test_every_case_is_judged_and_right(cases):
    found = {name: verdict(a, x, got, a.get("interleaved", 0)) for name, a, x, got in cases}
    print(f"{len(found)} cases under fp32: largest error {max(t.max_ratio for t in found.values()):.2f} of the bound")
    assert {name: (t.level, t.reason) for name, t in found.items() if t.level != Level.OK} == {}
    assert len(found) == len(cases) >= 8, "a node test has been lost"
    having = {name for _, a, x, _ in cases for name in (*(a for a, value in a.items() if value), *x)}
    assert having >= {"interleaved", "rotary_embedding_dim", "num_heads", "position_ids"}


def test_the_other_pairing_fails_everywhere(cases):
    assert {name for name, a, x, got in cases if verdict(a, x, got, not a.get("interleaved", 0)).level < Level.FAIL} == set()
