"""The pretrained model by our layers against BERT of HF transformers (maps, hidden states) and sentence-transformers."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from layout import ROOT
from refattn.errors import OptionError
from refattn.verify import maps, minilm

pytestmark = pytest.mark.peers
pytest.importorskip(minilm.PACKAGE)
pytest.importorskip("tokenizers")


def folder() -> str:
    spec = find_spec(minilm.PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return f"{spec.submodule_search_locations[0]}/model"


@pytest.mark.parametrize("n", [17, 128, 512])
def test_maps_and_hidden_states_are_those_of_bert(n: int) -> None:
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    bert = transformers.BertModel.from_pretrained(folder(), attn_implementation="eager", local_files_only=True).eval()
    ours = minilm.load()
    ids = ours.passages(n, 2, seed=n)
    with torch.no_grad():
        want = bert(torch.tensor(ids), output_attentions=True)
    y, _ = ours.forward(ids)
    np.testing.assert_allclose(y, want.last_hidden_state.numpy(), atol=2e-5)
    maps = list(ours.maps(ids))
    assert len(maps) == len(want.attentions) == minilm.LAYERS
    for own, theirs in zip(maps, want.attentions, strict=True):
        assert own.shape == (2, minilm.HEADS, n, n)
        np.testing.assert_allclose(own, theirs.numpy(), atol=5e-6)
        assert float(abs(own - theirs.numpy()).max()) < 1e-3 * float(own.max())


SENTENCES = [
    "A map of attention has a row for each token.",
    "Naïve attention isn't O(n): __getattr__ → 12.5 %, “quoted”",
    "for i in range(10):\n    print(i, end=' ')",
]


def test_sentences_are_those_of_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """From text to the vector of a sentence: the mean of its tokens' hidden states, of length one; alone and in a batch."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    peer = pytest.importorskip("sentence_transformers")
    theirs, ours = peer.SentenceTransformer(folder(), device="cpu", local_files_only=True), minilm.load()
    assert [type(part).__name__ for part in theirs] == ["Transformer", "Pooling", "Normalize"]
    together = theirs.encode(SENTENCES)
    for sentence, batched in zip(SENTENCES, together, strict=True):
        ids = np.asarray(ours.tokenizer.encode(sentence).ids)
        y, _ = ours.forward(ids[None])
        tokens = theirs.encode(sentence, output_value="token_embeddings").numpy()
        np.testing.assert_allclose(y[0], tokens, atol=2e-5)
        mean = y[0].mean(axis=0)
        got = mean / np.sqrt((mean**2).sum())
        np.testing.assert_allclose(got, theirs.encode(sentence), atol=2e-6)
        np.testing.assert_allclose(got, batched, atol=2e-6)
    assert float(together[0] @ together[1]) < 0.9


def test_tokens_are_those_of_transformers_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder(), local_files_only=True)
    text = "Naïve attention isn't O(n): __getattr__ → 12.5 %, “quoted”\n\n* a list\n"
    ours = minilm.load().tokenizer
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.token_to_id("[CLS]") == theirs.cls_token_id
    assert ours.token_to_id("[SEP]") == theirs.sep_token_id


def test_the_claims_about_its_maps_come_out_as_stated_on_another_seed_too() -> None:
    documented = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    for seed in (0, 1):
        for claim in maps.claims(seed, 24, n=64):
            print(claim)
            assert claim.as_stated
            assert f"- `{claim.name[10:-1]}`: " in documented


def test_passages_are_pieces_of_the_text_drawn_by_their_seed() -> None:
    model = minilm.load()
    ids, again, other = (model.passages(32, 5, seed) for seed in (1, 1, 2))
    assert ids.shape == (5, 32)
    assert (ids == again).all()
    assert (ids != other).any()
    assert set(ids[:, 0]) == {model.tokenizer.token_to_id("[CLS]")}
    assert set(ids[:, -1]) == {model.tokenizer.token_to_id("[SEP]")}
    topics = [model.tokenizer.decode(t) for t in model._topics()]
    assert all(any(model.tokenizer.decode(list(piece[1:-1])) in topic for topic in topics) for piece in ids)
    with pytest.raises(OptionError, match="n=513: the model reads 3 to 512 tokens"):
        model.passages(513, 1, 0)


def test_a_python_without_the_text_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    claim = maps.claims(0, 24, n=64)[0]
    assert claim.holds is None
    assert "this Python has no text to read" in str(claim)
