"""Random inputs through torch's own ways of computing attention: nothing fails and nothing looks like a mistake."""

from __future__ import annotations

import numpy as np
import pytest

from refattn import Dense, rng
from refattn.precision import PRESETS
from refattn.testing.cases import Case
from refattn.testing.diagnose import Diagnosis
from refattn.testing.judge import judge
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Level
from refattn.testing.worker import open_candidate
from simulated import draws

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
from peers import kernels  # noqa: E402

STYLES = {  # kernel, dtype, contract, runs
    "math float32": (kernels.sdpa_math, "float32", "fp32", 60),
    "math float64": (kernels.sdpa_math, "float64", "fp64", 40),
    "flash float32": (kernels.sdpa_flash, "float32", "fp32", 60),
    "flash float64": (kernels.sdpa_flash, "float64", "fp64", 40),
    "math bfloat16": (kernels.sdpa_math, "bfloat16", "flash-bf16", 50),
    "math float16": (kernels.sdpa_math, "float16", "flash-fp16", 50),
    "eager bfloat16": (kernels.eager, "bfloat16", "eager-bf16", 50),
    "eager float16": (kernels.eager, "float16", "eager-fp16", 50),
}


def drawn(style: str, run: int) -> Case:
    """Two to 200 tokens, scores of standard deviation .03 to 10 √d before the scale, every kind of mask, as a case."""
    kernel, dtype, _, _ = STYLES[style]
    stream = rng.stream(run, "false alarms", style)
    d = int(stream.choice([8, 16, 24, 32, 64]))
    p = draws.problem(stream, dtype, d=d, kind="full" if run % 4 == 0 else None)
    if kernel is kernels.sdpa_flash:
        p = p._replace(v=p.q * 0 + p.k[:, ::-1], do=p.k[::-1])  # the flash kernel has one width
    causal = bool(np.array_equal(p.see, np.tril(np.ones_like(p.see))))
    scheme = Dense(causal=True, align="top_left") if causal else Dense()
    q, k, v, do = (np.asarray(x, np.float64)[None, None] for x in (p.q, p.k, p.v, p.do))
    mask = None if causal or p.see.all() else p.see[None, None]
    sizes = dict(zip("bhgnmde", (1, 1, 1, *p.see.shape, d, v.shape[-1]), strict=True))
    return Case(f"{style}/{run}", "random", "", "", scheme, scheme.Inputs(q, k, v, mask=mask), do, None, sizes)


def outcome(style: str, case: Case) -> dict[str, np.ndarray]:
    kernel, dtype, _, _ = STYLES[style]
    given = {n: x.astype(storage(dtype)) if x.dtype.kind == "f" else x
             for n, x in case.inputs._asdict().items() if x is not None}  # fmt: skip
    with open_candidate(kernel(case.scheme), library="torch", dtype=dtype, backward="autograd") as runner:
        result = runner.run(given, case.do.astype(storage(dtype)))
    assert result.status == "ok", result.remark
    return {n: x for n, x in result.outputs.items() if n != "lse" or np.isfinite(x).all()}


@pytest.mark.parametrize("style", STYLES)
def test_correct_code_raises_no_alarm(style: str) -> None:
    _, dtype, preset, runs = STYLES[style]
    alarms = []
    for run in range(runs):
        case = drawn(style, run)
        got, ref = outcome(style, case), expect(case.scheme, case.inputs, PRESETS[preset], case.do)
        seen = ref["lse"].value > -np.inf
        if "lse" in got:  # flash writes 0 for a query that sees nothing: see test_torch_sdpa
            got["lse"] = np.where(seen, got["lse"], -np.inf).astype(got["lse"].dtype)
        verdicts = [judge(n, x, ref[n], dtype) for n, x in got.items()]
        alarms += [(case.id, t.tensor, t.reason, t.max_ratio, t.rms) for t in verdicts if t.level == Level.FAIL]
        diagnosis = Diagnosis(dtype, PRESETS[preset], True)
        diagnosis.collect(case, got, ref, verdicts)
        alarms += [(case.id, n.mutant, n.how, n.amplitude, n.power) for names in diagnosis.looks().values() for n in names
                   if n.how != "hint"]  # fmt: skip
    assert not alarms, alarms
