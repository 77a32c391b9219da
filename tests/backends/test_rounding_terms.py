"""Every term of the rounding bound is needed: a correct kernel that errs in one place only, as far as its precision allows,
is inside the whole bound and outside the bound without that term.

The kernels are exact (float64) but for that one place. Where the presets' constants are too small to be told from the
others, the kernel declares a larger one; that the presets' own constants are right is test_rounding_rules.py's matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from refattn.backend import load
from refattn.backends import rounding_contractions
from refattn.precision import PRESETS, Precision, parse
from simulated.arithmetic import rounded, truncated
from simulated.kernel import Problem
from simulated.reading import ratio, read

Array = Any
U = 2.0**-24
UP = 1 + 1900 * U  # an error that a kernel declaring 2000 u may make


def row(scores: Array, values: Array, see: Array | None = None, **extras: Any) -> Problem:
    """One query whose scores are given: q = 1, d = 1, so that scale = 1."""
    m = len(scores)
    see = np.ones((1, m), bool) if see is None else see[None, :]
    k, v = np.asarray(scores, float)[:, None], np.asarray(values, float)[:, None]
    return Problem(np.ones((1, 1)), k, v, np.ones((1, 1)), see, **extras)


def same(x: Array) -> Array:
    return x


def forward(
    p: Problem, *, given: Any = same, score: Any = same, bend: Any = np.tanh, exponent: Any = same, exp: Any = np.exp,
    operand: Any = same, product: Any = np.matmul, log: Any = np.log, divide: Any = np.divide, out: Any = same,
    kept: Any = same,
) -> dict[str, Array]:
    """o and lse in float64; every keyword replaces one step by one that errs."""
    s = score(given(p.q) @ given(p.k).T * p.q.shape[1] ** -0.5)
    s = s if p.softcap is None else bend(s / p.softcap) * p.softcap
    s = np.where(p.see, s, -np.inf)
    c = s.max(-1, keepdims=True)
    e = exp(exponent(s - c))
    z = e.sum(-1, keepdims=True)
    return {"o": out(divide(product(operand(e), given(p.v)), z)), "lse": kept(c + log(z))[:, 0]}


def cut_sum(a: Array, b: Array) -> Array:
    """Sequential, every partial sum cut off to float32."""
    total = np.zeros((1, 1))
    for term in (a * b[:, 0])[0]:
        total = truncated(total + term)
    return total


def flush(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-126, 0.0, x)


def halves(x: Array, form: str) -> Array:
    return rounded(x.astype(np.float32), form).astype(np.float64)


def rescaled(p: Problem, each: float, tile: int = 16) -> dict[str, Array]:
    """Online softmax over tiles with rising maxima: every rescale errs by `each`, upwards."""
    e = np.where(p.see, np.exp(np.where(p.see, p.q @ p.k.T, 0.0) - np.max(p.k)), 0.0)
    tiles = np.arange(p.k.shape[0]) // tile
    e = e * (1 + each) ** (tiles[-1] - tiles)
    return {"o": e @ p.v / e.sum()}


@dataclass(frozen=True)
class Term:
    base: Precision
    without: dict[str, Any]
    problem: Problem
    kernel: Callable[[Problem], dict[str, Array]]
    result: str = "o"


rng = np.random.default_rng(0)
TWO = row([0.5, -2.5], [1.0, -1.0])
FLAT = row(rng.normal(size=600) * 0.1, rng.uniform(1, 2, size=600))
HALFWAY = row([0.0] + [float(np.log(0.5 * (1 + 1.01 * 2.0**-8)))] * 8, [0.0] + [1.0] * 8)
FIRST = np.where(np.arange(512) < 16, 1.0, 0.0)
ONE_EACH = np.arange(512) % 16 == 0
RISING = np.arange(512) // 16 * 1e-3

TERMS = {
    "u": Term(PRESETS["eager-bf16"], {"u": U}, row([1 + 0.9 * 2.0**-8], [1.0]),
              lambda p: forward(p, score=lambda s: halves(s, "bfloat16")), "lse"),
    "acc": Term(parse("fp32(acc=2**-23, tile=1000)"), {"acc": 0.0}, FLAT, lambda p: forward(p, product=cut_sum)),
    "out": Term(parse("flash-bf16(operand=0)"), {"out": 0.0}, row([0.0], [1 + 0.9 * 2.0**-8]),
                lambda p: forward(p, out=lambda o: halves(o, "bfloat16"))),
    "operand": Term(parse("flash-bf16(out=2**-24)"), {"operand": 0.0}, HALFWAY,
                    lambda p: forward(p, operand=lambda e: halves(e, "bfloat16"))),
    "inputs": Term(PRESETS["tf32"], {"inputs": False}, row([1 + 0.9 * 2.0**-11], [1.0]),
                   lambda p: forward(p, given=lambda x: rounded(x, "tf32").astype(float)), "lse"),
    "tiny": Term(parse("fp32(tiny_acc=0)"), {"tiny": 0.0}, row([0.0, -87.5], [0.0, 1e38]),
                 lambda p: forward(p, exp=lambda x: flush(np.exp(x)))),
    "tiny_acc": Term(PRESETS["fp32"], {"tiny_acc": 0.0},
                     row([0.0] + [-10 * float(np.log(2))] * 1000, [0.0] + [0.9 * 2.0**-116] * 1000),
                     lambda p: forward(p, product=lambda a, b: flush(a * b[:, 0]).sum(-1, keepdims=True))),
    "tiny_operand": Term(parse("flash-fp16(out=2**-24)"), {"tiny_operand": 0.0},
                         row([0.0, float(np.log(0.9 * 2.0**-25))], [0.0, 6e4]),
                         lambda p: forward(p, operand=lambda e: halves(e, "float16"))),
    "tiny_out": Term(parse("flash-fp16(operand=0)"), {"tiny_out": 0.0}, row([0.0], [0.4 * 2.0**-24]),
                     lambda p: forward(p, out=lambda o: halves(o, "float16"))),
    "exp": Term(parse("fp32(exp=2000)"), {"exp": 0.0}, TWO, lambda p: forward(p, exp=lambda x: np.exp(x) * UP), "lse"),
    "log": Term(parse("fp32(log=2000)"), {"log": 0.0}, TWO,
                lambda p: forward(p, log=lambda z: np.log(z) + 1900 * U), "lse"),
    "tanh": Term(parse("fp32(tanh=8192)"), {"tanh": 0.0}, TWO._replace(softcap=30.0),
                 lambda p: forward(p, bend=lambda x: np.tanh(x) + 2.0**-11), "lse"),
    "divide": Term(parse("fp32(divide=2000)"), {"divide": 0.0}, TWO, lambda p: forward(p, divide=lambda a, z: a / z * UP)),
    "argument": Term(parse("fp32(argument=2000)"), {"argument": 0.0}, TWO,
                     lambda p: forward(p, exponent=lambda x: x * UP)),
    "slack": Term(parse("fp32(slack=2000)"), {"slack": 0.0}, TWO, lambda p: forward(p, score=lambda s: s * UP), "lse"),
    "settle": Term(parse("fp32(settle=2000)"), {"settle": 0.0}, TWO, lambda p: forward(p, kept=lambda x: x * UP), "lse"),
    "constants": Term(parse("fp32(constants=2000)"), {"constants": 0.0},
                      TWO._replace(q=np.ones((1, 2)), k=np.array([[1.0, 2.0], [0.5, 0.25]])),
                      lambda p: forward(p, score=lambda s: s * UP), "lse"),
    "tile": Term(parse("fp32(exp=400)"), {"tile": 10**6}, row(RISING, FIRST), lambda p: rescaled(p, 400 * U)),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_is_needed(name: str) -> None:
    term = TERMS[name]
    got = term.kernel(term.problem)[term.result]
    assert ratio(got, read(term.problem, term.base)[term.result]) <= 1.0
    ablated = dataclasses.replace(term.base, **term.without)
    assert ratio(got, read(term.problem, ablated)[term.result]) > 1.0


def test_every_constant_of_a_precision_is_such_a_term() -> None:
    """chain is a promise that narrows the bound, and name says nothing."""
    assert set(TERMS) == {f.name for f in dataclasses.fields(Precision)} - {"name", "chain"}


def test_scattered_keys_are_rescaled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = row(RISING, FIRST, ONE_EACH)
    precision = parse("fp32(exp=400)")
    got = rescaled(problem, 400 * U)["o"]
    assert ratio(got, read(problem, precision)["o"]) <= 1.0
    monkeypatch.setattr(rounding_contractions, "tiles", lambda r, keys, length: np.ceil(np.asarray(keys) / r.precision.tile))
    assert ratio(got, read(problem, precision)["o"]) > 1.0


def test_what_underflows_is_larger_if_weights_are_normalised_first(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = row([0.0] * 127 + [float(np.log(1.3 * 2.0**-18))], [0.0] * 127 + [6e4])
    precision = parse("flash-fp16(out=2**-24)")
    weights = np.exp(problem.k[:, 0])[None, :]
    got = halves(weights / weights.sum(), "float16") @ problem.v
    assert ratio(got, read(problem, precision)["o"]) <= 1.0
    monkeypatch.setattr(rounding_contractions, "enlarged", lambda reach, axis: 1.0)
    assert ratio(got, read(problem, precision)["o"]) > 1.0


def test_keys_without_a_value_still_raise_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first key has a value; the accumulator is rescaled for the others all the same."""

    def bound() -> Any:
        reading = load("rounding", precision=parse("fp32(exp=400)"))
        weights = reading.xp.where(reading.lift(ONE_EACH), reading.xp.exp(reading.lift(RISING)), 0.0)
        return reading.xp.matmul(weights[None, :], reading.lift(np.eye(512, 1)))

    got = np.array([[np.exp(RISING[0]) * (1 + 400 * U) ** 31]])
    assert ratio(got, bound()) <= 1.0
    whole = rounding_contractions._met

    def counted_on_products(*args: Any) -> tuple[Array, Array]:
        terms, rescales = whole(*args)
        return terms, np.minimum(terms, rescales)

    monkeypatch.setattr(rounding_contractions, "_met", counted_on_products)
    assert ratio(got, bound()) > 1.0


def test_a_promised_chain_narrows_the_bound_and_its_kernel_keeps_it() -> None:
    def groups(a: Array, b: Array) -> Array:
        terms = np.append(a * b[:, 0], np.zeros((1, -a.size % 16))).reshape(-1, 16)
        return cut_sum(terms.sum(-1)[None, :], np.ones((len(terms), 1)))

    base, promised = (read(FLAT, parse(f"fp32(acc=2**-23{more})"))["o"] for more in ("", ", chain=16"))
    got = forward(FLAT, product=groups)["o"]
    assert ratio(got, promised) <= 1.0
    assert np.all(promised.bound < 0.6 * base.bound)
