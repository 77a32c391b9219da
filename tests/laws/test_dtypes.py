"""The dtype table: what is stored has the dtype of the inputs, statistics have the accumulator's; half is rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from laws.bounds import defined, keywords, outside, results, rounded
from refattn import tree
from refattn.precision import for_dtype
from refattn.testing.tolerance import storage

WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def cast(scheme, inputs, cotangents, dtype):
    """Inputs and cotangents as a kernel of this dtype meets them; draws hold values that every precision has."""
    small, wide = storage(dtype), storage(WIDE[dtype])
    pulled = {name: c.astype(small if name in scheme.stored else wide) for name, c in cotangents.items()}
    return tree.map(lambda x: x.astype(small) if x.dtype.kind == "f" else x, inputs), pulled


def expected(scheme, names, dtype):
    """name → dtype: outputs that are stored, and gradients, in that of the inputs."""
    return {n: dtype if n in scheme.stored or n not in scheme.outputs else WIDE[dtype] for n in names}


def dtypes(nest):
    return {name: str(x.dtype).rpartition(".")[2] for name, x in nest.items()}


@pytest.mark.parametrize("dtype", WIDE)
def test_dtypes_of_outputs_gradients_and_statistics(row, variant, case, dtype):
    inputs, cotangents = cast(case.scheme, case.inputs, case.cotangents, dtype)
    got, definition = results(case.scheme, inputs, cotangents, block=3), defined(case.scheme, inputs)
    assert dtypes(got) == expected(case.scheme, got, dtype)
    assert dtypes(definition) == expected(case.scheme, definition, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_on_the_strict_device(row, variant, case, strict, dtype):
    there, _ = strict
    inputs, cotangents = cast(case.scheme, case.inputs, case.cotangents, dtype)
    got = results(case.scheme, there(inputs), {name: there(c) for name, c in cotangents.items()})
    assert dtypes(got) == expected(case.scheme, got, dtype)
    assert {str(x.device) for x in got.values()} == {str(there(cotangents["o"]).device)}


@pytest.mark.parametrize("dtype", WIDE)
def test_values_are_those_of_a_correct_kernel_of_that_dtype(row, variant, case, dtype):
    inputs, cotangents = cast(case.scheme, case.inputs, case.cotangents, dtype)
    bands = rounded(for_dtype(dtype)[0].name, case.scheme, case.inputs, case.cotangents)
    assert outside(results(case.scheme, inputs, cotangents), bands) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened_once_and_rounded_once(row, variant, case, dtype):
    """Bit for bit the float32 run, rounded at the end; what was saved is widened in the same way."""
    scheme, (small, pulled) = case.scheme, cast(case.scheme, case.inputs, case.cotangents, dtype)
    _, saved = scheme.forward(*small)
    wide = tree.map(lambda x: x.astype(np.float32) if x.dtype.kind not in "bi" else x, saved)
    _, want = scheme.forward(*wide.inputs)
    for name in scheme.outputs:
        np.testing.assert_array_equal(getattr(saved, name), getattr(want, name).astype(getattr(saved, name).dtype))
    do, others = keywords(scheme, pulled)
    grads = scheme.vjp(saved, do, **others)
    for g, w in zip(tree.leaves(grads), tree.leaves(scheme.vjp(wide, do.astype(np.float32), **others)), strict=True):
        np.testing.assert_array_equal(g, w.astype(g.dtype))
