"""No correct kernel over a pattern is called wrong: simulated ones, in many styles and precisions, before every mistake."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Sparse
from refattn.catalogue import scheme as scheme_of
from refattn.precision import Precision
from refattn.testing.cases import Case
from refattn.testing.diagnose import CERTAIN, Diagnosis, granted
from refattn.testing.judge import judge
from refattn.testing.match import match
from refattn.testing.mutants import applicable
from refattn.testing.subjects import kernel_of
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Level
from simulated import draws, styles
from simulated.kernel import Kernel

Array = Any
PATTERNS = (
    "Local(3, 0)", "Local(2, 2, dilation=2) + Self()", "Blocks(4, back=1) & Causal()", "Longformer.with_global(4, (0, 5))",
    "BigBird.itc(2, 1, 'multiset', seed=1)", "SparseTransformer.fixed(4, 2)", "LogSparse()", "Split(5, 2)",
)  # fmt: skip


def drawn(style: str, number: int) -> tuple[Kernel, Precision, Case, dict[str, Array]]:
    """Kernel `number` of a style on one head of a pattern, in turn, and its results in the dtype that it promises."""
    rng = np.random.default_rng([zlib.crc32(style.encode()), number, 7])
    kernel, precision = styles.draw(style, rng)
    scheme: Sparse = scheme_of(f"Sparse({PATTERNS[number % len(PATTERNS)]})")
    n, d = int(rng.integers(6, 65)), int(rng.choice([8, 16, 24]))
    p = draws.problem(rng, kernel.result, n=n, d=d, kind="full")
    table = scheme.pattern.dense(n, n)
    compute = np.dtype(kernel.compute)
    bias = np.log(np.maximum(table, 1)).astype(compute) if (table > 1).any() else None
    p = p._replace(see=table > 0, bias=bias, **{x: getattr(p, x).astype(compute) for x in ("q", "k", "v", "do")})
    o, lse = kernel.forward(p)
    got = {"o": o, "lse": lse[:, 0], **kernel.backward(p, o, lse)}
    got.pop("dbias", None)
    kept = {x: y[None, None].astype(storage(kernel.compute if x == "lse" else kernel.result)) for x, y in got.items()}
    inputs = scheme.Inputs(*(getattr(p, x)[None, None].astype(np.float64) for x in ("q", "k", "v")))
    sizes = dict(zip("bhgnmde", (1, 1, 1, n, n, d, p.v.shape[1]), strict=True))
    case = Case("pattern", "pattern", "", "", scheme, inputs, p.do[None, None].astype(np.float64), None, sizes)
    return kernel, precision, case, kept


def alarms(style: str, first: int, count: int) -> list[str]:
    found = []
    for number in range(first, first + count):
        kernel, precision, c, got = drawn(style, number)
        ref = expect(c.scheme, c.inputs, precision, c.do)
        verdicts = [judge(name, got[name], ref[name], kernel.result) for name in ref]
        bad = [f"{v.tensor} {v.level} {v.reason} {v.where}" for v in verdicts if v.level > Level.WARN]
        rule, right = Diagnosis(kernel.result, precision, True), kernel_of(c.scheme)(c.scheme, c.inputs)
        right.run(c.do)
        values = {name: x.astype(np.float64) for name, x in got.items()}
        for m in applicable(c, kernel.result, True):
            x = match(values, ref, m.values(c, kernel.result, right))
            if x.power >= CERTAIN and rule._like(x) and not granted(m, precision):
                bad.append(f"like {m.id}, {x}")
        found += [f"{number} {c.scheme} {c.sizes} {bad} by {kernel}"] if bad else []
    return found


@pytest.mark.parametrize("style", ["online", "flash_bf16"])
def test_no_correct_kernel_over_a_pattern_raises_an_alarm(style: str) -> None:
    assert alarms(style, 0, 8) == []


@pytest.mark.sweep
@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_over_a_pattern_raises_an_alarm_in_a_sweep(style: str) -> None:
    assert alarms(style, 8, 24) == []


def test_the_same_rules_do_raise_an_alarm() -> None:
    _, precision, c, got = drawn("online", 0)
    wrong = replace(c, scheme=scheme_of("Sparse(Local(4, 0))"))
    ref = expect(wrong.scheme, wrong.inputs, precision, wrong.do)
    assert any(judge(name, got[name], ref[name], "float32").level == Level.FAIL for name in ref)
