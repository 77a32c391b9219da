"""Published Reformer attention as a candidate of the kit: judged as it is, buckets, forward and torch's own gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refattn import LSH
from refattn.testing import Report, check
from refattn.testing.verdicts import Level

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
CHUNK = 8
SCHEME = replace(LSH.conventions["lucidrains"], chunk=CHUNK)
ONLY = "family=normal,flat,peaked; n=64; d=64"


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """reformer-pytorch's LSHAttention with rotations that are handed in; it makes as many buckets as there are chunks."""
    module = pytest.importorskip("reformer_pytorch.reformer_pytorch", reason="pip install reformer-pytorch==1.4.4")

    def forward(qk: Any, v: Any, rotations: Any) -> Any:
        b, h, n, d = qk.shape
        if n % (2 * CHUNK) or n // CHUNK != 2 * rotations.shape[-1]:
            raise NotImplementedError(f"{n} tokens in {n // CHUNK} chunks, {2 * rotations.shape[-1]} buckets")
        rounds = rotations.shape[1]
        options = {"causal": True, "dropout": 0.0, "random_rotations_per_head": True}
        kernel = module.LSHAttention(bucket_size=CHUNK, n_hashes=rounds, **options)
        turns = rotations.detach().transpose(1, 2).repeat(b, 1, 1, 1)
        monkeypatch.setattr(torch, "randn", lambda shape, **_: turns.reshape(shape))
        o, _, buckets = kernel.eval()(qk.reshape(b * h, n, d), v.reshape(b * h, n, -1))
        return {"o": o.reshape(b, h, n, -1), "buckets": buckets.reshape(b, h, rounds, n)}

    return forward


def judged(forward: Any, scheme: LSH) -> Report:
    report = check(forward, scheme, backward="autograd", library="torch", only=ONLY)
    assert len(report.judged) >= 3
    return report


def test_reformer_pytorch_conforms_to_its_convention(attention: Any) -> None:
    report = judged(attention, SCHEME)
    assert report.level <= Level.WARN, report
    assert {t.tensor for c in report.judged for t in c.tensors} == {"buckets", "o", "dqk", "dv"}


def test_reformer_pytorch_is_told_that_it_is_another_convention(attention: Any) -> None:
    for asked in (LSH(chunk=CHUNK, causal=True), replace(LSH.conventions["huggingface"], chunk=CHUNK)):
        report = judged(attention, asked)
        assert (report.level, report.names[0].mutant) == (Level.CONVENTION, "Clucid"), report.names
