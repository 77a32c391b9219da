"""Which schemes are judged, and what is said of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from refattn import Dense, Local, Sparse
from refattn.errors import OptionError
from refattn.testing import check, check_rows
from refattn.testing.subjects import HOMES, subject_of
from refattn.testing.worker import open_candidate

Array = Any
SPARSE = Sparse(Local(3, 0))


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    o, saved = SPARSE.forward(q, k, v)
    return o, saved.lse


@dataclass(frozen=True)
class Other:
    window: int = 3

    def forward(self, q: Array) -> Array:
        return q


def test_a_scheme_that_there_are_no_cases_for_is_refused() -> None:
    @dataclass(frozen=True)
    class Dense(Other):  # the name of one that is judged
        pass

    for scheme in (Other(4), Dense(4)):
        name = type(scheme).__name__
        said = rf"{name}\(window=4\): the kit judges kernels of Dense.* and .*, it has no cases for {name}"
        with pytest.raises(OptionError, match=said):
            check(attention, scheme)
        with pytest.raises(OptionError, match=f"it has no cases for {name}"), open_candidate(attention, scheme=scheme):
            pass


def test_long_sequences_are_judged_of_dense_alone() -> None:
    with pytest.raises(OptionError, match=r"Sparse\(pattern=Local\(left=3, right=0\)\).*kernels of Dense.*leave out rows"):
        check_rows(attention, SPARSE, rows=2, n=9)


def test_a_scheme_and_a_class_built_on_it_have_one_subject() -> None:
    class Own(Dense):
        pass

    assert subject_of(Dense) is subject_of(Dense(causal=True)) is subject_of(Own())
    assert subject_of(Sparse) is not subject_of(Dense)


@pytest.mark.parametrize("name", HOMES)
def test_a_subject_fits_its_scheme(name: str) -> None:
    """Axes of inputs and outputs are those of the scheme, in its order."""
    import refattn

    scheme, subject = getattr(refattn, name), subject_of(getattr(refattn, name))
    required = [f for f in scheme.Inputs._fields if f not in scheme.Inputs._field_defaults]
    assert list(subject.shapes)[: len(required)] == required
    assert list(subject.results) == list(scheme.outputs)
    assert set(subject.heads) <= set(scheme.Inputs._fields)


def test_a_kernel_of_another_scheme_than_dense_is_judged() -> None:
    only = "family=normal,tail,padding; d=16; d=e"
    assert check(attention, SPARSE, only=only).status() == 0
    assert check(lambda q, k, v: Dense(causal=True)(q, k, v), SPARSE, only=only).status() == 1
