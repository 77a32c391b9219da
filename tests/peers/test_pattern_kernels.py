"""The kit judges other people's attention over patterns, each in a process of its own, under the convention that matches."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from refattn import Local, Sparse
from refattn.patterns import Pattern
from refattn.patterns.named import BigBird, LocalBlocks, Longformer
from refattn.testing import Report, check
from refattn.testing.verdicts import Level

pytestmark = pytest.mark.peers
pytest.importorskip("torch")
HERE = Path(__file__).with_name("pattern_kernels.py")
KERNELS = {  # name: the pattern, what must be installed, dtype, whether it has a backward
    "local_exact": (LocalBlocks.lucidrains(8, 1, 0, True, True), "local_attention", "float64", True),
    "local_blocks": (LocalBlocks.lucidrains(8, 1, 0, True, False), "local_attention", "float64", True),
    "big_bird": (BigBird.itc(4, 1, "multiset", "hf_eval"), "transformers", "float64", True),
    "longformer": (Longformer.sliding(8, "hf"), "transformers", "float32", True),
    "flex_window": (Local(4, 4), "torch", "float32", False),
}
ONLY = "family=normal,flat,peaked,tail,edges; heads=1:1; nq=nk; d=e"


def judged(name: str, pattern: Pattern) -> Report:
    _, library, dtype, backward = KERNELS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"pip install {library.replace('_', '-')}")
    return check(f"{HERE}:{name}", Sparse(pattern), backward="autograd" if backward else None, library="torch", dtype=dtype,
                 only=ONLY)


@pytest.mark.parametrize("name", KERNELS)
def test_it_conforms(name: str) -> None:
    report = judged(name, KERNELS[name][0])
    assert report.level <= Level.WARN, report
    assert len(report.judged) >= 2


@pytest.mark.parametrize(("name", "asked"), [
    ("local_exact", KERNELS["local_blocks"][0]), ("longformer", Local(4, 3)),
    ("big_bird", BigBird.itc(4, 1, "set", "hf_eval")),
])  # fmt: skip
def test_it_does_not_conform_to_another(name: str, asked: Pattern) -> None:
    report = judged(name, asked)
    assert report.level > Level.WARN
    assert report.names, report
