"""Other people's attention over patterns against Sparse, through the convention that matches: forward and backward.

Longformer and BigBird of Hugging Face (the first takes its softmax in float32 whatever the inputs are), local-attention,
FlexAttention without compilation, which has no backward on processors, and torch's SDPA under the mask of a pattern.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from laws.bounds import Band, outside, results, rounded
from refattn import Causal, Global, Heads, Local, Sparse, rng
from refattn.catalogue import constructors
from refattn.expression import parse
from refattn.patterns import Pattern, Random
from refattn.patterns.named import NAMED, BigBird, LocalBlocks, Longformer, SparseTransformer

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
Array = Any
B, H, D, E = 2, 4, 6, 4
EXAMPLES = [parse(text, constructors()) for named in NAMED.values() for text in named.examples]
SETS = [p for p in dict.fromkeys(EXAMPLES) if isinstance(p, Pattern) and p.most == 1]


def draw(n: int, e: int = E, dtype: str = "float64") -> list[Array]:
    """q, k, v and a cotangent, short enough for float32."""
    shapes = {"q": D, "k": D, "v": e, "do": e}
    return [rng.short(rng.stream(0, "peers", x).normal(size=(B, H, n, w))).astype(dtype) for x, w in shapes.items()]


def agree(scheme: Sparse, inputs: Any, do: Array, got: dict[str, Array], preset: str = "fp64") -> None:
    """Every result within the bound of one run in that precision, and one of ours."""
    zero = np.zeros(do.shape[:-1], do.dtype)
    want = {n: Band(x.value, 2.0 * x.bound) for n, x in rounded(preset, scheme, inputs, {"o": do, "lse": zero}).items()}
    assert outside(got, {name: want[name] for name in got}) == {}
    assert outside(results(scheme, inputs, {"o": do, "lse": zero}), want) == {}


def pulled(attention: Callable[..., Any], do: Array, *arrays: Array, valid: Array | float = 1.0) -> dict[str, Array]:
    """o and gradients of q, k, v by autograd, o where somebody reads it."""
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    o = attention(*leaves)
    grads = torch.autograd.grad(o, leaves, torch.tensor(do))
    found = dict(zip(("dq", "dk", "dv"), (g.numpy() for g in grads), strict=True))
    return {"o": o.detach().numpy() * np.asarray(valid, do.dtype), **found}


def longformer(window: int, valid: Array, members: Array) -> Callable[..., Any]:
    """LongformerSelfAttention of Hugging Face, its projections being q, k and v themselves, those of global rows too."""
    module = pytest.importorskip("transformers.models.longformer.modeling_longformer", reason="pip install transformers")

    class Itself(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.clone()

    class Given(torch.nn.Module):
        def __init__(self, x: Any) -> None:
            super().__init__()
            self.x = flat(x).transpose(0, 1)

        def forward(self, _: Any) -> Any:
            return self.x.clone()

    def flat(x: Any) -> Any:
        return x.transpose(1, 2).reshape(B, -1, H * x.shape[-1])

    def attention(q: Any, k: Any, v: Any) -> Any:
        config = module.LongformerConfig(hidden_size=H * D, num_attention_heads=H, attention_window=[window],
                                         attention_probs_dropout_prob=0.0)
        kernel = module.LongformerSelfAttention(config, 0).eval()
        kernel.query, kernel.query_global = Itself(), Itself()
        kernel.key, kernel.key_global, kernel.value, kernel.value_global = Given(k), Given(k), Given(v), Given(v)
        mask = torch.where(torch.tensor(valid), 0.0, -10000.0) + 10000.0 * torch.tensor(members)
        o = kernel(flat(q), attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0,
                   is_global_attn=bool(members.any()))[0]
        return o.reshape(B, -1, H, D).transpose(1, 2)

    return attention


@pytest.mark.parametrize("members", [((), ()), ((0, 5), (2,)), ((), (7, 8, 19))], ids=str)
def test_longformer_of_hugging_face_with_padding_and_members_of_each_item(members: Any) -> None:
    """float32, in which it takes its softmax; what it returns for padded queries is 0 and is nobody's."""
    n, window = 24, 8
    q, k, v, do = draw(n, D, "float32")
    valid, chosen = np.arange(n) < np.array([[n], [n - 3]]), np.zeros((B, n), dtype=bool)
    for item, at in enumerate(members):
        chosen[item, list(at)] = True
    do = do * valid[:, None, :, None]
    got = pulled(longformer(window, valid, chosen), do, q, k, v, valid=valid[:, None, :, None])
    scheme = Sparse(Longformer.sliding(window, "hf"))
    inputs = Sparse.Inputs(q, k, v, key_valid=valid, is_global=chosen if chosen.any() else None)
    want = {x: Band(y.value * valid[:, None, :, None] if x == "o" else y.value, y.bound) for x, y in
            rounded("fp32", scheme, inputs, {"o": do, "lse": np.zeros(do.shape[:-1], do.dtype)}).items()}
    assert outside(got, {name: want[name] for name in got}) == {}


def test_longformer_of_hugging_face_pads_to_its_window_and_changes_nothing() -> None:
    n, window = 21, 8
    q, k, v, do = draw(n, D, "float32")
    more = [np.pad(x, [(0, 0), (0, 0), (0, 3), (0, 0)], constant_values=9.0) for x in (q, k, v)]
    valid = np.broadcast_to(np.arange(24) < n, (B, 24))
    chosen = np.broadcast_to(np.arange(24) == 3, (B, 24))
    got = pulled(longformer(window, valid, chosen), np.pad(do, [(0, 0), (0, 0), (0, 3), (0, 0)]), *more)
    scheme = Sparse(Longformer.with_global(window, (3,), "hf"))
    agree(scheme, Sparse.Inputs(q, k, v), do, {name: x[..., :n, :] for name, x in got.items()}, "fp32")


def big_bird(block: int, r: int, valid: Array, draws: Array | None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The block-sparse attention of Hugging Face: in evaluation, or with `draws` (heads, rows, r) as its random blocks."""
    module = pytest.importorskip("transformers.models.big_bird.modeling_big_bird", reason="pip install transformers")

    def attention(q: Any, k: Any, v: Any) -> Any:
        n = q.shape[-2]
        config = module.BigBirdConfig(hidden_size=H * D, num_attention_heads=H, block_size=block, num_random_blocks=r,
                                      max_position_embeddings=n)
        kernel = module.BigBirdBlockSparseAttention(config).train(draws is not None)
        if draws is not None:
            monkeypatch.setattr(kernel, "_bigbird_block_rand_mask_with_head", lambda **_: list(draws))
        masks = module.BigBirdModel.create_masks_for_block_sparse_attn(torch.tensor(valid, dtype=torch.float64), block)
        blocked, band, rows, columns = masks
        sizes = H, r, D, block, block, B, n, n
        o, _ = kernel.bigbird_block_sparse_attention(q, k, v, band, rows, columns, blocked, blocked, *sizes, seed=0,
                                                     plan_from_length=None, plan_num_rand_blocks=None)
        return o.transpose(1, 2) if o.shape[1] == n else o

    return attention


@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize(("block", "r", "blocks"), [(2, 1, 9), (3, 2, 12)])
@pytest.mark.parametrize("plan", ["hf_eval", "seeded"])
def test_big_bird_of_hugging_face_counts_blocks_twice(
    plan: str, block: int, r: int, blocks: int, padded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = block * blocks
    q, k, v, do = draw(n, D)
    valid = np.arange(n) < np.array([[n], [n - padded]])
    seen = valid[:, None, :, None]
    do = do * seen
    seeds = range(H)
    draws = np.stack([Random(r, s).entries(blocks, blocks)[1].reshape(blocks, r)[1:-1] for s in seeds])
    attention = big_bird(block, r, valid, draws if plan == "seeded" else None, monkeypatch)
    got = pulled(attention, do, q, k, v, valid=seen)
    each = tuple(BigBird.itc(block, r, "multiset", plan, seed) for seed in seeds)
    scheme = Sparse(Heads(each) if plan == "seeded" else each[0])
    assert all(p.weight(n, n) > p.nnz(n, n) for p in each)
    want = rounded("fp64", scheme, Sparse.Inputs(q, k, v, key_valid=valid), {"o": do, "lse": np.zeros(do.shape[:-1])})
    want = {x: Band(y.value * seen if x == "o" else y.value, 2.0 * y.bound) for x, y in want.items()}
    assert outside(got, {name: want[name] for name in got}) == {}
    once = Sparse(Heads(tuple(BigBird.itc(block, r, "set", plan, seed) for seed in seeds)))
    other = rounded("fp64", once, Sparse.Inputs(q, k, v, key_valid=valid), {"o": do, "lse": np.zeros(do.shape[:-1])})
    assert outside({"o": got["o"]}, {"o": Band(other["o"].value * seen, other["o"].bound)}) != {}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("back", "ahead", "causal"), [(1, 0, True), (2, 0, True), (0, 0, True), (1, 1, False), (2, 1, False)]
)
def test_local_attention(back: int, ahead: int, causal: bool, exact: bool) -> None:
    """Its window_size·look_backward + 1 keys where it is exact, and blocks where it is not; 22 tokens are padded to 24."""
    module = pytest.importorskip("local_attention", reason="pip install local-attention")
    window = 4
    scheme = Sparse(LocalBlocks.lucidrains(window, back, ahead, causal, exact))
    kernel = module.LocalAttention(window_size=window, causal=causal, look_backward=back, look_forward=ahead, autopad=True,
                                   exact_windowsize=exact, use_rotary_pos_emb=False)
    for n in (24, 22):
        q, k, v, do = draw(n)
        mask = torch.ones(B, n, dtype=torch.bool)
        got = pulled(lambda *x, mask=mask: kernel(*x, mask=mask), do, q, k, v)
        agree(scheme, Sparse.Inputs(q, k, v), do, got)


def test_known_deviation_local_attention_without_mask_attends_to_its_padding() -> None:
    module = pytest.importorskip("local_attention", reason="pip install local-attention")
    kernel = module.LocalAttention(window_size=4, causal=False, autopad=True, use_rotary_pos_emb=False)
    q, k, v, do = draw(5)
    got = pulled(kernel, do, q, k, v)
    want = Sparse(LocalBlocks.lucidrains(4, 1, 1, False)).forward(q, k, v)[0]
    assert np.abs(got["o"] - want).max() > 0.1


@pytest.mark.parametrize("pattern", SETS, ids=repr)
def test_sdpa_of_torch_under_the_mask_of_a_published_pattern(pattern: Pattern) -> None:
    """Forward and backward; rows that see nothing have no cotangent: there SDPA has conventions of its own."""
    n = 12
    q, k, v, do = draw(n)
    mask = pattern.dense(n, n) > 0
    some = mask.any(axis=1)[:, None]
    do = do * some

    def attention(*x: Any) -> Any:
        o = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=torch.tensor(mask))
        return torch.where(torch.tensor(some), o, 0.0)

    agree(Sparse(pattern), Sparse.Inputs(q, k, v), do, pulled(attention, do, q, k, v))


@pytest.mark.parametrize(
    "pattern",
    [Local(3, 3), Local(5, 0) | Global(first=2) & Causal(), SparseTransformer.strided(4), BigBird.itc(2, 1)],
    ids=repr,
)
def test_flex_attention_with_the_same_mask(pattern: Pattern) -> None:
    """The forward and its lse, uncompiled."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    n = 24
    q, k, v, do = draw(n)
    table = torch.tensor(pattern.dense(n, n) > 0)
    block_mask = flex.create_block_mask(lambda b, h, i, j: table[i, j], None, None, n, n, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without compilation is meant
        o, lse = flex.flex_attention(*map(torch.tensor, (q, k, v)), block_mask=block_mask, return_lse=True)
    zero = np.zeros(do.shape[:-1])
    want = rounded("fp64", Sparse(pattern), Sparse.Inputs(q, k, v), {"o": do, "lse": zero})
    got = {"o": o.numpy(), "lse": lse.numpy()}
    assert outside(got, {x: Band(want[x].value, 2.0 * want[x].bound) for x in got}) == {}


def gym(name: str, *given: Any) -> Any:
    """A mask of attention-gym: a function of batch, head, query and key, or what makes one of `given`."""
    found = getattr(pytest.importorskip("attn_gym.masks", reason="pip install attn-gym"), name)
    return found(*given) if given else found


GYM = {
    "causal_mask": ((), Causal()),
    "generate_sliding_window": ((3,), Longformer.sliding(3, causal=True)),
    "generate_dilated_sliding_window": ((7, 3), Longformer.dilated(2, 3)),
    "generate_global_sliding_window": ((2, torch.arange(22) % 9 == 4), Longformer.with_global(2, (4, 13))),
    "generate_prefix_lm_mask": ((5,), Causal() | Global(first=5, rows=False)),
}
"""The window of the third is given in tokens, and its last key is the last multiple of the dilation."""


@pytest.mark.parametrize("name", GYM)
def test_masks_of_attention_gym(name: str) -> None:
    """Forward and lse of FlexAttention under the mask that is generated, for a length that blocks do not divide."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    given, pattern = GYM[name]
    masked_as(flex, gym(name, *given), Sparse(pattern), {})


@pytest.mark.parametrize(("inner", "pattern"), [("causal_mask", Causal()), ("generate_sliding_window", Local(3, 0))])
def test_documents_of_attention_gym_are_segments(inner: str, pattern: Pattern) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    one = gym(inner, *((3,) if inner != "causal_mask" else ()))
    mask = gym("generate_doc_mask_mod", one, torch.tensor([0, 9, 10, 22]))
    ids = np.broadcast_to(np.repeat([0, 1, 2], [9, 1, 12]), (B, 22))
    masked_as(flex, mask, Sparse(pattern), {"segment_ids": ids})


def masked_as(flex: Any, mask: Any, scheme: Sparse, more: dict[str, Array]) -> None:
    """FlexAttention, uncompiled, under a mask of its own against ours."""
    n = 22
    q, k, v, do = draw(n)
    blocks = flex.create_block_mask(mask, None, None, n, n, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without compilation is meant
        o, lse = flex.flex_attention(*map(torch.tensor, (q, k, v)), block_mask=blocks, return_lse=True)
    want = rounded("fp64", scheme, Sparse.Inputs(q, k, v, **more), {"o": do, "lse": np.zeros(do.shape[:-1])})
    got = {"o": o.numpy(), "lse": lse.numpy()}
    assert outside(got, {x: Band(want[x].value, 2.0 * want[x].bound) for x in got}) == {}
