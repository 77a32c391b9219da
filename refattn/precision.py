"""Precision: what a correct kernel may do to its numbers, as the few constants that a rounding bound is made of.

    fl(x) = x (1 + δ) + η,   |δ| ≤ u, |η| ≤ tiny                 one rounding, with flush to zero or a subnormal
    Σ of k terms:            Σ x (1 + θ),   |θ| ≤ s / (1 − s),   s = k·acc + slack·u + (exp + 2)·u·rescales

The presets are contracts. A kernel that keeps one is within the bound of the ``rounding`` reading whatever its order of
summation, tiling, folding of constants, base of exponentials and moment of normalisation. Higham, *Accuracy and
Stability of Numerical Algorithms* (2002), chapters 2–4, for γ and the model of one rounding.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from refattn.errors import OptionError


@dataclass(frozen=True)
class Precision:
    """One contract. Relative errors are unit roundoffs (2⁻²⁴ for float32, rounded to nearest), absolute ones values.

    u: elementwise arithmetic. acc: one step of an accumulation, 2⁻²³ where tensor cores may truncate. out: results as they
    are stored. operand: *computed* operands of a product (P, dS in tensor-core kernels); 0 for none. inputs: operands that
    were given are rounded too (tf32). tiny, tiny_acc, tiny_operand, tiny_out: the absolute errors of the same places.
    exp, log, tanh, divide: errors of these functions in units of u; tanh and erf absolute, since kernels build them from
    exp, and log absolute below 1. argument: roundings of an exponent, exp2(x·log₂e) for exp(x). slack: roundings of a
    constant that may be folded into either side of a sum or product. settle: roundings of a statistic that is kept to
    another base or factor. constants: roundings of a constant that the format cannot hold. tile: the smallest key tile of
    an online softmax.
    chain: promised by the kernel, terms are summed in groups of so many by a tree (tensor cores: 16), groups in any order.
    """

    name: str
    u: float
    acc: float
    out: float
    operand: float = 0.0
    inputs: bool = False
    tiny: float = 2.0**-126
    tiny_acc: float = 2.0**-126
    tiny_operand: float = 0.0
    tiny_out: float = 2.0**-126
    exp: float = 4.0
    log: float = 4.0
    tanh: float = 8.0
    divide: float = 3.0
    argument: float = 2.0
    slack: float = 2.0
    settle: float = 4.0
    constants: float = 1.0
    tile: int = 16
    chain: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        for name in ("tile", "chain"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: give 1 or more keys")


_NUMBERS: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool, "str": str}


def _check(name: str, kind: Any, value: Any) -> None:
    """Refuse a value of another kind than the field's, or a negative or unbounded one."""
    fits = isinstance(value, _NUMBERS[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not fits:
        raise OptionError(f"{name}={value!r} is a {type(value).__name__}; {name} is a {kind}")
    if kind in ("int", "float") and not 0 <= value < float("inf"):
        raise OptionError(f"{name}={value!r} must be finite and not negative")


_BF16, _FP16, _TF32, _FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-24, 2.0**-53
_FP16_STEP = 2.0**-25  # half the spacing of float16's subnormals

PRESETS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", u=_FP64, acc=_FP64, out=_FP64, tiny=2.0**-1022, tiny_acc=2.0**-1022, tiny_out=2.0**-1022),
        Precision("fp32", u=_FP32, acc=_FP32, out=_FP32),
        Precision("tf32", u=_FP32, acc=2 * _FP32, out=_FP32, operand=_TF32, inputs=True, tiny_operand=2.0**-126),
        Precision("flash-bf16", u=_FP32, acc=2 * _FP32, out=_BF16, operand=_BF16, tiny_operand=2.0**-126),
        Precision(
            "flash-fp16", u=_FP32, acc=2 * _FP32, out=_FP16, operand=_FP16, tiny_operand=_FP16_STEP, tiny_out=_FP16_STEP
        ),
        Precision("eager-bf16", u=_BF16, acc=2 * _FP32, out=_BF16),
        Precision("eager-fp16", u=_FP16, acc=2 * _FP32, out=_FP16, tiny=_FP16_STEP, tiny_out=_FP16_STEP),
    )
}
"""fp64, fp32; tf32: float32 with products of rounded operands. flash-*: half precision at rest, P and dS rounded to it for
their products, everything else float32. eager-*: every intermediate stored in half precision, accumulated in float32."""

_BY_DTYPE = {
    "float64": ("fp64",),
    "float32": ("fp32", "tf32"),
    "bfloat16": ("flash-bf16", "eager-bf16"),
    "float16": ("flash-fp16", "eager-fp16"),
}


def for_dtype(dtype: str) -> tuple[Precision, ...]:
    """The presets that a kernel of inputs in `dtype` may keep, strictest first.

    Raises
    ------
    OptionError
        If `dtype` is not float64, float32, bfloat16 or float16.
    """
    if dtype not in _BY_DTYPE:
        raise OptionError(f"no precision for dtype {dtype!r}: choose one of {', '.join(_BY_DTYPE)}")
    return tuple(PRESETS[name] for name in _BY_DTYPE[dtype])


def parse(text: str) -> Precision:
    """A preset by name, with overrides in brackets: ``flash-bf16(tile=1)``, ``tf32(operand=2**-10, chain=16)``.

    The name of the result is the whole text. Numbers are written 16, 0.5, 1e-3 or 2**-10; booleans True or False.

    Raises
    ------
    OptionError
        For text of another form, and for a preset, a field or a value that does not exist, listing those that do.
    """
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise OptionError(f"{text!r} is no precision: write a preset, as flash-bf16, or flash-bf16(tile=1)")
    name, inside = match.groups()
    if name not in PRESETS:
        raise OptionError(f"no precision is called {name!r}; there are {', '.join(PRESETS)}")
    changes = dict(_override(text, item) for item in (inside or "").split(",") if item.strip())
    if not changes:
        return PRESETS[name]
    shown = ", ".join(f"{key}={value}" for key, (value, _) in changes.items())
    return dataclasses.replace(
        PRESETS[name], **{"name": f"{name}({shown})", **{key: value for key, (_, value) in changes.items()}}
    )


_KINDS = {f.name: str(f.type) for f in dataclasses.fields(Precision) if f.name != "name"}


def _override(text: str, item: str) -> tuple[str, tuple[str, Any]]:
    """One ``field=value`` of `text` as (field, (the value as written, the value))."""
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals:
        raise OptionError(f"{text!r}: {item.strip()!r} has no value; write field=value, as tile=1")
    if key not in _KINDS:
        raise OptionError(f"{text!r}: a precision has no field {key!r}; it has {', '.join(_KINDS)}")
    return key, (value, _value(text, key, value))


def _value(text: str, key: str, value: str) -> Any:
    kind = _KINDS[key]
    if kind == "bool":
        if value not in ("True", "False"):
            raise OptionError(f"{text!r}: {key}={value} must be True or False")
        return value == "True"
    power = re.fullmatch(r"2\*\*(-?\d{1,4})", value)
    try:
        if power is not None and kind == "float":
            return 2.0 ** int(power[1])
        return int(value) if kind == "int" else float(value)
    except (ValueError, OverflowError):
        forms = "a whole number, as 16" if kind == "int" else "a number, as 0.5, 1e-3 or 2**-10"
        raise OptionError(f"{text!r}: {key}={value} is not {forms}") from None
