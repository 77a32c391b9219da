"""The patterns of the papers by their papers' names, as compositions; where published code differs, by convention.

    SparseTransformer.strided(128)      BigBird.itc(64, 3, counting='multiset')      Longformer.sliding(512, 'hf')

Each class is a paper and each class method one of its patterns. `NAMED` holds the source of each, what its conventions say,
and expressions that show it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from refattn.errors import OptionError
from refattn.patterns import checks
from refattn.patterns.algebra import All, Pattern, Sum
from refattn.patterns.blocks import Blocks, Coarse, Split
from refattn.patterns.chosen import Alternate, Heads, Short
from refattn.patterns.columns import Fixed, Global
from refattn.patterns.grid import Axial, Cross
from refattn.patterns.local import Causal, Local, LogSparse, Self, Strided
from refattn.patterns.named_sources import NAMED
from refattn.patterns.random import Random


class _Paper:
    """A name for the patterns of a paper; it has no values of its own."""

    def __init__(self) -> None:
        made = [name for name in vars(type(self)) if isinstance(vars(type(self))[name], classmethod)]
        name = type(self).__name__
        raise OptionError(f"{name} is a paper, not a pattern: write {' or '.join(f'{name}.{m}(...)' for m in made)}")


def _convention(name: str, convention: str) -> None:
    """Refuse a convention that the pattern called `name` does not have."""
    _choice(name, "convention", convention, tuple(NAMED[name].conventions))


def _choice(name: str, field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name}: {field}={value!r}: choose {', '.join(map(repr, choices))}")


class SparseTransformer(_Paper):
    """Child et al. 2019, Generating long sequences with sparse transformers. All patterns are causal.

    part: 'first' (A¹, near keys) or 'second' (A², far keys) alone; 'joint', both in one softmax (equation 7); 'alternate',
    layer by layer (equation 6); 'heads', one head each (equation 8), and `full` further heads of full softmax, without the
    query itself in the survey.
    """

    @classmethod
    def strided(cls, l: int, convention: str = "paper", part: str = "joint", full: int = 0) -> Any:
        """The last keys (A¹) and every l-th key before (A²)."""
        _convention("SparseTransformer.strided", convention)
        checks.whole("SparseTransformer.strided", "l", l, 1)
        if convention == "survey":
            earlier = Causal() & ~Self()
            return _combined("strided", part, full, Local(l, 0) & ~Self(), Strided(l + 1) & earlier, earlier)
        return _combined("strided", part, full, Local(l if convention == "paper" else l - 1, 0), Strided(l) & Causal())

    @classmethod
    def fixed(
        cls, l: int, c: int = 1, convention: str = "paper", part: str = "joint", slot: int = 0, full: int = 0
    ) -> Any:
        """The own block of l (A¹) and the c summary columns of each block (A²), those of `slot` counted from its end."""
        _convention("SparseTransformer.fixed", convention)
        columns = Fixed(l, c, slot)
        if convention == "survey":
            earlier = Causal() & ~Self()
            if (c, slot) != (1, 0):
                raise OptionError(f"SparseTransformer.fixed: the survey has one summary column, not c={c} in slot={slot}")
            near = (Blocks(l) | columns & Blocks(l, back=1)) & earlier
            return _combined("fixed", part, full, near, columns & earlier, earlier)
        if convention == "openai" and part != "joint":
            raise OptionError(f"SparseTransformer.fixed: the authors' code has part='joint' only, not part={part!r}")
        if part == "joint":
            _combined("fixed", part, full, All(), All())
            return (Blocks(l) | columns) & Causal()
        return _combined("fixed", part, full, Blocks(l) & Causal(), columns & Causal())

    @classmethod
    def fixed_heads(cls, l: int, c: int, slots: int, heads: int, full: int = 0) -> Heads:
        """Fixed attention with summary columns of its own for each head: head h takes slot h mod slots."""
        name = "SparseTransformer.fixed_heads"
        for field, value, least in (("l", l, 1), ("c", c, 1), ("slots", slots, 1), ("heads", heads, 1), ("full", full, 0)):
            checks.whole(name, field, value, least)
        if heads % slots:
            raise OptionError(f"{name}: heads={heads} can't be shared out among slots={slots}: give a multiple of it")
        sparse = tuple((Blocks(l) | Fixed(l, c, h % slots)) & Causal() for h in range(heads))
        return Heads((*sparse, *(Causal() for _ in range(full))))


def _combined(name: str, part: str, full: int, first: Pattern, second: Pattern, whole: Pattern | None = None) -> Any:
    """The two factors of the Sparse Transformer, used as `part` says; `whole` is full softmax, if not Causal()."""
    name = f"SparseTransformer.{name}"
    _choice(name, "part", part, ("joint", "first", "second", "alternate", "heads"))
    checks.whole(name, "full", full, 0)
    if full and part != "heads":
        raise OptionError(f"{name}: full={full} heads of full softmax need part='heads', not part={part!r}")
    match part:
        case "joint":
            return first | second
        case "alternate":
            return Alternate((first, second))
        case "heads":
            return Heads((first, second, *(whole or Causal() for _ in range(full))))
    return first if part == "first" else second


class BlockBERT(_Paper):
    """Qiu et al. 2020, Blockwise self-attention for long document understanding. No code was published."""

    @classmethod
    def heads(cls, n_blocks: int, split: tuple[int, ...]) -> Heads:
        """split[k] heads in which block a sees block (a + k) mod n_blocks; (10, 2) is the paper's 10:2."""
        checks.wholes("BlockBERT.heads", "split", split, 0)
        if not sum(split):
            raise OptionError(f"BlockBERT.heads: split={split!r} has no head; (10, 2) is 10 of shift 0 and 2 of shift 1")
        return Heads(tuple(Split(n_blocks, shift) for shift, heads in enumerate(split) for _ in range(heads)))

    @classmethod
    def every_shift(cls, n_blocks: int, heads: int) -> Heads:
        """Head h, counted from 1, shifts by h mod n_blocks: the survey's reading, whose identity comes last."""
        checks.whole("BlockBERT.every_shift", "n_blocks", n_blocks, 1)
        checks.whole("BlockBERT.every_shift", "heads", heads, 1)
        return Heads(tuple(Split(n_blocks, h % n_blocks) for h in range(1, heads + 1)))


class Longformer(_Paper):
    """Beltagy et al. 2020, Longformer. What is global here has the projections of every other position."""

    @classmethod
    def sliding(cls, w: int, convention: str = "ai2", causal: bool = False) -> Pattern:
        """The neighbours, and the query itself except in the survey."""
        _convention("Longformer.sliding", convention)
        checks.whole("Longformer.sliding", "w", w, 0)
        if convention == "survey":
            return Local(w, 0) & ~Self()
        if convention == "hf" and causal:
            raise OptionError("Longformer.sliding: the code under convention='hf' has no causal=True")
        w = w if convention == "ai2" else _half("Longformer.sliding", w, convention)
        return Local(w, 0 if causal else w)

    @classmethod
    def dilated(cls, w: int, dilation: int, convention: str = "ai2", causal: bool = False) -> Pattern:
        """A window with gaps."""
        _convention("Longformer.dilated", convention)
        checks.whole("Longformer.dilated", "w", w, 0)
        checks.whole("Longformer.dilated", "dilation", dilation, 1 if convention == "ai2" else 0)
        if convention == "paper":
            w, dilation = _half("Longformer.dilated", w, convention), dilation + 1
        return Local(w, 0 if causal else w, dilation)

    @classmethod
    def dilated_heads(cls, w: int, dilations: tuple[int, ...], causal: bool = False) -> Heads:
        """A dilation for each head; the paper dilates two heads of a layer."""
        checks.wholes("Longformer.dilated_heads", "dilations", dilations, 1)
        return Heads(tuple(cls.dilated(w, d, "ai2", causal) for d in dilations))

    @classmethod
    def with_global(cls, w: int, at: tuple[int, ...], convention: str = "ai2", causal: bool = False) -> Pattern:
        """A window, and positions `at` that see and are seen by all."""
        _convention("Longformer.with_global", convention)
        checks.wholes("Longformer.with_global", "at", at, 0)
        if convention == "survey":
            return (Local(w, 0) | Global(at=at)) & Causal() & ~Self()
        window = cls.sliding(w, convention, causal) | Global(at=at)
        return window & Causal() if causal else window


def _half(name: str, w: int, convention: str) -> int:
    if w % 2:
        raise OptionError(f"{name}: w={w} counts both sides under convention={convention!r} and must be even")
    return w // 2


class LocalBlocks(_Paper):
    """Liu et al. 2018, Generating Wikipedia by summarizing long sequences; four different sets share the name."""

    @classmethod
    def own(cls, size: int, causal: bool = True) -> Pattern:
        """Each block of `size` by itself: the paper, and tensor2tensor's local_within_block_mask_right."""
        return Blocks(size) & Causal() if causal else Blocks(size)

    @classmethod
    def t2t_right(cls, size: int) -> Pattern:
        """tensor2tensor's masked_local_attention_1d: causal, own and previous block; full below two blocks."""
        return Short(2 * size, Causal(), Blocks(size, back=1) & Causal())

    @classmethod
    def t2t_both(cls, size: int, filter_width: int) -> Pattern:
        """tensor2tensor's local_attention_1d: own block and `filter_width` keys on both sides of the block."""
        return Blocks(size, margin=filter_width)

    @classmethod
    def t2t_dilated(cls, size: int, memory: int, gap: int = 2, blocks: int = 2, causal: bool = True) -> Pattern:
        """tensor2tensor's dilated_self_attention_1d: own block, `blocks` of `memory` keys with gaps before (and after)."""
        name = "LocalBlocks.t2t_dilated"
        for field, value, least in (("memory", memory, 1), ("gap", gap, 0), ("blocks", blocks, 0)):
            checks.whole(name, field, value, least)
        ends = [(gap + memory) * (b + 1) for b in range(blocks)]
        further = (Blocks(size, margin=end) & ~Blocks(size, margin=end - memory) for end in ends)
        found = reduce(or_, further, Blocks(size))
        return found & Causal() if causal else found

    @classmethod
    def mtf(cls, radius: int, causal: bool = True) -> Pattern:
        """Mesh TensorFlow's local_attention_1d: radius keys up to the query, and as many after it if not causal."""
        checks.whole("LocalBlocks.mtf", "radius", radius, 1)
        return Local(radius - 1, 0 if causal else radius)

    @classmethod
    def routing(cls, query_block: int, flange: int, causal: bool = True) -> Pattern:
        """The local heads of the Routing Transformer's code: flange/query_block further blocks before, and after."""
        checks.whole("LocalBlocks.routing", "query_block", query_block, 1)
        checks.whole("LocalBlocks.routing", "flange", flange, 0)
        if flange % query_block:
            raise OptionError(f"LocalBlocks.routing: flange={flange} must be a multiple of query_block={query_block}")
        blocks = flange // query_block
        return Blocks(query_block, back=blocks) & Causal() if causal else Blocks(query_block, back=blocks, ahead=blocks)

    @classmethod
    def lucidrains(
        cls, window: int, look_backward: int = 1, look_forward: int = 0, causal: bool = True, exact: bool = False
    ) -> Pattern:
        """The package local-attention; exact=True (exact_windowsize) also limits the distance to whole windows."""
        if causal and look_forward:
            raise OptionError(f"LocalBlocks.lucidrains: look_forward={look_forward} with causal=True would see nothing")
        found: Pattern = Blocks(window, back=look_backward, ahead=look_forward)
        if exact:
            found = found & Local(window * look_backward, 0 if causal else window * look_forward)
        return found & Causal() if causal else found


class BigBird(_Paper):
    """Zaheer et al. 2020, Big Bird. Internal transformer construction (ITC): the global positions are ordinary ones."""

    @classmethod
    def itc(cls, block: int, random: int, counting: str = "set", plan: str = "seeded", seed: int = 0) -> Pattern:
        """In blocks: a window of three, the first and the last global, `random` more for every other block row.

        counting: 'set', each key once; 'multiset', a block that is window or global and drawn too counts once more, as in
        the block-sparse code. plan: 'seeded', drawn uniformly among all blocks; 'hf_eval', block 0 `random` times, and full
        attention for so few blocks that Hugging Face uses no others.
        """
        _choice("BigBird.itc", "counting", counting, ("set", "multiset"))
        _choice("BigBird.itc", "plan", plan, ("seeded", "hf_eval"))
        checks.whole("BigBird.itc", "random", random, 0)
        base = Global(first=1, last=1) | Local(1, 1)
        if random == 0:
            return Coarse(base, block)
        draws: tuple[Pattern, ...] = (Random(random, seed),) if plan == "seeded" else (Global(first=1, rows=False),) * random
        others = ~Global(first=1, last=1, columns=False)
        drawn = tuple(draw & others for draw in draws)
        found = Coarse(Sum((base, *drawn)) if counting == "multiset" else reduce(or_, drawn, base), block)
        return Short((5 + 2 * random) * block + 1, All(), found) if plan == "hf_eval" else found


class LogTrans(_Paper):
    """Li et al. 2019, Enhancing the locality and breaking the memory bottleneck of Transformer on time series."""

    @classmethod
    def formula(cls) -> Pattern:
        """The query itself and the keys 1, 2, 4, 8, … before it."""
        return LogSparse()

    @classmethod
    def local(cls, window: int) -> Pattern:
        """And the last `window` keys, log n of them in the paper."""
        return LogSparse() | Local(window, 0)

    @classmethod
    def restart(cls, length: int, window: int = 0) -> Pattern:
        """The same inside each subsequence of `length`."""
        return (LogSparse() | Local(window, 0)) & Blocks(length) if window else LogSparse() & Blocks(length)


class AxialTransformer(_Paper):
    """Ho et al. 2019, Axial attention in multidimensional transformers: one axis at a time, layer after layer."""

    @classmethod
    def axis(cls, shape: tuple[int, ...], axis: int = -1, causal: bool = False) -> Pattern:
        """Along one axis; causal: with the earlier positions and itself only."""
        return Axial(shape, axis) & Causal() if causal else Axial(shape, axis)

    @classmethod
    def alternating(cls, shape: tuple[int, ...], causal: bool = False) -> Alternate:
        """Rows first, then every other axis from the last to the first."""
        return Alternate(tuple(cls.axis(shape, -1 - axis, causal) for axis in range(len(shape))))


class CCNet(_Paper):
    """Huang et al. 2019, CCNet: criss-cross attention for semantic segmentation."""

    @classmethod
    def criss_cross(cls, height: int, width: int) -> Pattern:
        """Row and column in one softmax, the position itself once: height + width − 1 keys."""
        return Cross((height, width))

    @classmethod
    def recurrent(cls, height: int, width: int, loops: int = 2) -> Alternate:
        """The same pattern `loops` times, with shared weights: two loops reach the whole picture."""
        checks.whole("CCNet.recurrent", "loops", loops, 1)
        return Alternate((Cross((height, width)),) * loops)


class Diet(_Paper):
    """Wang et al. 2020, Transformer on a diet. Causal, another pattern for each layer."""

    @classmethod
    def cascade(cls, layers: int, first_window: int = 4, multiplier: float = 2) -> Alternate:
        """Layer r sees the last ⌊first_window·multiplier^r⌋ keys, the query itself among them."""
        checks.whole("Diet.cascade", "layers", layers, 1)
        checks.whole("Diet.cascade", "first_window", first_window, 1)
        windows = [int(first_window * multiplier**r) for r in range(layers)]
        if min(windows) < 1:
            raise OptionError(f"Diet.cascade: multiplier={multiplier} leaves windows {windows}: each needs a key")
        return Alternate(tuple(Local(w - 1, 0) for w in windows))

    @classmethod
    def dilated(cls, layers: int, keys: int = 3, base: int = 2) -> Alternate:
        """Layer r sees `keys` keys at distances of base^r, the query itself first."""
        return Alternate(_dilated("Diet.dilated", layers, keys, base))

    @classmethod
    def dilated_memory(cls, layers: int, keys: int = 3, base: int = 2) -> Alternate:
        """Layer r sees what the dilated layers 0 … r see."""
        each = _dilated("Diet.dilated_memory", layers, keys, base)
        return Alternate(tuple(reduce(or_, each[: r + 1]) for r in range(layers)))


def _dilated(name: str, layers: int, keys: int, base: int) -> tuple[Pattern, ...]:
    for field, value in (("layers", layers), ("keys", keys), ("base", base)):
        checks.whole(name, field, value, 1)
    return tuple(Local(keys - 1, 0, base**r) for r in range(layers))


PAPERS: tuple[type, ...] = (
    SparseTransformer, BlockBERT, Longformer, LocalBlocks, BigBird, LogTrans, AxialTransformer, CCNet, Diet,
)  # fmt: skip
