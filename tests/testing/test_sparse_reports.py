"""What is told of strangers' kernels over patterns: the mistake, the convention with its command, the mask."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from refattn import Blocks, Causal, Global, Heads, Local, Self, Sparse, Strided
from refattn.catalogue import scheme as scheme_of
from refattn.testing import check
from refattn.testing.again import command
from refattn.testing.cases import Case
from refattn.testing.readout import read_mask
from refattn.testing.report import render
from refattn.testing.subjects import sparse
from refattn.testing.subjects.pattern_mutants import LATER
from refattn.testing.verdicts import Level, Report
from refattn.testing.worker import open_candidate
from testing import sparse_kernels as made

Array = Any
FEW = "family=normal,edges,short; d=16; d=e; b=1"


def name(report: Report) -> str:
    return report.names[0].mutant


# ---- strangers
def test_right_kernels_in_tiles_and_blocks_conform() -> None:
    wide = "family=normal,edges,edges and more keys,short,more queries; d=16; d=e; b=1"
    report = check(made.window(9, 3), Sparse(Local(9, 3), align="bottom_right"), only=wide)
    assert report.status(strict=True) == 0, render(report)
    report = check(made.blocks(8, 1), Sparse(Blocks(8, back=1)), only=FEW.replace("short", "short,padding"))
    assert report.status(strict=True) == 0, render(report)


def test_a_window_in_tiles_that_is_one_key_too_wide_is_told() -> None:
    report = check(made.window(9, 3, wrong=1), Sparse(Local(9, 3), align="bottom_right"), only=FEW)
    text = " ".join(render(report).split())
    assert (report.level, name(report)) == (Level.FAIL, "S:Local.left+1")
    assert "one key wider to the left: Local(left=10, right=3) for Local(left=9, right=3)" in text
    assert "sees keys that it must not: the diagonal j − i = -10" in text


def test_a_block_kernel_that_drops_its_tail_is_told() -> None:
    report = check(made.blocks(16, 1, tail=False), Sparse(Blocks(16, back=1)), only=FEW)
    assert (report.level, name(report)) == (Level.FAIL, "S23q:16")
    assert "of the last block of 16, if it is not full, its queries see nothing" in report.readout.replace("\n  ", " ")


def test_a_multiset_taken_for_a_set_is_a_convention_of_bigbird() -> None:
    scheme = scheme_of("Sparse(BigBird.itc(2, 1, 'multiset', 'hf_eval'))")
    report = check(made.listed(scheme, count=lambda c: np.minimum(c, 1)), scheme, only=FEW)
    assert (report.level, name(report)) == (Level.CONVENTION, "C:set hf_eval")
    words = shlex.split(command(report, report.names[0].instead or ""))
    assert words[0] == "check(listed.<locals>.attention,"  # a function has no command
    instead = scheme_of(report.names[0].instead)
    assert check(made.listed(scheme, count=lambda c: np.minimum(c, 1)), instead, only=FEW).status() == 0
    plain = Sparse(Local(2, 0) + Local(0, 1))
    report = check(made.listed(plain, count=lambda c: np.minimum(c, 1)), plain, only=FEW)
    assert (report.level, name(report)) == (Level.FAIL, "S:union[0]")
    assert "counts keys too rarely: the diagonal j − i = 0" in report.readout


def test_a_set_counted_as_a_multiset_is_told() -> None:
    scheme, counted = Sparse(Local(4, 0) | Strided(4) & Causal()), Sparse(Local(4, 0) + (Strided(4) & Causal()))
    report = check(made.listed(counted), scheme, only=FEW)
    assert (report.level, name(report)) == (Level.FAIL, "S:sum[0]")
    assert "counts keys too often" in report.readout


def test_a_convention_is_told_with_its_command() -> None:
    torch = pytest.importorskip("torch")
    asked, actual = (scheme_of(f"Sparse(SparseTransformer.strided(4, {c!r}, 'heads'))") for c in ("paper", "openai"))

    def attention(q: Any, k: Any, v: Any) -> Any:
        see = torch.from_numpy(actual.pattern.dense(q.shape[-2], k.shape[-2]) > 0)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=see)

    only = "family=normal,constant v,edges; d=16; d=e; b=1"
    report = check(attention, asked, library="torch", backward="autograd", only=only)
    assert (report.level, name(report)) == (Level.CONVENTION, "C:openai"), render(report)
    assert scheme_of(report.names[0].instead) == actual
    assert "the authors' code: l near keys" in " ".join(render(report).split())


# ---- members of each item
def members(change: Callable[[Array], Any]) -> Callable[..., Any]:
    """A causal window with members, of which the kernel makes something else."""

    def attention(q: Array, k: Array, v: Array, is_global: Array | None = None) -> tuple[Array, Array]:
        given = None if is_global is None else change(is_global)
        o, saved = MEMBERS.forward(q, k, v, is_global=given)
        return o, saved.lse

    return attention


MEMBERS = Sparse(Local(3, 0), within=Causal())


def test_members_and_what_holds_them_are_judged() -> None:
    only = "family=normal,members,edges; d=16; d=e"
    right = check(members(lambda x: x), MEMBERS, only=only)
    assert right.status(strict=True) == 0, render(right)
    assert {"members/odd"} < {c.case for c in right.judged}
    assert name(check(members(lambda x: None), MEMBERS, only=only)) == "S6"
    assert name(check(members(lambda x: x[:1]), MEMBERS, only=only)) == "S6f"
    loose = Sparse(Local(3, 0))

    def unheld(q: Array, k: Array, v: Array, is_global: Array | None = None) -> tuple[Array, Array]:
        o, saved = loose.forward(q, k, v, is_global=is_global)
        return o, saved.lse

    assert name(check(unheld, MEMBERS, only=only)) == "S26"


def test_members_that_see_or_are_seen_alone_are_told() -> None:
    def half(rows: bool) -> Callable[..., Any]:
        def attention(q: Array, k: Array, v: Array, is_global: Array) -> tuple[Array, Array]:
            k, v = made.shared(q, k, v)
            n = np.arange(q.shape[-2])
            member = is_global[:, None, :, None] if rows else is_global[:, None, None, :]
            see = ((n[:, None] - n < 4) | member) & (n[:, None] >= n)
            s = np.where(see, q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5), np.float32(-np.inf))
            return made.softmax(s, v)

        return attention

    only = "family=members; d=16; d=e"
    assert name(check(half(False), MEMBERS, only=only)) == "S6r"
    assert name(check(half(True), MEMBERS, only=only)) == "S6c"


# ---- the mask
def read(function: Callable[..., Any], scheme: Sparse) -> str:
    with open_candidate(function, scheme=scheme) as runner:
        return read_mask(runner, scheme, "float32", False)


@pytest.mark.parametrize(("actual", "asked", "said"), [
    (Local(3, 1), Local(3, 0), "one key wider to the right: Local(left=3, right=1) for Local(left=3, right=0) [S:Local"),
    (Local(5, 2), Local(3, 0), "That is the mask of Local(left=5, right=2)"),
    (Local(2, 0) & ~Self(), Local(2, 0), "does not see keys that it must: the diagonal j − i = 0"),
    (Local(2, 0) + Self(), Local(2, 0), "counts keys too often: the diagonal j − i = 0"),
    (Blocks(5), Blocks(4), "That is the mask of a known mistake: blocks are one longer: Blocks(size=5) for Blocks(size=4)"),
    (Local(4, 4), Local(2, 2), "another convention: Longformer.sliding(w=4, convention='ai2') where"),
    (Local(1, 1) | Global(first=1, rows=False), Local(1, 1) | Global(first=1), "global positions see no more than others"),
    (Local(150, 0), Local(151, 0), "(n = 191, m = 191): does not see keys that it must"),
])  # fmt: skip
def test_the_mask_is_read_out_in_terms_of_the_pattern(actual: Any, asked: Any, said: str) -> None:
    got = " ".join(read(made.text(Sparse(actual)), Sparse(asked)).split())
    assert said in got


def test_a_right_mask_says_nothing_and_heads_are_read_each() -> None:
    several = Sparse(Heads((Local(2, 0), Local(2, 0) + Self())), align="bottom_right")
    assert read(made.text(several), several) == ""
    other = Sparse(Heads((Local(2, 0), Local(3, 0) + Self())), align="bottom_right")
    got = " ".join(read(made.text(other), several).split())
    assert "(n = 12, m = 12, head 1): sees keys that it must not: the diagonal j − i = -3" in got
    assert "the window is one key wider to the left" not in got, "that would be both heads"
    doubled = read(made.text(Sparse(Heads((Local(2, 0), Local(2, 0))), align="bottom_right")), several)
    assert "counts keys too rarely: the diagonal j − i = 0" in doubled
    assert "1█" not in doubled.replace(" ", "")
    assert "  ██1·" in doubled, "a digit says how often"


# ---- what can't show
def test_a_pattern_that_reaches_beyond_every_case_is_said_to() -> None:
    report = check(made.text(Sparse(Local(4096, 0))), Sparse(Local(4096, 0)), only="family=normal; d=16; d=e")
    assert any("Local(left=4096, right=0) reaches further than the longest case of 64 keys" in n for n in report.notes)
    near = check(made.text(Sparse(Local(3, 0))), Sparse(Local(3, 0)), only="family=normal; d=16; d=e")
    assert not any("reaches further" in note for note in near.notes)


# ---- for later schemes
class Inputs(NamedTuple):
    """What a scheme takes whose global positions have projections of their own."""

    q: Array
    k: Array
    v: Array
    k_global: Array
    v_global: Array
    is_global: Array
    mask: Array | None = None


def test_global_columns_through_the_second_projections_are_that_formula() -> None:
    (mistake,) = (m for m in LATER if m.id == "S5")
    rng, scheme = np.random.default_rng(5), Sparse(Local(2, 2) | Global(at=(1, 6)))
    q, k, v, k2, v2 = (rng.normal(size=(2, 3, 9, 4)) for _ in range(5))
    at = np.isin(np.arange(9), (1, 6))
    inputs = Inputs(q, k, v, k2, v2, np.broadcast_to(at, (2, 9)))
    sizes = dict(zip("bhgnmde", (2, 3, 3, 9, 9, 4, 4), strict=True))
    case = Case("", "", "", "", scheme, inputs, np.zeros((2, 3, 9, 4)), None, sizes)
    assert mistake.applies(case, "float64")
    got = mistake.values(case, "float64")
    see = scheme.pattern.dense(9, 9) > 0
    want = np.zeros_like(v)
    for i in range(9):
        keys = np.where((at & ~at[i])[:, None], k2, k), np.where((at & ~at[i])[:, None], v2, v)
        s = np.where(see[i], np.einsum("bhd,bhmd->bhm", q[:, :, i], keys[0]) / 2.0, -np.inf)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        want[:, :, i] = np.einsum("bhm,bhmd->bhd", p / p.sum(axis=-1, keepdims=True), keys[1])
    assert np.allclose(got["o"], want, rtol=1e-12, atol=1e-12)
    right = sparse.SparseStaged(scheme, inputs).run()["o"]
    assert np.abs(got["o"] - right).max() > 0.1
    plain = Case("", "", "", "", scheme, scheme.Inputs(q, k, v), np.zeros((2, 3, 9, 4)), None, sizes)
    assert not mistake.applies(plain, "float64")
