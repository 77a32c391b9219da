"""Linformer in the kit: the staged kernel is the scheme, right kernels conform, every mistake is killed and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import Linformer, rng
from refattn.backend import load, using
from refattn.catalogue import LINFORMER, Variant
from refattn.errors import OptionError
from refattn.precision import PRESETS
from refattn.testing import check
from refattn.testing.cases import cases
from refattn.testing.mutants import Mutant, stored
from refattn.testing.mutants_linformer import OWN, TILES, _in_tiles
from refattn.testing.report import render
from refattn.testing.staged_linformer import LinformerStaged
from refattn.testing.tolerance import band, expect
from testing.laboratory import Bench, Setting, bench_of

Array = Any
ALL = ("E", "F", "key_valid", "slot_valid")
SETTINGS = {
    "linear": Setting(Linformer(), ALL, "float32", (
        "normal/odd", "mostly padding/odd", "square/odd", "own matrices/odd", "one matrix/odd", "fewer slots/odd")),
    "slice": Setting(Linformer(shorter="slice"), ALL, "float32", ("normal/odd", "tail/off")),
    "mean": Setting(Linformer(projection="mean", stride=3, tail="pad"), ALL, "float32", ("normal/odd", "padding/odd")),
    "max": Setting(Linformer(projection="max", stride=2), ALL, "float32", ("normal/odd", "padding/odd")),
    "depthwise": Setting(Linformer(projection="depthwise"), ALL, "float32", ("normal/odd", "one matrix/even")),
    "dense": Setting(Linformer(projection="dense", tail="drop"), ALL, "float32", ("normal/odd",)),
}  # fmt: skip
MINE: dict[str, Mutant] = {m.id: m for m in (*OWN, *(m for tile in TILES for m in _in_tiles(tile)))}


def seen(bench: Bench) -> list[str]:
    """The mistakes of Linformer that the cases of a bench see."""
    return [i for i, powers in bench.power.items() if i in MINE and max(powers.values()) >= 30.0]


@pytest.mark.parametrize("variant", LINFORMER.variants, ids=str)
def test_the_staged_kernel_is_the_scheme_and_its_bounds_are_comparable(variant: Variant) -> None:
    inputs, scheme = LINFORMER.draw(variant, 3), variant.scheme
    shape = (*inputs.q.shape[:-1], inputs.v.shape[-1])
    do, dlse = (rng.short(rng.stream(3, name).normal(size=s)) for name, s in (("do", shape), ("dlse", shape[:-1])))
    o, saved = scheme.forward(*inputs)
    grads = scheme.vjp(saved, do, dlse=dlse)._asdict()
    want = {"o": o, "lse": saved.lse, **{f"d{n}": g for n, g in grads.items() if g is not None}}
    got = LinformerStaged(scheme, inputs).run(do, dlse)
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-12, atol=1e-12, err_msg=name)
    bands = expect(scheme, inputs, PRESETS["fp32"], do, dlse)
    with using(load("rounding", precision=PRESETS["fp32"])) as b:
        lifted = type(inputs)(*(None if x is None else b.lift(x) for x in inputs))
        out = LinformerStaged(scheme, lifted).run(b.lift(do), b.lift(dlse))
        for name, x in out.items():
            some = bands[name].bound > 1e-20
            assert 0.5 < np.median(band(stored(b, name, x)).bound[some] / bands[name].bound[some]) < 2.0, name


@pytest.mark.parametrize("name", SETTINGS)
def test_every_mistake_that_is_seen_is_killed_and_named(name: str) -> None:
    bench, missed = bench_of(SETTINGS[name]), {}
    for mutant_id in seen(bench):
        failed, names = bench.names(mutant_id)
        if not failed or not names or names[0].partition("@")[0] != mutant_id.partition("@")[0]:
            missed[mutant_id] = (failed, names[:3])
    same = {"R3l": (True, ["R8t", "R3l"])}  # of a tail that is padded, the last slot is what is dropped
    assert missed == (same if bench.setting.scheme.tail == "pad" else {})


def test_every_mistake_is_seen_somewhere() -> None:
    found = {i for setting in SETTINGS.values() for i in seen(bench_of(setting))}
    assert set(MINE) - found == set()


def test_ids_and_titles_are_unique() -> None:
    for setting in SETTINGS.values():
        known = [m for c in bench_of(setting).cases for m in bench_of(setting).mutants[c.id]]
        assert len({m.title for m in known}) == len({m.id for m in known})


def ours(scheme: Linformer) -> tuple[Any, Any]:
    """The scheme itself as a candidate, and its backward."""
    def forward(q: Array, k: Array, v: Array, *, E: Array = None, F: Array = None, key_valid: Array = None,
                slot_valid: Array = None) -> tuple[Array, Array]:  # fmt: skip
        o, saved = scheme.forward(q, k, v, E, F, key_valid, slot_valid)
        return o, saved.lse

    def backward(*, q: Array, k: Array, v: Array, E: Array = None, F: Array = None, key_valid: Array = None,
                 slot_valid: Array = None, do: Array, dlse: Array) -> dict[str, Array]:  # fmt: skip
        _, saved = scheme.forward(q, k, v, E, F, key_valid, slot_valid)
        grads = scheme.vjp(saved, do, dlse=dlse)
        return {f"d{name}": g for name, g in grads._asdict().items() if g is not None}

    return forward, backward


@pytest.mark.parametrize("name", SETTINGS)
def test_a_right_kernel_conforms_forward_and_backward(name: str) -> None:
    scheme = SETTINGS[name].scheme
    forward, backward = ours(scheme)
    some = "family=normal,padding,one key,no keys,poison,widths"
    only = f"{some},own matrices,one matrix,fewer slots,headless,square,mostly padding" if name == "linear" else some
    report = check(forward, scheme, vjp=backward, only=only)
    assert report.status() == 0, render(report)
    assert len(report.cases) >= 8


def plain(q: Array, k: Array, v: Array, *, E: Array, F: Array | None = None) -> Array:
    """A stranger's: einsum, no lse, no padding."""
    keys, values = np.einsum("sm,bgmd->bgsd", E, k), np.einsum("sm,bgmd->bgsd", E if F is None else F, v)
    ratio = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, ratio, axis=1) for x in (keys, values))
    s = np.einsum("bhnd,bhsd->bhns", q, keys) / np.sqrt(q.shape[-1]).astype(q.dtype)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhns,bhsd->bhnd", e / e.sum(axis=-1, keepdims=True), values).astype(q.dtype)


def one_matrix(q: Array, k: Array, v: Array, *, E: Array, F: Array | None = None) -> Array:
    """E for the values, too."""
    return plain(q, k, v, E=E)


def test_a_strangers_kernel_is_judged_and_its_mistake_is_named() -> None:
    only = "family=normal,padding,shared heads; d=16; d=e"
    assert check(plain, Linformer(), only=only).status() == 0
    report = check(one_matrix, Linformer(), only=only)
    assert report.status() == 1
    assert "E compresses the values, too: F is ignored [R2]" in render(report)


def test_matrices_that_a_candidate_does_not_take_are_told() -> None:
    with pytest.raises(OptionError, match="needs E, but the candidate's signature does not name it"):
        list(cases(Linformer(), "float32", frozenset()))
    with pytest.raises(OptionError, match='--only "d=e"'):
        list(cases(Linformer(projection="dense"), "float32", frozenset({"E"})))
    drawn = list(cases(Linformer(projection="mean", stride=4), "float32", frozenset()))
    assert all(c.inputs.E is None and c.sizes["m"] % 4 == 0 for c in drawn)


def test_sizes_fit_the_projection() -> None:
    for c in cases(Linformer(), "float32", frozenset(ALL)):
        assert c.inputs.E.shape[-2:] == (c.sizes["s"], c.sizes["m"])
    assert {c.family for c in cases(Linformer(), "float32", frozenset(ALL))} >= {"fewer slots", "headless", "one matrix"}
    for c in cases(Linformer(projection="depthwise"), "float32", frozenset(ALL)):
        assert c.sizes["m"] % c.sizes["c"] == 0
