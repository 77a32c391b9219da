"""Linear attention: with a feature map in the place of the exponential, the sum over keys comes out of the sum over queries.

    w_ij = scale · φ(q_i)·φ(k_j)  for  j ≤ i + offset (causal) ∧ key_valid_j  (those that apply), 0 else
    o_i  = Σ_j w_ij v_j / z_i,    z_i = Σ_j w_ij + ε                        eps_at="sum"
                                  z_i = scale · φ(q_i)·(ε + Σ_j φ(k_j))     eps_at="keys", the same sum over j
    o_i  = Σ_j w_ij v_j                                                     normalise=False
    Σ_j w_ij v_j = scale · φ(q_i)ᵀ S_i,   S_i = Σ_j φ(k_j) v_jᵀ: one (r, e) state for all queries, or a running one

q: (..., H, n, d)   k: (..., H_kv, m, d)   v: (..., H_kv, m, e)   o: (..., H, n, e)   z: (..., H, n)   φ: d → r features
Katharopoulos et al. (arXiv:2006.16236), eqs. 4–6, 8–12, 16–20. Departures: ε = 0 by default, and then the rows of weights
sum to 1; a query whose z is 0 (it sees nothing) returns 0; other feature maps, a scale, no normaliser, alignment of n ≠ m.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from refattn.backend import of
from refattn.cost import Cost, Count
from refattn.errors import OptionError, ShapeError
from refattn.features.base import Feature
from refattn.features.elu import Elu
from refattn.features.identity import Identity
from refattn.kernels import kernel
from refattn.ops import visibility
from refattn.ops.heads import HeadMap, check_heads, head_map
from refattn.ops.key_sums import (
    Order,
    blind_queries,
    key_sums,
    key_sums_macs,
    key_sums_vjp,
    normalised,
    normalised_vjp,
    only,
    order,
    valid_keys,
    with_ones,
)
from refattn.ops.key_sums import state as key_state
from refattn.ops.scores import inverse_root
from refattn.prefix import prefix_mix
from refattn.schemes.base import admit, core, number, plain_fields
from refattn.shapes import broadcasts, product, shape_of, sizes

Array = Any
CHUNK = 64
ELU = Elu()


@dataclass(frozen=True)
class Linear:
    """Linear attention; the module has the equation.

    causal: query i sees key j only if j ≤ i + offset. align: where the diagonal starts when n ≠ m, "top_left" (offset 0) or
    "bottom_right" (offset m − n). feature: φ. scale: of the weights; None is 1/√d. normalise: divide by z. eps: ε, added
    where `eps_at` says, to the "sum" of weights or to the "keys" that are summed. heads: which kv head a query head reads,
    "grouped" h // (H/H_kv) or "tiled" h % H_kv.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in q, k, v; the head axis is −3 and may be absent."""

        q: Array  # (..., H, n, d)
        k: Array  # (..., H_kv, m, d), H a multiple of H_kv
        v: Array  # (..., H_kv, m, e)
        key_valid: Array | None = None  # bool, the leading axes before the head axis, or fewer, and m: False = padding

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given, o in their dtype, z in the accumulator's."""

        inputs: Linear.Inputs
        o: Array  # (..., H, n, e)
        z: Array | None  # (..., H, n), with normalise

    class State(NamedTuple):
        """What all tokens so far have left behind, in the accumulator's dtype; its size does not grow."""

        S: Array  # (..., H_kv, r, e)
        z: Array | None  # (..., H_kv, r), with normalise

    causal: bool = False
    align: str | None = None
    feature: Feature = ELU
    scale: float | None = 1.0
    normalise: bool = True
    eps: float = 0.0
    eps_at: str = "sum"
    heads: str = "grouped"

    outputs: ClassVar = ("o",)
    stored: ClassVar = ("o",)
    kinds: ClassVar[Mapping[str, str]] = {"key_valid": "bool"}
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        for name in ("causal", "normalise"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r}: give True or False")
        visibility.check_align(self.causal, self.align)
        check_heads(self.heads)
        if isinstance(self.feature, type) or not hasattr(self.feature, "width"):
            raise OptionError(f"feature={self.feature!r} is no feature map: give Elu(), Relu() or Identity()")
        number(self, "scale")
        number(self, "eps")
        if self.eps is None or self.eps < 0:
            raise OptionError(f"eps={self.eps!r} must be finite and not negative")
        if self.eps_at not in ("sum", "keys"):
            raise OptionError(f"eps_at={self.eps_at!r}: choose 'sum' (of the weights) or 'keys' (the sum of their features)")
        if self.eps and not self.normalise:
            raise OptionError(f"eps={self.eps} with normalise=False would be ignored: leave eps=0.0")

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together, showing them."""
        shapes = {name: shape_of(getattr(inputs, name)) for name in ("q", "k", "v")}
        heads = len(shapes["q"]) > 2
        spec = {"q": "* h n d", "k": "* g m d", "v": "* g m e"} if heads else {"q": "n d", "k": "m d", "v": "m e"}
        n, m = (found := sizes(spec, shapes))["n"], found["m"]
        head_map(shapes["q"], shapes["k"], self.heads)
        if self.causal and n != m and self.align is None:
            raise ShapeError(f"q has n={n} but k has m={m}; causal Linear with n ≠ m needs align='top_left' or "
                             f"'bottom_right' (q: {shapes['q']}, k: {shapes['k']})")
        if inputs.key_valid is not None:
            shape = shape_of(inputs.key_valid)
            if not shape or shape[-1] != m:
                raise ShapeError(f"key_valid has shape {shape}; its last axis is m (keys) and must be {m}")
            broadcasts("key_valid", shape[:-1], shapes["q"][:-3], "leading axes of q before the head axis")

    def results(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """The shapes of what ``forward`` saves."""
        rows = tuple(inputs.q.shape[:-1])
        return {"o": (*rows, inputs.v.shape[-1]), "z": rows}

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array]:
        """(o,): the n × n weights in the open, rows divided by their own sums."""
        b = of(inputs.q)
        xp, n, m = b.xp, inputs.q.shape[-2], inputs.k.shape[-2]
        heads, scale = head_map(inputs.q.shape, inputs.k.shape, self.heads), self._scale(inputs.q)
        i, j = b.lift(range(n), inputs.q)[:, None], b.lift(range(m), inputs.q)[None, :]
        see = (j <= i + visibility.offset(self.causal, self.align, n, m)) if self.causal else (i >= 0) & (j >= 0)
        see = see if inputs.key_valid is None else see & heads.per_item(inputs.key_valid, -1)
        seen, seeing = (xp.any(see, axis=axis)[..., None] for axis in (-2, -1))
        q, k, v = heads.split(inputs.q), heads.share(inputs.k), heads.share(inputs.v)
        v = xp.where(seen, v, 0.0)
        fq, fk = self.feature(xp.where(seeing, q, 0.0)), self.feature(xp.where(seen, k, 0.0))
        w = xp.where(see, xp.sum(fq[..., :, None, :] * fk[..., None, :, :], axis=-1), 0.0) * scale
        o = xp.sum(w[..., None] * v[..., None, :, :], axis=-2)
        if self.normalise:
            z = xp.sum(w, axis=-1, keepdims=True)
            if self.eps:
                z = z + self.eps * (1.0 if self.eps_at == "sum" else xp.sum(fq, axis=-1, keepdims=True) * scale)
            o = xp.where(z == 0.0, 0.0, o / xp.where(z == 0.0, 1.0, z))
        return (heads.join(o),)

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o and z: keys are summed up first; causal, by triangles of `block` tokens and a state between them."""
        return Linear.Saved(inputs, *attend_features(*inputs, scheme=self, block=block))

    @core
    def vjp(self, saved: Saved, do: Array, *, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩; None for key_valid (booleans have no tangent).

        u_i = scale φ(q_i)ᵀ Σ_j φ(k_j) (v_j, 1)ᵀ,   o_i = (u_i but its last entry) / z_i,   z_i = (its last entry) + ε, so
            du_i = (do_i, −do_i·o_i) / z_i  (without normalise: do_i)    dφ(q), dφ(k), d(v, 1): ``key_sums_vjp`` of scale du
        eps_at="keys" adds −ε scale do_i·o_i / z_i to every feature of dφ(q_i). Then dq = φ'(q)ᵀ dφ(q), dk likewise.
        """
        if (saved.z is None) == self.normalise:
            raise OptionError(f"saved.z is {'missing' if saved.z is None else 'there'}, and normalise={self.normalise}: the "
                              "backward takes what this configuration's forward returned")
        return Linear.Inputs(*attend_features_vjp(*saved.inputs, saved.o, saved.z, do, scheme=self, block=block))

    def start(self, *like: Any, **named: Any) -> State:
        """The state before the first token of a stream of items, heads and widths like those of these inputs.

        Raises OptionError unless causal: without an order there is no first token.
        """
        if not self.causal:
            raise OptionError("causal=False: a stream needs an order, set causal=True")
        b, inputs = admit(self, like, named)
        k, v = (b.widen(x) for x in (inputs.k, inputs.v))
        S = b.xp.matmul(b.xp.matrix_transpose(self.feature(k[..., :0, :])), v[..., :0, :])
        return Linear.State(S, b.xp.sum(S, axis=-1) if self.normalise else None)

    @core
    def step(self, state: State, token: Inputs, *, block: int | None) -> tuple[State, Array]:
        """The state after one more token, or several (the axis of tokens stays), and their o."""
        self._check_step(state, token)
        t, xp = self._read(token, whole=False), of(token.q).xp
        before = state.S if state.z is None else xp.concat([state.S, state.z[..., None]], axis=-1)
        u = prefix_mix(t.fq, t.fk, t.v, chunk=_chunk(block)) + xp.matmul(t.fq, t.heads.share(before))
        after = before + t.heads.collect(key_state(t.fk, t.v))
        e = token.v.shape[-1]
        return Linear.State(after[..., :e], after[..., e] if self.normalise else None), self._normalised(t, u)[0]

    def _check_step(self, state: State, token: Inputs) -> None:
        """Refuse tokens that are no stream, and a state that is not of these items, heads and widths."""
        n, m, e = token.q.shape[-2], token.k.shape[-2], token.v.shape[-1]
        if not self.causal:
            raise OptionError("causal=False: a stream needs an order, set causal=True")
        if n != m:
            raise ShapeError(f"q has n={n} tokens but k has m={m}; a stream takes as many queries as keys")
        if (state.z is None) == self.normalise:
            raise OptionError(f"state.z is {'missing' if state.z is None else 'there'}, and normalise={self.normalise}: "
                              "step takes what this configuration's start or step returned")
        want = (*token.k.shape[:-2], self.feature.width(token.k.shape[-1]), e)
        for name, x, shape in (("S", state.S, want), ("z", state.z, want[:-1])):
            if x is not None and shape_of(x) != shape:
                raise ShapeError(f"state.{name} has shape {shape_of(x)}, but these tokens need {shape} (k: "
                                 f"{shape_of(token.k)}, v: {shape_of(token.v)}): start a stream of their items and heads")

    @core
    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """Exact for any shapes that ``forward`` takes: `shapes` is an Inputs of shape tuples or of arrays.

        With E = e + 1 (e without normalise), N = B·H·n queries, M = B·H_kv·m keys, and L = n tokens, or max(n, m) aligned
        at the bottom right, in chunks of c = min(block, 64), of which the first reads no state and the last writes none:
            full      forward (N + M)·r·E multiply-adds      backward (2N + 3M)·r·E
            causal    forward about B·H·L·(c·(r + E) + r·E) + B·H_kv·L·r·E    backward three times that, with H states
            exps: φ of N + M rows, in both      saved: o, z and the gradients
        useful_macs: of the recurrence, (N + M)·r·E over queries that see something and keys that are seen.
        """
        (*lead, n, d), m, e = shapes.q, shapes.k[-2], shapes.v[-1]
        many, few, r, wide = product(lead), product(shapes.k[:-2]), self.feature.width(d), e + self.normalise
        at, exps = self._order(n, m), (many * n + few * m) * self.feature.exps(d)
        forward, backward = key_sums_macs(at, r, wide, many, few, _chunk(block))
        useful = (many * min(n, at.reach if at.causal else n) + few * at.reach) * r * wide
        return Cost(
            Count(forward, exps, many * n * wide),
            Count(backward, exps, sum(product(x) for x in shapes[:3])),
            None if shapes.key_valid is not None else useful,
            _peak(self, shapes, at, block),
        )

    @property
    def bare(self) -> bool:
        """Whether it is the product alone: without a map and a normaliser nothing stands between inputs and results."""
        return not self.normalise and isinstance(self.feature, Identity)

    def _scale(self, q: Array) -> Any:
        d = q.shape[-1]
        return self.scale if self.scale is not None else inverse_root(q, d) if d else 1.0

    def _read(self, inputs: Inputs, *, whole: bool = True) -> _Tokens:
        """Features and values with what nobody sees, and queries that see nothing (told from a whole sequence), at 0."""
        q, k, v = inputs[:3]
        at, heads = self._order(q.shape[-2], k.shape[-2]), head_map(q.shape, k.shape, self.heads)
        valid, blind = valid_keys(at, inputs.key_valid, k), blind_queries(at, inputs.key_valid, q) if whole else None
        q = q if blind is None else of(q).xp.where(blind, 0.0, q)
        k, v = only(valid, k), only(valid, v)
        phi_k = self.feature(k)
        fq, fk = heads.split(self.feature(q)), heads.share(only(valid, phi_k))
        return _Tokens(at, heads, q, k, phi_k, fq, fk, heads.share(with_ones(v) if self.normalise else v), valid, blind)

    def _order(self, n: int, m: int) -> Order:
        return order(self.causal, self.align, n, m)

    def _normalised(self, t: _Tokens, u: Array) -> tuple[Array, Array | None]:
        """o and z from the sums over keys, before they are scaled."""
        u, scale = t.heads.join(u), self._scale(t.q)
        u = u if self.scale == 1.0 else u * scale
        if not self.normalise:
            return u, None
        more: Any = self.eps or None
        if self.eps and self.eps_at == "keys":
            more = of(u).xp.sum(t.heads.join(t.fq), axis=-1, keepdims=True) * (self.eps * scale)
        o, z = normalised(u, more)
        return o, z[..., 0]


class _Tokens(NamedTuple):
    """What a call reads: q, k as they are looked at, features, values with a column of ones where they are normalised."""

    order: Order
    heads: HeadMap
    q: Array  # (..., H, n, d)
    k: Array  # (..., H_kv, m, d)
    phi_k: Array  # (..., H_kv, m, r), before padding is masked
    fq: Array  # (..., H_kv, G, n, r), heads as in HeadMap
    fk: Array  # (..., H_kv, 1, m, r)
    v: Array  # (..., H_kv, 1, m, E)
    valid: Array | None  # (..., 1, m, 1)
    blind: Array | None  # (..., 1, n, 1) or (n, 1)


@kernel("attend_features")
def attend_features(q: Array, k: Array, v: Array, key_valid: Array | None, *, scheme: Linear, block: int | None
                    ) -> tuple[Array, Array | None]:
    """o and z of the heads that are given, as ``Linear.forward`` returns them."""
    t = scheme._read(Linear.Inputs(q, k, v, key_valid))
    return scheme._normalised(t, key_sums(t.order, t.fq, t.fk, t.v, _chunk(block)))


@kernel("attend_features_vjp")
def attend_features_vjp(q: Array, k: Array, v: Array, key_valid: Array | None, o: Array, z: Array | None, do: Array, *,
                        scheme: Linear, block: int | None) -> tuple[Array, Array, Array]:
    """dq, dk and dv; ``Linear.vjp`` has the equations."""
    t, xp = scheme._read(Linear.Inputs(q, k, v, key_valid)), of(do).xp
    if z is not None:
        du, dz = normalised_vjp(o, z[..., None], do, t.blind)
    else:
        du, dz = do if t.blind is None else xp.where(t.blind, 0.0, do), None
    du = t.heads.split(du if scheme.scale == 1.0 else du * scheme._scale(q))
    dfq, dfk, dv = key_sums_vjp(t.order, t.heads, t.fq, t.fk, t.v, du, _chunk(block))
    if scheme.eps and scheme.eps_at == "keys":
        dfq = dfq + dz * (scheme.eps * scheme._scale(q))
    dv = dv[..., :-1] * 1.0 if scheme.normalise else dv  # memory of its own, without the column of ones
    dq = scheme.feature.vjp(t.q, t.heads.join(t.fq), dfq)
    dk = scheme.feature.vjp(t.k, t.phi_k, only(t.valid, dfk))
    return dq if t.blind is None else xp.where(t.blind, 0.0, dq), dk, only(t.valid, dv)


def _chunk(block: int | None) -> int | None:
    """Tokens of a triangle: beyond CHUNK they only add work."""
    return None if block is None else min(block, CHUNK)


def _peak(scheme: Linear, shapes: Linear.Inputs, at: Order, block: int | None) -> int:
    """An upper bound on the elements alive in ``forward`` or ``vjp``, inputs not counted; multiples are in halves.

    Features of queries and keys with what the map needs on the way, keys and values that are selected, the states, and a
    few arrays like o. Causal: gradients of keys and values for every query head, in parts and whole if there are several
    chunks, and the triangles of a chunk.
    """
    (*lead, n, d), m, e = shapes.q, shapes.k[-2], shapes.v[-1]
    many, few, r, wide = product(lead), product(shapes.k[:-2]), scheme.feature.width(d), e + scheme.normalise
    mapped, halves = not isinstance(scheme.feature, Identity), 0
    chosen = few * m * (r + wide) if shapes.key_valid is not None or at.reach < m else 0
    if at.causal:
        c, places = min(_chunk(block) or at.length, at.length), many * at.length
        halves += 2 * places * wide + few * max(at.length, m) * (4 * r + 3 * wide)
        halves += places * (19 * r + 12 * wide if c < at.length else r + wide)
        halves += places * (r + 2 * wide) if at.length != n or at.length != m else 0
        halves += many * (5 * c * c + 3 * r * wide + 3 * c * (r + wide))
        halves += mapped * (2 * many * n + 5 * few * m) * r + 7 * chosen
    else:
        halves += many * n * (5 * r + wide + 6 * e * scheme.normalise + 2) + 6 * few * m * wide
        halves += (3 * many + 4 * few) * r * wide
        halves += mapped * (5 * many * n + 10 * few * m) * r + 3 * chosen
    most: int = halves // 2 + 3 * (n + m + 2) + 1
    return most


Linear.conventions = {
    "fast-transformers": Linear(causal=True, eps=1e-6),  # idiap/fast-transformers, CausalLinearAttention, LinearAttention
    "performer-pytorch": Linear(causal=True, eps=1e-6, eps_at="keys"),  # causal_linear_attention; without order: no ε
    "lra": Linear(eps=1e-6),  # google-research/long-range-arena, linear_attention, which has no causal form
    "fla": Linear(causal=True, feature=Identity(), scale=None, normalise=False),  # fla.ops.linear_attn
    "fla-normalised": Linear(causal=True, feature=Identity(), scale=None, eps=1e-10),  # the same with normalize=True
    "onnx": Linear(causal=True, feature=Identity(), scale=None, normalise=False),  # LinearAttention-27, update_rule="linear"
}
