"""Linear attention in the kit: its staged kernel is the scheme, right kernels pass, every mistake is killed and named."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from refattn import Identity, Linear, Relu, load, rng, using
from refattn.catalogue.linear import LINEAR
from refattn.precision import PRESETS
from refattn.testing import check
from refattn.testing.mutants import stored
from refattn.testing.mutants_linear import linear
from refattn.testing.staged_linear import LinearStaged
from refattn.testing.tolerance import band, expect
from testing.laboratory import Bench, Setting, bench_of

Array = Any
CERTAIN = 30.0
LEAN = ("normal/odd", "one-sided v/odd", "below zero/odd", "faint/odd", "chunks/tail", "shared heads/odd", "strided/odd")
PADDED = (*LEAN, "padding/odd", "padded item/odd")
ALIGNED = Linear(causal=True, align="bottom_right")
SETTINGS = {
    "all keys": Setting(Linear(), ("key_valid",), "float32", (*PADDED, "more keys/odd", "normal/pow2")),
    "causal": Setting(ALIGNED, ("key_valid",), "float32", (*PADDED, "more keys/odd", "more queries/odd")),
    "ε of keys": Setting(Linear(causal=True, scale=None, eps=0.25, eps_at="keys"), (), "float32",
                         ("normal/odd", "faint/odd")),
    "ε of the sum": Setting(Linear(scale=None, eps=0.25), (), "float32", ("normal/odd", "faint/odd")),
    "ε, no scale": Setting(Linear(eps=0.25), (), "float32", ("normal/odd", "faint/odd")),
    "relu": Setting(Linear(causal=True, feature=Relu()), (), "float32", ("normal/odd", "below zero/odd", "widths/wide")),
    "no map": Setting(Linear(causal=True, feature=Identity(), scale=None, normalise=False), (), "float32", LEAN[:-1]),
    "bfloat16": Setting(Linear(causal=True), (), "bfloat16", ("normal/odd", "one-sided v/odd", "chunks/tail")),
}  # fmt: skip
CLASSES = list(dict.fromkeys(m.id.partition("@")[0] for m in linear()))


def kind(mutant_id: str) -> str:
    return mutant_id.partition("@")[0]


def seen(bench: Bench) -> dict[str, str]:
    """Class → the variant that the cases see best, of those that they see."""
    power = {i: max(p.values()) for i, p in bench.power.items()}
    best: dict[str, str] = {}
    for i in sorted(power, key=lambda i: power[i]):
        if power[i] >= CERTAIN:
            best[kind(i)] = i
    return best


@functools.cache
def places() -> dict[str, tuple[str, str]]:
    """Class → the setting that sees it first, and the variant that it sees best."""
    found: dict[str, tuple[str, str]] = {}
    for name, setting in SETTINGS.items():
        for cls, mutant_id in seen(bench_of(setting)).items():
            found.setdefault(cls, (name, mutant_id))
    return found


def results(scheme: Any, inputs: Any, do: Array) -> dict[str, Array]:
    o, saved = scheme.forward(*inputs)
    return {"o": o, **{f"d{n}": g for n, g in scheme.vjp(saved, do)._asdict().items() if g is not None}}


@pytest.mark.parametrize("variant", LINEAR.variants, ids=str)
def test_the_staged_kernel_is_the_scheme(variant: Any) -> None:
    inputs = LINEAR.draw(variant, 3)
    do = rng.short(rng.stream(3, "do").normal(size=(*inputs.q.shape[:-1], inputs.v.shape[-1])))
    want = results(variant.scheme, inputs, do)
    got = LinearStaged(variant.scheme, inputs).run(do)
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-12, atol=1e-13)
    bounds = expect(variant.scheme, inputs, PRESETS["fp32"], do, None)
    with using(load("rounding", precision=PRESETS["fp32"])) as b:
        lifted = type(inputs)(*(None if x is None else b.lift(x) for x in inputs))
        mine = {n: band(stored(b, n, x)) for n, x in LinearStaged(variant.scheme, lifted).run(b.lift(do)).items()}
    for name, w in bounds.items():
        some = w.bound > 1e-20
        assert 0.5 < np.median(mine[name].bound[some] / w.bound[some]) < 2.0, name


def test_the_published_mistakes_are_there() -> None:
    assert {"R5", "R6", "R7", "R8", "R11"} <= {*CLASSES}
    assert len({m.title for m in linear()}) == len(linear())


@pytest.mark.parametrize("name", CLASSES)
def test_every_mistake_is_killed_and_named(name: str) -> None:
    where, mutant_id = places()[name]
    _, names = bench_of(SETTINGS[where]).names(mutant_id)
    assert names, (where, mutant_id)
    assert kind(names[0]) == name, (where, mutant_id, names)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SETTINGS)
def test_every_mistake_is_killed_and_named_on_all_cases(name: str) -> None:
    bench = bench_of(Setting(*[getattr(SETTINGS[name], x) for x in ("scheme", "accepts", "dtype")]))
    named = {i: bench.names(i)[1][:1] for i in seen(bench).values()}
    assert {i: n for i, n in named.items() if [kind(x) for x in n] != [kind(i)]} == {}


# ---- kernels as somebody else writes them
def running(q: Array, k: Array, v: Array, carried: bool = True) -> Array:
    """Causal linear attention in chunks of 32 with a running state; carried=False forgets all but the last chunk."""
    def phi(x: Array) -> Array:
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))).astype(x.dtype)

    fq, fk, n = phi(q), phi(k), q.shape[-2]
    one = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    state = np.zeros((*q.shape[:-2], q.shape[-1], one.shape[-1]), q.dtype)
    out = []
    for a in range(0, n, 32):
        f, g, u = fq[..., a : a + 32, :], fk[..., a : a + 32, :], one[..., a : a + 32, :]
        inside = np.tril(f @ np.swapaxes(g, -1, -2))
        out.append(inside @ u + f @ state)
        state = (state if carried else 0 * state) + np.swapaxes(g, -1, -2) @ u
    both = np.concatenate(out, axis=-2)
    return both[..., :-1] / both[..., -1:]


FEW = "family=normal, one-sided v, chunks, below zero; heads=1:1"


def test_a_right_kernel_in_chunks_conforms() -> None:
    report = check(running, Linear(causal=True), only=FEW)
    assert report.status() == 0


@pytest.mark.parametrize(("scheme", "dtype"), [
    pytest.param(ALIGNED, "float32", id="aligned-float32"),
    pytest.param(ALIGNED, "bfloat16", marks=pytest.mark.sweep, id="aligned-bfloat16"),
    pytest.param(LINEAR.variants[6].scheme, "float32", marks=pytest.mark.sweep, id="ε-float32"),
    pytest.param(LINEAR.variants[6].scheme, "bfloat16", id="ε-bfloat16"),
])  # fmt: skip
def test_the_scheme_itself_conforms(scheme: Linear, dtype: str) -> None:
    def forward(q: Array, k: Array, v: Array, key_valid: Array | None = None) -> Array:
        return scheme(q, k, v, key_valid)

    def backward(q: Array, k: Array, v: Array, do: Array, key_valid: Array | None = None) -> dict[str, Array]:
        _, saved = scheme.forward(q, k, v, key_valid)
        return {f"d{n}": g for n, g in scheme.vjp(saved, do)._asdict().items() if g is not None}

    report = check(forward, scheme, vjp=backward, dtype=dtype, only="d=16,20,24; b=1,2,3")
    assert report.status() == 0


def test_a_state_that_forgets_and_a_convention_are_told() -> None:
    from refattn.testing.report import render

    lost = check(lambda q, k, v: running(q, k, v, carried=False), Linear(causal=True), only=FEW)
    assert lost.status() == 1
    assert "the state is that of the chunk of 32 before alone, not of all [R11o@32]" in render(lost)
    other = check(lambda q, k, v: Linear(normalise=False)(q, k, v), Linear(), only=FEW)
    text = render(other)
    assert text.startswith("CONVENTION")
    assert "Linear(normalise=False)" in text


def test_published_code_is_told_as_a_whole() -> None:
    from refattn.testing.report import render

    text = render(check(lambda q, k, v: Linear.conventions["fla"](q, k, v), Linear(causal=True), only=FEW))
    assert text.startswith("CONVENTION")
    assert "[Cfla]" in text
    assert "Linear(causal=True, feature=Identity(), scale=None, normalise=False)" in text


def test_what_happens_before_the_feature_map_is_told() -> None:
    from refattn.testing.report import render

    def masked(q: Array, k: Array, v: Array, key_valid: Array | None = None) -> Array:
        return Linear()(q, k if key_valid is None else np.where(key_valid[..., None, :, None], k, np.float32(0)), v)

    def scaled(q: Array, k: Array, v: Array) -> Array:
        return Linear()(q * np.float32(q.shape[-1] ** -0.5), k, v)

    assert "[R4b]" in render(check(masked, Linear(), only="family=normal, padding, padded item; heads=1:1"))
    assert "[R1b]" in render(check(scaled, Linear(), only=FEW))


def test_a_name_explains_the_cases_inside_the_bound_that_look_like_it() -> None:
    from refattn.testing.report import render

    text = render(check(lambda q, k, v: Linear.conventions["performer-pytorch"](q, k, v), Linear(causal=True),
                        only="family=normal, faint; heads=1:1"))  # fmt: skip
    assert "[Cperformer]" in text
    assert "explains 4 of 4 failing cases" in " ".join(text.split())
