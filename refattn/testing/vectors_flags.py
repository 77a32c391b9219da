"""What golden vectors are there for: each flag says which mistake it exposes, what that costs, and who has made it.

A flag is written once and named by many cases. Links are public reports of the mistake, or of its like, in real code.
"""

from __future__ import annotations

from dataclasses import dataclass

_ISSUE, _PULL = "https://github.com/{}/issues/{}", "https://github.com/{}/pull/{}"
BUG_TYPES = ("BASIC", "EDGE_CASE", "NUMERICS", "MASKING", "HEADS", "TAIL", "MISSING_STEP", "CONVENTION", "RANGE")


@dataclass(frozen=True)
class Flag:
    """bug_type: one of BUG_TYPES. description: what a case with this flag exposes. effect: what that costs a user."""

    bug_type: str
    description: str
    effect: str
    links: tuple[str, ...] = ()


FLAGS: dict[str, Flag] = {
    "EverydayInputs": Flag("BASIC", "everyday inputs", "any gross mistake"),
    "Normaliser": Flag("BASIC", "normaliser, phantom and dropped keys", "every output is off by a common factor"),
    "PeakedScores": Flag(
        "NUMERICS", "score arithmetic: scale, base of the exponential, precision of scores",
        "wrong weights where few keys matter",
        (_PULL.format("karpathy/ng-video-lecture", 6), _ISSUE.format("sgl-project/sglang", 40903))),
    "LargeScores": Flag("NUMERICS", "softmax without subtracting the row maximum", "overflow to NaN on large scores"),
    "FarBelow": Flag(
        "MASKING", "a finite number for −∞ in the mask", "hidden keys are seen once visible scores lie below the number"),
    "HalfRange": Flag(
        "RANGE", "products q·k held in float16 before they are scaled", "overflow at inputs of ordinary size",
        (_ISSUE.format("philipturner/metal-flash-attention", 8), _ISSUE.format("pytorch/pytorch", 60939))),
    "BeyondHalf": Flag("RANGE", "values below the range of float16", "results flushed to zero by an intermediate float16"),
    "SmallValues": Flag("RANGE", "values near zero, subnormal in float8", "outputs flushed to zero"),
    "LargeValues": Flag("RANGE", "values up to 448", "saturated or overflowing outputs"),
    "OneKey": Flag("EDGE_CASE", "a single key", "o must be the value itself, lse the score"),
    "ConstantValues": Flag("EDGE_CASE", "weights that do not sum to one", "outputs off by a factor"),
    "OneQuery": Flag("EDGE_CASE", "decoding one token", "the first generated token is already wrong"),
    "ZeroLength": Flag(
        "EDGE_CASE", "an axis of length zero", "an exception, a wrong shape, or NaN where nothing can be seen",
        (_ISSUE.format("Dao-AILab/flash-attention", 1537), _ISSUE.format("pytorch/pytorch", 81077))),
    "Tail": Flag(
        "TAIL", "lengths that are no multiple of a tile", "the last keys are dropped, or padding is attended",
        (_ISSUE.format("jax-ml/jax", 27224),)),
    "RisingKeys": Flag(
        "NUMERICS", "online softmax whose accumulator or denominator is not rescaled", "earlier tiles weigh too much"),
    "CausalOrder": Flag("MASKING", "the causal diagonal", "tokens of the future are read, or the own token is not"),
    "MoreKeys": Flag(
        "MASKING", "causal alignment with more keys than queries", "decoding and chunked prefill see the wrong keys",
        (_ISSUE.format("NVIDIA/cutlass", 2336), _ISSUE.format("Dao-AILab/flash-attention", 282))),
    "MoreQueries": Flag(
        "MASKING", "causal alignment with more queries than keys", "NaN or stale rows for the first queries",
        (_ISSUE.format("NVIDIA/cutlass", 2336),)),
    "SharedHeads": Flag(
        "HEADS", "which key head a query head reads, and the sum of its gradients", "heads read each other's keys",
        (_PULL.format("onnx/onnx", 7274), _PULL.format("apple/axlearn", 842))),
    "TiledHeads": Flag(
        "CONVENTION", "query head h reads key head h mod H_kv", "heads read each other's keys",
        (_PULL.format("onnx/onnx", 7274),)),
    "Widths": Flag(
        "BASIC", "value width in place of the key width", "wrong scale, or columns lost",
        (_ISSUE.format("Graylab/DL4Proteins-notebooks", 12),)),
    "OwnScale": Flag("BASIC", "a scale that is not 1/√d", "scores off by a factor"),
    "Softcap": Flag("MISSING_STEP", "the softcap, its place and its slope", "large scores are not capped"),
    "Mask": Flag(
        "MASKING", "polarity and broadcasting of a boolean mask", "attends to exactly what it must not",
        (_ISSUE.format("NVIDIA/TransformerEngine", 614),)),
    "BlindRows": Flag(
        "MASKING", "queries that see nothing", "NaN, the mean of V, or poisoned gradients",
        (_ISSUE.format("pytorch/pytorch", 103963),)),
    "MeanOfBlindRows": Flag("CONVENTION", "queries that see nothing return the mean of all values", "zeros or NaN"),
    "Bias": Flag(
        "MISSING_STEP", "an additive bias, and the sum of its gradient over broadcast axes",
        "wrong positional bias, or its gradient"),
    "BiasAndMask": Flag("MASKING", "order of bias and mask", "hidden keys leak"),
    "Sink": Flag("MISSING_STEP", "an attention sink", "weights that sum to one where they must not"),
    "KeyPadding": Flag("MASKING", "key validity ignored or inverted", "padding tokens are attended"),
    "Segments": Flag("MASKING", "packed sequences", "one sequence reads its neighbour"),
    "Positions": Flag("MASKING", "decoding with a length per item", "an item sees another item's length"),
    "MixedPositions": Flag(
        "MASKING", "positions that do not ascend: tiles skipped by comparing their ends",
        "packed or permuted tokens lose keys"),
    "Dropout": Flag(
        "MISSING_STEP", "the keep mask and its rescaling, forward and backward", "activations off by the keep rate"),
    "Everything": Flag("BASIC", "all terms of the equation at once", "the order of the terms"),
    "LseCotangent": Flag(
        "MISSING_STEP", "gradients of a loss that reads lse too", "wrong gradients where partial results are merged by lse"),
}  # fmt: skip
