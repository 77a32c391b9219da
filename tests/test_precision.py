"""Precisions: presets, their text form, and what is refused."""

import dataclasses

import pytest

from refattn.errors import OptionError
from refattn.precision import PRESETS, Precision, for_dtype, parse


def test_presets_are_known_by_their_own_names() -> None:
    assert list(PRESETS) == ["fp64", "fp32", "tf32", "flash-bf16", "flash-fp16", "eager-bf16", "eager-fp16"]
    assert all(precision.name == name for name, precision in PRESETS.items())


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fp64", 53), ("fp32", 24), ("flash-bf16", 8), ("flash-fp16", 11), ("eager-bf16", 8), ("eager-fp16", 11)],
)
def test_results_are_stored_with_the_bits_of_their_format(name: str, bits: int) -> None:
    assert PRESETS[name].out == 2.0**-bits


@pytest.mark.parametrize("name", ["tf32", "flash-bf16", "flash-fp16", "eager-bf16", "eager-fp16"])
def test_tensor_cores_may_truncate(name: str) -> None:
    assert PRESETS[name].acc == 2.0**-23


def test_only_tf32_rounds_what_it_was_given() -> None:
    assert [name for name, p in PRESETS.items() if p.inputs] == ["tf32"]
    assert PRESETS["tf32"].operand == 2.0**-11


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("float64", ["fp64"]),
        ("float32", ["fp32", "tf32"]),
        ("bfloat16", ["flash-bf16", "eager-bf16"]),
        ("float16", ["flash-fp16", "eager-fp16"]),
    ],
)
def test_presets_of_a_dtype_come_strictest_first(dtype: str, names: list[str]) -> None:
    found = for_dtype(dtype)
    assert [p.name for p in found] == names
    errors = [(p.u, p.operand) for p in found]
    assert errors == sorted(errors)


def test_a_dtype_without_presets_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'int8': choose one of float64, float32, bfloat16, float16"):
        for_dtype("int8")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_parsed_by_name(name: str) -> None:
    assert parse(f" {name} ") is PRESETS[name]
    assert parse(f"{name}()") is PRESETS[name]


def test_overrides_are_parsed_and_kept_in_the_name() -> None:
    precision = parse("tf32(tile=1, operand=2**-10,inputs=False, exp=7.5)")
    assert precision == dataclasses.replace(
        PRESETS["tf32"], name="tf32(tile=1, operand=2**-10, inputs=False, exp=7.5)",
        tile=1, operand=2.0**-10, inputs=False, exp=7.5,
    )
    assert parse(precision.name) == precision


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp8", "'fp8'; there are fp64, fp32, tf32, flash-bf16"),
        ("", "no precision: write a preset"),
        ("fp32(tile=1", "no precision: write a preset"),
        ("fp32(tile)", "'tile' has no value; write field=value"),
        ("fp32(tiles=1)", "no field 'tiles'; it has u, acc"),
        ("fp32(name=x)", "no field 'name'"),
        ("fp32(tile=1.5)", "tile=1.5 is not a whole number"),
        ("fp32(tile=2**4)", "is not a whole number"),
        ("fp32(exp=much)", "exp=much is not a number, as 0.5, 1e-3 or 2"),
        ("fp32(exp=2**9999)", "is not a number"),
        ("fp32(inputs=1)", "inputs=1 must be True or False"),
        ("fp32(tile=0)", "tile=0: give 1 or more keys"),
        ("fp32(exp=-1)", "exp=-1.0 must be finite and not negative"),
        ("fp32(exp=inf)", "exp=inf must be finite"),
        ("fp32(exp=nan)", "exp=nan must be finite"),
    ],
)
def test_what_cannot_be_parsed_is_refused_and_shown(text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tile": 2.0}, "tile=2.0 is a float"), ({"inputs": 1}, "inputs=1 is a int"), ({"exp": True}, "exp=True is a bool")],
)
def test_values_of_the_wrong_kind_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(PRESETS["fp32"], **changes)  # type: ignore[arg-type]


def test_a_precision_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["fp32"].u = 0.0  # type: ignore[misc]
    assert isinstance(PRESETS["fp32"], Precision)
