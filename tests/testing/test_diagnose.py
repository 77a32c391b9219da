"""Who is named, who is not, and how strong the evidence has to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.precision import PRESETS
from refattn.testing.diagnose import CERTAIN, HIGH, LOW, SEEN, Diagnosis, granted, level_of
from refattn.testing.match import Match, match
from refattn.testing.mutants import everything
from refattn.testing.tolerance import expect
from refattn.testing.verdicts import Level, Naming
from testing.laboratory import SETTINGS, Bench, bench_of

Array = Any
DICTIONARY = {m.id: m for m in everything()}
BENCH: Bench = bench_of(replace(SETTINGS["causal"], ids=("peaked/odd", "flat/odd", "more keys/odd", "shared heads/odd")))
HALF: Bench = bench_of(SETTINGS["bfloat16"])


def like(
    power: float = 100.0, amplitude: float = 1.0, quarters: tuple[float, ...] = (), classes: bool | None = None
) -> Match:
    return Match(power, amplitude * power, amplitude, 0.1, quarters or (amplitude,) * 4, classes)


def results(bench: Bench, change: Any = lambda case, name, x: x) -> dict[str, dict[str, Array]]:
    """The reference as a kernel returns it, case by case and tensor by tensor, each changed."""
    return {c.id: {n: bench.stored(n, change(c, n, b.value)) for n, b in bench.refs[c.id].items()} for c in bench.cases}


def blend(bench: Bench, mutant_id: str, share: float) -> dict[str, dict[str, Array]]:
    """A kernel with a share of a mistake."""
    values = {c.id: next((m.values(c, bench.setting.dtype) for m in bench.mutants[c.id] if m.id == mutant_id), {})
              for c in bench.cases}  # fmt: skip
    def change(case: Any, name: str, x: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(x), x + share * (values[case.id].get(name, x) - x), x)
    return results(bench, change)


@pytest.mark.parametrize("bench", [BENCH, HALF], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_right_kernel_has_no_name(bench: Bench, backward: bool) -> None:
    d, failed = bench.diagnose(results(bench), backward)
    assert not failed
    assert d.looks() == {}
    assert d.names() == []
    assert d.failing_cases() == 0


@pytest.mark.parametrize("factor", [0.5, 0.98, 1.003, 1.2, 1.7])
def test_a_scale_that_is_off_is_named_with_its_factor(factor: float) -> None:
    scheme = BENCH.setting.scheme
    wrong = {c.id: replace(scheme, scale=factor * c.sizes["d"] ** -0.5).forward(*c.inputs) for c in BENCH.cases}
    got = results(BENCH, lambda c, n, x: {"o": wrong[c.id][0], "lse": wrong[c.id][1].lse}.get(n, x))
    d, failed = BENCH.diagnose(got, False)
    assert failed
    (first, count), *_ = d.names()
    assert (first.mutant, count) == ("F3", d.failing_cases()) == ("F3", len(BENCH.cases))
    assert f"factor {factor:.6g}" in first.title
    assert first.amplitude == pytest.approx(1.0, abs=0.02)


def test_mistakes_of_the_forward_go_before_those_of_the_backward() -> None:
    """A forward that fails makes the backward fail too: nothing is said of the backward then."""
    forward, backward = BENCH.mutants[BENCH.cases[0].id], "B4"
    ids = {m.id for m in forward}
    assert {"F30l", backward} <= ids
    both = {c.id: {**BENCH.outputs(c, backward), **{n: x for n, x in BENCH.outputs(c, "F30l").items() if n in ("o", "lse")}}
            for c in BENCH.cases}  # fmt: skip
    d, _ = BENCH.diagnose(both, False)
    assert d.names()[0][0].mutant == "F30l"
    d, _ = BENCH.diagnose(both, True)
    assert d.names() == [], "only mistakes of the backward are at hand, and the forward fails"


@pytest.mark.parametrize(("share", "named"), [(0.2, False), (0.5, False), (1.0, True), (2.0, False)])
def test_a_share_of_a_mistake_is_not_the_mistake(share: float, named: bool) -> None:
    d, failed = BENCH.diagnose(blend(BENCH, "F30l", share), False)
    assert failed
    assert ("F30l" in [n.mutant for n, _ in d.names()]) == named


def test_a_mistake_that_is_absent_where_it_must_show_is_not_named() -> None:
    """F30l on one case, right results on the others, where it has power too."""
    right, wrong = results(BENCH), blend(BENCH, "F30l", 1.0)
    first = BENCH.cases[0].id
    d, failed = BENCH.diagnose({**right, first: wrong[first]}, False)
    assert failed
    assert d.names() == []


@pytest.mark.parametrize(("share", "found"), [(-1.0, False), (0.5, False), (1.0, True)])
def test_a_mistake_inside_the_bound_is_seen_by_its_amplitude(share: float, found: bool) -> None:
    """dq of a bfloat16 kernel added up in bfloat16: inside its bound in every case, and the filter knows better."""
    d, failed = HALF.diagnose(blend(HALF, "B20@16", share), True)
    assert not failed
    assert (set(n.mutant.partition("@")[0] for names in d.looks().values() for n in names) == {"B20"}) == found


def test_what_a_kernel_looks_like_has_to_be_agreed_by_nine_of_ten_cases_that_can_see_it() -> None:
    right, wrong = results(HALF), blend(HALF, "B20@16", 1.0)
    loud = [i for i, p in HALF.power["B20@16"].items() if p >= CERTAIN]
    assert len(loud) >= 2
    d, _ = HALF.diagnose({**wrong, loud[0]: right[loud[0]]}, True)
    assert not {n.mutant for names in d.looks().values() for n in names} & {"B20@16"}


@pytest.mark.parametrize(("match", "expected"), [
    (like(), True), (like(power=SEEN), True), (like(power=SEEN - 0.1), False), (like(amplitude=LOW), True),
    (like(amplitude=LOW - 0.01), False), (like(amplitude=HIGH), True), (like(amplitude=HIGH + 0.01), False),
    (like(amplitude=-1.0), False), (like(amplitude=0.0), False), (like(quarters=(1.0, 1.0, 1.0, 1.7)), False),
    (like(quarters=(1.0, 1.0, 0.4, 1.0)), False), (like(quarters=(1.5, 0.6)), True), (like(classes=False), False),
    (like(classes=True), True),
])  # fmt: skip
def test_what_counts_as_looking_like_a_mistake(match: Match, expected: bool) -> None:
    assert Diagnosis("float32", PRESETS["fp32"], True)._like(match) == expected


def naming(how: str = "filter", instead: str | None = None) -> Naming:
    return Naming("X", "x", 1.0, 100.0, how, instead)


@pytest.mark.parametrize(("failing", "names", "level"), [
    (True, [], Level.FAIL), (True, [naming("within")], Level.FAIL), (True, [naming("within", "Dense()")], Level.CONVENTION),
    (True, [naming("hint", "Dense()")], Level.FAIL), (False, [], Level.OK), (False, [naming("hint")], Level.OK),
    (False, [naming()], Level.LOOKS_LIKE), (False, [naming(instead="Dense()")], Level.CONVENTION),
])  # fmt: skip
def test_levels_of_named_cases(failing: bool, names: list[Naming], level: Level) -> None:
    assert level_of(failing, names) == level


def test_conventions_say_under_which_scheme_the_kernel_is_right() -> None:
    d, _ = BENCH.diagnose({c.id: BENCH.outputs(c, "F22") for c in BENCH.cases}, False)
    first = d.names()[0][0]
    assert first.mutant == "F22"
    assert first.instead == "Dense(causal=True, align='top_left')"
    assert eval(first.instead, {"Dense": Dense}) == replace(BENCH.setting.scheme, align="top_left")


def test_eager_contracts_grant_what_they_are_made_of() -> None:
    for preset in ("eager-bf16", "eager-fp16", "flash-bf16", "flash-fp16", "fp32", "tf32"):
        allowed = preset.startswith("eager")
        assert granted(DICTIONARY["F14"], PRESETS[preset]) == allowed
        assert granted(DICTIONARY["F15@64"], PRESETS[preset]) == allowed
        assert not granted(DICTIONARY["F16"], PRESETS[preset]), "float8 is less than eager half precision"
        assert not granted(DICTIONARY["F20"], PRESETS[preset])


def test_power_is_that_of_the_best_case() -> None:
    d, _ = BENCH.diagnose(results(BENCH), False)
    power = d.power()
    assert power["F20"] == pytest.approx(max(BENCH.power["F20"].values()), rel=1e-6)
    assert set(power) == {i for i in BENCH.power if i.startswith("F")}


def test_in_float64_a_mutant_within_the_bound_of_the_reference_says_nothing() -> None:
    """Its difference has the reference's own roundings, as the error of a right kernel has: they would be alike."""
    case = BENCH.cases[0]
    double, mutant = PRESETS["fp64"], everything()[0]
    ref = expect(case.scheme, case.inputs, double, case.do, case.dlse)
    noise = {"o": ref["o"].value + 0.9 * ref["o"].bound}
    gross = {"o": ref["o"].value + 1e3 * ref["o"].bound}
    d = Diagnosis("float64", double, True)
    assert match(noise, ref, noise).power > CERTAIN, "else this would say nothing"
    assert d._match(mutant, noise, ref, noise).power == 0.0
    assert d._match(mutant, gross, ref, gross).power > CERTAIN
    assert Diagnosis("float32", PRESETS["fp32"], True)._match(mutant, noise, ref, noise).power > CERTAIN
