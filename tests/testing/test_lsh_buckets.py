"""Buckets of LSH kernels, judged before values by the margins of their hashes; what candidates are given and hand back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import LSH
from refattn.errors import OptionError
from refattn.testing import Report, check
from refattn.testing.verdicts import Level
from testing import lsh_kernel
from testing.lsh_text import text_of

Array = Any
CAUSAL = LSH(chunk=4, causal=True)


def hashed(change: Any) -> Report:
    """The stranger's kernel in buckets that are changed, on hashes of which some are open, and hands them back."""

    def forward(qk: Array, v: Array, rotations: Array) -> Any:
        found = np.stack([lsh_kernel.hashed(x, rotations) for x in qk])
        return lsh_kernel.attention(qk, v, None, change(found, qk, rotations))

    return check(forward, CAUSAL, only="family=open hashes")


def turned(found: Array, qk: Array, rotations: Array) -> Array:
    """Where two columns are as good as each other, the other one than was found."""
    p = np.einsum("bhnd,hrdw->bhrnw", qk.astype(np.float64), rotations)
    p = np.concatenate([p, -p], -1)
    order = np.argsort(p, axis=-1)
    best, next_ = (np.take_along_axis(p, order[..., i : i + 1 or None], -1)[..., 0] for i in (-1, -2))
    open_ = best - next_ < 1e-6
    assert open_.any()
    return np.where(open_, order[..., -2] + order[..., -1] - found, found)


def test_an_open_hash_may_go_either_way_and_values_follow_it() -> None:
    assert hashed(lambda found, *_: found).level == Level.OK
    assert hashed(turned).level == Level.OK


def test_a_clear_hash_may_not() -> None:
    report = hashed(lambda found, *_: np.where(np.arange(37) == 7, (found + 1) % 8, found))
    (case,) = report.cases
    told = {t.tensor: t for t in case.tensors}
    assert (told["buckets"].reason, told["buckets"].level) == ("decision", Level.FAIL)
    assert "token 7 of 37" in told["buckets"].where
    assert report.status() == 1


def test_buckets_may_carry_their_round_but_no_other_numbering() -> None:
    def offset(qk: Array, v: Array, rotations: Any = None, buckets: Any = None) -> Any:
        out = lsh_kernel.attention(qk, v, rotations, buckets)
        return {**out, "buckets": out["buckets"] + (50 if rotations is None else 2 * rotations.shape[-1]) * np.arange(
            out["buckets"].shape[2])[:, None]}  # fmt: skip

    assert check(offset, CAUSAL, only="family=normal,buckets,open hashes").level == Level.OK
    report = hashed(lambda found, *_: (found + 4) % 8)
    assert "[−xR; xR]" in report.cases[0].tensors[0].where


def test_wrong_shapes_and_dtypes_of_buckets_are_told() -> None:
    def returning(change: Any) -> str:
        def forward(qk: Array, v: Array, buckets: Array) -> Any:
            return {"o": CAUSAL(qk, v, buckets=buckets), "buckets": change(buckets)}

        return check(forward, CAUSAL, only="family=normal").cases[0].tensors[0].where

    assert "instead of (1, 2, 2, 64)" in returning(lambda x: x[:, :1])
    assert "whole numbers" in returning(lambda x: x.astype(np.float32))
    assert "tokens in rounds" in returning(lambda x: x[..., ::-1])


def test_without_buckets_a_wrong_value_is_undecided_where_hashes_are_open() -> None:
    def forward(qk: Array, v: Array, rotations: Array) -> Any:
        found = turned(np.stack([lsh_kernel.hashed(x, rotations) for x in qk]), qk, rotations)
        return lsh_kernel.attention(qk, v, None, found)["o"]

    report = check(forward, CAUSAL, only="family=open hashes")
    assert [c.level for c in report.cases] == [Level.UNDECIDED]
    assert "hand `buckets` back" in report.cases[0].remark
    assert report.status() == 3


def test_a_candidate_gets_what_its_signature_names() -> None:
    def given(dtype: str, scheme: LSH, forward: Any) -> set[str]:
        seen: set[str] = set()

        def spy(qk: Array, v: Array, **named: Any) -> Any:
            seen.update(named)
            return forward(qk, v, **named)

        check(spy, scheme, dtype=dtype, only="family=normal")
        return seen

    text = text_of(CAUSAL)[0]
    assert given("float32", CAUSAL, text) == {"rotations"}
    assert given("float16", CAUSAL, text) == {"buckets"}
    factors = LSH(chunk=4, factors=(4, 2))
    assert given("float16", factors, text_of(factors)[0]) == {"rotations"}
    with pytest.raises(OptionError, match="neither `rotations` nor `buckets`"):
        check(lambda qk, v: v, CAUSAL)
    with pytest.raises(OptionError, match=r"no `rotations`, which factors=\(4, 2\) need"):
        check(lambda qk, v, buckets: v, factors)


def test_rotations_have_no_gradient() -> None:
    forward, vjp = text_of(CAUSAL)

    def too_much(qk: Array, v: Array, do: Array, rotations: Array, buckets: Array) -> Any:
        return {**vjp(qk, v, do, buckets), "drotations": np.zeros_like(rotations)}

    report = check(forward, CAUSAL, vjp=too_much, only="family=normal")
    assert "returned drotations; this case has dqk, dv" in report.cases[0].remark


def test_a_candidate_without_rotations_is_told_that_its_hash_was_not_judged() -> None:
    report = check(lambda qk, v, buckets: CAUSAL(qk, v, buckets=buckets), CAUSAL, only="family=normal")
    assert any("the hash was not judged" in note for note in report.notes)


@pytest.mark.parametrize("chunk", [1, 7])
def test_lengths_follow_the_chunk(chunk: int) -> None:
    scheme = LSH(chunk=chunk)
    report = check(text_of(scheme)[0], scheme, only="family=normal,few tokens,one token more")
    lengths = {c.case: c.sizes["n"] for c in report.cases}
    assert lengths["normal/pow2"] % (2 * chunk) == 0
    assert chunk == 1 or lengths["normal/odd"] % chunk
    assert lengths["one token more/more"] == chunk + 1
    assert lengths["few tokens/few"] == max(chunk - 1, 2)
    assert report.level == Level.OK
    some = check(text_of(scheme)[0], scheme, only="family=normal; n=48; rounds=4")
    assert {(c.sizes["n"], c.sizes["r"]) for c in some.cases} == {(48, 4)}
