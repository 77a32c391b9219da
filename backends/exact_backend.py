"""The exact reading: a scheme's own text, run on balls of real numbers that certainly contain what the equation means.

    with using(load("exact", bits=128)) as reading:
        o, saved = scheme.forward(*inputs)                 # o.mid(), o.rad(), o.golden(), o.distance(values)
        grads = scheme.vjp(saved, do)

    load("exact").golden(lambda: {"o": scheme.forward(*inputs)[0]})        # correctly rounded, at the bits that it takes

Given arrays and numbers are exact: scale=0.3 is the float64 nearest to 0.3. What a text computes from its shapes is not
rounded either: the default scale is 1/√d. Needs python-flint, the extra `exact`.
"""

from __future__ import annotations

import importlib
from typing import Any

from refattn.errors import BackendUnavailable, OptionError

LEAST = 64


def backend(bits: int = 128) -> Any:
    """A new reading at so many bits, 128 at first: some 36 digits.

    Raises
    ------
    BackendUnavailable
        If python-flint is not installed.
    OptionError
        If `bits` is no whole number of 64 or more.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < LEAST:
        raise OptionError(f"bits={bits!r}: give a whole number, {LEAST} or more (float64 itself has 53)")
    try:
        importlib.import_module("flint")
    except ImportError as error:
        raise BackendUnavailable(f"python-flint is not installed ({error}): pip install 'refattn[exact]'") from None
    return importlib.import_module("refattn.backends.exact_reading").Exact(bits)
