"""Softmax attention: each query averages the values that it may see, weighted by the exponential of its scores.

    s_ij = softcap·tanh(scale·q_i·k_j / softcap) + bias_ij        (scale·q_i·k_j + bias_ij without softcap), scale = 1/√d
    p_ij = see_ij exp(s_ij) / z_i,     z_i = exp(sink) + Σ_j see_ij exp(s_ij)                  (exp(sink) only if given)
    o_i  = Σ_j p_ij (keep_ij / keep_rate) v_j                                     (the factor only if keep is given)
    lse_i = log z_i          (natural logarithm);          a query that sees nothing: o_i = 0, lse_i = −∞, no gradient.
    see_ij = [q_position_i ≥ k_position_j] ∧ mask_ij ∧ [segment_i = kv_segment_j] ∧ key_valid_j     (those that are given)

q: (..., H, n, d)   k: (..., H_kv, m, d)   v: (..., H_kv, m, e)   o: (..., H, n, e)   lse: (..., H, n)
Vaswani et al. (arXiv:1706.03762), eq. 1. Departures: all fields and optional inputs default to that equation. Softcap
as in Gemma 2 (arXiv:2408.00118, §2), sink as in gpt-oss (arXiv:2508.10925, §2.2), grouped heads as in Ainslie et al.
(arXiv:2305.13245), dropout of weights as in Vaswani et al. §5.4 with the mask as an input.
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
from refattn.ops import visibility
from refattn.ops.attend import attend, attend_vjp
from refattn.ops.heads import HeadMap, check_heads, head_map, unbroadcast
from refattn.ops.scores import Scores, inverse_root
from refattn.ops.visibility import Visibility
from refattn.schemes.base import core, number, plain_fields
from refattn.shapes import broadcasts, product, shape_of, sizes

Array = Any


@dataclass(frozen=True)
class Dense:
    """Softmax attention; the module has the equation.

    causal: query i sees key j only if its position is not smaller. align: where the diagonal starts when n ≠ m, "top_left"
    (j ≤ i) or "bottom_right" (j ≤ i + m − n). scale: default 1/√d. softcap: positive, in units of the score. keep_rate: the
    probability that `keep` was drawn with. heads: which kv head a query head reads, "grouped" h // (H/H_kv) or "tiled"
    h % H_kv. empty: what a query that sees nothing returns, "zero" or "mean" (of all values; lse stays −∞).

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in q, k, v; the head axis is −3 and may be absent. None: not used.

        ``per item`` means the leading axes before the head axis, or fewer: all heads share it.
        """

        q: Array  # (..., H, n, d)
        k: Array  # (..., H_kv, m, d), H a multiple of H_kv
        v: Array  # (..., H_kv, m, e)
        mask: Array | None = None  # bool, broadcasts to (..., H, n, m); True = may attend
        bias: Array | None = None  # float, broadcasts to (..., H, n, m); added to the scores after the softcap
        sink: Array | None = None  # float, (H,): logit of a key with value 0 that every query of the head sees
        keep: Array | None = None  # bool, broadcasts to (..., H, n, m): the weights that dropout keeps
        segment_ids: Array | None = None  # int, per item (..., n): a query sees the keys of its own segment
        kv_segment_ids: Array | None = None  # int, per item (..., m); default: segment_ids
        key_valid: Array | None = None  # bool, per item (..., m): False = padding, seen by nobody
        q_positions: Array | None = None  # int, per item (..., n); default: i + offset of `align`
        k_positions: Array | None = None  # int, per item (..., m); default: j

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given, o in their dtype, lse in the accumulator's."""

        inputs: Dense.Inputs
        o: Array  # (..., H, n, e)
        lse: Array  # (..., H, n)

    causal: bool = False
    align: str | None = None
    scale: float | None = None
    softcap: float | None = None
    keep_rate: float | None = None
    heads: str = "grouped"
    empty: str = "zero"

    outputs: ClassVar = ("o", "lse")
    stored: ClassVar = ("o",)
    kinds: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("mask", "keep", "key_valid"), "bool"),
        **dict.fromkeys(("segment_ids", "kv_segment_ids", "q_positions", "k_positions"), "int"),
    }
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        if not isinstance(self.causal, bool):
            raise OptionError(f"causal={self.causal!r}: give True or False")
        visibility.check_align(self.causal, self.align)
        check_heads(self.heads)
        if not isinstance(self.empty, str) or self.empty not in ("zero", "mean"):
            raise OptionError(f"empty={self.empty!r}: choose 'zero' or 'mean'")
        for name in ("scale", "softcap", "keep_rate"):
            number(self, name)
        if self.softcap is not None and not self.softcap > 0.0:
            raise OptionError(f"softcap={self.softcap!r} must be positive; None switches it off")
        if self.keep_rate is not None and not 0.0 < self.keep_rate <= 1.0:
            raise OptionError(f"keep_rate={self.keep_rate!r} must be in (0, 1]: the share of weights that dropout keeps")

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together or that this configuration would ignore, showing them."""
        shapes = {name: shape_of(getattr(inputs, name)) for name in ("q", "k", "v")}
        heads = len(shapes["q"]) > 2
        spec = {"q": "* h n d", "k": "* g m d", "v": "* g m e"} if heads else {"q": "n d", "k": "m d", "v": "m e"}
        n, m = (found := sizes(spec, shapes))["n"], found["m"]
        head_map(shapes["q"], shapes["k"], self.heads)
        visibility.check_inputs(inputs, self.causal, self.align)
        scores, axes = (*shapes["q"][:-1], m), "..., H, n, m" if heads else "n, m"
        for name in ("bias", "keep"):
            if getattr(inputs, name) is not None:
                broadcasts(name, shape_of(getattr(inputs, name)), scores, axes)
        if inputs.sink is not None and shape_of(inputs.sink) != ((found["h"],) if heads else ()):
            raise ShapeError(f"sink has shape {shape_of(inputs.sink)}; give one logit for each query head, "
                                        f"{(found['h'],) if heads else ()} (q: {shapes['q']}, n={n})")
        if (inputs.keep is None) != (self.keep_rate is None):
            there = "missing" if inputs.keep is None else "given"
            raise OptionError(f"keep is {there} and keep_rate={self.keep_rate}: dropout needs its mask (an input) and its "
                              "rate (a field), or neither")

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array, Array]:
        """(o, lse), one query of one head at a time, with every rule of the equation spelled out."""
        xp = of(inputs.q).xp
        many, n, m, e = *((1, *inputs.q.shape)[-3:-1]), inputs.k.shape[-2], inputs.v.shape[-1]
        shape = (*inputs.q.shape[:-3], many, n, m)
        items = product(shape[:-3])
        q, k, v = (xp.reshape(x, (items, *(1, *x.shape)[-3:])) for x in inputs[:3])
        see, bias, keep = (None if x is None else xp.reshape(xp.broadcast_to(x, shape), (items, many, n, m))
                           for x in (self._visible(inputs, n, m), inputs.bias, inputs.keep))
        o, lse = [], []
        for item, h, i in every(range(items), range(many), range(n)):
            g = h % k.shape[1] if self.heads == "tiled" else h // (many // k.shape[1])
            pair = [None if x is None else x[item, h, i, :] for x in (see, bias, keep)]
            sink = None if inputs.sink is None else xp.reshape(inputs.sink, (-1,))[h : h + 1]
            o_i, lse_i = self._query(q[item, h, i, :], k[item, g, :, :], v[item, g, :, :], sink, *pair)
            o.append(o_i)
            lse.append(lse_i)
        both = (xp.stack(o), xp.stack(lse)) if o else (q, q)  # no query at all: q has no elements either
        return xp.reshape(both[0], (*inputs.q.shape[:-1], e)), xp.reshape(both[1], inputs.q.shape[:-1])

    def _visible(self, inputs: Inputs, n: int, m: int) -> Array:
        """see_ij for all heads of an item, (..., 1 | H, n, m): the product of the factors that are given."""
        b = of(inputs.q)
        i, j = b.lift(range(n), inputs.q), b.lift(range(m), inputs.q)
        see = (i[:, None] >= 0) & (j[None, :] >= 0)
        if self.causal:
            i = i + (m - n if self.align == "bottom_right" else 0) if inputs.q_positions is None else inputs.q_positions
            j = j if inputs.k_positions is None else inputs.k_positions
            see = see & (i[..., None, :, None] >= j[..., None, None, :])
        if inputs.mask is not None:
            see = see & inputs.mask
        if inputs.segment_ids is not None:
            others = inputs.segment_ids if inputs.kv_segment_ids is None else inputs.kv_segment_ids
            see = see & (inputs.segment_ids[..., None, :, None] == others[..., None, None, :])
        return see if inputs.key_valid is None else see & inputs.key_valid[..., None, None, :]

    def _query(self, q: Array, k: Array, v: Array, sink: Array | None, see: Array, bias: Array | None, keep: Array | None
               ) -> tuple[Array, Array]:
        """o_i (e,) and lse_i () of one query q (d,) over keys k (m, d), v (m, e); a sink is one more logit, of value 0."""
        xp, m, everyone = of(q).xp, k.shape[0], v
        q, k, v = (xp.where(some, x, 0.0) for some, x in ((xp.any(see), q), (see[:, None], k), (see[:, None], v)))
        s = xp.sum(k * q, axis=-1) * self._scale(q)
        s = s if self.softcap is None else xp.tanh(s / self.softcap) * self.softcap
        s = xp.where(see, s if bias is None else s + bias, -math.inf)
        logits = s if sink is None else xp.concat([s, sink])
        if logits.shape[0] == 0:
            return xp.sum(v, axis=0), xp.sum(s) - math.inf
        none = xp.all(logits == -math.inf)
        top = xp.where(none, 0.0, xp.max(logits))
        e = xp.exp(logits - top)
        z = xp.sum(e)
        p = (e / xp.where(none, 1.0, z))[:m]
        p = p if keep is None else xp.where(keep, p, 0.0) / self.keep_rate
        o = xp.sum(p[:, None] * v, axis=0)
        if self.empty == "mean":
            o = xp.where(none, xp.sum(everyone, axis=0) / max(m, 1), o)
        return o, xp.where(none, -math.inf, top + xp.log(xp.where(none, 1.0, z)))

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o and lse: `block` queries at a time against whole keys, normalised last; O(n·d) beyond a block."""
        heads, see, scores = self._read(inputs)
        q, k, v = heads.split(inputs.q), heads.share(inputs.k), heads.share(inputs.v)
        sink, keep = self._extras(heads, inputs)
        o, lse = attend(q, k, v, sink, keep, see, scores, keep_rate=self.keep_rate, block=block)
        if self.empty == "mean" and k.shape[-2]:
            xp = of(v).xp
            o = xp.where(lse == -math.inf, xp.sum(v, axis=-2, keepdims=True) / v.shape[-2], o)
        return Dense.Saved(inputs, heads.join(o), heads.join(lse)[..., 0])

    @core
    def vjp(self, saved: Saved, do: Array, *, dlse: Array | None = None, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩ + ⟨dlse, lse⟩; None where there is none to take (booleans and integers have no tangent).

        `saved` must be of this very configuration: only arrays are in it, none of which says causal, scale or heads.

            P_ij = exp(s_ij − lse_i)    dP_ij = (keep_ij / keep_rate) do_i·v_j
            D_i = Σ_j P_ij dP_ij − dlse_i = do_i·o_i − dlse_i
            dS = P ∘ (dP − D)            dbias = dS                    dS' = dS ∘ (1 − tanh²)
            dq = scale dS' k             dk = scale dS'ᵀ q             dv = (P ∘ keep / keep_rate)ᵀ do
            dsink = Σ_i exp(sink − lse_i) (0 − D_i)                    (a key whose value, and so whose dP, is 0)
        """
        inputs = saved.inputs
        xp = of(inputs.q).xp
        heads, see, scores = self._read(inputs)
        q, k, v = heads.split(inputs.q), heads.share(inputs.k), heads.share(inputs.v)
        sink, keep = self._extras(heads, inputs)
        o, lse, do = heads.split(saved.o), heads.split(saved.lse[..., None]), heads.split(do)
        dlse = None if dlse is None else heads.split(dlse[..., None])
        grads = attend_vjp(q, k, v, sink, keep, see, scores, o, lse, do, dlse, keep_rate=self.keep_rate, block=block)
        dq, dk, dv, dbias, dsink = grads
        dk, dv = heads.collect(dk), heads.collect(dv)
        if self.empty == "mean" and k.shape[-2]:
            spread = xp.sum(xp.where(lse == -math.inf, do, 0.0), axis=-2, keepdims=True) / k.shape[-2]
            dv = dv + heads.collect(spread)
        dbias = None if inputs.bias is None else xp.reshape(heads.join(dbias), inputs.bias.shape)
        if sink is not None and inputs.sink is not None:
            dsink = xp.reshape(unbroadcast(dsink, sink.shape), inputs.sink.shape)
        return Dense.Inputs(heads.join(dq), dk, dv, bias=dbias, sink=dsink)

    @core
    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """Exact for any shapes that ``forward`` takes: `shapes` is an Inputs of shape tuples or of arrays.

            forward   macs B·H·n·m·(d + e)       exps B·H·n·m      (+ B·H·n with a sink)      saved: o, lse
            backward  macs B·H·n·m·(3d + 2e)     exps as forward                              saved: the gradients
        """
        *lead, n, d = shapes.q
        m, e = shapes.k[-2], shapes.v[-1]
        rows = product(lead) * n
        exps = rows * m + (0 if shapes.sink is None else rows)
        gradients = sum(product(x) for x in (*shapes[:3], shapes.bias, shapes.sink) if x is not None)
        forward = Count(rows * m * (d + e), exps, rows * (e + 1))
        backward = Count(rows * m * (3 * d + 2 * e), exps, gradients)
        offset = visibility.offset(self.causal, self.align, n, m)
        nnz = product(lead) * (visibility.pairs(n, m, offset) if self.causal else n * m)
        useful = None if visibility.depends_on_values(shapes) else nnz * (d + e)
        return Cost(forward, backward, useful, _peak(self, shapes, n if block is None else min(block, n)))

    def _scale(self, q: Array) -> Any:
        d = q.shape[-1]
        return self.scale if self.scale is not None else inverse_root(q, d) if d else 1.0

    def _read(self, inputs: Inputs) -> tuple[HeadMap, Visibility, Scores]:
        """The inputs as heads, visibility and score terms."""
        heads = head_map(inputs.q.shape, inputs.k.shape, self.heads)
        offset = visibility.offset(self.causal, self.align, inputs.q.shape[-2], inputs.k.shape[-2])
        bias = None if inputs.bias is None else heads.full(inputs.bias, inputs.q.ndim)
        scores = Scores(self._scale(inputs.q), self.softcap, bias)
        return heads, visibility.from_inputs(heads, inputs, self.causal, offset), scores

    def _extras(self, heads: HeadMap, inputs: Inputs) -> tuple[Array | None, Array | None]:
        """sink (..., 1, 1) and keep (..., n, m), ready to broadcast."""
        sink, keep = inputs.sink, inputs.keep
        if sink is not None and inputs.q.ndim > 2:
            sink = heads.split(of(sink).xp.reshape(sink, (*sink.shape, 1, 1)))
        return sink, None if keep is None else heads.full(keep, inputs.q.ndim)


def _peak(scheme: Dense, shapes: Dense.Inputs, rows: int) -> int:
    """An upper bound on the elements alive in ``forward`` or ``vjp`` with `rows` queries at a time, inputs not counted.

    A head of ``vjp`` holds see, s, P, dP, dS, dS' of a block (with softcap tanh and dS'/scale too); keys and values
    selected, their gradients, and those of two blocks while they are added; a block's q, o, do, do·o, dq and statistics;
    dq in parts and whole. ``forward`` holds less of each, but o and lse in parts and whole. All heads share positions.
    An axis of length 0 counts as one of 1, and heads as those of the keys if these are more: what masks, keys or sinks hold
    does not vanish with the items or queries that it is for.
    """
    d, e = shapes.q[-1], shapes.v[-1]
    n, m, rows = (max(size, 1) for size in (shapes.q[-2], shapes.k[-2], rows))
    heads: int = product(max(one, other, 1) for one, other in zip(shapes.q[:-2], shapes.k[:-2], strict=True))
    see = scheme.causal or any(x is not None for x in (shapes.mask, shapes.segment_ids, shapes.key_valid))
    tiles = 5 + see + (2 if scheme.softcap is not None else 0) + (shapes.keep is not None or shapes.bias is not None)
    keys = (3 + see) if rows < n else 2 + (see or scheme.empty == "mean")
    kept = 0 if shapes.keep is None else m * e
    block = tiles * rows * m + rows * (2 * d + 3 * e + 10)
    per_head = block + keys * m * (d + e) + kept + n * max(2 * d + e + 1, 2 * e + 2) + 4
    bias = 0 if shapes.bias is None else 4 * product(shapes.bias)
    most: int = heads * per_head + bias + (n + m if scheme.causal else 0)
    return most


Dense.conventions = {
    "torch": Dense(causal=True, align="top_left"),  # torch.nn.functional.scaled_dot_product_attention, is_causal
    "jax": Dense(causal=True, align="top_left", empty="mean"),  # jax.nn.dot_product_attention, is_causal
    "flash-attention": Dense(causal=True, align="bottom_right"),  # flash_attn_func from 2.1 on
    "onnx": Dense(causal=True, align="top_left"),  # Attention-24 without a cache
}
