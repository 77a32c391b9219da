"""scaled_dot_product_attention of torch on the CPU: math and flash backends, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, rng
from refattn.testing.check import check
from refattn.testing.verdicts import Level

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
from peers import kernels  # noqa: E402
from peers.reports import assert_departs, assert_right, at, failing  # noqa: E402

CAUSAL, FULL, SCALED = Dense.conventions["torch"], Dense(), Dense(scale=0.3)
SCHEMES = pytest.mark.parametrize("scheme", [CAUSAL, FULL], ids=["causal", "full"])
HALF = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
EMPTY_AXES = ("no queries", "no keys")
CORRELATED = ("far below",)  # all scores of a row carry the same large sum and so the same error: rms up to 2.4


def judged(kernel, scheme, dtype, **options):
    return check(kernel(scheme), scheme, library="torch", dtype=dtype, backward="autograd", **options)


@SCHEMES
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_math(scheme, dtype):
    assert_right(judged(kernels.sdpa_math, scheme, dtype), least=35 if scheme.causal else 45, warns=CORRELATED)


@SCHEMES
@HALF
def test_math_in_half_precision_keeps_the_contract_of_a_kernel(scheme, dtype):
    """It computes in float32 and rounds once, at the end."""
    report = judged(kernels.sdpa_math, scheme, dtype)
    assert report.contract == ("flash-bf16" if dtype == "bfloat16" else "flash-fp16")
    assert_right(report, least=35 if scheme.causal else 44, warns=CORRELATED, unsupported=("half range",))


@SCHEMES
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_flash(scheme, dtype):
    report = judged(kernels.sdpa_flash, scheme, dtype, only="d=dv")
    assert_right(report, least=35 if scheme.causal else 33, warns=CORRELATED, unsupported=EMPTY_AXES)


@pytest.mark.parametrize("kernel", [kernels.sdpa_math, kernels.sdpa_flash])
def test_scale(kernel):
    report = judged(kernel, SCALED, "float32", only="d=dv; family=normal,peaked,rising,shared heads,widths")
    assert_right(report, least=10)


def test_known_deviation_math_lets_hidden_nan_through():
    """0·NaN in the product of weights and values: NaN where no query may look still spreads."""
    report = judged(kernels.sdpa_math, FULL, "float32", only="family=poison")
    assert at(report, Level.WARN) == {"poison"}
    assert {t.tensor for c in report.cases for t in c.tensors if t.reason == "class"} >= {"o", "dq", "dk"}
