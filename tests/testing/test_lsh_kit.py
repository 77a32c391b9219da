"""The kit on kernels of LSH: right ones pass, every known mistake is found and called by its name, buckets come first."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from laws.stand_in import computing_in
from refattn import LSH, load, rng, using
from refattn.catalogue.base import Variant
from refattn.catalogue.lsh import LSH_ROW
from refattn.precision import PRESETS
from refattn.testing import check
from refattn.testing.cases import Case
from refattn.testing.match import match
from refattn.testing.mutants import stored
from refattn.testing.mutants_lsh import known
from refattn.testing.staged_lsh import LSHStaged
from refattn.testing.tolerance import band, expect, storage
from refattn.testing.verdicts import Level
from testing import lsh_kernel
from testing.laboratory import Bench, Setting
from testing.lsh_text import text_of

Array = Any
ALL = ("rotations", "buckets", "positions", "key_valid")
CAUSAL = LSH(chunk=4, causal=True)
TRAX = replace(LSH.conventions["trax"], chunk=4)
SETTINGS = {
    "causal": Setting(CAUSAL, ALL, "float32"),
    "trax": Setting(TRAX, ALL, "float32"),
    "plain": Setting(LSH(chunk=5, wrap="round", scale=None), ALL, "float32"),
    "once": Setting(replace(TRAX, duplicates="once", self_score=None), ALL, "float32"),
    "2020": Setting(replace(LSH.conventions["trax2020"], chunk=4), ALL, "float32"),
    "factors": Setting(LSH(chunk=6, after=1, factors=(4, 2), scale=None), ALL, "float32"),
    "bare": Setting(LSH(chunk=4, causal=True, normalise=False, scale=0.25), ALL, "float32"),
    "bfloat16": Setting(CAUSAL, ALL, "bfloat16"),
    "float16": Setting(LSH(chunk=4, wrap="rounds", scale=None), ALL, "float16"),
}
CERTAIN = 30.0


# ---- the staged kernel
def drawn(variant: Variant) -> tuple[Any, Array, Array]:
    inputs = LSH_ROW.draw(variant, 3)
    shape = (*inputs.qk.shape[:-1], inputs.v.shape[-1])
    do, dlse = (rng.short(rng.stream(3, name).normal(size=s)) for name, s in (("do", shape), ("dlse", shape[:-1])))
    return inputs, do, dlse


@pytest.mark.parametrize("variant", LSH_ROW.variants, ids=str)
def test_the_staged_kernel_is_the_scheme(variant: Variant) -> None:
    """The same values, and under the rounding reading bounds and spreads of the same size."""
    inputs, do, dlse = drawn(variant)
    got = LSHStaged(variant.scheme, inputs).run(do, dlse)
    for preset in ("fp32", "flash-bf16"):
        want = expect(variant.scheme, inputs, PRESETS[preset], do, dlse)
        with using(load("rounding", precision=PRESETS[preset])) as b:
            lifted = type(inputs)(*(None if x is None else b.lift(x) for x in inputs))
            out = LSHStaged(variant.scheme, lifted).run(b.lift(do), b.lift(dlse))
            bands = {name: band(stored(b, name, x)) for name, x in out.items()}
        assert got.keys() == want.keys() == bands.keys()
        for name, w in want.items():
            finite, mine = np.isfinite(w.value), bands[name]
            assert np.array_equal(finite, np.isfinite(got[name])), name
            np.testing.assert_allclose(got[name][finite], w.value[finite], rtol=1e-11, atol=1e-11, err_msg=name)
            some = finite & (w.bound > 1e-20)
            quotient = mine.bound[some] / w.bound[some]
            assert 0.6 < np.median(quotient) < 1.7, (name, np.median(quotient))
            assert 0.2 < quotient.min() <= quotient.max() < 5.0, (name, quotient.min(), quotient.max())
            spread = some & (w.sigma > 0) & (mine.sigma > 0)
            assert 0.5 < np.median(mine.sigma[spread] / w.sigma[spread]) < 2.5, name


@pytest.mark.parametrize("wrap", ["none", "round", "rounds"])
def test_the_staged_kernel_keeps_rounds_apart_where_all_tokens_share_a_bucket(wrap: str) -> None:
    """Elsewhere the last bucket of a round is never the first of the next."""
    g = rng.stream(5, "one bucket")
    buckets = np.zeros((1, 2, 3, 9), dtype=np.int64)
    inputs = LSH.Inputs(g.normal(size=(1, 2, 9, 4)), g.normal(size=(1, 2, 9, 3)), buckets=buckets)
    for duplicates in ("counted", "2020"):
        scheme = LSH(chunk=2, wrap=wrap, within_bucket=True, duplicates=duplicates)
        o, saved = scheme.forward(*inputs)
        got = LSHStaged(scheme, inputs).run()
        np.testing.assert_allclose(got["o"], o, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(got["lse"], saved.lse, rtol=1e-11)


# ---- right kernels
SWEPT = [name if name in ("causal", "float16") else pytest.param(name, marks=pytest.mark.sweep) for name in SETTINGS]


@pytest.mark.parametrize("name", SWEPT)
def test_the_scheme_conforms_to_itself(name: str) -> None:
    setting = SETTINGS[name]
    forward, vjp = text_of(setting.scheme)
    families = "flat,large,one bucket,many rounds,one token more,padding,open hashes,zero tokens,no tokens"
    report = check(forward, setting.scheme, vjp=vjp, dtype=setting.dtype, only=f"family={families}; d=16; d=e")
    assert report.level == Level.OK, report
    assert len(report.judged) >= 6


def test_the_generic_texts_conform() -> None:
    forward, vjp = text_of(TRAX)
    with computing_in(replace(load("numpy"), kernels={})):
        assert check(forward, TRAX, vjp=vjp, only="family=normal,one bucket,strided,one token").level == Level.OK


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_strangers_kernel_conforms(dtype: str) -> None:
    """Another sort, another order of sums, the backward from lse alone where there is more than the token itself."""
    kernel = lsh_kernel if dtype == "float32" else in_float32
    families = "peaked,large,short tokens,one bucket,rounds alike,few tokens,one token,open hashes,close hashes,no tokens"
    report = check(kernel.attention, CAUSAL, vjp=kernel.attention_vjp, dtype=dtype, only=f"family={families}; d=16; d=e")
    assert report.level <= Level.WARN, report
    assert not any("rotations" in note for note in report.notes)


def test_weights_from_an_lse_near_the_self_score_are_rough_but_no_mistake() -> None:
    """The output of a token that is alone is off by up to 0.4 %, as in published code: inside the bound, with a warning."""
    report = check(lsh_kernel.from_lse, CAUSAL, only="family=one round,rounds alike,one token")
    assert report.level == Level.WARN, report


class in_float32:
    """The stranger's kernel on half precision: widened, computed, stored; lse stays float32."""

    @staticmethod
    def attention(qk: Array, v: Array, rotations: Any = None, buckets: Any = None) -> Any:
        wide = (x if x is None or x.dtype.kind == "i" else x.astype(np.float32) for x in (qk, v, rotations, buckets))
        out = lsh_kernel.attention(*wide)
        return {**out, "o": out["o"].astype(qk.dtype)}

    @staticmethod
    def attention_vjp(qk: Array, v: Array, do: Array, o: Array, lse: Array, buckets: Array, dlse: Any = None) -> Any:
        x, w, g, y = (a.astype(np.float32) for a in (qk, v, do, o))
        return {n: a.astype(qk.dtype) for n, a in lsh_kernel.attention_vjp(x, w, g, y, lse, buckets, dlse).items()}


# ---- mistakes
@cache
def bench(name: str) -> Bench:
    return Bench(SETTINGS[name])


@cache
def power(name: str, mutant_id: str) -> dict[str, float]:
    """Case → how many σ of a correct kernel this mistake is on it."""
    b, out = bench(name), {}
    for c in b.cases:
        mutant = next((m for m in b.mutants[c.id] if m.id == mutant_id), None)
        if mutant is not None:
            exact = {n: x.value for n, x in b.refs[c.id].items()}
            out[c.id] = match(exact, b.refs[c.id], mutant.values(c, b.setting.dtype)).power
    return out


def seen(name: str, mutant_id: str) -> bool:
    return max(power(name, mutant_id).values(), default=0.0) >= CERTAIN


def named(name: str, mutant_id: str, most: int) -> str:
    """What the kernel with this mistake is called, by all mistakes of its side, on the cases that show it best."""
    whole, powers = bench(name), power(name, mutant_id)
    best, part = sorted(powers, key=lambda case: -powers[case])[:most], Bench(whole.setting, whole.shared)
    vars(part).update(refs=whole.refs, mutants=whole.mutants, cases=[c for c in whole.cases if c.id in best])
    with np.errstate(over="ignore"):
        failed, names = part.names(mutant_id)
    assert failed
    return names[0] if names else ""


IDS = {name: [m.id for m in known(s.scheme)] for name, s in SETTINGS.items()}
EVERY = list(dict.fromkeys(i for ids in IDS.values() for i in ids))


def test_the_published_mistakes_are_there_and_titles_tell_all_apart() -> None:
    assert set(USUAL) <= set(EVERY)
    assert {f"L{i}" for i in range(1, 12)} <= {i.rstrip("abcdefghijklmnopqrstuvwxyz") for i in EVERY}
    for name, setting in SETTINGS.items():
        mutants = known(setting.scheme)
        assert len({m.title for m in mutants}) == len(mutants) == len(set(IDS[name]))


USUAL = ("L1", "L2", "L3", "L3i", "L3a", "L4", "L5rounds", "L6", "L6b", "L7", "L8once", "L9", "L9n", "L10", "L10p", "L10t",
         "L11", "L12p", "L14p", "L15", "L16", "L16s", "L17", "L22", "L26", "B1", "B3", "B4", "B5", "B8l", "B10", "B11",
         "B12c")  # fmt: skip


ORDINARY = [i if i in USUAL else pytest.param(i, marks=pytest.mark.sweep) for i in EVERY]


@pytest.mark.parametrize("mutant_id", ORDINARY)
def test_every_mistake_is_found_and_called_by_its_name(mutant_id: str) -> None:
    """In the first setting that shows it."""
    where = next((s for s, ids in IDS.items() if mutant_id in ids and seen(s, mutant_id)), None)
    assert where is not None, "no setting shows it"
    assert named(where, mutant_id, 2) == mutant_id


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["trax", "bfloat16"])
def test_every_mistake_is_called_by_its_name_on_all_cases(name: str) -> None:
    missed = {i: found for i in IDS[name] if seen(name, i) and (found := named(name, i, 99)) != i}
    assert missed == {}


# ---- mistaken kernels through check
def kernel_with(mutant_id: str, scheme: LSH, dtype: str = "float32") -> tuple[Any, Any]:
    """A kernel that makes this mistake, and its backward."""
    mutant = next(m for m in known(scheme) if m.id == mutant_id)

    def case(arrays: dict[str, Any], do: Any = None, dlse: Any = None) -> Case:
        wide = {n: x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for n, x in arrays.items()}
        inputs = LSH.Inputs(**wide)
        b, h, n, d = inputs.qk.shape
        rounds = inputs.buckets.shape[-2] if inputs.rotations is None else inputs.rotations.shape[-3]
        columns = 1 if inputs.rotations is None else inputs.rotations.shape[-1]
        sizes = {"b": b, "h": h, "n": n, "d": d, "e": inputs.v.shape[-1], "r": rounds, "w": columns, "c": scheme.chunk}
        do, dlse = (None if x is None else x.astype(np.float64) for x in (do, dlse))
        return Case("", "", "", "", scheme, inputs, do, dlse, sizes, strided=not arrays["qk"].flags.c_contiguous)

    def kept(out: dict[str, Array]) -> dict[str, Array]:
        return {n: x.astype(storage("float32" if n == "lse" else dtype)) for n, x in out.items()}

    def forward(qk: Array, v: Array, rotations: Any = None, buckets: Any = None, positions: Any = None,
                key_valid: Any = None) -> Any:
        c = case(dict(zip(LSH.Inputs._fields, (qk, v, rotations, buckets, positions, key_valid), strict=True)))
        if mutant.backward or not mutant.applies(c, dtype):
            return kept(LSHStaged(scheme, c.inputs).run())
        return kept(mutant.values(c, dtype))

    def vjp(qk: Array, v: Array, do: Array, dlse: Any = None, rotations: Any = None, buckets: Any = None,
            positions: Any = None, key_valid: Any = None) -> Any:
        given = (qk, v, rotations, buckets, positions, key_valid)
        c = case(dict(zip(LSH.Inputs._fields, given, strict=True)), do, dlse)
        right = {n: x for n, x in LSHStaged(scheme, c.inputs).run(c.do, c.dlse).items() if n.startswith("d")}
        return kept(mutant.values(c, dtype) if mutant.backward and mutant.applies(c, dtype) else right)

    return forward, vjp


SOME = ("L1", "L7", "L9", "L10", "B1", "B5")
FEW = "family=peaked,one token more; d=16; d=e"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_names_kernels_made_of_mistakes(dtype: str) -> None:
    for mutant_id in SOME if dtype == "float32" else SOME[1:3] + SOME[-1:]:
        forward, vjp = kernel_with(mutant_id, CAUSAL, dtype)
        report = check(forward, CAUSAL, vjp=vjp if mutant_id[0] == "B" else None, dtype=dtype, only=FEW)
        assert (report.status(), report.names[0].mutant) == (1, mutant_id), report.names


def half(x: Array) -> Array:
    return x.astype(np.float16).astype(x.dtype)


@pytest.mark.parametrize(("given", "product", "mutant_id"), [
    (half, np.asarray, "L10p"), (np.asarray, half, "L10t"), (half, half, "L10m"),
    (np.asarray, np.asarray, None)])  # fmt: skip
def test_check_names_what_a_strangers_hash_rounds(given: Any, product: Any, mutant_id: str | None) -> None:
    """Tokens and rotations, their products, or both."""
    def forward(qk: Array, v: Array, rotations: Array) -> Any:
        p = product(np.einsum("bhnd,hrdw->bhrnw", given(qk), given(rotations)))
        out = lsh_kernel.attention(qk, v, buckets=np.argmax(np.concatenate([p, -p], axis=-1), axis=-1))
        return {name: out[name] for name in ("o", "lse")}

    report = check(forward, CAUSAL, only="family=normal,peaked,close hashes")
    assert [n.mutant for n in report.names] == ([] if mutant_id is None else [mutant_id])
    assert (report.level == Level.FAIL) == (mutant_id is not None)


@pytest.mark.parametrize(("mutant_id", "said"), [
    ("Ctrax", "LSH(chunk=4, wrap='rounds', causal=True, eps=1e-06)"),
    ("Clucid", "LSH(chunk=4, wrap='rounds', causal=True, self_score=-50000.0, scale=None)"),
    ("L8once", "LSH(chunk=4, causal=True, duplicates='once')"),
    ("L2", "LSH(chunk=4, causal=True, scale=None)")])  # fmt: skip
def test_a_convention_is_told_with_the_scheme_that_it_is(mutant_id: str, said: str) -> None:
    forward, _ = kernel_with(mutant_id, CAUSAL)
    report = check(forward, CAUSAL, only="family=one round,short tokens,one token,many rounds; d=16; d=e")
    assert report.level == Level.CONVENTION
    assert (report.names[0].mutant, report.names[0].instead) == (mutant_id, said)
