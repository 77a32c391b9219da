"""The pretrained model by our layers against BERT of HF transformers: every map, and the hidden states."""

from __future__ import annotations

import numpy as np
import pytest

from refattn.verify import minilm

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip(minilm.PACKAGE)
pytest.importorskip("tokenizers")


@pytest.mark.parametrize("n", [17, 128, 512])
def test_maps_and_hidden_states_are_those_of_bert(n: int) -> None:
    from importlib.util import find_spec

    folder = f"{find_spec(minilm.PACKAGE).submodule_search_locations[0]}/model"
    bert = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True).eval()
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


def test_tokens_are_those_of_transformers_tokenizer() -> None:
    from importlib.util import find_spec

    folder = f"{find_spec(minilm.PACKAGE).submodule_search_locations[0]}/model"
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "Naïve attention isn't O(n): __getattr__ → 12.5 %, “quoted”\n\n* a list\n"
    ours = minilm.load().tokenizer
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.token_to_id("[CLS]") == theirs.cls_token_id
    assert ours.token_to_id("[SEP]") == theirs.sep_token_id
