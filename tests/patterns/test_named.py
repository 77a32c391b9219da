"""The patterns of the papers, each against the set that its paper or code states, written out with loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import log2
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from refattn.catalogue import constructors
from refattn.errors import OptionError
from refattn.expression import parse
from refattn.patterns import Alternate, Blocks, Causal, Heads, LogSparse, Pattern, Random
from refattn.patterns.named import NAMED, PAPERS

N = 23


def read(text: str) -> Any:
    return parse(text, constructors())


def dense(keys: Callable[[int], Iterable[int]], n: int = N) -> Any:
    """The counts of a rule that lists the keys of each row, those outside 0 … n − 1 left out."""
    found = np.zeros((n, n), dtype=np.int64)
    for i in range(n):
        for j, times in Counter(keys(i)).items():
            if 0 <= j < n:
                found[i, j] = times
    return found


RULES: dict[str, Callable[[int], Iterable[int]]] = {
    "SparseTransformer.strided(4, part='first')": lambda i: range(i - 4, i + 1),
    "SparseTransformer.strided(4, part='second')": lambda i: (j for j in range(i + 1) if (i - j) % 4 == 0),
    "SparseTransformer.strided(4)": lambda i: {*range(i - 4, i + 1), *range(i, -1, -4)},
    "SparseTransformer.strided(4, 'openai', 'first')": lambda i: range(i - 3, i + 1),
    "SparseTransformer.strided(4, 'openai')": lambda i: {*range(i - 3, i + 1), *range(i, -1, -4)},
    "SparseTransformer.strided(3, 'survey', 'first')": lambda i: range(i - 3, i),
    "SparseTransformer.strided(3, 'survey', 'second')": lambda i: (j for j in range(i) if (i - j) % 4 == 0),
    "SparseTransformer.strided(3, 'survey')": lambda i: {*range(i - 3, i), *range(i - 4, -1, -4)},
    "SparseTransformer.fixed(4, 2, part='first')": lambda i: (j for j in range(i + 1) if j // 4 == i // 4),
    "SparseTransformer.fixed(4, 2, part='second')": lambda i: (j for j in range(i + 1) if j % 4 in (2, 3)),
    "SparseTransformer.fixed(4, 1)": lambda i: (j for j in range(i + 1) if j // 4 == i // 4 or j % 4 == 3),
    "SparseTransformer.fixed(8, 2, 'openai', slot=1)": lambda i: (
        j for j in range(i + 1) if j // 8 == i // 8 or 8 - 4 <= j % 8 < 8 - 2
    ),
    "LocalBlocks.own(4)": lambda i: range(i // 4 * 4, i + 1),
    "LocalBlocks.own(4, causal=False)": lambda i: range(i // 4 * 4, i // 4 * 4 + 4),
    "LocalBlocks.t2t_right(4)": lambda i: range((i // 4 - 1) * 4, i + 1),
    "LocalBlocks.t2t_right(12)": lambda i: range(i + 1),
    "LocalBlocks.t2t_both(4, 2)": lambda i: range(i // 4 * 4 - 2, i // 4 * 4 + 6),
    "LocalBlocks.t2t_dilated(4, 3, 2, 2)": lambda i: (
        j for j in range(i + 1) if j // 4 == i // 4 or i // 4 * 4 - j in (3, 4, 5, 8, 9, 10)
    ),
    "LocalBlocks.t2t_dilated(3, 1, 0, 2, causal=False)": lambda i: range(i // 3 * 3 - 2, i // 3 * 3 + 5),
    "LocalBlocks.t2t_dilated(2, 2, 1, 2, causal=False)": lambda i: (
        i // 2 * 2 + t for t in (-6, -5, -3, -2, 0, 1, 3, 4, 6, 7)
    ),
    "LocalBlocks.t2t_dilated(4, 3, 2, 0)": lambda i: range(i // 4 * 4, i + 1),
    "LocalBlocks.mtf(3)": lambda i: range(i - 2, i + 1),
    "LocalBlocks.mtf(3, causal=False)": lambda i: range(i - 2, i + 4),
    "LocalBlocks.routing(2, 4)": lambda i: range((i // 2 - 2) * 2, i + 1),
    "LocalBlocks.routing(2, 4, causal=False)": lambda i: range((i // 2 - 2) * 2, (i // 2 + 3) * 2),
    "LocalBlocks.lucidrains(4)": lambda i: range((i // 4 - 1) * 4, i + 1),
    "LocalBlocks.lucidrains(4, 2)": lambda i: range((i // 4 - 2) * 4, i + 1),
    "LocalBlocks.lucidrains(4, exact=True)": lambda i: range(max((i // 4 - 1) * 4, i - 4), i + 1),
    "LocalBlocks.lucidrains(4, 1, 1, causal=False, exact=True)": lambda i: (
        j for j in range((i // 4 - 1) * 4, (i // 4 + 2) * 4) if -4 <= j - i <= 4
    ),
    "Longformer.sliding(2)": lambda i: range(i - 2, i + 3),
    "Longformer.sliding(4, 'hf')": lambda i: range(i - 2, i + 3),
    "Longformer.sliding(2, causal=True)": lambda i: range(i - 2, i + 1),
    "Longformer.sliding(3, 'survey')": lambda i: range(i - 3, i),
    "Longformer.dilated(2, 3)": lambda i: (i + 3 * t for t in range(-2, 3)),
    "Longformer.dilated(4, 0, 'paper')": lambda i: range(i - 2, i + 3),
    "Longformer.dilated(4, 2, 'paper')": lambda i: (i + 3 * t for t in range(-2, 3)),
    "Longformer.with_global(2, (0, 9))": lambda i: range(N) if i in (0, 9) else {*range(i - 2, i + 3), 0, 9},
    "Longformer.with_global(2, (0, 9), causal=True)": lambda i: (
        range(i + 1) if i in (0, 9) else {*range(i - 2, i + 1), 0, *(j for j in (9,) if j <= i)}
    ),
    "Longformer.with_global(3, (4, 6), 'survey')": lambda i: (
        range(i) if i in (4, 6) else {*range(i - 3, i), *(j for j in (4, 6) if j < i)}
    ),
    "LogTrans.formula()": lambda i: {i, *(i - 2**p for p in range(int(log2(i)) + 1 if i else 0))},
    "LogTrans.local(3)": lambda i: {*range(i - 3, i + 1), *(i - 2**p for p in range(10))},
    "LogTrans.restart(6)": lambda i: (j for j in (i, *(i - 2**p for p in range(10))) if j >= i // 6 * 6),
    "LogTrans.restart(6, 2)": lambda i: {
        j for j in (i, i - 1, i - 2, *(i - 2**p for p in range(10))) if j >= i // 6 * 6
    },
    "CCNet.criss_cross(4, 6)": lambda i: {
        *(i // 6 * 6 + c for c in range(6)), *(r * 6 + i % 6 for r in range(4))
    },
    "AxialTransformer.axis((4, 6))": lambda i: range(i // 6 * 6, i // 6 * 6 + 6),
    "AxialTransformer.axis((4, 6), 0)": lambda i: range(i % 6, N, 6),
    "AxialTransformer.axis((4, 6), 0, True)": lambda i: range(i % 6, i + 1, 6),
    "BigBird.itc(1, 0)": lambda i: range(N) if i in (0, N - 1) else {0, i - 1, i, i + 1, N - 1},
    "BigBird.itc(1, 2, 'multiset', 'hf_eval')": lambda i: (
        range(N) if i in (0, N - 1) else [*{0, i - 1, i, i + 1, N - 1}, 0, 0]
    ),
    "BigBird.itc(3, 2, 'multiset', 'hf_eval')": lambda i: range(N),
}  # fmt: skip


@pytest.mark.parametrize("text", RULES)
def test_a_pattern_is_the_set_that_its_source_states(text: str) -> None:
    np.testing.assert_array_equal(read(text).dense(N, N), dense(RULES[text]))


def fa1(i: int) -> list[int]:
    """Back from the query, itself not included, to the first of the columns 3, 6, 9, … counted from 1."""
    found: list[int] = []
    for j in range(i - 1, 0, -1):
        found.append(j)
        if j % 3 == 0:
            break
    return found


# 1-based rows of the survey's figures at n = 12 and L = 3: the keys of each query, none of them itself
FIGURES: dict[str, Callable[[int], Iterable[int]]] = {
    "Causal() & ~Self()": lambda i: range(1, i),
    "SparseTransformer.strided(3, 'survey', 'first')": lambda i: range(max(i - 3, 1), i),
    "SparseTransformer.strided(3, 'survey', 'second')": lambda i: range(i - 4, 0, -4),
    "SparseTransformer.fixed(3, convention='survey', part='second')": lambda i: (j for j in (3, 6, 9, 12) if j < i),
    "SparseTransformer.fixed(3, convention='survey', part='first')": fa1,
    "Longformer.sliding(3, 'survey')": lambda i: range(max(i - 3, 1), i),
    "Longformer.with_global(3, (4, 6), 'survey')": lambda i: (
        j for j in range(1, i) if j >= i - 3 or j in (5, 7) or i in (5, 7)
    ),
    "Longformer.dilated(22, 3, 'paper', causal=True) & ~Self()": lambda i: range(i - 4, 0, -4),
    "LocalBlocks.own(3)": lambda i: (j for j in range(1, i + 1) if (j - 1) // 3 == (i - 1) // 3),
}


@pytest.mark.parametrize("text", FIGURES)
def test_the_figures_of_the_survey(text: str) -> None:
    one_based = dense(lambda i: (j - 1 for j in FIGURES[text](i + 1)), 12)
    np.testing.assert_array_equal(read(text).dense(12, 12), one_based)


def test_rows_of_the_figures_that_the_survey_spells_out() -> None:
    def last(text: str) -> list[int]:
        return (np.flatnonzero(read(text).contains(11, np.arange(12), 12)) + 1).tolist()

    assert last("SparseTransformer.strided(3, 'survey', 'first')") == [9, 10, 11]
    assert last("SparseTransformer.strided(3, 'survey', 'second')") == [4, 8]
    assert last("SparseTransformer.strided(3, 'openai', 'first')") == [10, 11, 12]
    assert last("SparseTransformer.strided(3, part='first')") == [9, 10, 11, 12]
    assert last("SparseTransformer.strided(3, part='second')") == [3, 6, 9, 12]
    assert last("SparseTransformer.strided(4, part='second')") == [4, 8, 12]
    assert np.flatnonzero(read("LocalBlocks.own(3)").contains(4, np.arange(12), 12)).tolist() == [3, 4]  # row 5: {4, 5}


def test_the_heads_of_blockwise_attention_in_the_survey() -> None:
    """Head h of n blocks pairs query block i with key block ((i − 1 + h) mod n) + 1, all counted from 1."""
    heads = read("BlockBERT.every_shift(3, 3)")
    for h in (1, 2, 3):
        for i in (1, 2, 3):
            keys = np.flatnonzero(heads.at(h - 1).contains((i - 1) * 4, np.arange(12), 12))
            assert set(keys // 4 + 1) == {(i - 1 + h) % 3 + 1}
    assert [np.flatnonzero(heads.at(0).contains(4 * i, np.arange(12), 12))[0] // 4 + 1 for i in range(3)] == [2, 3, 1]


def test_heads_and_layers() -> None:
    two = read("BlockBERT.heads(3, (2, 1, 1))")
    assert isinstance(two, Heads)
    assert [p.shift for p in two.patterns] == [0, 0, 1, 2]
    factors = read("SparseTransformer.strided(4, part='heads', full=2)")
    assert factors.patterns[2:] == (Causal(), Causal())
    assert factors.patterns[:2] == read("SparseTransformer.strided(4, part='alternate')").patterns
    assert factors.patterns[0] | factors.patterns[1] == read("SparseTransformer.strided(4)")
    for text in ("strided(3, 'survey', 'heads', full=1)", "fixed(3, convention='survey', part='heads', full=1)"):
        whole = read(f"SparseTransformer.{text}").at(2)
        np.testing.assert_array_equal(whole.dense(N, N), np.tri(N, k=-1))
    slots = read("SparseTransformer.fixed_heads(4, 1, 2, 4, full=1)")
    for h, pattern in enumerate(slots.patterns[:4]):
        assert pattern == read(f"SparseTransformer.fixed(4, 1, 'openai', slot={h % 2})")
    assert slots.at(4) == Causal()
    assert [p.dilation for p in read("Longformer.dilated_heads(2, (1, 3))").patterns] == [1, 3]
    assert read("CCNet.recurrent(3, 4)").patterns == (read("CCNet.criss_cross(3, 4)"),) * 2
    axes = read("AxialTransformer.alternating((3, 4), True)")
    assert [p.dense(12, 12).tolist() for p in axes.patterns] == [
        read(f"AxialTransformer.axis((3, 4), {axis}, True)").dense(12, 12).tolist() for axis in (1, 0)
    ]


def test_the_layers_of_a_transformer_on_a_diet() -> None:
    cascade = read("Diet.cascade(4, 4, 1.5)")
    for layer, width in enumerate((4, 6, 9, 13)):
        np.testing.assert_array_equal(cascade.at(layer).dense(N, N), dense(lambda i, w=width: range(i - w + 1, i + 1)))
    dilated, memory = read("Diet.dilated(4)"), read("Diet.dilated_memory(4)")
    for layer in range(4):
        np.testing.assert_array_equal(
            dilated.at(layer).dense(N, N), dense(lambda i, r=layer: (i - k * 2**r for k in range(3)))
        )
        offsets = {0, *(2**p for p in range(layer + 2))}
        np.testing.assert_array_equal(memory.at(layer).dense(N, N), dense(lambda i, o=offsets: (i - x for x in o)))
    np.testing.assert_array_equal(memory.at(3).dense(N, N), LogSparse().dense(N, N))


@pytest.mark.parametrize(("n", "l"), [(64, 8), (61, 8), (20, 20), (100, 7)])
def test_closed_forms_of_the_sparse_transformer(n: int, l: int) -> None:
    m, rest = divmod(n, l)
    local = read(f"SparseTransformer.strided({l}, 'openai', 'first')")
    strided = read(f"SparseTransformer.strided({l}, part='second')")
    assert local.nnz(n, n) == l * n - l * (l - 1) // 2
    assert strided.nnz(n, n) == l * m * (m + 1) // 2 + rest * (m + 1)
    assert read(f"SparseTransformer.strided({l}, 'openai')").nnz(n, n) == local.nnz(n, n) + strided.nnz(n, n) - n
    paper = read(f"SparseTransformer.strided({l}, part='first')")
    assert read(f"SparseTransformer.strided({l})").nnz(n, n) == paper.nnz(n, n) + strided.nnz(n, n) - n - (n - l)
    for c in (1, 3):
        found = read(f"SparseTransformer.fixed({l}, {c})").nnz(n, n)
        own = m * l * (l + 1) // 2 + rest * (rest + 1) // 2
        assert found == own + c * l * m * (m - 1) // 2 + rest * c * m


def test_closed_forms_of_the_others() -> None:
    assert read("Longformer.sliding(3)").nnz(40, 40) == 268
    assert read("Longformer.dilated(3, 2)").nnz(40, 40) == 256
    n, w, delta = 50, 4, 3
    assert read("Longformer.dilated(4, 3)").nnz(n, n) == n + 2 * sum(max(n - t * delta, 0) for t in range(1, w + 1))
    assert read("Longformer.dilated(4, 3, causal=True)").nnz(n, n) == n + sum(max(n - t * delta, 0) for t in range(1, w + 1))
    size, m = 4, 6
    n = size * m
    own = m * size * (size + 1) // 2
    assert read("LocalBlocks.own(4)").nnz(n, n) == own
    assert read("LocalBlocks.own(4, causal=False)").nnz(n, n) == n * size
    assert read("LocalBlocks.t2t_right(4)").nnz(n, n) == own + (m - 1) * size**2
    assert read("LocalBlocks.lucidrains(4, 2)").nnz(n, n) == own + sum(min(a, 2) * size**2 for a in range(m))
    assert read("BlockBERT.heads(4, (1, 2))").nnz(24, 24) == 3 * 24**2 // 4
    assert read("LogTrans.formula()").nnz(100, 100) == 1 + sum(int(log2(i)) + 2 for i in range(1, 100))
    assert read("CCNet.criss_cross(5, 7)").nnz(35, 35) == 35 * 11
    assert read("AxialTransformer.axis((5, 7), 0)").nnz(35, 35) == 35 * 5


@pytest.mark.parametrize(("blocks", "r"), [(16, 3), (12, 2), (9, 1)])
@pytest.mark.parametrize("size", [1, 4])
def test_closed_form_of_big_bird(blocks: int, r: int, size: int) -> None:
    n = blocks * size
    pairs = 2 * blocks + 2 * (4 + r) + (blocks - 4) * (5 + r)
    for plan in ("seeded", "hf_eval"):
        if plan == "seeded" or blocks > 5 + 2 * r:
            assert read(f"BigBird.itc({size}, {r}, 'multiset', '{plan}')").weight(n, n) == pairs * size**2
    set_, multiset = (read(f"BigBird.itc({size}, {r}, '{counting}')") for counting in ("set", "multiset"))
    assert set_.nnz(n, n) == set_.weight(n, n) == multiset.nnz(n, n) <= pairs * size**2
    if (blocks, size) == (16, 1):
        assert pairs == 142


def test_a_multiset_counts_a_drawn_window_or_global_block_once_more() -> None:
    n = 20
    drawn = Random(3, 1).dense(n, n)
    drawn[[0, n - 1]] = 0
    base = read("BigBird.itc(1, 0)").dense(n, n)
    np.testing.assert_array_equal(read("BigBird.itc(1, 3, 'multiset', seed=1)").dense(n, n), base + drawn)
    np.testing.assert_array_equal(read("BigBird.itc(1, 3, seed=1)").dense(n, n), np.maximum(base, drawn))
    assert (base * drawn).any()


def test_every_pattern_is_listed_with_a_source_and_examples() -> None:
    made = {f"{cls.__name__}.{name}" for cls in PAPERS for name, x in vars(cls).items() if isinstance(x, classmethod)}
    assert made == set(NAMED)
    for name, named in NAMED.items():
        assert named.source
        assert named.says
        for text in named.examples:
            assert text.startswith(f"{name}(")
            found = read(text)
            assert isinstance(found, Pattern | Heads | Alternate)
            assert read(repr(found)) == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SparseTransformer.strided", "SparseTransformer.strided(4, '{}')"),
        ("SparseTransformer.fixed", "SparseTransformer.fixed(4, convention='{}')"),
        ("Longformer.sliding", "Longformer.sliding(4, '{}')"),
        ("Longformer.dilated", "Longformer.dilated(4, 2, '{}')"),
        ("Longformer.with_global", "Longformer.with_global(4, (0,), '{}')"),
    ],
)
def test_every_listed_convention_is_there_and_no_other(name: str, text: str) -> None:
    for convention in NAMED[name].conventions:
        read(text.format(convention))
    with pytest.raises(OptionError, match=f"{name}: convention='fairseq': choose 'paper'|choose 'ai2'"):
        read(text.format("fairseq"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("BigBird()", "BigBird is a paper, not a pattern: write BigBird.itc"),
        ("Diet()", r"write Diet.cascade\(...\) or Diet.dilated\(...\) or Diet.dilated_memory"),
        ("SparseTransformer.strided(0)", "l=0 must be at least 1"),
        ("SparseTransformer.strided(4, part='both')", "part='both': choose 'joint', 'first'"),
        ("SparseTransformer.strided(4, full=2)", "full=2 heads of full softmax need part='heads', not part='joint'"),
        ("SparseTransformer.fixed(4, 2, 'survey')", "one summary column, not c=2 in slot=0"),
        ("SparseTransformer.fixed(4, 1, 'openai', 'first')", "part='joint' only, not part='first'"),
        ("SparseTransformer.fixed(4, full=2)", "full=2 heads of full softmax need part='heads'"),
        ("SparseTransformer.fixed(4, 5)", "c=5 must be at most 4"),
        ("SparseTransformer.fixed_heads(4, 1, 2, 3)", "heads=3 can't be shared out among slots=2"),
        ("BlockBERT.heads(2, (1, 1, 1))", "shift=2 must be at most 1"),
        ("BlockBERT.heads(2, (0, 0))", r"split=\(0, 0\) has no head"),
        ("Longformer.sliding(3, 'hf')", "w=3 counts both sides under convention='hf' and must be even"),
        ("Longformer.sliding(4, 'hf', True)", "has no causal=True"),
        ("Longformer.dilated(3, 0)", "dilation=0 must be at least 1"),
        ("Longformer.with_global(3, (-1,))", r"at\[0\]=-1 must be at least 0"),
        ("LocalBlocks.routing(4, 6)", "flange=6 must be a multiple of query_block=4"),
        ("LocalBlocks.lucidrains(4, 1, 1)", "look_forward=1 with causal=True would see nothing"),
        ("LocalBlocks.t2t_dilated(4, 0)", "memory=0 must be at least 1"),
        ("LocalBlocks.t2t_dilated(4, 2, -1)", "gap=-1 must be at least 0"),
        ("LocalBlocks.mtf(0)", "radius=0 must be at least 1"),
        ("BigBird.itc(0, 3)", "size=0 must be at least 1"),
        ("BigBird.itc(4, 3, 'bag')", "counting='bag': choose 'set', 'multiset'"),
        ("BigBird.itc(4, 3, plan='x')", "plan='x': choose 'seeded', 'hf_eval'"),
        ("Diet.cascade(3, 4, 0.1)", r"multiplier=0.1 leaves windows \[4, 0, 0\]"),
        ("Diet.dilated(0)", "layers=0 must be at least 1"),
        ("CCNet.recurrent(3, 4, 0)", "loops=0 must be at least 1"),
        ("CCNet.criss_cross(0, 4)", r"shape\[0\]=0 must be at least 1"),
    ],
)
def test_what_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read(text)


def test_full_attention_for_short_sequences() -> None:
    assert read("LocalBlocks.t2t_right(8)").nnz(15, 15) == Causal().nnz(15, 15)
    assert read("LocalBlocks.t2t_right(8)").nnz(16, 16) == (Blocks(8, back=1) & Causal()).nnz(16, 16)
    hf = read("BigBird.itc(4, 1, 'multiset', 'hf_eval')")
    assert hf.nnz(28, 28) == hf.weight(28, 28) == 28 * 28
    assert hf.nnz(32, 32) < 32 * 32


def test_the_page_names_every_pattern_with_what_it_sees_and_its_conventions() -> None:
    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    for name, named in NAMED.items():
        (line,) = [line for line in page.split("\n") if line.startswith(f"| `{name}(")]
        assert f"| {named.says} |" in line
        for convention in named.conventions:
            assert convention.split("=")[-1].strip("'") in line
