"""What is said of wrong kernels that no known mistake explains: when they fail, and what their errors look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense, rng
from refattn.precision import PRESETS
from refattn.testing.cases import Case, cases
from refattn.testing.diagnose import Evidence
from refattn.testing.only import parse
from refattn.testing.signature import alpha, condition, conditions, factor, precision, rows, signature
from refattn.testing.tolerance import exact_in, expect
from testing.laboratory import MASKED

Array = Any
CAUSAL = Dense(causal=True, align="bottom_right")
ONLY = "family=normal,more keys,more queries,shared heads,widths,strided,mask,bias,blind rows,sink,padding; b=1,2; d=16,24"


def drawn(scheme: Dense = CAUSAL, only: str = ONLY, dtype: str = "float32") -> list[Case]:
    return list(cases(scheme, dtype, frozenset(MASKED), parse(only)))


def evidence(found: Sequence[Case], fails: Any = lambda case: True, change: Any = lambda c, n, x: x, sides: Any = ("o",),
             ) -> list[Evidence]:  # fmt: skip
    """What a kernel left behind whose results are changed on the cases where it fails."""
    out = []
    for c in found:
        ref = expect(c.scheme, c.inputs, PRESETS["fp32"], c.do, c.dlse)
        wrong = fails(c)
        got = {n: change(c, n, b.value) if wrong else b.value for n, b in ref.items()}
        failing = frozenset(n for n in sides if n in got) if wrong else frozenset()
        out.append(Evidence(c, got, ref, failing))
    return out


CASES = drawn()


# ---- when it fails
@pytest.mark.parametrize(("fails", "text"), [
    (lambda c: c.inputs.mask is not None, "fails exactly where mask is given"),
    (lambda c: c.inputs.sink is not None, "fails exactly where sink is given"),
    (lambda c: c.inputs.key_valid is not None, "fails exactly where key_valid is given"),
    (lambda c: c.strided, "fails exactly where inputs are strided"),
    (lambda c: c.sizes["h"] > c.sizes["g"], "fails exactly where H > H_kv"),
    (lambda c: c.sizes["m"] > c.sizes["n"], "fails exactly where m > n"),
    (lambda c: c.sizes["n"] > c.sizes["m"], "fails exactly where n > m"),
    (lambda c: c.sizes["n"] != c.sizes["m"], "fails exactly where n ≠ m"),
    (lambda c: c.sizes["d"] == 24, "fails exactly where d is no power of two"),
    (lambda c: c.sizes["b"] > 1, "fails exactly where B > 1"),
    (lambda c: True, "every case fails"),
    (lambda c: False, ""),
])  # fmt: skip
def test_the_property_that_failing_cases_share_is_named(fails: Any, text: str) -> None:
    assert condition(evidence(CASES, fails)).startswith(text) == bool(text) or condition(evidence(CASES, fails)) == text


@pytest.mark.parametrize(("axis", "tile"), [("m", 64), ("n", 64), ("m", 16)])
def test_tiles_that_a_length_is_no_multiple_of_are_named(axis: str, tile: int) -> None:
    found = drawn(Dense(), "family=normal,more keys,more queries,tail,one query; d=16; d=e; b=1")
    text = condition(evidence(found, lambda c: c.sizes[axis] % tile != 0))
    assert f"{axis} is no multiple of" in text


def test_a_property_that_is_needed_but_not_enough_is_said_to_be_so() -> None:
    text = condition(evidence(CASES, lambda c: c.inputs.mask is not None and c.sizes["n"] == 37))
    assert text == "fails only where mask is given, and not always there"


def test_nothing_is_said_where_no_property_separates() -> None:
    assert condition(evidence(CASES, lambda c: rng.stream(0, c.id).random() < 0.5)) == ""


def test_conditions_are_told_apart_by_their_words() -> None:
    texts = [text for text, _ in conditions()]
    assert len(set(texts)) == len(texts) > 40


# ---- what the errors look like
def errors(change: Any, name: str = "dk") -> list[tuple[Array, Any, Case]]:
    found = evidence([c for c in CASES if c.family in ("normal", "shared heads")], change=change, sides=(name,))
    return [(e.got[name], e.ref[name], e.case) for e in found]


@pytest.mark.parametrize(("of", "text"), [
    (lambda c: 0.0, "dk is zero"),
    (lambda c: c.sizes["d"] ** -0.5, "dk is the scale times what it must be"),
    (lambda c: c.sizes["d"] ** 0.5, "dk is 1/scale times what it must be"),
    (lambda c: np.log(2), "dk is log 2 times what it must be"),
    (lambda c: 1 / np.log(2), "dk is 1/log 2 times what it must be"),
    (lambda c: c.sizes["g"] / c.sizes["h"], "dk is H_kv/H times what it must be"),
])  # fmt: skip
def test_a_factor_is_recognised(of: Any, text: str) -> None:
    assert factor("dk", errors(lambda c, n, x: of(c) * x)) == ("factor", text)


@pytest.mark.parametrize("change", [
    lambda c, n, x: x, lambda c, n, x: x * 1.001, lambda c, n, x: x + 0.1, lambda c, n, x: np.where(x > 1, np.nan, 2 * x),
])  # fmt: skip
def test_what_is_no_factor_is_not_called_one(change: Any) -> None:
    assert factor("dk", errors(change)) == ("factor", "")


def test_rows_with_factors_of_their_own_point_at_the_sum_of_weights() -> None:
    def scaled(c: Case, n: str, x: Array) -> Array:
        return x * (1.0 + np.arange(x.shape[-2])[:, None] / 7)

    assert rows("o", errors(scaled, "o"))[0] == "normaliser"
    assert "sum that it is divided by" in rows("o", errors(scaled, "o"))[1]
    assert rows("dk", errors(scaled, "dk"))[1] == "", "gradients are not normalised"
    assert rows("o", errors(lambda c, n, x: x + 0.1, "o"))[1] == ""
    assert rows("o", errors(lambda c, n, x: x * np.nan, "o"))[1] == ""
    assert rows("o", errors(lambda c, n, x: x, "o"))[1] == rows("o", [])[1] == "", "nothing is wrong"
    noise = [(b.value + 1.5 * b.bound * rng.stream(0, c.id).choice([-1, 1], b.value.shape), b, c)
             for _, b, c in errors(lambda c, n, x: x, "o")]  # fmt: skip
    assert rows("o", noise)[1] == factor("o", noise)[1] == "", "what is left is as large as the error"
    assert precision("o", noise)[1] != ""


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", range(8, 11)), ("float16", range(11, 14))])
def test_lost_precision_is_recognised_with_its_size(dtype: str, bits: range) -> None:
    kind, text = precision("dk", errors(lambda c, n, x: exact_in(x, dtype)))
    assert kind == "precision"
    assert any(f"about 2^-{k} of its size" in text for k in bits), text


@pytest.mark.parametrize("change", [
    lambda c, n, x: x * 1.5, lambda c, n, x: x * 1.01, lambda c, n, x: np.where(x > 0, np.nan, x),
])  # fmt: skip
def test_what_is_no_rounding_is_not_called_one(change: Any) -> None:
    assert precision("dk", errors(change))[1] == ""


def test_the_factor_of_least_squares_passes_over_what_is_not_finite() -> None:
    want = np.array([1.0, 2.0, np.inf, 3.0])
    assert alpha(np.array([2.0, 4.0, np.inf, np.nan]), want) == pytest.approx(2.0)
    assert alpha(want, np.zeros(4)) == 0.0


# ---- together
def test_a_signature_gives_one_class_and_all_findings() -> None:
    def change(c: Case, n: str, x: Array) -> Array:
        return x / c.sizes["h"] if n == "dv" else x

    names, words = signature(evidence(CASES, lambda c: c.sizes["h"] > c.sizes["g"], change, ("dv",)))
    assert [n.mutant for n in names] == ["factor"]
    assert words[0].startswith("fails exactly where H > H_kv")
    assert "dv is 1/H times what it must be" in words


def test_a_forward_that_fails_is_looked_at_before_its_gradients() -> None:
    def change(c: Case, n: str, x: Array) -> Array:
        return exact_in(x, "bfloat16") if n == "o" else x * 3

    names, words = signature(evidence(CASES, change=change, sides=("o", "dq")))
    assert [n.mutant for n in names] == ["precision"]
    assert "lse is right in every case" in words
    assert not any(w.startswith("dq") for w in words)


def test_what_cannot_be_classed_is_left_unknown() -> None:
    names, words = signature(evidence(CASES, change=lambda c, n, x: x + 1.0))
    assert names == []
    assert words == ["every case fails", "lse is right in every case"]
    assert signature([replace(e, failing=frozenset()) for e in evidence(CASES[:2])]) == ([], [])
