"""What training needs: counted peaks of known shapes, and the split of memory that was measured for BERT-base."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layout import ROOT
from refattn import Dense, OptionError
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.feed_forward import FeedForward
from refattn.layers.micro_batches import MicroBatches
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.verify.memory import Split, batch_of, everything, measure

BERT = {"d": 768, "f": 3072}
POST, PRE = (Block(Attention(Dense(), 12), FeedForward(), order=order) for order in ("post", "pre"))
X = (1, 512, 768)


def test_the_split_of_bert_base_lies_between_batches_of_7_and_8():
    """Qiu et al. (arXiv:1911.02972) measured 87.6 % of activations."""
    encoder = Stack((POST,) * 12)
    model = encoder.parameters(BERT) + (30522 + 512 + 2 + 2) * 768
    item = everything(encoder, BERT, X)
    assert Split(model, 7 * item).share < 0.876 < Split(model, 8 * item).share
    assert batch_of(0.876, model, item) == pytest.approx(7.66, abs=0.01)
    assert Split(model, 3 * model).share == 3 / 7
    assert "every array of the forward is kept" in str(Split(model, item))
    with pytest.raises(OptionError, match="share=1"):
        batch_of(1, model, item)


def test_what_is_kept_is_what_is_stated():
    stack, macs = Stack((PRE,) * 3), 12 * 512 * 768**2 + 2 * 512**2 * 768
    plain, saving = measure(stack, BERT, X), measure(Reversible(stack), BERT, X)
    assert saving.kept == 2 * 512 * 768
    assert plain.parameters == saving.parameters == 3 * PRE.parameters(BERT)
    assert saving.macs - plain.macs == 3 * macs
    assert plain.kept < everything(stack, BERT, X)
    parts = measure(MicroBatches(stack, 2), BERT, (2, 512, 768))
    assert (parts.kept, parts.macs) == (0, 2 * plain.macs)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux's /proc")
@pytest.mark.parametrize(("limit", "code"), [("6", 0), ("0.01", 1)])
def test_the_long_run_goes_both_ways_and_holds_its_limit(limit, code):
    small = ("--n", "640", "--layers", "2", "--width", "64", "--hidden", "96", "--rows", "200", "--limit", limit)
    done = subprocess.run([sys.executable, str(ROOT / "benchmarks" / "long.py"), *small], capture_output=True, text=True,
                          cwd=ROOT, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["n", "inputs", "forward", "backward", "peak"]
    assert ("over" in lines[-1]) == bool(code)
