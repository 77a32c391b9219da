"""Kernels over patterns before the kit: right ones conform, every known mistake is killed and called by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws.stand_in import computing_in
from refattn import Blocks, Causal, Heads, Local, Sparse, load, rng, using
from refattn.backends.numpy_backend import WORDS, kernels
from refattn.backends.rows_engine import RowsEngine
from refattn.backends.tile_engine import Engine
from refattn.backends.tiled_rows import TiledRows
from refattn.catalogue import SPARSE, Variant, scheme_or_pattern
from refattn.catalogue import scheme as scheme_of
from refattn.patterns import Alternate
from refattn.patterns.named_sources import NAMED
from refattn.precision import PRESETS
from refattn.testing import Report, check
from refattn.testing.cases import cases
from refattn.testing.mutants import stored
from refattn.testing.only import parse
from refattn.testing.report import render
from refattn.testing.subjects import subject_of
from refattn.testing.subjects.pattern_mutants import mutants
from refattn.testing.subjects.sparse import SparseStaged
from refattn.testing.tolerance import band, expect
from refattn.testing.verdicts import Level
from testing import sparse_kernels as made
from testing.laboratory import Bench, Setting

Array = Any
FEW = "family=normal,edges,edges and more keys,short; d=16; d=e; b=1"
SCHEMES = (
    "Sparse(Local(3, 0), align='bottom_right')",
    "Sparse(Local(2, 2, dilation=2) + Self(), align='top_left')",
    "Sparse(Blocks(4, back=1) & Causal(), align='bottom_right')",
    "Sparse(Longformer.with_global(4, (0, 5)))",
    "Sparse(Heads((Local(2, 0), Local(1, 1) & ~Self(), Strided(3) & Causal())))",
    "Sparse(BigBird.itc(2, 1, 'multiset', seed=1))",
)
MORE = (
    "Sparse(SparseTransformer.strided(4))", "Sparse(SparseTransformer.fixed(4, 2))", "Sparse(CCNet.criss_cross(3, 4))",
    "Sparse(BlockBERT.heads(3, (2, 1)))", "Sparse(LogTrans.restart(6, 2))", "Sparse(AxialTransformer.axis((3, 4), 0, True))",
    "Sparse(LocalBlocks.t2t_right(5))", "Sparse(Split(5, 2))", "Sparse(Blocks(6, shift=1, ahead=1, margin=2))",
    "Sparse(Global(first=2, last=1, at=(7,), rows=False) | Random(3, seed=2))",
    "Sparse(SparseTransformer.strided(4, part='heads', full=1))", "Sparse(Longformer.dilated(2, 3))",
)  # fmt: skip


# ---- the staged kernel
@pytest.mark.parametrize("variant", SPARSE.variants, ids=str)
def test_the_staged_kernel_is_sparse(variant: Variant) -> None:
    """The same values, and bounds of the same size, since the same roundings are counted in another text."""
    inputs = SPARSE.draw(variant, 3)
    shape = (*inputs.q.shape[:-1], inputs.v.shape[-1])
    do, dlse = (rng.short(rng.stream(3, name).normal(size=s)) for name, s in (("do", shape), ("dlse", shape[:-1])))
    o, saved = variant.scheme.forward(*inputs)
    grads = variant.scheme.vjp(saved, do, dlse=dlse)
    want = {"o": o, "lse": saved.lse, **{f"d{n}": g for n, g in grads._asdict().items() if g is not None}}
    got = SparseStaged(variant.scheme, inputs).run(do, dlse)
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert np.allclose(got[name], x, rtol=1e-12, atol=1e-12), name
    bounds = expect(variant.scheme, inputs, PRESETS["fp32"], do, dlse)
    with using(load("rounding", precision=PRESETS["fp32"])) as b:
        lifted = type(inputs)(*(None if x is None else b.lift(x) for x in inputs))
        read = SparseStaged(variant.scheme, lifted).run(b.lift(do), b.lift(dlse))
        found = {name: band(stored(b, name, x)) for name, x in read.items()}
    for name, x in bounds.items():
        some = np.isfinite(x.value) & (x.bound > 1e-20)
        assert 0.6 < np.median(found[name].bound[some] / x.bound[some]) < 2.0, name


# ---- right kernels
TABLES = {
    "generic": WORDS,
    "rows": kernels(rows=RowsEngine(short=0, parts=2), tiled=None),
    "tiles": kernels(tiled=TiledRows(Engine(short=0, rows=3, keys=2), short=0, heights=(3,), entry=1e9)),
}  # fmt: skip


def within(table: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose NumPy arrays are computed by these kernels."""

    def inside(*args: Array, **named: Array) -> Any:
        with computing_in(replace(load("numpy"), kernels=TABLES[table])):
            return function(*args, **named)

    inside.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return inside


PAIRS = [(text, table) for text in SCHEMES for table in TABLES]
SOME = [("generic", 5), ("rows", 1), ("rows", 4), ("tiles", 0), ("tiles", 3)]
QUICK = [(SCHEMES[k], table) for table, k in SOME]


@pytest.mark.parametrize(("text", "table"), [
    *QUICK, *(pytest.param(*pair, marks=pytest.mark.sweep) for pair in PAIRS if pair not in QUICK)])  # fmt: skip
def test_the_texts_and_the_compiled_kernels_conform(text: str, table: str) -> None:
    scheme = scheme_of(text)
    taken = ("mask", "key_valid") if table == "rows" else ()
    forward, vjp = within(table, made.text(scheme, *taken)), within(table, made.pullback(scheme))
    report = check(forward, scheme, vjp=None if taken else vjp, only=FEW.replace("short", "short,mask,padding,blind rows"))
    assert (report.level, report.status(strict=True)) == (Level.OK, 0), render(report)
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o", "lse", *(() if taken else ("dq", "dk", "dv"))}


@pytest.mark.parametrize("text", [*SCHEMES[:2], SCHEMES[4], SCHEMES[5]])
def test_a_kernel_over_lists_of_keys_conforms(text: str) -> None:
    scheme = scheme_of(text)
    report = check(made.listed(scheme), scheme, only=FEW)
    assert report.status(strict=True) == 0, render(report)


@pytest.mark.parametrize("dtype", [
    "bfloat16", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("float16", "float64"))])  # fmt: skip
def test_other_precisions_conform(dtype: str) -> None:
    scheme = scheme_of(SCHEMES[3])

    def forward(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        wide = (x.astype(np.float64 if dtype == "float64" else np.float32) for x in (q, k, v))
        o, saved = scheme.forward(*wide)
        return o.astype(q.dtype), saved.lse

    report = check(forward, scheme, dtype=dtype, only=FEW)
    assert report.status() == 0, render(report)


def test_torchs_masked_attention_conforms() -> None:
    torch = pytest.importorskip("torch")
    scheme = Sparse(Blocks(4, back=1) & Causal() | Local(1, 1), align="bottom_right")

    def attention(q: Any, k: Any, v: Any) -> Any:
        n, m = q.shape[-2], k.shape[-2]
        see = torch.from_numpy(scheme.pattern.dense(n, m, m - n) > 0)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=see)

    report = check(attention, scheme, library="torch", backward="autograd", only=FEW)
    assert report.status() == 0, render(report)
    assert {t.tensor for c in report.cases for t in c.tensors} == {"o", "dq", "dk", "dv"}


# ---- the command line takes every named pattern
FIRST = [named.examples[0] for named in NAMED.values()]
OTHERS = [example for named in NAMED.values() for example in named.examples[1:]]


@pytest.mark.parametrize("example", [*FIRST, *(pytest.param(x, marks=pytest.mark.sweep) for x in OTHERS)])
def test_every_named_pattern_has_cases(example: str) -> None:
    layers = isinstance(scheme_or_pattern(example), Alternate)
    scheme = scheme_of(f"Sparse({example}{'.at(1)' if layers else ''})")
    limits = parse("family=normal,edges,short,one token", subject_of(scheme).cases_of(scheme))
    found = {c.id: c for c in cases(scheme, "float32", frozenset(), limits)}
    assert {"normal/odd", "edges/odd", "short/five", "one token/one"} <= found.keys()
    h = len(scheme.pattern) if isinstance(scheme.pattern, Heads) else None
    for c in found.values():
        scheme.check(c.inputs)
        assert h in (None, c.sizes["h"])
    assert not mutants(scheme)[0].backward


def test_cases_are_no_multiples_of_blocks_and_reach_the_edges() -> None:
    sizes = {SCHEMES[2]: 4, "Sparse(BigBird.itc(8, 1))": 8, "Sparse(Blocks(9, ahead=2))": 9, "Sparse(Blocks(5))": 5}
    for text, size in sizes.items():
        (c,) = (c for c in cases(scheme_of(text), "float32", frozenset()) if c.id == "edges/odd")
        assert c.sizes["n"] % size
        assert c.sizes["n"] > 4 * size
    (far,) = (c for c in cases(Sparse(Local(300, 0)), "float32", frozenset()) if c.id == "edges/odd")
    assert (far.sizes["n"] > 350, far.sizes["h"]) == (True, 1)
    rule = [c.sizes["n"] for c in cases(scheme_of("Sparse(LocalBlocks.t2t_right(5))"), "float32", frozenset())
            if c.family == "length rule"]
    assert rule == [9, 10, 11]


# ---- known mistakes
IDS = ("normal/odd", "edges/odd", "edges/pow2", "short/five", "edges and more keys/odd", "edges and more queries/odd",
       "mask/odd", "tail/off", "length rule/9", "length rule/10")  # fmt: skip


def bench(text: str, ids: tuple[str, ...]) -> Bench:
    scheme = scheme_of(text)
    there = {c.id for c in cases(scheme, "float32", frozenset({"mask"}))}
    return Bench(Setting(scheme, ("mask",), "float32", tuple(i for i in ids if i in there)))


def own(mutant_id: str) -> bool:
    return mutant_id.startswith(("S", "C:", "B6-S", "B6-C"))


def same(b: Bench, one: str, other: str) -> bool:
    """True if both do the same on every case."""
    for c in b.cases:
        right = {name: x.value for name, x in b.refs[c.id].items()}
        both = [{**right, **next((m.values(c, "float32") for m in b.mutants[c.id] if m.id == i), {})} for i in (one, other)]
        if any(not np.allclose(both[0][n], both[1][n], rtol=1e-9, atol=1e-9, equal_nan=True) for n in right):
            return False
    return True


def unnamed(text: str, ids: tuple[str, ...] = IDS) -> tuple[list[Any], list[str], int]:
    """(mistakes that are not called by their name, those that hardly show, how many there are)."""
    b = bench(text, ids)
    ids = [i for i in b.power if own(i)]
    faint = [i for i in ids if max(b.power[i].values()) < 30]
    wrong = []
    for i in ids:
        failed, names = b.names(i)
        if not failed or not names or (names[0] != i and not same(b, names[0], i)):
            wrong.append((i, names[:2]))
    return wrong, faint, len(ids)


def test_every_mistake_over_a_pattern_is_killed_and_named() -> None:
    wrong, faint, number = unnamed(SCHEMES[0], ("edges/odd", "edges and more keys/odd"))
    assert (wrong, faint) == ([], [])
    assert number >= 30


@pytest.mark.sweep
@pytest.mark.parametrize("text", [*SCHEMES, *MORE])
def test_every_mistake_over_every_pattern_is_killed_and_named(text: str) -> None:
    wrong, faint, number = unnamed(text)
    assert (wrong, faint) == ([], [])
    assert number >= 30


def named(report: Report) -> str:
    return report.names[0].mutant if report.names else ""


CHECKED = [
    (SCHEMES[0], "S:Local.left+1"), (SCHEMES[0], "B6-S:Local.left-1"), (SCHEMES[0], "S24@16"),
    (SCHEMES[1], "S:Local.dilation1"), (SCHEMES[2], "S25@16"), (SCHEMES[2], "S23q:4"), (SCHEMES[3], "S:Global.rows"),
    (SCHEMES[4], "S3n"), (SCHEMES[5], "C:set seeded"), (MORE[2], "S:Cross.sum"), (SCHEMES[3], "B3q"),
    (MORE[0], "S:Strided.early"), ("Sparse(Longformer.dilated(4, 3))", "S:Local.tokens"),
]  # fmt: skip
AND_THESE = [
    (SCHEMES[0], "S8"), (SCHEMES[0], "S20"), (SCHEMES[0], "S:Local.mirror"), (SCHEMES[0], "S20t"),
    (SCHEMES[1], "S:union[0]"), (SCHEMES[2], "S1"), (SCHEMES[2], "C:own"), (SCHEMES[3], "C:survey"),
    (SCHEMES[3], "F30"), (MORE[0], "C:survey"), (MORE[1], "S21"), (MORE[1], "S:Fixed.first"),
    (MORE[3], "S:Split[1].inverse"), (MORE[5], "S:Axial.turned"), (MORE[6], "S:Short.always"),
    (MORE[8], "S:Blocks.margin+1"), (MORE[9], "S:Random.seed+1"), (MORE[10], "C:openai"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "mutant_id"), [
    *CHECKED, *(pytest.param(*pair, marks=pytest.mark.sweep) for pair in AND_THESE)])  # fmt: skip
def test_a_kernel_with_a_mistake_is_named_by_check(text: str, mutant_id: str) -> None:
    scheme = scheme_of(text)
    mutant = next(m for m in mutants(scheme) if m.id == mutant_id)
    forward, vjp = made.mistaken(mutant, scheme)
    only = FEW.replace("short", "short,length rule") if "Short" in mutant_id else FEW
    report = check(forward, scheme, vjp=vjp if mutant.backward else None, only=only)
    level = Level.CONVENTION if mutant_id.startswith("C:") else Level.FAIL
    assert (report.level, named(report)) == (level, mutant_id), render(report)
    assert report.names[0].amplitude == pytest.approx(1.0, abs=0.05)
