"""What is special to linear attention: formulas of published code, ε, rank, alignment, cost, streams, ONNX, refusals."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace

import numpy as np
import pytest

from laws.bounds import outside, rounded
from refattn import Elu, Identity, Linear, OptionError, Relu, ShapeError, load, using
from refattn.precision import PRESETS
from refattn.testing.judge import judge
from refattn.testing.tolerance import band
from refattn.testing.verdicts import Level

G = np.random.default_rng(0)
Q, K, V = (G.normal(size=shape) for shape in [(2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 5)])
PHI_Q, PHI_K = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (Q, K))
CONVENTIONS = Linear.conventions


def prefix(x):
    return np.cumsum(x, axis=-3)


def outer(fk, v):
    return prefix(fk[..., :, None] * v[..., None, :])


def published(name):
    """o as the code of that name has it, in its own order of operations."""
    causal = np.einsum("...nd,...nde->...ne", PHI_Q, outer(PHI_K, V))
    z = np.cumsum(PHI_K, axis=-2)
    if name == "fast-transformers":
        return causal / ((PHI_Q * z).sum(-1) + 1e-6)[..., None]
    if name == "performer-pytorch":
        return causal / (PHI_Q * (z + 1e-6)).sum(-1)[..., None]
    if name == "lra":
        kv = np.einsum("...nd,...ne->...de", PHI_K, V)
        return PHI_Q @ kv / ((PHI_Q @ PHI_K.sum(-2)[..., None]) + 1e-6)
    plain = np.einsum("...nd,...nde->...ne", Q * 4**-0.5, outer(K, V))
    if name == "fla-normalised":
        return plain / ((Q * 4**-0.5 * np.cumsum(K, axis=-2)).sum(-1, keepdims=True) + 1e-10)
    return plain


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_are_the_published_formulas(name):
    np.testing.assert_allclose(CONVENTIONS[name](Q, K, V), published(name), rtol=1e-9, atol=1e-10)


def test_where_an_epsilon_is_added_matters():
    few = Q - 6.0, K - 6.0, V  # features near 0, as deep networks have them
    found = [CONVENTIONS[name](*few) for name in ("fast-transformers", "performer-pytorch")]
    clean = Linear(causal=True)(*few)
    assert np.max(np.abs(found[0] - clean)) > 1e-3
    assert np.max(np.abs(found[0] - found[1])) > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_weights_sum_to_less_than_one_with_an_epsilon(causal):
    """To R/(R + ε), not to 1."""
    see = np.tril(np.ones((7, 7))) if causal else np.ones((7, 7))
    R = (see * (PHI_Q @ np.swapaxes(PHI_K, -1, -2))).sum(-1)
    rows = Linear(causal=causal, eps=0.25)(Q, K, np.ones_like(V))
    np.testing.assert_allclose(rows, np.broadcast_to((R / (R + 0.25))[..., None], rows.shape), rtol=1e-13)
    np.testing.assert_allclose(Linear(causal=causal)(Q, K, np.ones_like(V)), 1.0, rtol=1e-13)


def test_the_matrix_of_weights_has_the_rank_of_the_features():
    weights = Linear(normalise=False)(Q, K, np.broadcast_to(np.eye(7), (2, 3, 7, 7)))
    assert (np.linalg.matrix_rank(weights) == 4).all()
    np.testing.assert_allclose(weights, PHI_Q @ np.swapaxes(PHI_K, -1, -2), rtol=1e-13)


def test_alignment_is_that_of_longer_sequences():
    whole = Linear(causal=True)(Q, K, V)
    bottom, top = Linear(causal=True, align="bottom_right"), Linear(causal=True, align="top_left")
    np.testing.assert_allclose(bottom(Q[..., 4:, :], K, V), whole[..., 4:, :], rtol=1e-12)
    np.testing.assert_allclose(top(Q[..., :3, :], K, V), whole[..., :3, :], rtol=1e-12)
    short = bottom(Q, K[..., :3, :], V[..., :3, :])
    assert not short[..., :4, :].any()
    want = Linear(causal=True)(Q[..., 4:, :], K[..., :3, :], V[..., :3, :])
    np.testing.assert_allclose(short[..., 4:, :], want, rtol=1e-12)
    late = top(Q, K[..., :3, :], V[..., :3, :])[..., 2:, :]
    np.testing.assert_allclose(late, Linear()(Q[..., 2:, :], K[..., :3, :], V[..., :3, :]), rtol=1e-12)


def test_a_query_whose_features_are_all_zero_returns_zero_and_pulls_nothing():
    q, relu = np.where(np.arange(7)[:, None] == 2, -1.0, np.abs(Q)), Linear(causal=True, feature=Relu())
    o, saved = relu.forward(q, np.abs(K), V)
    assert not o[..., 2, :].any()
    assert not saved.z[..., 2].any()
    grads = relu.vjp(saved, np.ones_like(o))
    assert np.isfinite(grads.k).all()
    assert not grads.q[..., 2, :].any()
    assert o[..., 3, :].all()


@pytest.mark.parametrize("scale", [None, 0.3, -2.0])
def test_a_scale_cancels_where_weights_are_normalised(scale):
    np.testing.assert_allclose(Linear(scale=scale)(Q, K, V), Linear()(Q, K, V), rtol=1e-12)
    factor = 0.5 if scale is None else scale
    plain = Linear(normalise=False)(Q, K, V)
    np.testing.assert_allclose(Linear(scale=scale, normalise=False)(Q, K, V), factor * plain, rtol=1e-12)


def test_costs_by_hand():
    shapes = Linear.Inputs((2, 4, 100, 8), (2, 2, 100, 8), (2, 2, 100, 3))
    full, causal = (Linear(causal=c).cost(shapes) for c in (False, True))
    assert full.forward.macs == full.useful_macs == (800 + 400) * 8 * 4
    assert full.backward.macs == (2 * 800 + 3 * 400) * 8 * 4
    assert full.forward.exps == full.backward.exps == (800 + 400) * 8
    triangles, reads, writes = (64**2 + 36**2) * 12 * 8, 36 * 8 * 8 * 4, 64 * 4 * 8 * 4
    assert causal.forward.macs == triangles + reads + writes
    assert causal.useful_macs == full.useful_macs
    assert causal.forward.saved == 800 * (3 + 1)
    unequal = Linear.Inputs((1, 4, 10, 8), (1, 2, 30, 8), (1, 2, 30, 3))
    assert Linear(causal=True, align="top_left").cost(unequal).useful_macs == (4 * 10 + 2 * 10) * 8 * 4
    assert Linear(causal=True, align="bottom_right").cost(unequal).useful_macs == (4 * 10 + 2 * 30) * 8 * 4
    assert Linear().cost(unequal._replace(key_valid=(1, 30))).useful_macs is None


def test_work_grows_with_the_tokens_and_a_million_take_no_time():
    scheme = Linear(causal=True)
    macs = []
    for n in (2**18, 2**19, 2**20):
        cost = scheme.cost(Linear.Inputs(*((n, 64),) * 3))
        macs.append((cost.forward.macs, cost.backward.macs))
    assert all(c - b == 2 * (b - a) for a, b, c in zip(*macs, strict=True))
    with using(load("counting")) as reading:
        inputs = reading.shaped(Linear.Inputs(*((10**5, 64),) * 3))
        with reading.counted() as tally:
            scheme.forward(*inputs)
    assert tally.macs == scheme.cost(Linear.Inputs(*((10**5, 64),) * 3)).forward.macs


def test_a_stream_without_an_order_is_refused_and_named():
    with pytest.raises(OptionError, match="a stream needs an order, set causal=True"):
        Linear().start(Q, K, V)


STREAM = Linear(causal=True)
STREAMS = [
    (Linear(), {}, slice(1), OptionError, "causal=False: a stream needs an order"),
    (Linear(causal=True, align="bottom_right"), {}, slice(2), ShapeError, "q has n=1 tokens but k has m=2"),
    (Linear(causal=True, normalise=False), {}, slice(1), OptionError, "state.z is there, and normalise=False"),
    (STREAM, {"z": None}, slice(1), OptionError, "state.z is missing, and normalise=True"),
    (STREAM, {"S": np.zeros((1, 3, 4, 5))}, slice(1), ShapeError, r"state.S has shape \(1, 3, .* need \(2, 3, 4, 5\)"),
    (STREAM, {"z": np.zeros((2, 1, 4))}, slice(1), ShapeError, r"state.z has shape \(2, 1, 4\)"),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "changed", "keys", "error", "says"), STREAMS, ids=[says[:40] for *_, says in STREAMS])
def test_a_step_that_is_none_of_its_stream_is_refused(scheme, changed, keys, error, says):
    """A state of other items, or two keys for one query, would broadcast, or leave a key out, and say nothing."""
    state = STREAM.start(Q, K, V)._replace(**changed)
    with pytest.raises(error, match=says):
        scheme.step(state, Q[..., :1, :], K[..., keys, :], V[..., keys, :])


REFUSED = [
    (lambda: Linear(eps=-1.0), "eps=-1.0"),
    (lambda: Linear(eps=0.5, normalise=False), "would be ignored"),
    (lambda: Linear(eps_at="queries"), "eps_at='queries'"),
    (lambda: Linear(feature="elu"), "feature='elu' is no feature map"),
    (lambda: Linear(align="top_left"), "align='top_left' with causal=False"),
    (lambda: Linear(scale=float("nan")), "scale=nan"),
    (lambda: Linear(scale="1"), "scale='1' is a str, not a number"),
    (lambda: Linear(eps=True), "eps=True is a bool, not a number"),
    (lambda: Linear(feature=Elu), "Elu'> is no feature map"),
    (lambda: Linear(causal=1), "causal=1"),
    (lambda: Linear(heads="split"), "heads='split'"),
    (lambda: Linear(causal=True)(Q, K[..., :3, :], V[..., :3, :]), "needs align='top_left' or 'bottom_right'"),
    (lambda: Linear()(Q, K[..., :2], V), "d=4"),
    (lambda: Linear()(Q, K, V, np.ones((2, 6), bool)), "key_valid has shape"),
    (lambda: Linear()(Q, K, V, np.ones((3, 7), bool)), "leading axes of q"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_cannot_be_honoured_is_refused(call, says):
    with pytest.raises((OptionError, ShapeError), match=says.replace("(", r"\(")):
        call()


@pytest.fixture(scope="module")
def node_cases():
    """ONNX's node tests of LinearAttention whose update rule is linear: (name, inputs, o and state of the evaluator)."""
    onnx = pytest.importorskip("onnx", reason="needs onnx (extra test)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the tests of neighbouring operators divides by zero
        importlib.import_module("onnx.backend.test.case.node.linear_attention")
        found = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    evaluator, cases = importlib.import_module("onnx.reference").ReferenceEvaluator, []
    for t in found:
        node = t.model.graph.node[0]
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if len(t.model.graph.node) > 1 or node.op_type != "LinearAttention" or given.get("update_rule") != b"linear":
            continue
        assert given.keys() <= {"update_rule", "q_num_heads", "kv_num_heads"}, given
        for arrays, _ in t.data_sets:
            names = [name for name in node.input if name]
            o, state = evaluator(t.model).run(None, dict(zip(names, arrays, strict=True)))
            heads = given["q_num_heads"], given["kv_num_heads"], given["kv_num_heads"]
            inputs = [unpacked(x, h) for x, h in zip(arrays, heads, strict=True)]
            cases.append((t.name, inputs, unpacked(o, heads[0]), state))
    return cases


def unpacked(x, heads):
    """(B, n, H·d) as (B, H, n, d)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def test_the_onnx_cases_of_this_rule_are_judged_and_right(node_cases):
    """Under fp32, o and the state that it hands on."""
    scheme, worst = CONVENTIONS["onnx"], 0.0
    for name, inputs, o, state in node_cases:
        with using(load("rounding", precision=PRESETS["fp32"])) as reading:
            wide = [x.astype(np.float64) for x in inputs]
            want = band(scheme.forward(*wide)[0])
            after = band(scheme.step(scheme.start(*map(reading.lift, wide)), *wide)[0].S)
        for tensor, got, expected in (("o", o, want), ("state", state, after)):
            verdict = judge(tensor, got, expected, "float32")
            assert verdict.level == Level.OK, (name, tensor, verdict)
            worst = max(worst, verdict.max_ratio)
        other = replace(scheme, scale=1.0, feature=Identity())
        assert np.max(np.abs(other(*wide) - o)) > 0.01, "the scale must matter"
    print(f"{len(node_cases)} cases under fp32: largest error {worst:.2f} of the bound")
    assert [name for name, *_ in node_cases] == ["test_linear_attention_linear", "test_linear_attention_linear_t1_no_past"]


def test_a_long_float32_run_is_within_its_bound():
    """700 tokens: several triangles of every chunk, and a state that has been added to many times."""
    inputs = Linear.Inputs(*(G.normal(size=(1, 700, 8)).astype(np.float32) for _ in range(3)))
    cotangents = {"o": G.normal(size=(1, 700, 8)).astype(np.float32)}
    scheme = Linear(causal=True, feature=Elu())
    wide = Linear.Inputs(*(None if x is None else x.astype(np.float64) for x in inputs))
    bands = rounded("fp32", scheme, wide, {"o": cotangents["o"].astype(np.float64)})
    o, saved = scheme.forward(*inputs)
    grads = scheme.vjp(saved, cotangents["o"])
    assert outside({"o": o, "dq": grads.q, "dk": grads.k, "dv": grads.v}, bands) == {}
