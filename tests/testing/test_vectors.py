"""Golden vectors: what is committed comes out again, the files are as the schema says, and dumps are judged like kernels."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closed_schema import invalid, open_objects
from layout import ROOT
from refattn import Dense
from refattn.precision import PRESETS
from refattn.testing.cases import nulls
from refattn.testing.judge import judge
from refattn.testing.mutants import everything
from refattn.testing.tolerance import exact_in, storage
from refattn.testing.vectors import CONTRACTS, bound, certified, digest, dtype_of, read
from refattn.testing.vectors_cases import recipes
from refattn.testing.vectors_check import check_dump
from refattn.testing.vectors_files import sha256, tensors
from refattn.testing.vectors_flags import BUG_TYPES, FLAGS
from refattn.testing.vectors_golden import Golden, load
from refattn.testing.vectors_manifest import export, schema
from refattn.testing.verdicts import Level, Report

pytest.importorskip("flint", reason="python-flint is not installed: pip install 'refattn[exact]'")

Array = Any
COMMITTED = json.loads((ROOT / "tests/golden/dense.json").read_text(encoding="utf-8"))
MOST = 4_000_000
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core tier, exported once."""
    made = tmp_path_factory.mktemp("vectors")
    export(made)
    return made


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def golden(folder: Path) -> dict[int, Golden]:
    return {g.id: g for g in load(folder)}


# ---- what is committed
def test_the_digests_are_the_committed_ones(folder: Path) -> None:
    """Inputs and expected values bit for bit. A change here is announced: docs/vectors-format.md says how."""
    made = json.loads((folder / "dense.digests.json").read_text(encoding="utf-8"))
    assert made["cases"].keys() == COMMITTED["cases"].keys()
    for number, case in COMMITTED["cases"].items():
        for what in ("name", "inputs", "expected"):
            assert made["cases"][number][what] == case[what], f"{what} of {case['name']}"
    assert made["digest"] == COMMITTED["digest"]


def test_the_bounds_are_the_committed_ones_to_one_in_a_thousand(folder: Path) -> None:
    made = json.loads((folder / "dense.digests.json").read_text(encoding="utf-8"))
    for number, case in COMMITTED["cases"].items():
        for preset, means in case["bounds"].items():
            for name, mean in means.items():
                got = made["cases"][number]["bounds"][preset][name]
                assert got == pytest.approx(mean, rel=1e-3), f"{preset} {name} of {case['name']}"


def test_a_changed_digest_is_announced() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert COMMITTED["digest"][:16] in changes, "write the new digest of the golden vectors into CHANGELOG.md"


def test_a_committed_case_keeps_its_number() -> None:
    names = {str(r.id): r.title for r in recipes()}
    assert {number: names.get(number) for number in COMMITTED["cases"]} == {
        number: case["name"] for number, case in COMMITTED["cases"].items()
    }


def test_files_come_out_the_same(folder: Path, tmp_path: Path) -> None:
    export(tmp_path, [r for r in recipes() if r.group in ("mask-blind", "everything")])
    for name in ("dense-mask-blind.safetensors", "dense-everything.safetensors"):
        assert sha256(tmp_path / name) == sha256(folder / name)


def test_the_core_tier_is_small(folder: Path, manifest: dict[str, Any]) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) <= MOST
    assert manifest["number_of_cases"] == sum(len(g["cases"]) for g in manifest["groups"]) >= 70


# ---- the format
def test_the_schema_is_closed_and_describes_the_manifest(manifest: dict[str, Any]) -> None:
    assert list(open_objects(schema())) == []
    assert invalid(manifest, schema(), schema()) == []


@pytest.mark.parametrize("spoil", [
    lambda m: m.pop("digest"),
    lambda m: m["groups"][0]["cases"][0].update(hint=1),
    lambda m: m["groups"][0]["cases"][0]["inputs"].pop("dlse"),
    lambda m: m["groups"][0]["config"].update(causal="yes"),
    lambda m: m["groups"][0].update(sha256="0"),
    lambda m: m["flags"]["Tail"].update(bug_type="UGLY"),
    lambda m: m["groups"][0]["cases"][0]["results"]["o"]["bounds"].pop("tf32"),
])  # fmt: skip
def test_the_schema_refuses(spoil: Callable[[Any], Any], manifest: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(manifest))
    spoil(changed)
    assert len(invalid(changed, schema(), schema())) == 1


def test_the_schema_knows_every_field_of_the_scheme() -> None:
    defs = schema()["$defs"]
    assert set(defs["dense_config"]["properties"]) == set(asdict(Dense()))
    assert set(defs["dense_inputs"]["properties"]) == {*Dense.Inputs._fields, "do", "dlse"}
    assert set(schema()["properties"]["presets"]["properties"]) == set(CONTRACTS)
    assert tuple(defs["flag"]["properties"]["bug_type"]["enum"]) == BUG_TYPES
    assert {flag.bug_type for flag in FLAGS.values()} == set(BUG_TYPES)


def test_the_files_hold_what_the_manifest_names(folder: Path, manifest: dict[str, Any]) -> None:
    kinds = {"mask": "bool", "keep": "bool", "key_valid": "bool"} | {
        name: "int32" for name in ("segment_ids", "kv_segment_ids", "q_positions", "k_positions")
    }
    for group in manifest["groups"]:
        file = folder / group["file"]
        assert (file.stat().st_size, sha256(file)) == (group["bytes"], group["sha256"])
        held, named = tensors(file), {}
        for case in group["cases"]:
            named |= {x: kinds.get(name, "float32") for name, x in case["inputs"].items() if x is not None}
            for result in filter(None, case["results"].values()):
                named |= {result["value"]: "float64", result["class"]: "uint8"}
                named |= {x: "float32" for x in result["bounds"].values() if x is not None}
        assert {name: x.dtype.name for name, x in held.items()} == named


def test_the_digest_is_what_the_page_says() -> None:
    """The words of docs/vectors-format.md, carried out with hashlib alone."""
    x, mask = np.asarray([[1.0, -2.5]], np.float32), np.asarray([True, False])
    text = b"mask BOOL 2\n" + b"\x01\x00" + b"q F32 1,2\n" + struct.pack("<2f", 1.0, -2.5)
    assert digest({"q": x, "mask": mask}) == hashlib.sha256(text).hexdigest()


# ---- inputs, values, bounds
def test_inputs_are_exact_in_the_dtypes_that_are_named(golden: dict[int, Golden]) -> None:
    for g in golden.values():
        for x in (*g.case.inputs, g.case.do, g.case.dlse):
            if x is not None and x.dtype.kind == "f":
                for dtype in g.exact_in:
                    np.testing.assert_array_equal(x.astype(_e4m3() if dtype == "float8_e4m3fn" else storage(dtype)), x)
        assert g.bounds.keys() == {p for p in CONTRACTS if dtype_of(PRESETS[p]) in g.exact_in}
    ranged = {g.id for g in golden.values() if "float8_e4m3fn" not in g.exact_in}
    assert ranged == {21, 22}


def _e4m3() -> Any:
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("number", [2, 17, 31, 40, 46, 54, 61, 66, 70, 72, 74])
def test_expected_values_are_those_of_the_definition(number: int, golden: dict[int, Golden]) -> None:
    """Every bit of o and lse from the other text, which shares nothing with forward."""
    for name, x in certified(golden[number].case, "definition").items():
        np.testing.assert_array_equal(golden[number].expected[name], x, err_msg=name)


def test_bounds_are_rounded_up_and_no_wider_than_that(golden: dict[int, Golden]) -> None:
    for number in (1, 31, 49, 75):
        g = golden[number]
        for preset, stored in g.bounds.items():
            for name, band in read(g.case, PRESETS[preset]).items():
                x = stored[name].astype(np.float64)
                assert np.all(x >= band.bound)
                ulp = np.spacing(np.abs(np.nan_to_num(g.expected[name], neginf=0.0)))
                assert np.all(x <= band.bound * (1 + 2.0**-23) + ulp + 2.0**-148)
                assert np.array_equal(x == 0, band.bound == 0)


def test_a_bound_is_the_next_float32_above() -> None:
    assert bound(np.zeros(4), np.asarray([0.0, 1.0, 1.0 + 2.0**-50, 1e300])).tolist() == [0.0, 1.0, 1.0 + 2.0**-23, np.inf]
    assert bound(np.asarray([-np.inf]), np.asarray([0.0])).tolist() == [0.0]
    assert bound(np.asarray([2.0**60]), np.asarray([0.5])).tolist() == [2.0**7 + 0.5]


def test_classes_say_what_can_only_be_met_exactly(folder: Path) -> None:
    held = tensors(folder / "dense-mask-blind.safetensors")
    for number, result in ((52, "o"), (52, "lse"), (53, "dq"), (53, "dk")):
        value, kind = held[f"{number}.{result}"], held[f"{number}.{result}.class"]
        np.testing.assert_array_equal(kind == 1, np.isneginf(value))
        zero = np.all([held[f"{number}.{result}.bound.{p}"] == 0 for p in CONTRACTS], axis=0)
        np.testing.assert_array_equal(kind == 2, zero & np.isfinite(value))
    assert set(np.unique(held["52.lse.class"])) == {0, 1}
    assert set(np.unique(held["52.o.class"])) == {0, 2}


def test_null_models_fail_every_case(golden: dict[int, Golden]) -> None:
    """An answer without attention must not pass, in the coarsest precision that is stored."""
    passed = []
    for g in golden.values():
        preset = next(p for p in ("flash-bf16", "flash-fp16") if p in g.bounds)
        dtype = dtype_of(PRESETS[preset])
        band = g.bands(PRESETS[preset])["o"]
        for name, o in nulls(g.case).items():
            stored = exact_in(o, dtype).astype(storage(dtype))
            if name not in g.case.exempt and judge("o", stored, band, dtype).level < Level.FAIL:
                passed.append((g.case.id, name))
    assert passed == []


def test_nearly_every_known_mistake_shows_somewhere(manifest: dict[str, Any]) -> None:
    """Strides are not in files; what rounds more than it may is seen by statistics, if at all."""
    seen = {i for group in manifest["groups"] for case in group["cases"] for i in case["kills"]["fp32"] or ()}
    known = {m.id for m in everything() if not m.rounds} - {"F40", "F40k", "B17"}
    assert len(known & seen) >= 0.97 * len(known), known - seen
    assert seen <= set(manifest["mutants"])


# ---- dumps
def write(path: Path, results: Mapping[str, Array]) -> Path:
    """A safetensors file by hand, as another language would write it."""
    header, body = {}, b""
    for name, x in results.items():
        data = np.ascontiguousarray(x).tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": CODES[x.dtype.name], "shape": list(x.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def results(
    golden: dict[int, Golden], numbers: Iterable[int], dtype: str = "float32", other: Callable[[Dense], Dense] = lambda s: s,
    dlse: bool = True,
) -> dict[str, Array]:  # fmt: skip
    """What a kernel of the dtype makes of some cases; `other` is what it computes instead of the scheme."""
    out = {}
    for g in (golden[number] for number in numbers):
        cast = {n: x.astype(storage(dtype)) if x is not None and x.dtype.kind == "f" else x
                for n, x in g.case.inputs._asdict().items()}  # fmt: skip
        scheme = other(g.case.scheme)
        o, saved = scheme.forward(*cast.values())
        more = {} if g.case.dlse is None or not dlse else {"dlse": g.case.dlse.astype(saved.lse.dtype)}
        grads = scheme.vjp(saved, g.case.do.astype(storage(dtype)), **more)
        out |= {f"{g.id}.o": o, f"{g.id}.lse": saved.lse}
        out |= {f"{g.id}.d{name}": x for name, x in grads._asdict().items() if x is not None}
    return out


def level(report: Report, number: int) -> Level:
    return next(c.level for c in report.cases if f"/{number}-" in c.case)


def test_a_right_kernel_conforms_in_every_case(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    report = check_dump(folder, write(tmp_path / "all.safetensors", results(golden, golden)))
    assert report.level == Level.OK
    assert len(report.judged) == len(golden) == len(report.cases)
    assert (report.contract, report.fits, report.status()) == ("fp32", "fp32", 0)


SOME = (2, 23, 31, 37, 46, 50, 53, 61, 70, 72, 74, 75)


@pytest.mark.parametrize(("dtype", "contract"), [("float64", "fp64"), ("float16", "flash-fp16"), ("bfloat16", "flash-bf16")])
def test_each_dtype_is_judged_under_its_contract(
    dtype: str, contract: str, folder: Path, golden: dict[int, Golden], tmp_path: Path
) -> None:
    report = check_dump(folder, write(tmp_path / "some.safetensors", results(golden, SOME, dtype)))
    assert (report.contract, report.status(), len(report.judged)) == (contract, 0, len(SOME))
    rest = [c for c in report.cases if c.level == Level.UNSUPPORTED]
    assert len(rest) == len(golden) - len(SOME)
    assert {c.remark for c in rest} == {"not in the dump"}


WRONG: dict[str, tuple[str, Level, Callable[[Dense], Dense], tuple[int, ...]]] = {
    "no softcap": ("F6", Level.FAIL, lambda s: replace(s, softcap=None), (45, 46, 47, 75)),
    "one corner only": ("F22", Level.CONVENTION, lambda s: replace(s, align=s.align and "top_left"), (29, 30, 31, 33)),
    "tiled only": ("F37", Level.CONVENTION, lambda s: replace(s, heads="tiled"), (37, 75)),
    "mean of nothing": ("F33m", Level.CONVENTION, lambda s: replace(s, empty="mean"), (31, 52, 53)),
    "grouped only": ("F37", Level.CONVENTION, lambda s: replace(s, heads="grouped"), (39, 40)),
    "not causal": ("F23c", Level.FAIL, lambda s: replace(s, causal=False, align=None), (23, 24, 29, 75)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_fails_where_it_is_wrong_and_is_named(
    name: str, folder: Path, golden: dict[int, Golden], tmp_path: Path
) -> None:
    """Each kernel has one configuration for all cases; where that is the one asked for, it is right."""
    mutant, verdict, other, wrong = WRONG[name]
    numbers = sorted({1, 23, 35, 36, 37, 39, 40, 54, *wrong})
    report = check_dump(folder, write(tmp_path / "wrong.safetensors", results(golden, numbers, other=other)))
    assert report.names[0].mutant == mutant
    for number in wrong:
        assert level(report, number) == verdict, number
    assert level(report, 1) == Level.OK
    assert report.status() == 1


def test_a_kernel_that_ignores_dlse_is_named(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    report = check_dump(folder, write(tmp_path / "x.safetensors", results(golden, (1, 2, 3, 24, 23), dlse=False)))
    assert report.names[0].mutant == "B13"
    assert [level(report, n) for n in (1, 23, 2, 3, 24)] == [Level.OK, Level.OK, Level.FAIL, Level.FAIL, Level.FAIL]


def changed(golden: dict[int, Golden], **changes: Callable[[Array], Array]) -> dict[str, Array]:
    """Case 31 in float32 with some results changed."""
    out = results(golden, (31,))
    return out | {f"31.{name}": change(out[f"31.{name}"]) for name, change in changes.items()}


def spoiled(x: Array, value: float) -> Array:
    out = x.copy()
    out.reshape(-1)[-1] = value
    return out


@pytest.mark.parametrize(("tensor", "change", "reason"), [
    ("o", lambda x: spoiled(x, np.nan), "class"),
    ("lse", lambda x: np.where(np.isneginf(x), np.float32(-1e30), x), "class"),
    ("o", lambda x: np.where(x == 0, np.float32(1e-30), x), "bound"),
    ("dk", lambda x: x * np.float32(1.001), "bound"),
    ("dq", lambda x: x[..., :-1], "shape"),
    ("dv", lambda x: x.astype(np.float16), "dtype"),
])  # fmt: skip
def test_every_way_of_being_wrong_is_told(
    tensor: str, change: Callable[[Array], Array], reason: str, folder: Path, golden: dict[int, Golden], tmp_path: Path
) -> None:
    report = check_dump(folder, write(tmp_path / "x.safetensors", changed(golden, **{tensor: change})))
    (case,) = report.judged
    assert [(t.tensor, t.reason) for t in case.tensors if t.level == Level.FAIL] == [(tensor, reason)]


def test_o_is_never_done_without(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    dump = {name: x for name, x in results(golden, (31,)).items() if name != "31.o"}
    (case,) = check_dump(folder, write(tmp_path / "x.safetensors", dump), "fp32").judged
    assert case.level == Level.FAIL
    assert (case.tensors[-1].reason, case.tensors[-1].where) == ("missing", "31.o is not in the dump")


def cut(x: Array) -> Array:
    """float32 truncated towards zero to what bfloat16 holds."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def test_half_precision_may_be_written_in_a_wider_dtype(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    """Where a language has no bfloat16: the same verdict, that on results which were truncated to it among them."""
    wide = {name: cut(x) if name == "1.o" else x for name, x in results(golden, (1, 31, 75)).items()}
    own = {name: x if name.endswith("lse") else x.astype(storage("bfloat16")) for name, x in wide.items()}
    wide = {name: x.astype(np.float32) for name, x in own.items()}
    reports = [check_dump(folder, write(tmp_path / f"{i}.safetensors", x), "flash-bf16") for i, x in enumerate((own, wide))]
    assert [c.tensors for c in reports[0].judged] == [c.tensors for c in reports[1].judged]
    assert [c.tensors[0].reason for c in reports[1].judged] == ["bias", "", ""]
    assert check_dump(folder, tmp_path / "1.safetensors").status() == 1  # under fp32, which float32 asks for
    kept = check_dump(folder, write(tmp_path / "2.safetensors", results(golden, (2, 31, 75))), "flash-bf16")
    assert kept.status() == 0  # results that were never rounded to bfloat16 are within its bounds


def test_a_narrower_dtype_is_a_wrong_dtype(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    report = check_dump(folder, write(tmp_path / "x.safetensors", results(golden, (2,), "float32")), "fp64")
    assert {t.reason for c in report.judged for t in c.tensors if t.tensor != "lse"} == {"dtype"}


def test_inputs_that_a_dtype_does_not_hold_are_not_judged(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    report = check_dump(folder, write(tmp_path / "x.safetensors", results(golden, (2, 22), "bfloat16")))
    assert [(c.case, c.remark) for c in report.cases if "/22-" in c.case] == [
        ("plain/22-half-range", "its inputs are not exact in bfloat16")
    ]


def test_other_presets_and_overrides_are_computed(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    dump = write(tmp_path / "x.safetensors", results(golden, (2, 31), "bfloat16"))
    for contract in ("eager-bf16", "flash-bf16(tile=1)"):
        report = check_dump(folder, dump, contract)
        assert (report.contract, report.status(), len(report.judged)) == (contract, 0, 2)
    assert report.repro.endswith("--contract 'flash-bf16(tile=1)'")


def test_a_folder_of_dumps_is_one_dump(folder: Path, golden: dict[int, Golden], tmp_path: Path) -> None:
    for number in (1, 31):
        write(tmp_path / f"{number}.safetensors", results(golden, (number,)))
    write(tmp_path / "notes.safetensors", {"99.o": np.zeros(3, np.float32)})
    report = check_dump(folder, tmp_path)
    assert [c.case for c in report.judged] == ["plain/1-everyday", "causal-bottom-right/31-more-queries"]
    assert report.notes == ("in the dump, but no result of these vectors: 99.o",)
