"""Linformer: keys and values are compressed along the sequence to a few slots, and every query attends to the slots.

    k′ = E k,   v′ = F v        each slot a mixture of all tokens (or of a segment: pooling, convolution), E ≠ F or E = F
    s_it = scale·q_i·k′_t,      scale = 1/√d
    p_it = see_t exp(s_it) / z_i,     z_i = Σ_t see_t exp(s_it)         (see_t = slot_valid_t, if that is given)
    o_i  = Σ_t p_it v′_t
    lse_i = log z_i             (natural logarithm);       without a slot: o_i = 0, lse_i = −∞, no gradient.

Padding (key_valid_j = 0) is a token of zeros: k_j = v_j = 0 before the projection.
q: (..., H, n, d)   k: (..., H_kv, m, d)   v: (..., H_kv, m, e)   E, F: (s, m)   o: (..., H, n, e)   lse: (..., H, n)
Wang et al. (arXiv:2006.04768), eq. 7 and §4. Departures: E and F stand on the left as (slots, tokens), as eq. 7 uses them
(the text declares n × k); shared key heads; fewer slots for some heads (slot_valid); padding. O(n·s) time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product as every
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Cost, Count
from refattn.errors import OptionError, ShapeError
from refattn.ops.attend import attend, attend_vjp
from refattn.ops.base import one_of
from refattn.ops.compress import WEIGHTS, Compression
from refattn.ops.heads import HeadMap, check_heads, head_map
from refattn.ops.scores import Scores, inverse_root
from refattn.ops.visibility import Visibility
from refattn.schemes.base import core, number, plain_fields
from refattn.shapes import broadcasts, product, shape_of, sizes

Array = Any


@dataclass(frozen=True)
class Linformer:
    """Attention to compressed keys; the module has the equation, refattn.ops.compress the projections.

    projection: "linear" (E, F: matrices), "mean", "max", "depthwise" or "dense" (convolutions with kernel = stride, whose
    weights are E, F). stride: tokens of a segment of "mean" and "max". tail: tokens that fill no segment, "error", "drop" or
    "pad". shorter: a sequence with fewer tokens than E has columns, "error" or "slice" (the first ones serve). scale:
    default 1/√d. heads: which kv head a query head reads, "grouped" h // (H/H_kv) or "tiled" h % H_kv. causal: refused.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in q, k, v; the head axis is −3 and may be absent.

        E, F: for all heads, or one for each key head in front. Without F, E serves both and has the sum of both gradients.
        """

        q: Array  # (..., H, n, d)
        k: Array  # (..., H_kv, m, d), H a multiple of H_kv
        v: Array  # (..., H_kv, m, e)
        E: Array | None = None  # linear ([H_kv,] s, m), depthwise ([H_kv,] c, d), dense ([H_kv,] c, d, d)
        F: Array | None = None  # the same with e for d; default: E
        key_valid: Array | None = None  # bool, the leading axes before the head axis, or fewer, and m: False = padding
        slot_valid: Array | None = None  # bool, (s,) or (H_kv, s): the slots that a key head has

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given, o in their dtype, lse in the accumulator's."""

        inputs: Linformer.Inputs
        o: Array  # (..., H, n, e)
        lse: Array  # (..., H, n)

    projection: str = "linear"
    stride: int | None = None
    tail: str = "error"
    shorter: str = "error"
    scale: float | None = None
    heads: str = "grouped"
    causal: bool = False

    outputs: ClassVar = ("o", "lse")
    stored: ClassVar = ("o",)
    kinds: ClassVar[Mapping[str, str]] = dict.fromkeys(("key_valid", "slot_valid"), "bool")
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        if self.causal is not False:
            raise OptionError(f"causal={self.causal!r}: Linformer has no causal form. Every slot mixes tokens of all "
                              "positions, so that no mask over slots keeps later ones out; take Dense or Sparse")
        self._compression()
        one_of(("error", "slice"), shorter=self.shorter)
        if self.shorter == "slice" and self.projection != "linear":
            raise OptionError(f"shorter='slice' would be ignored: projection={self.projection!r} fits any length")
        if self.tail != "error" and self.projection == "linear":
            raise OptionError(f"tail={self.tail!r} would be ignored: projection='linear' has no segments")
        number(self, "scale")
        check_heads(self.heads)

    def _compression(self) -> Compression:
        return Compression(self.projection, self.stride, self.tail)

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together or that this configuration would ignore, showing them."""
        shapes = {name: shape_of(getattr(inputs, name)) for name in ("q", "k", "v")}
        heads = len(shapes["q"]) > 2
        spec = {"q": "* h n d", "k": "* g m d", "v": "* g m e"} if heads else {"q": "n d", "k": "m d", "v": "m e"}
        m = sizes(spec, shapes)["m"]
        head_map(shapes["q"], shapes["k"], self.heads)
        one, slicing = self._compression(), self.shorter == "slice"
        one.check("E", inputs.E, "k", shapes["k"], slicing)
        both = "E (which serves v too: F is not given)" if inputs.F is None else "F"
        one.check(both, self._weights(inputs, "v"), "v", shapes["v"], slicing)
        found = [one.slots(self._weights(inputs, name), m) for name in "kv"]
        if found[0] != found[1]:
            raise ShapeError(f"E gives {found[0]} slots and F {found[1]} (E: {shape_of(inputs.E)}, F: {shape_of(inputs.F)})")
        if inputs.key_valid is not None:
            shape = shape_of(inputs.key_valid)
            if not shape or shape[-1] != m:
                raise ShapeError(f"key_valid has shape {shape}; its last axis is m (keys) and must be {m}")
            broadcasts("key_valid", shape[:-1], shapes["q"][:-3], "leading axes of q before the head axis")
        own = (*shapes["k"][-3:-2], found[0])
        if inputs.slot_valid is not None and shape_of(inputs.slot_valid) not in (own, own[-1:]):
            per_head = f" or, for each key head, {own}" if heads else ""
            raise ShapeError(f"slot_valid has shape {shape_of(inputs.slot_valid)}; there are {found[0]} slots: "
                             f"give {own[-1:]}{per_head}")

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array, Array]:
        """(o, lse), one head at a time, each slot a sum over tokens that is written out."""
        xp, (m, e) = of(inputs.q).xp, inputs.v.shape[-2:]
        many, few = (1, *inputs.q.shape)[-3], (1, *inputs.k.shape)[-3]
        items = product(inputs.q.shape[:-3])
        q = xp.reshape(inputs.q, (items, many, *inputs.q.shape[-2:]))
        k, v = (xp.reshape(x, (items, few, *x.shape[-2:])) for x in (inputs.k, inputs.v))
        if inputs.key_valid is not None:
            there = xp.reshape(xp.broadcast_to(inputs.key_valid, (*inputs.q.shape[:-3], m)), (items, 1, m, 1))
            k, v = xp.where(there, k, 0.0), xp.where(there, v, 0.0)
        o, lse = [], []
        for item, h in every(range(items), range(many)):
            g = h % few if self.heads == "tiled" else h // (many // few)
            keys = self._slots(k[item, g, :, :], self._weights(inputs, "k"), g)
            values = self._slots(v[item, g, :, :], self._weights(inputs, "v"), g)
            see = None if inputs.slot_valid is None else inputs.slot_valid
            see = see[g, :] if see is not None and see.ndim == 2 else see
            o_h, lse_h = self._head(q[item, h, :, :], keys, values, see)
            o.append(o_h)
            lse.append(lse_h)
        both = (xp.stack(o), xp.stack(lse)) if o else (q, q)  # no head at all: q has no elements either
        return xp.reshape(both[0], (*inputs.q.shape[:-1], e)), xp.reshape(both[1], inputs.q.shape[:-1])

    def _slots(self, x: Array, w: Array | None, g: int) -> Array:
        """(s, d): what key head g makes of its tokens x (m, d)."""
        xp, m, found = of(x).xp, x.shape[0], []
        if w is not None:
            w = w[g, ...] if w.ndim > len(WEIGHTS[self.projection].split()) else w
        if self.projection == "linear":
            found = [xp.sum(w[t, :m][:, None] * x, axis=0) for t in range(w.shape[0])]  # type: ignore[index, union-attr]
            return xp.stack(found) if found else x[:0, :]
        c: Any = self.stride if w is None else w.shape[0]
        for start in range(0, m, c):
            part = x[start : min(start + c, m), :]
            if part.shape[0] < c and self.tail == "drop":
                break
            if part.shape[0] < c:
                part = xp.concat([part, *[xp.zeros_like(part[:1, :])] * (c - part.shape[0])])
            if self.projection == "dense":
                found.append(xp.sum(xp.sum(part[:, :, None] * w, axis=0), axis=0))
            elif self.projection == "max":
                found.append(xp.max(part, axis=0))
            else:
                found.append(xp.sum(part / c if w is None else part * w, axis=0))
        return xp.stack(found) if found else x[:0, :]

    def _head(self, q: Array, keys: Array, values: Array, see: Array | None) -> tuple[Array, Array]:
        """o (n, e) and lse (n,) of queries q (n, d) over slots (s, d), (s, e)."""
        b, s = of(q), keys.shape[0]
        xp = b.xp
        if s == 0:
            nothing = xp.sum(xp.zeros_like(q), axis=-1)
            return nothing[:, None] + xp.sum(values, axis=0)[None, :], nothing - math.inf
        see = b.lift(range(s), q) >= 0 if see is None else see
        none = ~xp.any(see)
        q = xp.where(none, 0.0, q)
        keys, values = xp.where(see[:, None], keys, 0.0), xp.where(see[:, None], values, 0.0)
        logits = xp.where(see, xp.sum(q[:, None, :] * keys[None, :, :], axis=-1) * self._scale(q), -math.inf)
        top = xp.where(none, 0.0, xp.max(logits, axis=-1))
        e = xp.exp(logits - top[:, None])
        z = xp.where(none, 1.0, xp.sum(e, axis=-1))
        o = xp.sum(e[:, :, None] * values[None, :, :], axis=1) / z[:, None]
        return o, xp.where(none, -math.inf, top + xp.log(z))

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o and lse: keys and values are compressed once, then `block` queries at a time attend to the slots."""
        heads, see, scores = self._read(inputs)
        k, v = self.compress(inputs, "k"), self.compress(inputs, "v")
        o, lse = attend(heads.split(inputs.q), heads.share(k), heads.share(v), None, None, see, scores,
                        keep_rate=None, block=block)
        return Linformer.Saved(inputs, heads.join(o), heads.join(lse)[..., 0])

    @core
    def vjp(self, saved: Saved, do: Array, *, dlse: Array | None = None, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩ + ⟨dlse, lse⟩; None for booleans, and for F if E serves both.

            dS = P ∘ (do v′ᵀ − D),   D_i = do_i·o_i − dlse_i            (softmax over slots: ``attend_vjp``)
            dq = scale dS k′     dk′ = scale dSᵀ q     dv′ = Pᵀ do
            dk = Eᵀ dk′          dE = dk′ kᵀ           dv = Fᵀ dv′     dF = dv′ vᵀ, added to dE if E = F
        Padding has no gradient. ``Compression.vjp`` has the other projections.
        """
        inputs = saved.inputs
        heads, see, scores = self._read(inputs)
        k, v = self.compress(inputs, "k"), self.compress(inputs, "v")
        o, lse, do = heads.split(saved.o), heads.split(saved.lse[..., None]), heads.split(do)
        dlse = None if dlse is None else heads.split(dlse[..., None])
        dq, dk, dv, _, _ = attend_vjp(heads.split(inputs.q), heads.share(k), heads.share(v), None, None, see, scores,
                                      o, lse, do, dlse, keep_rate=None, block=block)
        dk, dE = self.compress_vjp(inputs, "k", heads.collect(dk))
        dv, dF = self.compress_vjp(inputs, "v", heads.collect(dv))
        if inputs.F is None and dE is not None:
            dE, dF = dE + dF, None
        return Linformer.Inputs(heads.join(dq), dk, dv, dE, dF)

    @core
    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """Exact for any shapes that ``forward`` takes: `shapes` is an Inputs of shape tuples or of arrays.

        With N = B·H·n queries, M = B·H_kv·m tokens, and c multiply-adds for E and F together: M·s·(d + e) for matrices,
        M·(d² + e²) for dense convolutions of whole segments, none for the others:
            forward   macs c + N·s·(d + e)      exps N·s      saved: o, lse
            backward  macs 3c + N·s·(3d + 2e)   exps N·s      saved: the gradients
        """
        *lead, n, d = shapes.q
        e, rows, s = shapes.v[-1], product(lead) * n, self.slots(shapes)
        c = self.compress_macs(shapes, "k") + self.compress_macs(shapes, "v")
        forward = Count(c + rows * s * (d + e), rows * s, rows * (e + 1))
        gradients = sum(product(x) for x in shapes[:5] if x is not None)
        backward = Count(3 * c + rows * s * (3 * d + 2 * e), rows * s, gradients)
        useful = forward.macs if shapes.key_valid is None and shapes.slot_valid is None else None
        return Cost(forward, backward, useful, _peak(self, shapes, s, n if block is None else min(block, n)))

    def _scale(self, q: Array) -> Any:
        d = q.shape[-1]
        return self.scale if self.scale is not None else inverse_root(q, d) if d else 1.0

    def _read(self, inputs: Inputs) -> tuple[HeadMap, Visibility, Scores]:
        """The inputs as heads, visibility of slots and score terms."""
        heads, valid = head_map(inputs.q.shape, inputs.k.shape, self.heads), inputs.slot_valid
        if valid is not None:
            valid = of(valid).xp.expand_dims(valid, axis=-2)  # ([H_kv,] 1, s)
            valid = heads.share(valid) if valid.ndim > 2 else valid
        return heads, Visibility(causal=False, key_valid=valid), Scores(self._scale(inputs.q))

    def _there(self, inputs: Inputs, x: Array) -> Array:
        """x (..., m, ·) with padding at 0."""
        if inputs.key_valid is None:
            return x
        there = head_map(inputs.q.shape, inputs.k.shape, self.heads).per_item(inputs.key_valid, -2)
        return of(x).xp.where(there[..., 0, :, :] if x.ndim > 2 else there, x, 0.0)

    def compress(self, inputs: Inputs, name: str) -> Array:
        """The slots of "k" or "v": (..., H_kv, s, d) or (..., H_kv, s, e). Of q only the shape is read."""
        return self._compression().forward(self._there(inputs, getattr(inputs, name)), self._weights(inputs, name))

    def compress_vjp(self, inputs: Inputs, name: str, dy: Array) -> tuple[Array, Array | None]:
        """The gradients of "k" or "v", and of what compresses it, for a cotangent of its slots."""
        x = self._there(inputs, getattr(inputs, name))
        dx, dw = self._compression().vjp(x, self._weights(inputs, name), dy)
        return self._there(inputs, dx), dw

    def slots(self, shapes: Inputs) -> int:
        """s, by shapes of the inputs."""
        return self._compression().slots(shapes.E, shape_of(shapes.k)[-2])

    def compress_macs(self, shapes: Inputs, name: str) -> int:
        """Multiply-adds of ``compress``; ``compress_vjp`` has twice as many."""
        return self._compression().macs(shape_of(getattr(shapes, name)), self._weights(shapes, name))

    @staticmethod
    def _weights(inputs: Any, name: str) -> Any:
        return inputs.E if name == "k" or inputs.F is None else inputs.F


def _peak(scheme: Linformer, shapes: Linformer.Inputs, s: int, rows: int) -> int:
    """An upper bound on the elements alive in ``forward`` or ``vjp`` with `rows` queries at a time, inputs not counted."""
    d, e = shapes.q[-1], shapes.v[-1]
    n, m, slots, rows = (max(size, 1) for size in (shapes.q[-2], shapes.k[-2], s, rows))
    heads: int = product(max(one, other, 1) for one, other in zip(shapes.q[:-2], shapes.k[:-2], strict=True))
    few: int = product(max(one, 1) for one in shapes.k[:-2])
    weights = 0 if shapes.E is None else product(shapes.E) + product(shapes.E if shapes.F is None else shapes.F)
    block = 5 * rows * slots + rows * (2 * d + 3 * e + 10)
    queries = block + 3 * slots * (d + e) + n * max(2 * d + e + 1, 2 * e + 2) + 4
    most: int = heads * queries + 3 * few * m * (d + e) + 2 * weights
    return most


Linformer.conventions = {
    # fairseq 3d262bb, examples/linformer, MultiheadLinearAttention: E before W_K; E = F with shared_kv_compressed
    "fairseq": Linformer(shorter="slice"),
    "lucidrains": Linformer(shorter="slice"),  # lucidrains/linformer 970e1c3, LinformerSelfAttention
    "tatp22": Linformer(),  # tatp22/linformer-pytorch 3ecfc0e, LinearAttentionHead with method="learnable", without its bias
    "lra": Linformer(shorter="slice"),  # google-research/long-range-arena cd31e5c, linformer_attention: E = F, F not given
}
