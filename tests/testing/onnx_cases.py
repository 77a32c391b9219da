"""ONNX's node tests of Attention as (scheme, inputs) of refattn, with what the ONNX reference evaluator makes of them.

Attention (opset 23 to 25) has inputs Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen and outputs Y,
present_key, present_value, qk_matmul_output. Query i stands at position i + offset, where offset is the length of the past,
or nonpad_kv_seqlen − n of its item, or 0; causal order, and windows left ≤ position − j ≤ right, are told from there.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.reference

from refattn import Dense, load, using
from refattn.precision import Precision
from refattn.testing.tolerance import band
from refattn.testing.verdicts import Band

Values = Any
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
ATTRIBUTES = ("is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "left_window_size", "right_window_size",
              "qk_matmul_output_mode", "softmax_precision")  # fmt: skip


@dataclass(frozen=True)
class NodeCase:
    """One node test. inputs: float64 with the values of `dtype`. outputs: the evaluator's, Y as (B, H, n, e).

    covers: which features of the operator it uses, for the account of what was judged.
    """

    name: str
    dtype: str
    scheme: Dense
    inputs: Dense.Inputs
    outputs: dict[str, Values]
    attributes: dict[str, Any]
    covers: frozenset[str]


def node_cases() -> list[NodeCase]:
    """Every test of the operator itself; those of its expansion into other operators (two nodes and more) are left out."""
    # collect_testcases runs the cases of all operators, twelve seconds; those of this one register when it is imported.
    importlib.import_module("onnx.backend.test.case.node.attention")
    found = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    own = [t for t in found if len(t.model.graph.node) == 1 and t.model.graph.node[0].op_type == "Attention"]
    return [node_case(t.name, t.model, inputs) for t in own for inputs, _ in t.data_sets]


def node_case(name: str, model: Any, given: list[Values]) -> NodeCase:
    """The case of a model of one Attention node; an input, output or attribute that is not known here is refused."""
    node = model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    present = [slot for slot, there in zip(INPUTS, node.input, strict=False) if there]
    unknown = [*attributes.keys() - set(ATTRIBUTES), *node.input[len(INPUTS) :], *node.output[len(OUTPUTS) :]]
    if unknown or len(present) != len(given):
        raise ValueError(f"{name}: no meaning is known for {unknown}, or {len(given)} inputs do not fit {list(node.input)}")
    x = dict(zip(present, map(np.asarray, given), strict=True))
    scheme, inputs = translate(x, attributes)
    got = onnx.reference.ReferenceEvaluator(model).run(None, dict(zip([i for i in node.input if i], given, strict=True)))
    outputs = dict(zip([slot for slot, there in zip(OUTPUTS, node.output, strict=False) if there], got, strict=True))
    if x["Q"].ndim == 3:
        outputs["Y"] = unpack(outputs["Y"], attributes["q_num_heads"])
    return NodeCase(name, x["Q"].dtype.name, scheme, inputs, outputs, attributes, covered(x, attributes, outputs))


def translate(x: dict[str, Values], attributes: dict[str, Any]) -> tuple[Dense, Dense.Inputs]:
    """The configured scheme and its inputs."""
    q, k, v = x["Q"], x["K"], x["V"]
    if q.ndim == 3:
        q, k, v = (unpack(y, attributes[f"{a}_num_heads"]) for y, a in ((q, "q"), (k, "kv"), (v, "kv")))
    past = x["past_key"].shape[2] if "past_key" in x else 0
    if past:
        k, v = np.concatenate([x["past_key"], k], axis=2), np.concatenate([x["past_value"], v], axis=2)
    n, m, valid = q.shape[2], k.shape[2], x.get("nonpad_kv_seqlen")
    positions = np.arange(n) + (past if valid is None else valid[:, None] - n)
    mask, bias = masks(x.get("attn_mask"), m)
    causal = bool(attributes.get("is_causal", 0))
    top_left = causal and not past and valid is None
    scheme = Dense(causal=causal, align="top_left" if top_left else None, scale=attributes.get("scale"),
                   softcap=attributes.get("softcap") or None)  # fmt: skip
    q, k, v = (np.asarray(y, np.float64) for y in (q, k, v))
    inputs = Dense.Inputs(
        q, k, v, mask=both(mask, window(attributes, positions, m)), bias=bias,
        key_valid=None if valid is None else np.arange(m) < valid[:, None],
        q_positions=positions if causal and not top_left else None,
    )  # fmt: skip
    return scheme, inputs


def unpack(x: Values, heads: int) -> Values:
    """(B, n, H·d) as (B, H, n, d)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def masks(given: Values | None, m: int) -> tuple[Values | None, Values | None]:
    """attn_mask as a mask and a bias (bool: no bias): one that ends before the keys do hides the rest; −∞ hides too."""
    if given is None:
        return None, None
    short = [(0, 0)] * (given.ndim - 1) + [(0, m - given.shape[-1])]
    if given.dtype == bool:
        return np.pad(given, short), None
    bias = np.pad(given.astype(np.float64), short, constant_values=-np.inf)
    hidden = np.isneginf(bias)
    return ~hidden if hidden.any() else None, np.where(hidden, 0.0, bias)


def window(attributes: dict[str, Any], positions: Values, m: int) -> Values | None:
    """see_ij of a local window, (n, m) or (B, 1, n, m); −1 leaves a side open."""
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if left < 0 and right < 0:
        return None
    back = positions[..., :, None] - np.arange(m)
    see = (back <= (left if left >= 0 else np.inf)) & (-back <= (right if right >= 0 else np.inf))
    return see if see.ndim == 2 else see[:, None]


def both(a: Values | None, b: Values | None) -> Values | None:
    """What is seen through two masks."""
    return b if a is None else a if b is None else a & b


def covered(x: dict[str, Values], attributes: dict[str, Any], outputs: dict[str, Values]) -> frozenset[str]:
    """The features that a case is about."""
    out = {f"{x['Q'].ndim}-D", x["Q"].dtype.name, *(a for a, value in attributes.items() if value not in (0, -1))}
    out |= {slot for slot in (*x, *outputs) if slot not in ("Q", "K", "V", "Y")}
    if "attn_mask" in x:
        keys = x["K"].shape[-2] + (x["past_key"].shape[2] if "past_key" in x else 0)
        kind = "bool" if x["attn_mask"].dtype == bool else "float"
        out |= {f"{kind} mask of rank {x['attn_mask'].ndim}", "short mask" if x["attn_mask"].shape[-1] < keys else "mask"}
    return frozenset(out)


def scores(case: NodeCase, precision: Precision) -> Band:
    """The band of qk_matmul_output, (B, H, n, m), by its mode: 0 scaled, 1 capped, 2 plus bias and mask, 3 weights."""
    mode, i = case.attributes.get("qk_matmul_output_mode", 0), case.inputs
    ratio = i.q.shape[1] // i.k.shape[1]
    with using(load("rounding", precision=precision)) as reading:
        if mode == 3:
            eye = np.broadcast_to(np.eye(i.k.shape[2]), (*i.k.shape[:3], i.k.shape[2]))
            return band(case.scheme.forward(*i._replace(v=eye))[0])
        xp, lift = reading.xp, reading.lift
        s = xp.matmul(lift(i.q), xp.matrix_transpose(lift(np.repeat(i.k, ratio, axis=1))))
        s = s * (case.scheme.scale or i.q.shape[-1] ** -0.5)
        if mode >= 1 and case.scheme.softcap is not None:
            s = xp.tanh(s / case.scheme.softcap) * case.scheme.softcap
        if mode == 2:
            s = s if i.bias is None else s + lift(i.bias)
            s = xp.where(visible(case), s, -np.inf)
        return band(reading.narrow(s, s))


def visible(case: NodeCase) -> Values:
    """see (B, H, n, m), from the inputs alone."""
    i, (n, m) = case.inputs, (case.inputs.q.shape[2], case.inputs.k.shape[2])
    positions = np.arange(n) if i.q_positions is None else i.q_positions
    see = np.ones((*i.q.shape[:3], m), dtype=bool) if i.mask is None else np.broadcast_to(i.mask, (*i.q.shape[:3], m))
    if i.key_valid is not None:
        see = see & i.key_valid[:, None, None, :]
    return see & (positions[..., None, :, None] >= np.arange(m)) if case.scheme.causal else see
