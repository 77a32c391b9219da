"""The filter of sizes and families: what is understood, how cases are reshaped, and what is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refattn import Dense
from refattn.errors import OptionError
from refattn.testing.cases import Case, cases
from refattn.testing.families import FAMILIES, sizes
from refattn.testing.only import parse

ODD = sizes(2, 3, 3, 37, 37, 24, 20)
POW2 = sizes(1, 2, 2, 64, 64, 64, 64)
MORE = sizes(1, 2, 2, 64, 128, 64, 64)
SHARED = sizes(2, 6, 3, 37, 37, 24, 20)


def drawn(text: str, scheme: Dense | None = None, *accepts: str) -> list[Case]:
    return list(cases(Dense() if scheme is None else scheme, "float32", frozenset(accepts), parse(text)))


@pytest.mark.parametrize(("text", "start", "changed"), [
    ("", ODD, {}),
    ("d=64,128", ODD, {"d": 64}),
    ("d=16,32", POW2, {"d": 32}),
    ("d = 128 , 64", POW2, {}),
    ("n%64=0", ODD, {"n": 64, "m": 64}),
    ("nk%32=0", ODD, {"m": 64}),
    ("nq=40", ODD, {"n": 40}),
    ("m=40", ODD, {"m": 40}),
    ("n=100,128; n%64=0", ODD, {"n": 128, "m": 128}),
    ("d=e", ODD, {"e": 24}),
    ("e=d", ODD, {"d": 20}),
    ("e=64; d=e", ODD, {"d": 64, "e": 64}),
    ("d=64; d=dv", ODD, {"d": 64, "e": 64}),
    ("d=64", ODD, {"d": 64}),  # e stays 20: the candidate has to say d=e if it needs that
    ("nk=128; nq=nk", ODD, {"n": 128, "m": 128}),
    ("b=1; n=64;", ODD, {"b": 1, "n": 64, "m": 64}),
    ("heads=1:1", ODD, {}),
    ("heads=4:1", ODD, {"h": 12}),
    ("heads=4:1", SHARED, {"h": 12}),
    ("h=8; heads=4:1", ODD, {"h": 8, "g": 2}),
    ("hkv=2; heads=4:1", ODD, {"h": 8, "g": 2}),
    ("hkv=2", SHARED, {"h": 4, "g": 2}),
    ("h=8", SHARED, {"h": 8, "g": 4}),
    ("nq=1", ODD, {"n": 1}),
    ("nq%16=0; nk%32=0; d=64; d=e; b=2; heads=2:1", ODD, {"n": 48, "m": 64, "d": 64, "e": 64, "h": 6}),
])  # fmt: skip
def test_sizes_are_moved_to_the_nearest_that_fit(text: str, start: Any, changed: dict[str, int]) -> None:
    assert parse(text).fit(start) == {**start, **changed}


@pytest.mark.parametrize(("text", "start", "why"), [
    ("nq=40; nk=80; nq=nk", ODD, "nothing can satisfy it"),
    ("h=5; heads=2:1", ODD, "5 heads can't share in twos"),
    ("h=7; hkv=3", ODD, "7 heads can't share 3"),
    ("d=48,80; d%32=0", ODD, "neither is a multiple"),
    ("nq=nk", MORE, "n ≠ m is what the case is about"),
    ("heads=1:1", SHARED, "shared heads are what the case is about"),
    ("n%64=0", sizes(1, 2, 2, 1, 128, 64, 64), "one query is what the case is about"),
    ("n=64", sizes(2, 3, 3, 0, 0, 16, 12), "no query is what the case is about"),
])  # fmt: skip
def test_a_case_that_cannot_fit_or_loses_its_point_is_left_out(text: str, start: Any, why: str) -> None:
    assert parse(text).fit(start) is None, why


@pytest.mark.parametrize("clause", [
    "d", "d=", "=64", "d==64", "d=64-128", "d=x", "n%64=1", "n%0=0", "n%=0", "heads=4", "heads=4:2", "heads=0:1", "d<64",
    "d=0",
    "n=0,64", "family=", "64", "nq=nk=64", "d=6 4",
])  # fmt: skip
def test_a_clause_of_another_form_is_refused_and_shown(clause: str) -> None:
    with pytest.raises(OptionError, match=re.escape(repr(clause))) as error:
        parse(f"b=1; {clause}; e=8")
    assert "heads=4:1" in str(error.value), "the forms that there are"


def test_a_size_or_family_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(OptionError, match=r"'q=3': no size is called 'q'; there are n, b, h, hkv, nq, nk"):
        parse("q=3")
    with pytest.raises(OptionError, match=r"no family is called 'tial'; there are normal, .*tail"):
        parse("family=tail,tial")


def test_every_case_that_is_drawn_satisfies_the_filter() -> None:
    text = "d=64,128; n%64=0; nq=nk; d=e; heads=4:1"
    found = drawn(text, None, "mask", "bias")
    assert len(found) > 15
    for c in found:
        s = c.sizes
        assert (s["n"], s["d"], s["h"]) == (s["m"], s["e"], 4 * s["g"]), c.id
        assert s["d"] in (64, 128), c.id
        assert s["n"] % 64 == 0, c.id
        assert c.inputs.q.shape == (s["b"], s["h"], s["n"], s["d"])
        assert c.inputs.v.shape == (s["b"], s["g"], s["m"], s["e"])
    assert {c.family for c in found} >= {"normal", "mask", "bias", "tail", "shared heads", "no queries"}
    assert not {c.family for c in found} & {"more keys", "one key", "one query"}


def test_cases_that_become_the_same_are_drawn_once() -> None:
    found = [(c.family, tuple(c.sizes.values())) for c in drawn("n=64; d=64; e=64; b=1; h=2; hkv=2")]
    assert len(found) == len(set(found))
    assert [f for f, _ in found].count("normal") == 1


def test_families_are_chosen_by_name() -> None:
    assert {c.family for c in drawn("family=tail, more keys")} == {"tail", "more keys"}
    assert {c.id for c in drawn("family=tail")} == {f"tail/{t}" for t in next(f for f in FAMILIES if f.name == "tail").tiers}
    assert drawn("family=mask") == [], "a candidate without a mask has none"
    assert {c.family for c in drawn("family=mask", None, "mask")} == {"mask"}


def test_a_decoding_kernel_is_judged_on_one_query_at_a_time() -> None:
    found = drawn("nq=1", Dense(causal=True, align="bottom_right"), "q_positions")
    assert {c.sizes["n"] for c in found} == {1}
    assert len({c.family for c in found}) > 10


def test_a_single_channel_can_be_asked_for() -> None:
    assert all(c.inputs.q.shape[-1] == 1 for c in drawn("d=1", None, "mask"))
