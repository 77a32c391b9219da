"""The cases of the kit: exact in the dtype, drawn again the same, each with its point, and none that a null model passes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.errors import OptionError
from refattn.precision import PRESETS, for_dtype
from refattn.testing import cases as module
from refattn.testing.cases import Case, cases, nulls
from refattn.testing.check import Run
from refattn.testing.families import FAMILIES
from refattn.testing.judge import judge
from refattn.testing.only import parse
from refattn.testing.tolerance import exact_in, expect, storage
from refattn.testing.verdicts import Level

Array = Any
DTYPES = ("float64", "float32", "float16", "bfloat16")
EVERYTHING = frozenset({"mask", "bias", "sink", "segment_ids", "kv_segment_ids", "key_valid", "q_positions", "k_positions"})
SETTINGS: dict[str, tuple[Dense, frozenset[str]]] = {
    "plain": (Dense(), frozenset()),
    "everything": (Dense(), EVERYTHING),
    "causal": (Dense(causal=True), EVERYTHING),
    "aligned": (Dense(causal=True, align="bottom_right"), frozenset({"q_positions", "k_positions"})),
    "capped, tiled": (Dense(causal=True, align="top_left", softcap=8.0, heads="tiled", scale=0.3), frozenset({"key_valid"})),
    "dropped": (Dense(keep_rate=0.8, empty="mean"), frozenset({"keep", "mask", "sink"})),
}
VACUOUS = {"tf32": ("far below",)}  # rounding inputs to ten bits moves scores of −7·10⁴ by more than any weight can stand
NULLS = {"zeros", "mean of V", "previous row"}


def drawn(setting: str, dtype: str, only: str = "") -> list[Case]:
    scheme, accepts = SETTINGS[setting]
    return list(cases(scheme, dtype, accepts, parse(only) if only else None))


def arrays(case: Case) -> dict[str, Array]:
    return {**{n: x for n, x in case.inputs._asdict().items() if x is not None}, "do": case.do, "dlse": case.dlse}


def digest(case: Case) -> str:
    """SHA-256 over names, shapes and values."""
    found = hashlib.sha256(case.id.encode())
    for name, x in arrays(case).items():
        found.update(f"{name} {x.dtype.str} {x.shape}".encode() + np.ascontiguousarray(x).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_values_are_exact_in_the_dtype_and_fit_the_scheme(setting: str, dtype: str) -> None:
    for c in drawn(setting, dtype):
        c.scheme.check(c.inputs)
        for name, x in arrays(c).items():
            if x.dtype.kind != "f":
                continue
            held = ("float64" if dtype == "float64" else "float32") if name == "dlse" else dtype
            assert x.dtype == np.float64, (c.id, name)
            assert np.array_equal(exact_in(x, held), x, equal_nan=c.soft), (c.id, name)
            assert c.soft or np.isfinite(x).all(), (c.id, name)


def test_ids_are_unique_and_every_family_says_its_point() -> None:
    for setting in SETTINGS:
        assert max(Counter(c.id for c in drawn(setting, "float32")).values()) == 1
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)
    for f in FAMILIES:
        assert len(f.flag.split()) > 1, f.name
        assert len(f.effect.split()) > 1, f.name
        assert set(f.exempt) <= NULLS, f.name


def test_every_family_is_drawn_somewhere_in_a_power_of_two_and_an_odd_tier() -> None:
    found = [c for s in SETTINGS for c in drawn(s, "float16")] + drawn("everything", "float32")
    assert {c.family for c in found} == {f.name for f in FAMILIES}
    both = [f.name for f in FAMILIES if {"pow2", "odd"} <= f.tiers.keys()]
    assert len(both) >= 20
    for f in FAMILIES:
        if "odd" in f.tiers:
            s = f.tiers["odd"]
            assert len({s[a] for a in "bhnd"}) == 4 or 1 in (s["n"], s["m"]) or s["n"] > 100, (f.name, "B ≠ H ≠ n ≠ d")
            assert s["d"] != s["e"], f.name
            assert any(s[a] & (s[a] - 1) for a in "nmde"), f.name
        for a in "hnmde":
            assert f.tiers.get("pow2", {a: 1})[a] & (f.tiers.get("pow2", {a: 1})[a] - 1) == 0 or f.name == "tail", f.name


def test_a_case_is_drawn_again_the_same() -> None:
    for setting in ("everything", "dropped"):
        assert [digest(c) for c in drawn(setting, "bfloat16")] == [digest(c) for c in drawn(setting, "bfloat16")]


def test_digests_stay_what_they_are() -> None:
    """A kernel judged today is judged on the same numbers tomorrow, on every machine."""
    found = {c.id: digest(c)[:16] for c in drawn("plain", "bfloat16", "family=normal")}
    assert found == DIGESTS


DIGESTS = {"normal/pow2": "b4610d8e2f2d89f7", "normal/odd": "617bed2d2d007613"}


def test_a_case_depends_on_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on other families nor on optional inputs that it does not have."""
    before = {c.id: digest(c) for c in drawn("everything", "float32")}
    plain = {c.id: digest(c) for c in drawn("plain", "float32")}
    shared = [i for i in plain if not i.startswith(("softcap", "far below"))]
    assert {i: before[i] for i in shared} == {i: plain[i] for i in shared}, "an optional input changes other cases"
    monkeypatch.setattr(module, "FAMILIES", FAMILIES[::-2])
    after = {c.id: digest(c) for c in drawn("everything", "float32")}
    assert 10 < len(after) < len(before)
    assert after == {i: before[i] for i in after}


@pytest.mark.parametrize("only", ["nq=1", "nq=40", "nk=48", "n=64; d=64; d=e", "heads=4:1", "h=8; hkv=2", "d=1", "e=1; b=3"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_reshaped_cases_fit_the_scheme_too(setting: str, only: str) -> None:
    scheme, accepts = SETTINGS[setting]
    for given in (accepts, accepts - {"kv_segment_ids"}):
        found = list(cases(scheme, "float32", given, parse(only)))
        assert found
        for c in found:
            c.scheme.check(c.inputs)


@pytest.mark.parametrize("scheme", [*(Dense(scale=s) for s in (0.0, -0.5, 1e-7, 1e7)), Dense(softcap=1e-3)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_strange_scales_give_finite_inputs(scheme: Dense, dtype: str) -> None:
    for c in cases(scheme, dtype, frozenset({"mask"})):
        assert c.soft or all(np.isfinite(x).all() for x in arrays(c).values()), c.id


def test_causal_without_alignment_keeps_to_equal_lengths_or_positions() -> None:
    for c in drawn("causal", "float32"):
        assert c.sizes["n"] == c.sizes["m"] or c.inputs.q_positions is not None, c.id
    assert any(c.family == "positions" for c in drawn("causal", "float32"))
    assert all(c.scheme.align is None for c in drawn("aligned", "float32") if c.inputs.q_positions is not None)
    assert any(c.sizes["n"] > c.sizes["m"] > 0 for c in drawn("aligned", "float32"))


def test_dropout_draws_its_mask_in_every_case_and_needs_it_in_the_signature() -> None:
    for c in drawn("dropped", "float32"):
        assert c.inputs.keep is not None, c.id
        if c.inputs.keep.size > 500:
            assert abs(c.inputs.keep.mean() - 0.8) < 0.1, c.id
    with pytest.raises(OptionError, match=r"keep_rate=0\.8.*does not name"):
        next(cases(Dense(keep_rate=0.8), "float32", frozenset({"mask"})))


def test_families_do_what_their_flag_says() -> None:
    found = {c.id: c for c in drawn("everything", "float32")}
    score = {i: np.std(np.einsum("bhnd,bhmd->bhnm", c.inputs.q, c.inputs.k)) * c.sizes["d"] ** -0.5
             for i, c in found.items() if c.sizes["g"] == c.sizes["h"] and 0 not in c.sizes.values()}  # fmt: skip
    assert score["normal/pow2"] == pytest.approx(1.0, rel=0.1)
    assert score["flat/odd"] < 0.5
    assert score["large/odd"] > 50
    rising = np.abs(found["rising/pow2"].inputs.k).mean(axis=(0, 1, 3))
    assert rising[-64:].mean() > 4 * rising[:64].mean()
    blind = found["blind rows/odd"].inputs.mask
    assert (~blind.any(axis=-1)).any()
    assert blind.any(axis=-1).any()
    assert found["mask/odd"].inputs.mask.any(axis=-1).all()
    mask = found["mask/odd"].inputs.mask
    assert not np.array_equal(mask, mask.swapaxes(-1, -2)), "a symmetric mask hides its transpose"
    assert not np.array_equal(mask[0], mask[1])
    assert abs(mask.mean() - 0.5) > 0.1, "as many visible as hidden pairs hide the polarity"
    lengths = found["padding/odd"].inputs.key_valid.sum(axis=-1)
    assert len(set(lengths.tolist())) == len(lengths)
    assert found["bias/odd"].inputs.bias.shape == (1, 3, 37, 37), "to be summed over the items"
    assert len(np.unique(found["segments/odd"].inputs.segment_ids)) == 3
    assert np.ptp(found["constant v/odd"].inputs.v, axis=-2).max() == 0


def test_an_item_of_padding_alone_is_among_the_cases_of_key_validity():
    for family in ("padded item/pow2", "padded item/odd"):
        (case,) = (c for c in cases(Dense(), "float32", frozenset({"q", "k", "v", "key_valid"})) if c.id == family)
        assert case.inputs.key_valid.any(axis=-1).tolist() == [i != 1 for i in range(case.sizes["b"])]


def test_poison_is_where_no_query_looks_and_only_warns() -> None:
    for c in drawn("everything", "float32", "family=poison"):
        hidden = ~c.inputs.key_valid[:, None, :, None]
        assert hidden.any()
        assert np.array_equal(np.isnan(c.inputs.k), np.broadcast_to(hidden, c.inputs.k.shape))
        assert c.soft
        assert all(np.isfinite(b.value).all() for b in expect(c.scheme, c.inputs, PRESETS["fp32"], c.do).values())


@pytest.mark.parametrize(("setting", "preset"), [
    *((setting, "flash-bf16") for setting in SETTINGS),
    *((setting, p) for setting in ("everything", "aligned") for p in ("fp64", "fp32", "tf32", "flash-fp16")),
])  # fmt: skip
def test_null_models_fail_every_case_that_is_not_exempt(setting: str, preset: str) -> None:
    dtype = next(d for d in DTYPES if preset in {p.name for p in for_dtype(d)})
    for c in drawn(setting, dtype):
        if c.soft or not c.do.size or c.family in VACUOUS.get(preset, ()):
            continue
        ref = expect(c.scheme, c.inputs, PRESETS[preset])["o"]
        for name, o in nulls(c).items():
            level = judge("o", o.astype(storage(dtype)), ref, dtype).level
            assert level == Level.FAIL or name in c.exempt, f"{name} passes {c.id} under {preset}"


def test_exempt_null_models_are_right_where_they_are_exempt() -> None:
    """Without dropout and with every key visible; elsewhere the exemption only costs that the model is not tried."""
    for c in drawn("plain", "float64"):
        ref = expect(c.scheme, c.inputs, PRESETS["fp64"])["o"]
        for name, o in nulls(c).items():
            if name in c.exempt:
                assert judge("o", o, ref, "float64").level < Level.FAIL, f"{name} is wrong on {c.id}"


def test_null_models_are_the_heads_own_means_and_rows() -> None:
    c = next(c for c in drawn("capped, tiled", "float32") if c.family == "shared heads")
    found = nulls(c)
    mean = c.inputs.v.mean(axis=-2)[:, 1 % c.sizes["g"], None]
    assert np.array_equal(found["mean of V"][:, 1], np.broadcast_to(mean, c.do[:, 1].shape))
    assert np.array_equal(found["previous row"][..., 1, :], c.scheme.forward(*c.inputs)[0][..., 0, :])
    one = next(c for c in drawn("aligned", "float32") if c.family == "one query")
    assert nulls(one).keys() == {"zeros", "mean of V"}, "a single query has no previous row"


def test_families_said_to_be_vacuous_are() -> None:
    for preset, names in VACUOUS.items():
        for name in names:
            ref = {c.id: expect(c.scheme, c.inputs, PRESETS[preset]) for c in drawn("causal", "float32", f"family={name}")}
            run = Run(Dense(causal=True), "float32", PRESETS[preset], Silent(), None)
            assert {run.vacuous(c, ref[c.id]) for c in drawn("causal", "float32", f"family={name}")} == {"zeros"}


class Silent:
    """A runner of nothing, for a Run that is only asked which cases are vacuous."""

    has_backward, wants, accepts = False, frozenset[str](), frozenset[str]()


@pytest.mark.parametrize("preset", ["eager-bf16", "eager-fp16"])
def test_under_eager_presets_vacuous_cases_are_refused_by_name(preset: str) -> None:
    dtype = "bfloat16" if preset == "eager-bf16" else "float16"
    run = Run(Dense(), dtype, PRESETS[preset], Silent(), None)
    judged, refused = 0, {}
    for c in drawn("everything", dtype):
        ref = expect(c.scheme, c.inputs, PRESETS[preset])
        why = run.vacuous(c, ref)
        passing = [n for n, o in nulls(c).items() if c.do.size and not c.soft and n not in c.exempt
                   and judge("o", o.astype(storage(dtype)), ref["o"], dtype).level < Level.FAIL]  # fmt: skip
        assert why in passing if passing else why is None, c.id
        judged, refused = judged + (why is None), refused | ({c.id: why} if why else {})
    print(preset, "judges", judged, "cases and refuses", refused)
    assert judged > 20


def test_a_vacuous_case_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were v the same for all keys in an ordinary case, its mean would pass and the case be refused."""
    c = drawn("plain", "float32", "family=constant v")[0]
    ref = expect(c.scheme, c.inputs, PRESETS["fp32"])
    run = Run(Dense(), "float32", PRESETS["fp32"], Silent(), None)
    assert run.vacuous(c, ref) is None
    assert run.vacuous(replace(c, exempt=()), ref) == "mean of V"
