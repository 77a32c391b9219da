"""What learn.py teaches: the copy task 0w0w, and the characters of a text that every CPython ships.

A task has the model that learns it (one body for every scheme), initial parameters, batches, and a set that is held out.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from refattn import LSH, Dense, Rope, Sparse, SparseTransformer, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.embedding import Embedding
from refattn.layers.feed_forward import FeedForward
from refattn.layers.language_model import LanguageModel
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm

CHUNK, STRIDE, WIDTH, IGNORED = 8, 8, 64, -100
SCHEMES = {
    "dense": Dense(causal=True),
    "strided": Sparse(SparseTransformer.strided(STRIDE)),
    "window": Sparse(SparseTransformer.strided(STRIDE, part="first")),
    "lsh": LSH(chunk=CHUNK, causal=True, scale=None),
}


@dataclass(frozen=True)
class Copy:
    """0 w 0 w, w of independent and equally likely symbols 1 … `symbols`: say the second w.

    The task of Kitaev et al. (arXiv:2001.04451), §2. The symbol that comes next stands `length` positions back, a multiple
    of the stride and beyond the window. Positions are learned, from variance 1 as tokens are: queries and keys of LSH are
    one, and a query finds its key only if the two positions come to point the same way.
    """

    symbols: int = 64
    length: int = 48
    heads: int = 2
    steps: int = 400
    items: int = 24
    rate: float = 1e-2

    @property
    def n(self) -> int:
        """Tokens that the model reads: all but the last."""
        return 2 * self.length + 1

    def model(self, scheme: Any) -> LanguageModel:
        """One layer."""
        block = Block(Attention(scheme, self.heads), FeedForward("relu"))
        return LanguageModel(Embedding("learned"), Stack((block,), LayerNorm()), tied=False)

    def start(self, model: LanguageModel, seed: int) -> Any:
        """Initial parameters."""
        params = model.init({"v": self.symbols + 1, "d": WIDTH, "f": WIDTH, "L": self.n}, rng.Source(seed))
        positions = rng.Source(seed, ("copy", "positions")).normal((self.n, WIDTH), 1.0)
        return params._replace(embedding=params.embedding._replace(positions=positions))

    def batch(self, g: np.random.Generator, items: int) -> tuple[Any, Any]:
        """ids and targets (items, n); targets before the second w are ignored."""
        w, zero = g.integers(1, self.symbols + 1, (items, self.length)), np.zeros((items, 1), dtype=np.int64)
        ids = np.concatenate([zero, w, zero, w], axis=1)
        return ids[:, :-1], np.where(np.arange(self.n) > self.length, ids[:, 1:], IGNORED)

    def held_out(self) -> tuple[Any, Any]:
        """128 sequences, always the same."""
        return self.batch(rng.stream(0, "copy", "held out"), 128)


@dataclass(frozen=True)
class Characters:
    """The next character of the source of difflib, ASCII, 83,308 characters in CPython 3.10 to 3.13, cut into rows of n + 1.

    Every tenth row is held out.
    """

    n: int = 64
    heads: int = 2
    steps: int = 300
    items: int = 32
    rate: float = 6e-3

    def model(self, scheme: Any) -> LanguageModel:
        """Two layers with rotary positions."""
        block = Block(Attention(scheme, self.heads, rotary=Rope("halves")), FeedForward("gelu"))
        return LanguageModel(Embedding(), Stack((block, block), LayerNorm()), tied=False)

    def start(self, model: LanguageModel, seed: int) -> Any:
        """Initial parameters."""
        return model.init({"v": 128, "d": WIDTH, "f": 2 * WIDTH}, rng.Source(seed))

    @cached_property
    def rows(self) -> tuple[Any, Any]:
        """Those to learn from, and those held out; (·, n + 1)."""
        codes = np.frombuffer(inspect.getsource(difflib).encode("ascii"), dtype=np.uint8).astype(np.int64)
        rows = codes[: codes.size // (self.n + 1) * (self.n + 1)].reshape(-1, self.n + 1)
        out = np.arange(len(rows)) % 10 == 9
        return rows[~out], rows[out]

    def batch(self, g: np.random.Generator, items: int) -> tuple[Any, Any]:
        """ids and targets (items, n)."""
        rows = self.rows[0][g.integers(0, len(self.rows[0]), items)]
        return rows[:, :-1], rows[:, 1:]

    def held_out(self) -> tuple[Any, Any]:
        """The rows that no step sees."""
        return self.rows[1][:, :-1], self.rows[1][:, 1:]

    def of_pairs(self) -> float:
        """Cross-entropy, in nats, of the held-out rows under pairs of characters in the others, each counted once more."""
        seen, held = self.rows
        pairs = np.ones((128, 128))
        np.add.at(pairs, (seen[:, :-1], seen[:, 1:]), 1.0)
        told = pairs / pairs.sum(axis=1, keepdims=True)
        return float(-np.log(told[held[:, :-1], held[:, 1:]]).mean())


TASKS = {"copy": Copy(), "characters": Characters()}


def hashes(model: LanguageModel) -> bool:
    """Whether attention needs rotations or buckets."""
    return isinstance(model.body.layers[0].attention.scheme, LSH)


def given(task: Any, model: LanguageModel, g: np.random.Generator, rounds: int, items: int = 0) -> Any:
    """What a body reads beside x: for LSH rotations of its own in every layer and head, to 2n/chunk buckets as in the paper.

    items: buckets at random in place of rotations, for so many items. More rounds begin with those that fewer rounds are.
    """
    if not hashes(model):
        return None
    layers, half = len(model.body.layers), -(-task.n // CHUNK)
    if items:
        drawn = g.integers(0, 2 * half, (rounds, layers, items, task.heads, task.n))
        each = [LSH.Inputs(None, None, buckets=x) for x in np.moveaxis(drawn, 0, 3)]
    else:
        drawn = g.standard_normal((rounds, layers, task.heads, WIDTH // task.heads, half))
        each = [LSH.Inputs(None, None, rotations=x) for x in np.moveaxis(drawn, 0, 2)]
    return Stack.Inputs(None, None, others=tree.row(each))
