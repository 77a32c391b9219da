"""FlexAttention of torch without compilation, on the CPU: the forward with its lse."""

from __future__ import annotations

from typing import Any

import pytest

from refattn import Dense
from refattn.testing.check import check
from refattn.testing.verdicts import Level

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
from peers import kernels  # noqa: E402
from peers.reports import assert_right, at, worst  # noqa: E402

EMPTY_AXES = ("no queries", "no keys")
HIDING = "mask,blind rows,bias and mask,padding,segments,far below"
SHAPES = "one key,more keys,more queries,one query,shared heads,widths,normal,peaked"


def judged(scheme: Any, dtype: Any, **options: Any) -> Any:
    return check(kernels.flex(scheme), scheme, library="torch", dtype=dtype, **options)


@pytest.mark.parametrize(
    ("scheme", "dtype", "families", "least"),
    [
        (Dense.conventions["torch"], "float32", None, 45),
        (Dense(causal=True, align="bottom_right", softcap=5.0), "float64", f"{HIDING},softcap,more keys,more queries", 15),
        (Dense(), "float64", f"{HIDING},{SHAPES}", 28),
        (Dense(scale=0.3), "float32", f"{HIDING},{SHAPES}", 28),
        (Dense.conventions["torch"], "bfloat16", f"{HIDING},{SHAPES},rising,tail", 32),
        (Dense(), "float16", f"{SHAPES},rising", 15),
    ],
    ids=["causal", "bottom-right-softcap", "full", "scale", "bfloat16", "float16"],
)
def test_forward_and_lse(scheme: Any, dtype: Any, families: Any, least: Any) -> None:
    report = judged(scheme, dtype, only=families and f"family={families}")
    assert_right(report, least=least, warns=("far below",), unsupported=EMPTY_AXES)
    assert set(worst(report)) == {"o", "lse"}
    if dtype == "bfloat16":
        assert 0.4 < worst(report)["o"] <= 1


def test_known_deviation_there_is_no_backward_on_the_cpu() -> None:
    report = judged(Dense(), "float32", backward="autograd", only="family=normal")
    assert {c.level for c in report.cases} == {Level.UNSUPPORTED}
    assert all("FlexAttention does not support backward on CPU" in c.remark for c in report.cases)


def test_known_deviation_hidden_nan_spreads() -> None:
    """0·NaN in the product of weights and values, as in every dense implementation."""
    report = judged(Dense(), "float32", only="family=poison")
    assert at(report, Level.WARN) == {"poison"}
    assert {(t.tensor, t.reason) for c in report.cases for t in c.tensors if t.level == Level.WARN} == {("o", "class")}
