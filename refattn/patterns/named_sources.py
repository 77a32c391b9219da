"""Where the patterns of ``refattn.patterns.named`` are from, what their conventions say, and expressions that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Named:
    """One pattern of a paper.

    says: what a query sees, in a line. conventions: what each value of `convention` (or, where there is no such argument,
    each entry of `examples` that differs) means and who follows it. examples: expressions, the first one stands for it.
    """

    source: str
    says: str
    examples: tuple[str, ...]
    conventions: Mapping[str, str] = field(default_factory=dict)


SURVEY = "《降低Transformer复杂度O(N^2)的方法汇总》, figures for n = 12: a query is never among its own keys"
_CHILD = "Child et al. 2019, arXiv:1904.10509; code openai/sparse_attention"
_QIU = "Qiu et al. 2020, arXiv:1911.02972; no code was published"
_BELTAGY = "Beltagy et al. 2020, arXiv:2004.05150; code allenai/longformer and Hugging Face transformers"
_LIU = "Liu et al. 2018, arXiv:1801.10198"
_ZAHEER = "Zaheer et al. 2020, arXiv:2007.14062; code google-research/bigbird and Hugging Face transformers"
_LI = "Li et al. 2019, arXiv:1907.00235"
_HO = "Ho et al. 2019, arXiv:1912.12180; code google-research/axial"
_HUANG = "Huang et al. 2019, arXiv:1811.11721; code speedinghzl/CCNet"
_WANG = "Wang et al. 2020, arXiv:2002.06170; code cgraywang/transformer-on-diet"

NAMED: Mapping[str, Named] = {
    "SparseTransformer.strided": Named(
        _CHILD,
        "the last keys, and every l-th key before",
        (
            "SparseTransformer.strided(4)",
            "SparseTransformer.strided(4, 'openai')",
            "SparseTransformer.strided(3, 'survey', 'first')",
            "SparseTransformer.strided(3, 'survey', 'second')",
            "SparseTransformer.strided(4, part='alternate')",
            "SparseTransformer.strided(4, part='heads', full=1)",
        ),
        {
            "paper": "l + 1 near keys, the query among them; far keys at distances 0, l, 2·l, …",
            "openai": "the authors' code: l near keys, the query among them; far keys as in the paper",
            "survey": "SA1 and SA2: l near keys; far keys at l + 1, 2·(l + 1), …, with l keys between them; " + SURVEY,
        },
    ),
    "SparseTransformer.fixed": Named(
        _CHILD,
        "the own block of l, and the last c columns of every block",
        (
            "SparseTransformer.fixed(4)",
            "SparseTransformer.fixed(8, 2, 'openai', slot=1)",
            "SparseTransformer.fixed(3, convention='survey', part='first')",
            "SparseTransformer.fixed(3, convention='survey', part='second')",
            "SparseTransformer.fixed(4, part='alternate')",
            "SparseTransformer.fixed(4, part='heads', full=1)",
        ),
        {
            "paper": "columns l − c … l − 1 of each block (its formula allows j mod l = l too, which no j has)",
            "openai": "the authors' code: one softmax over both, columns of slot r counted from the end of the block",
            "survey": "FA1 and FA2, our reading of one figure: FA2 is every l-th column from the left, FA1 runs back from "
            "the query to the nearest such column and includes it, which may be the last of the block before; " + SURVEY,
        },
    ),
    "SparseTransformer.fixed_heads": Named(
        _CHILD,
        "fixed attention with other columns for each head",
        ("SparseTransformer.fixed_heads(4, 1, 2, 4)", "SparseTransformer.fixed_heads(4, 2, 2, 2, full=1)"),
    ),
    "BlockBERT.heads": Named(
        _QIU,
        "one block, which the head's shift chooses",
        ("BlockBERT.heads(2, (10, 2))", "BlockBERT.heads(3, (8, 2, 2))"),
    ),
    "BlockBERT.every_shift": Named(
        SURVEY,
        "one block, shifted by the number of the head, the identity coming last",
        ("BlockBERT.every_shift(3, 3)",),
    ),
    "Longformer.sliding": Named(
        _BELTAGY,
        "a window around the query",
        (
            "Longformer.sliding(2)",
            "Longformer.sliding(4, 'hf')",
            "Longformer.sliding(2, causal=True)",
            "Longformer.sliding(3, 'survey')",
        ),
        {
            "ai2": "w keys on each side, as the authors' attention_window",
            "hf": "w keys on both sides together, even, as Hugging Face's attention_window",
            "paper": "w keys on both sides together, even",
            "survey": "w keys before the query and not the query; " + SURVEY,
        },
    ),
    "Longformer.dilated": Named(
        _BELTAGY,
        "a window with gaps around the query",
        (
            "Longformer.dilated(2, 2)",
            "Longformer.dilated(4, 1, 'paper')",
            "Longformer.dilated(2, 3, causal=True)",
        ),
        {
            "ai2": "w keys on each side; dilation is the distance of neighbours, 1 for no gap, as in the authors' code",
            "paper": "w keys on both sides together; dilation is the gap, 0 for none",
        },
    ),
    "Longformer.dilated_heads": Named(
        _BELTAGY, "a window for each head, some with gaps", ("Longformer.dilated_heads(2, (1, 1, 2, 3))",)
    ),
    "Longformer.with_global": Named(
        _BELTAGY,
        "a window, and chosen positions that see and are seen by all",
        (
            "Longformer.with_global(2, (0,))",
            "Longformer.with_global(2, (0, 5), causal=True)",
            "Longformer.with_global(3, (4, 6), 'survey')",
        ),
        {
            "ai2": "the window of Longformer.sliding; the code gives global rows projections of their own",
            "hf": "the window of Longformer.sliding; the code gives global rows projections of their own",
            "paper": "the window of Longformer.sliding under the same name",
            "survey": "w keys before the query, the chosen positions, nothing later and not the query; " + SURVEY,
        },
    ),
    "LocalBlocks.own": Named(
        _LIU + "; code tensor2tensor local_within_block_mask_right",
        "the own block, up to the query",
        ("LocalBlocks.own(4)", "LocalBlocks.own(4, causal=False)"),
    ),
    "LocalBlocks.t2t_right": Named(
        "code tensor2tensor masked_local_attention_1d (local_mask_right)",
        "the own and the previous block, up to the query; everything up to it below two blocks",
        ("LocalBlocks.t2t_right(4)", "LocalBlocks.t2t_right(8)"),
    ),
    "LocalBlocks.t2t_both": Named(
        "code tensor2tensor local_attention_1d (local_unmasked)",
        "the own block and filter_width keys on both sides of it",
        ("LocalBlocks.t2t_both(4, 2)",),
    ),
    "LocalBlocks.t2t_dilated": Named(
        "code tensor2tensor masked_dilated_self_attention_1d and dilated_self_attention_1d as documented; the code, "
        "which was read and not run, looks beyond its end in the last block, and begins two keys later after the query",
        "the own block, and blocks with gaps between them before it",
        ("LocalBlocks.t2t_dilated(3, 2)", "LocalBlocks.t2t_dilated(2, 2, 1, 2, causal=False)"),
    ),
    "LocalBlocks.mtf": Named(
        "code tensorflow/mesh transformer.attention.local_attention_1d",
        "radius keys up to the query, and radius keys after it",
        ("LocalBlocks.mtf(3)", "LocalBlocks.mtf(3, causal=False)"),
    ),
    "LocalBlocks.routing": Named(
        "code google-research/routing_transformer attention_nd",
        "the own block and flange keys of whole blocks before it",
        ("LocalBlocks.routing(2, 4)", "LocalBlocks.routing(2, 4, causal=False)"),
    ),
    "LocalBlocks.lucidrains": Named(
        "code lucidrains/local-attention",
        "the own block and neighbouring ones",
        (
            "LocalBlocks.lucidrains(3)",
            "LocalBlocks.lucidrains(3, 1, 1, causal=False)",
            "LocalBlocks.lucidrains(3, exact=True)",
        ),
        {
            "exact=True": "exact_windowsize: window·look_backward + 1 keys, one more than its documentation says",
        },
    ),
    "BigBird.itc": Named(
        _ZAHEER,
        "in blocks: a window of three, the first and the last, and random ones",
        (
            "BigBird.itc(1, 3)",
            "BigBird.itc(2, 1, 'multiset', seed=1)",
            "BigBird.itc(1, 2, 'multiset', 'hf_eval')",
        ),
        {
            "counting='set'": "every key once",
            "counting='multiset'": "a key counts once more if its block was also drawn, as in the block-sparse code",
            "plan='seeded'": "random blocks drawn uniformly among all; the published plans draw from fewer blocks",
            "plan='hf_eval'": "Hugging Face in evaluation: block 0 `random` times; full up to 5 + 2·random blocks",
        },
    ),
    "LogTrans.formula": Named(_LI, "the keys 0, 1, 2, 4, 8, … before the query, positions from 0", ("LogTrans.formula()",)),
    "LogTrans.local": Named(_LI, "the same and the last keys", ("LogTrans.local(3)",)),
    "LogTrans.restart": Named(
        _LI, "the same inside each subsequence", ("LogTrans.restart(6)", "LogTrans.restart(6, 2)")
    ),
    "AxialTransformer.axis": Named(
        _HO,
        "the line of the grid along one axis",
        ("AxialTransformer.axis((3, 4))", "AxialTransformer.axis((3, 4), 0, True)"),
    ),
    "AxialTransformer.alternating": Named(
        _HO, "rows in one layer, columns in the next", ("AxialTransformer.alternating((3, 4))",)
    ),
    "CCNet.criss_cross": Named(_HUANG, "row and column in one softmax, itself once", ("CCNet.criss_cross(3, 4)",)),
    "CCNet.recurrent": Named(_HUANG, "the same again with the same weights", ("CCNet.recurrent(3, 4)",)),
    "Diet.cascade": Named(_WANG, "a window that grows from layer to layer", ("Diet.cascade(3)",)),
    "Diet.dilated": Named(_WANG, "a few keys, further apart from layer to layer", ("Diet.dilated(3)",)),
    "Diet.dilated_memory": Named(
        _WANG, "what the dilated layers so far see; for 3 keys at base 2 those of LogSparse", ("Diet.dilated_memory(3)",)
    ),
}
