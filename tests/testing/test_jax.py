"""jax.nn.dot_product_attention judged, and jax as the oracle of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peers.reports import assert_right, at
from refattn import Dense, rng, tree
from refattn.catalogue import DENSE
from refattn.precision import for_dtype
from refattn.testing.cases import cases
from refattn.testing.check import check
from refattn.testing.judge import judge
from refattn.testing.only import parse as parse_only
from refattn.testing.tolerance import expect
from refattn.testing.verdicts import Level, Report, TensorVerdict
from refattn.testing.worker import open_candidate

jax = pytest.importorskip("jax", reason="needs jax (extra test)")

CAUSAL, FULL = Dense.conventions["jax"], Dense(empty="mean")
HALF_WAY = "fp64(u=2**-24, tiny=2**-126)"  # float64 products and sums, elementwise arithmetic in float32
# Compiled: run operation by operation, each one is compiled for each size, twenty times as slow.
attend = jax.jit(jax.nn.dot_product_attention, static_argnames=("is_causal", "return_residual"))


def kernel(scheme: Dense, lse: bool = False) -> Callable[..., Any]:
    """The function for tokens before heads: mask, bias, and key lengths for key validity."""

    def candidate(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, key_valid: Any = None) -> Any:
        lengths = None if key_valid is None else jax.numpy.sum(key_valid, axis=-1, dtype="int32")
        if bias is not None:
            bias = jax.numpy.broadcast_to(bias, (q.shape[0], *bias.shape[1:]))
        found = attend(q, k, v, bias, mask, is_causal=scheme.causal, key_value_seq_lengths=lengths, return_residual=lse)
        return (found[0], jax.numpy.swapaxes(found[1], 1, 2)) if lse else found

    return candidate


def judged(scheme: Dense, dtype: str, families: str, *, lse: bool = False, **options: Any) -> Report:
    """One width for keys and values is all that the function takes."""
    return check(kernel(scheme, lse), scheme, library="jax", dtype=dtype, layout="bnhd", backward="autograd",
                 only=f"d=dv; family={families}", **options)  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "families", "least"),
    [
        pytest.param(CAUSAL, "normal,more keys,shared heads", 7, marks=pytest.mark.sweep, id="causal"),
        pytest.param(FULL, "blind rows,padding,bias and mask", 6, id="full"),
    ],
)
def test_float32(scheme: Dense, families: str, least: int) -> None:
    assert_right(judged(scheme, "float32", families), least=least)


def test_float64_products_with_a_float32_softmax() -> None:
    assert_right(judged(CAUSAL, "float64", "more keys,bias and mask", contract=HALF_WAY), least=4)


def alone(judged_as: Dense, run_as: Dense, dtype: str, family: str, *, lse: bool = False) -> dict[str, TensorVerdict]:
    """Verdicts on one case: a check that fails goes on to ask what the candidate does, and every question is compiled."""
    accepts = frozenset({"mask"})
    case = next(c for c in cases(judged_as, dtype, accepts, parse_only(f"d=dv; family={family}")) if c.id.endswith("/pow2"))
    want = expect(case.scheme, case.inputs, for_dtype(dtype)[0], case.do)
    given = {n: x.astype(dtype) if x.dtype.kind == "f" else x for n, x in case.inputs._asdict().items() if x is not None}
    with open_candidate(kernel(run_as, lse), library="jax", dtype=dtype, layout="bnhd", backward="autograd") as runner:
        outcome = runner.run(given, case.do.astype(dtype))
    assert outcome.status == "ok", outcome.remark
    assert not outcome.lse_is_differentiable
    return {name: judge(name, x, want[name], dtype) for name, x in outcome.outputs.items()}


def test_known_deviation_the_softmax_of_float64_is_taken_in_float32() -> None:
    """Scores are cast to float32 before the softmax, whatever they were: nine digits are lost."""
    found = alone(CAUSAL, CAUSAL, "float64", "normal")
    assert found.keys() == {"o", "dq", "dk", "dv"}
    assert {name: t.level for name, t in found.items()} == dict.fromkeys(found, Level.FAIL)
    assert all(1e4 < t.max_ratio < 1e7 for t in found.values()), found


def test_known_deviation_an_empty_row_is_the_mean_of_all_values() -> None:
    """Hidden scores are a large finite number: the weights of a query that sees nothing are all alike, and reach dv too."""
    mean, zero = (alone(scheme, CAUSAL, "float32", "blind rows") for scheme in (CAUSAL, replace(CAUSAL, empty="zero")))
    assert {name for name, t in mean.items() if t.level > Level.WARN} == set()
    assert {name for name, t in zero.items() if t.level > Level.WARN} == {"o", "dv"}
    assert "rows 0, 5" in zero["o"].where
    assert 0.15 < zero["o"].share < 0.25


def test_known_deviation_the_lse_of_an_empty_row_is_finite_and_lse_has_no_gradient() -> None:
    """The statistic of a query that sees nothing is the large number that hides; elsewhere it is right."""
    found = alone(CAUSAL, CAUSAL, "float32", "blind rows", lse=True)
    assert {name for name, t in found.items() if t.level > Level.WARN} == {"lse"}
    lse = found["lse"]
    assert lse.reason == "class"
    assert lse.worst is not None
    assert -3e38 < lse.worst.got < -1e38
    assert 0.15 < lse.share < 0.25


def test_known_deviation_hidden_nan_spreads() -> None:
    """0·NaN in the product of weights and values."""
    report = judged(FULL, "float32", "poison")
    assert at(report, Level.WARN) == {"poison"}
    assert {"o", "dq", "dk"} <= {t.tensor for c in report.cases for t in c.tensors if t.reason == "class"}


@pytest.mark.parametrize("number", [7, 11], ids=lambda i: str(DENSE.variants[i]))
def test_grad_of_the_forward_is_the_vjp(number: int) -> None:
    """Values, and gradients of ⟨do, o⟩ + ⟨dlse, lse⟩ through jax's tape, in float64."""
    variant = DENSE.variants[number]
    scheme, inputs = variant.scheme, DENSE.draw(variant, 1)
    o, saved = scheme.forward(*inputs)
    do, dlse = (rng.stream(5, name).normal(size=x.shape) for name, x in (("do", o), ("dlse", saved.lse)))
    grads = scheme.vjp(saved, do, dlse=dlse)

    def functional(floats: dict[str, Any]) -> Any:
        y, kept = scheme.forward(*given._replace(**floats))
        finite = jax.numpy.isfinite(kept.lse)
        return (do * y).sum() + jax.numpy.where(finite, dlse * jax.numpy.where(finite, kept.lse, 0.0), 0.0).sum()

    with jax.enable_x64(True):
        given = tree.map(jax.numpy.asarray, inputs)
        got, kept = jax.jit(scheme.forward)(*given)
        assert isinstance(got, jax.Array)
        floats = {n: x for n, x in given._asdict().items() if x is not None and x.dtype.kind == "f"}
        found = {n: np.asarray(g) for n, g in jax.jit(jax.grad(functional))(floats).items()}
    assert close(np.asarray(got), o)
    np.testing.assert_allclose(np.asarray(kept.lse), saved.lse, rtol=1e-13, atol=1e-13)
    assert found.keys() == {n for n, g in grads._asdict().items() if g is not None}
    for name, g in found.items():
        assert close(g, getattr(grads, name)), name


def close(got: Any, want: Any) -> bool:
    return bool(np.max(np.abs(got - want)) <= 1e-11 * np.max(np.abs(want)))
