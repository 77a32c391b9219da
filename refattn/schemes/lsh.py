"""LSH attention: tokens that a random hash puts into one bucket attend to each other, in several rounds of hashing.

    k_j = x_j / √(‖x_j‖² + d·eps)          (x_j without normalise)          s_ij = scale·x_i·k_j,   s_ii = self_score
    N_ij = Σ_r Σ_o [chunk_r(i) + o = chunk of a slot that holds j],  o = −before … after
    o_i = Σ_j w_ij exp(s_ij) v_j / z_i     z_i = Σ_j w_ij exp(s_ij)         lse_i = log z_i
    w_ij = see_ij N_ij                     (duplicates="counted": j counts as often as i meets it)
    w_ij = see_ij [N_ij > 0]               ("once": the union of all rounds)
    w_ij = see_ij N_ij / (M_ij + 1e-9)     ("2020": M_ij as the first published code counted, N_ij met within one round)

In each round tokens are sorted by (bucket, token), padding last, and cut into chunks; a token sees the slots of its own
chunk, of `before` chunks before it and `after` after it. This is one softmax over all the slots that a token sees, round by
round: o = Σ_r exp(lse_r − lse) o_r. see_ij = [position_i ≥ position_j] if causal ∧ [bucket_r(i) = bucket_r(j)] if
within_bucket ∧ key_valid_i ∧ key_valid_j.

qk: (..., H, n, d)   v: (..., H, n, e)   o: (..., H, n, e)   lse: (..., H, n)   rounds r, buckets: (..., H, r, n)
Kitaev et al. (arXiv:2001.04451), §2 and appendix A. Departures: rotations or buckets are inputs; n need not be a multiple
of chunk (the rest of the last chunk is empty); padding neither sees nor is seen; a chunk has no chunk before the first one
unless `wrap` says so, as published code does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Cost, Count
from refattn.errors import OptionError, ShapeError
from refattn.ops import slots
from refattn.ops.angular_hash import angular_hash, even, widths
from refattn.ops.attend_slots import TINY, Meeting, attend_slots, attend_slots_vjp
from refattn.ops.meetings import meetings
from refattn.ops.scores import inverse_root
from refattn.ops.slots import WRAPS, Slots, Window
from refattn.schemes.base import admit, core, number, plain_fields
from refattn.shapes import broadcasts, product, shape_of, sizes

Array = Any
DUPLICATES = ("counted", "once", "2020")


@dataclass(frozen=True)
class LSH:
    """LSH attention; the module has the equation.

    chunk: slots of a chunk. before, after: chunks that a chunk sees around itself. wrap: what comes before the first chunk
    of a round: "none" nothing, "round" its last chunk, "rounds" the last chunk of the round before (of all rounds, for the
    first); likewise after the last. factors: of a factorised hash, each even; None: one hash of 2w buckets; buckets that
    are given need none. causal: by position. within_bucket: a slot is seen only from its own bucket and round. self_score:
    the score of a token with itself, so low that it is seen only if nothing else is; None: its product, as for any other.
    duplicates: see the equation. normalise, eps: of keys. scale: None is 1/√d.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in qk and v; the head axis is −3 and may be absent. Give rotations or buckets.

        ``per item`` means the leading axes before the head axis, or fewer: all heads share it.
        """

        qk: Array  # (..., H, n, d): queries, and before normalisation keys
        v: Array  # (..., H, n, e)
        rotations: Array | None = None  # float, broadcasts to (..., H, r, d, w); has no gradient: a hash is a decision
        buckets: Array | None = None  # int, broadcasts to (..., H, r, n)
        positions: Array | None = None  # int, per item (..., n); default: 0 … n − 1
        key_valid: Array | None = None  # bool, per item (..., n): False = padding, in a bucket of its own

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given, o in their dtype, statistics in the accumulator's.

        lse = top + log z. Of a token that sees only itself lse is near self_score, too coarse for exp(s − lse) in float32.
        """

        inputs: LSH.Inputs
        o: Array  # (..., H, n, e)
        lse: Array  # (..., H, n)
        top: Array  # (..., H, n), the largest score; 0 where there is none
        z: Array  # (..., H, n), Σ exp(s − top); 1 where there is none
        buckets: Array | None  # (..., H, r, n), where rotations were given: the backward must not hash anew

    chunk: int = 64
    before: int = 1
    after: int = 0
    wrap: str = "none"
    factors: tuple[int, ...] | None = None
    causal: bool = False
    within_bucket: bool = False
    self_score: float | None = -1e5
    duplicates: str = "counted"
    normalise: bool = True
    eps: float = 0.0
    scale: float | None = 1.0

    outputs: ClassVar = ("o", "lse")
    stored: ClassVar = ("o",)
    fixed: ClassVar = ("rotations",)
    kinds: ClassVar[Mapping[str, str]] = {"buckets": "int", "positions": "int", "key_valid": "bool"}
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        for name, least in (("chunk", 1), ("before", 0), ("after", 0)):
            x = getattr(self, name)
            if isinstance(x, bool) or not isinstance(x, int) or x < least:
                raise OptionError(f"{name}={x!r}: give a whole number, {least} or more")
        for name in ("causal", "within_bucket", "normalise"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r}: give True or False")
        for name, choices in (("wrap", WRAPS), ("duplicates", DUPLICATES)):
            if getattr(self, name) not in choices:
                raise OptionError(f"{name}={getattr(self, name)!r}: choose {', '.join(map(repr, choices))}")
        if self.self_score in (-math.inf, math.inf):
            raise OptionError(f"self_score={self.self_score!r} is not finite; None lets a token see itself")
        for name in ("self_score", "scale", "eps"):
            number(self, name)
        if self.eps is None or self.eps < 0:
            raise OptionError(f"eps={self.eps!r} must be finite and not negative")
        object.__setattr__(self, "factors", even(self.factors))

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together or that this configuration would ignore, showing them."""
        qk, v = shape_of(inputs.qk), shape_of(inputs.v)
        n, d = (sizes({"qk": "* n d", "v": "* n e"}, {"qk": qk, "v": v})[letter] for letter in "nd")
        if (inputs.rotations is None) == (inputs.buckets is None):
            there = "both are given" if inputs.buckets is not None else "neither is given"
            raise OptionError(f"rotations or buckets: {there}; give one of the two")
        if inputs.positions is not None and not self.causal:
            raise OptionError("positions without causal=True would be ignored")
        name, last = ("buckets", n) if inputs.rotations is None else ("rotations", d)
        given = shape_of(getattr(inputs, name))
        axes, need = ("r, n", 2) if name == "buckets" else ("r, d, w", 3)
        if len(given) < need or given[1 - need] != last or given[-need] == 0:
            raise ShapeError(f"{name} has shape {given}, but needs the axes (..., {axes}) with {axes[3]}={last} and at "
                             f"least one round; qk: {qk}")
        broadcasts(name, given[:-need], qk[:-2], "leading axes of qk")
        if name == "rotations":
            widths(given[-1], self.factors)
        for name, x in (("positions", inputs.positions), ("key_valid", inputs.key_valid)):
            if x is not None and (not shape_of(x) or shape_of(x)[-1] != n):
                raise ShapeError(f"{name} has shape {shape_of(x)}; its last axis is n and must be {n}")
            if x is not None:
                broadcasts(name, shape_of(x)[:-1], qk[:-3], "leading axes of qk before the head axis")

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array, Array]:
        """(o, lse): one dense softmax with the weights w_ij, from ranks that are counted and nothing sorted."""
        xp = of(inputs.qk).xp
        (*lead, n, d), e = inputs.qk.shape, inputs.v.shape[-1]
        if n == 0:
            return inputs.v * 0.0, xp.sum(inputs.v, axis=-1)
        x, v, valid = self._items(inputs)
        size = xp.sum(x * x, axis=-1, keepdims=True) + d * self.eps
        k = x / xp.sqrt(xp.where(size == 0.0, 1.0, size)) if self.normalise else x
        s = xp.sum(x[:, :, None, :] * k[:, None, :, :], axis=-1) * self._scale(inputs.qk)
        token = of(x).lift(range(n), x)
        if self.self_score is not None:
            s = xp.where(token[:, None] == token[None, :], self.self_score, s)
        met, once = meetings(self._buckets(inputs), valid, self._window, xp.zeros_like(s))
        see = met > 0.0
        if self.causal:
            at = token[None, :] if inputs.positions is None else _per_token(inputs.positions, inputs)
            see = see & (at[:, :, None] >= at[:, None, :])
        w = {"counted": met, "once": 1.0, "2020": met / (once + TINY)}[self.duplicates]
        s = xp.where(see, s, -math.inf)
        none = ~xp.any(see, axis=-1, keepdims=True)
        top = xp.where(none, 0.0, xp.max(s, axis=-1, keepdims=True))
        p = xp.where(see, w * xp.exp(s - top), 0.0)
        z = xp.where(none, 1.0, xp.sum(p, axis=-1, keepdims=True))
        o = xp.sum(p[:, :, :, None] * v[:, None, :, :], axis=-2) / z
        lse = xp.where(none, -math.inf, top + xp.log(z))
        return xp.reshape(o, (*lead, n, e)), xp.reshape(lse, (*lead, n))

    def slot_counts(self, *inputs: Any, **named: Any) -> Array:
        """N_ij (..., H, n, n), whole numbers as floats: in how many slots token i sees token j, causal order included.

        Their sum is at most r·n·chunk·(1 + before + after) for each head. O(n²·r) work: to look at, not to compute with.
        """
        this: Any = self
        b, found = admit(this, inputs, named)
        found = tree.map(b.widen, found)
        n = found.qk.shape[-2]
        x, _, valid = self._items(found)
        zeros = b.xp.zeros_like(b.xp.sum(x, axis=-1)[:, :, None] + b.xp.sum(x, axis=-1)[:, None, :])
        met, _ = meetings(self._buckets(found), valid, self._window, zeros)
        if self.causal:
            at = b.lift(range(n), x)[None, :] if found.positions is None else _per_token(found.positions, found)
            met = b.xp.where(at[:, :, None] >= at[:, None, :], met, zeros)
        return b.xp.reshape(met, (*found.qk.shape[:-1], n))

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o and lse: `block` queries at a time, in whole chunks; O(r·n·(d + e)) beyond a block."""
        xp, (*lead, n, _), e = of(inputs.qk).xp, inputs.qk.shape, inputs.v.shape[-1]
        x, v, _ = self._items(inputs)
        buckets = self._buckets(inputs)
        o, *statistics = attend_slots(x, self._root(x), v, self._slots(inputs, buckets), self._meeting(inputs, buckets),
                                      block=block)
        lse, top, z = (xp.reshape(y, (*lead, n)) for y in statistics)
        hashed = None if inputs.rotations is None else xp.reshape(buckets, (*lead, *buckets.shape[1:]))
        return LSH.Saved(inputs, xp.reshape(o, (*lead, n, e)), lse, top, z, hashed)

    @core
    def vjp(self, saved: Saved, do: Array, *, dlse: Array | None = None, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩ + ⟨dlse, lse⟩ with the buckets of the forward; rotations have none, a hash is a decision.

            over all slots of i   P = exp(s − top_i) / z_i, ÷ duplicates    D_i = do_i·o_i − dlse_i
            dS = P (do_i·v_j − D_i), 0 where s_ii is self_score             dv_j = Σ P do_i
            dq_i = scale Σ dS k_j       dk_j = scale Σ dS x_i
            dx = dq + ρ dk − ρ³ x (x·dk)                                    ρ = 1/√(‖x‖² + d·eps)
        """
        inputs = saved.inputs
        xp, (x, v, _) = of(inputs.qk).xp, self._items(inputs)
        buckets = self._buckets(inputs) if saved.buckets is None else _joined(saved.buckets, inputs)
        results = _joined(saved.o, inputs), *(_per_head(y, inputs) for y in (saved.lse, saved.top, saved.z))
        dx, dv = attend_slots_vjp(x, self._root(x), v, self._slots(inputs, buckets), self._meeting(inputs, buckets), results,
                                  _joined(do, inputs), None if dlse is None else _per_head(dlse, inputs), block=block)
        return LSH.Inputs(xp.reshape(dx, inputs.qk.shape), xp.reshape(dv, inputs.v.shape))

    def _items(self, inputs: Inputs) -> tuple[Array, Array, Array | None]:
        """qk and v as (items, n, ·), a head of an item being an item, with zeros for padding; and which tokens are none."""
        valid = None if inputs.key_valid is None else _per_token(inputs.key_valid, inputs)
        x, v = _joined(inputs.qk, inputs), _joined(inputs.v, inputs)
        if valid is None:
            return x, v, None
        where = of(x, v).xp.where
        return where(valid[:, :, None], x, 0.0), where(valid[:, :, None], v, 0.0), valid

    def _root(self, x: Array) -> Array | None:
        """What x is divided by to be keys; the zero vector has no direction, and stays what it is."""
        if not self.normalise:
            return None
        xp = of(x).xp
        size = xp.sum(x * x, axis=-1, keepdims=True) + x.shape[-1] * self.eps
        return xp.sqrt(xp.where(size == 0.0, 1.0, size))

    def _buckets(self, inputs: Inputs) -> Array:
        """(items, r, n), given or hashed."""
        given = inputs.buckets
        if given is None:
            x = inputs.qk if inputs.key_valid is None else of(inputs.qk).xp.reshape(self._items(inputs)[0], inputs.qk.shape)
            given = angular_hash(x, inputs.rotations, self.factors)
        return _joined(given, inputs)

    @property
    def _window(self) -> Window:
        return Window(self.chunk, self.before, self.after, self.wrap, self.within_bucket)

    def _slots(self, inputs: Inputs, buckets: Array) -> Slots:
        valid = None if inputs.key_valid is None else _per_token(inputs.key_valid, inputs)
        return slots.make(buckets, valid, self._window)

    def _meeting(self, inputs: Inputs, buckets: Array) -> Meeting:
        at = None if inputs.positions is None else _per_token(inputs.positions, inputs)
        return Meeting(self._scale(inputs.qk), self.self_score, self.duplicates, self.causal, at, buckets)

    def _scale(self, like: Array) -> Any:
        return self.scale if self.scale is not None else inverse_root(like, like.shape[-1]) if like.shape[-1] else 1.0

    def replay(self, given: Inputs, saved: Saved) -> Inputs:
        """`given` for a second forward of almost the same tokens: its buckets are those of the first, not hashed anew."""
        return given if saved.buckets is None else given._replace(rotations=None, buckets=saved.buckets)

    def replay_shapes(self, shapes: Inputs) -> Inputs:
        """The shapes of what ``replay`` gives."""
        return shapes._replace(rotations=None, buckets=shapes.buckets or (*shapes.qk[:-2], _rounds(shapes), shapes.qk[-2]))

    @core
    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """Exact for any shapes that ``forward`` takes: `shapes` is an Inputs of shape tuples or of arrays.

            S = B·H·r·⌈n/chunk⌉·chunk slots, each with chunk·(1 + before + after) others, and B·H·r·n·d·w for the hash
            forward   macs S·width·(d + e)       exps S·width + B·H·r·n      saved: o, lse, top, z, hashed buckets
            backward  macs S·width·(3d + 2e)     exps S·width                saved: the gradients
        """
        (*lead, n, d), e = shapes.qk, shapes.v[-1]
        items, rounds = product(lead), _rounds(shapes)
        chunks, width = -(-n // self.chunk), self.chunk * (1 + self.before + self.after)
        pairs, hashed = items * rounds * chunks * self.chunk * width, 0 if shapes.rotations is None else items * rounds * n
        hash_macs, tokens = 0 if shapes.rotations is None else hashed * d * shapes.rotations[-1], items * n
        forward = Count(pairs * (d + e) + hash_macs, pairs + tokens * rounds, tokens * (e + 3) + hashed)
        backward = Count(pairs * (3 * d + 2 * e), pairs, tokens * (d + e))
        hidden = self.causal or self.within_bucket or shapes.key_valid is not None
        useful = None if hidden else items * self._window.pairs(n, rounds) * (d + e) + hash_macs
        return Cost(forward, backward, useful, _peak(self, shapes, block))


def _rounds(shapes: Any) -> int:
    return int(shapes.buckets[-2] if shapes.rotations is None else shapes.rotations[-3])


def _peak(scheme: LSH, shapes: LSH.Inputs, block: int | None) -> int:
    """An upper bound on the elements alive in ``forward`` or ``vjp``, `block` queries at a time, inputs not counted.

    ``vjp`` holds more: of each token qk, k, v and do with a row of blanks, of each slot dq and of each slot that it sees dk
    and dv, in parts and whole, and sums of them; which tokens it sees; of a block the rows and some ten tiles of scores.
    ``forward`` hashes all directions of all tokens, in every round.
    """
    (*lead, n, d), e = shapes.qk, shapes.v[-1]
    c, seen, rounds = scheme.chunk, 1 + scheme.before + scheme.after, _rounds(shapes)
    chunks = rounds * -(-n // c)
    slots, here = chunks * c, min(max(block // c, 1) if block else chunks, chunks) * c
    tokens = (n + 1) * (4 * d + 4 * e + 10 + (0 if shapes.key_valid is None else d + 2 * e)) + n * rounds * 6
    of_slots = slots * (3 * d + 2 * seen * (d + e) + 3 * max(d, e) + 6 + 3 * seen)
    tiles = 9 if scheme.duplicates == "counted" else 12
    of_block = here * (seen * c * tiles + (1 + seen) * (d + e) + rounds * 2 * (1 + seen) * (scheme.duplicates != "counted"))
    hashed = 0 if shapes.rotations is None else 4 * n * rounds * shapes.rotations[-1]
    return int(max(product(lead), 1) * (tokens + max(of_slots + of_block, hashed)) + 4 * chunks)


def _joined(x: Array, inputs: LSH.Inputs) -> Array:
    """x with the leading axes of qk, which become one axis of items; its last two axes stay."""
    xp, lead = of(x).xp, inputs.qk.shape[:-2]
    return xp.reshape(xp.broadcast_to(x, (*lead, *x.shape[-2:])), (product(lead), *x.shape[-2:]))


def _per_head(x: Array, inputs: LSH.Inputs) -> Array:
    """Something per head (..., H, n) as (items, n)."""
    return of(x).xp.reshape(x, (product(inputs.qk.shape[:-2]), inputs.qk.shape[-2]))


def _per_token(x: Array, inputs: LSH.Inputs) -> Array:
    """Something per item (..., n) as (items, n): all heads of an item share it."""
    xp, (*lead, n, _) = of(x).xp, inputs.qk.shape
    return xp.reshape(xp.broadcast_to(x[..., None, :] if lead else x, (*lead, n)), (product(lead), n))


LSH.conventions = {
    # Kitaev et al. 2020, appendix A: the union of all rounds, keys x/|x|, no factor (√d_k is left out "for clarity")
    "paper": LSH(causal=True, duplicates="once"),
    # trax/layers/research/efficient_attention.py, LSHSelfAttention
    "trax": LSH(chunk=128, wrap="rounds", causal=True, eps=1e-6),
    # the same file in February 2020 (b791ef5f), LSHCausalAttention with its defaults
    "trax2020": LSH(chunk=128, wrap="rounds", causal=True, eps=1e-6, within_bucket=True, duplicates="2020"),
    # transformers, models/reformer/modeling_reformer.py, LSHSelfAttention, is_decoder=True
    "huggingface": LSH(chunk=64, wrap="rounds", causal=True, eps=1e-6),
    # reformer_pytorch/reformer_pytorch.py, LSHAttention, causal=True
    "lucidrains": LSH(chunk=64, wrap="rounds", causal=True, self_score=-5e4, scale=None),
}
