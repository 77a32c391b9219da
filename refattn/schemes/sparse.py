"""Sparse attention: softmax attention in which a pattern says which keys each query sees, and how often each counts.

    s_ij = scale·q_i·k_j          (scale = 1/√d)
    p_ij = c_ij see_ij exp(s_ij) / z_i,     z_i = Σ_j c_ij see_ij exp(s_ij),     o_i = Σ_j p_ij v_j,     lse_i = log z_i
    c_ij = pattern.count(i + offset, j, m) ∈ {0, 1, 2, …};       a query that sees nothing: o_i = 0, lse_i = −∞, no gradient.
    see_ij = mask_ij ∧ [segment_i = kv_segment_j] ∧ key_valid_j  (those that are given)
    with is_global: c_ij = max(pattern, [is_global_(i + offset) ∨ is_global_j]);     with within: c_ij = 0 outside of it.

q: (..., H, n, d)   k: (..., H_kv, m, d)   v: (..., H_kv, m, e)   o: (..., H, n, e)   lse: (..., H, n)
Child et al. (arXiv:1904.10509), eq. 2–3, for sets. Departures: counts, which make a set a multiset and occur in BigBird
(Zaheer et al., arXiv:2007.14062) as its code runs; a count c is the same as c equal keys, or log c added to the score.
Nothing has n·m elements, forward or backward: memory and work are those of the nnz pairs with c_ij > 0. Which pairs
is_global adds, only its values say: then the text looks at all n·m, a block of queries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Cost, Count
from refattn.errors import OptionError, ShapeError
from refattn.ops import visibility
from refattn.ops.attend_counts import Pairs, attend_counts, attend_counts_vjp
from refattn.ops.attend_rows import attend_rows, attend_rows_vjp
from refattn.ops.heads import HeadMap, check_heads, head_map
from refattn.ops.scores import inverse_root
from refattn.ops.visibility import Visibility
from refattn.patterns import All, Alternate, Global, Heads, Pattern, Self
from refattn.rows import LIMIT, Rows, filled, index, numbers, rows_of, select
from refattn.schemes.base import core, plain_fields
from refattn.shapes import product, shape_of, sizes

Array = Any


@dataclass(frozen=True)
class Sparse:
    """Softmax attention over the entries of a pattern; the module has the equation.

    pattern: who sees whom, a value of ``refattn.patterns``; Heads(...) has one pattern for each query head. align: where
    query 0 stands when n ≠ m, at position 0 ("top_left") or m − n ("bottom_right"). scale: default 1/√d. heads: which kv
    head a query head reads, "grouped" h // (H/H_kv) or "tiled" h % H_kv. within: the pairs that
    there can be at all, those of is_global too; ``within=Causal()`` keeps members from later keys.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Inputs(NamedTuple):
        """Leading axes ``...`` are the same in q, k, v; the head axis is −3 and may be absent. None: not used.

        The booleans differ from item to item. is_global adds pairs, all others hide them, those added too. ``per item``
        means the leading axes before the head axis, or fewer: all heads share it.
        """

        q: Array  # (..., H, n, d)
        k: Array  # (..., H_kv, m, d), H a multiple of H_kv
        v: Array  # (..., H_kv, m, e)
        mask: Array | None = None  # bool, broadcasts to (..., H, n, m); True = may attend; read at the pattern's pairs only
        segment_ids: Array | None = None  # int, per item (..., n): a query sees the keys of its own segment
        kv_segment_ids: Array | None = None  # int, per item (..., m); default: segment_ids
        key_valid: Array | None = None  # bool, per item (..., m): False = padding, seen by nobody
        is_global: Array | None = None  # bool, per item (..., m), by position: these see all keys, all queries see these

    class Saved(NamedTuple):
        """What the backward needs: the inputs as they were given, o in their dtype, lse in the accumulator's."""

        inputs: Sparse.Inputs
        o: Array  # (..., H, n, e)
        lse: Array  # (..., H, n)

    pattern: Pattern | Heads
    align: str | None = None
    scale: float | None = None
    heads: str = "grouped"
    within: Pattern | None = None

    outputs: ClassVar = ("o", "lse")
    stored: ClassVar = ("o",)
    kinds: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("mask", "key_valid", "is_global"), "bool"),
        **dict.fromkeys(("segment_ids", "kv_segment_ids"), "int"),
    }
    conventions: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        plain_fields(self)
        if isinstance(self.pattern, Alternate):
            raise OptionError(f"pattern={self.pattern!r} differs from layer to layer: give Sparse that of one, .at(layer)")
        if not isinstance(self.pattern, Pattern | Heads):
            raise OptionError(f"pattern={self.pattern!r} is no pattern: give a value of refattn.patterns, as Local(7, 0)")
        if not isinstance(self.within, Pattern | None):
            raise OptionError(f"within={self.within!r} is no pattern: give one for all heads, as Causal()")
        visibility.check_align(True, self.align)
        check_heads(self.heads)
        if self.scale is not None and not math.isfinite(self.scale):
            raise OptionError(f"scale={self.scale!r} is not finite")

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that do not fit together or to the pattern, showing them."""
        shapes = {name: shape_of(getattr(inputs, name)) for name in ("q", "k", "v")}
        heads = len(shapes["q"]) > 2
        spec = {"q": "* h n d", "k": "* g m d", "v": "* g m e"} if heads else {"q": "n d", "k": "m d", "v": "m e"}
        found = sizes(spec, shapes)
        head_map(shapes["q"], shapes["k"], self.heads)
        visibility.check_inputs(inputs, False, None)
        if found["n"] != found["m"] and self.align is None:
            raise ShapeError(
                f"q has n={found['n']} but k has m={found['m']}; a pattern with n ≠ m needs align='top_left' (query 0 "
                f"stands at position 0) or 'bottom_right' (at m − n) (q: {shapes['q']}, k: {shapes['k']})"
            )
        many = len(self._each())
        if isinstance(self.pattern, Heads) and found.get("h", 1) != many:
            raise ShapeError(f"{self.pattern!r} has {many} patterns, one for each query head, but q has "
                             f"H={found.get('h', 1)} (q: {shapes['q']})")

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        """o alone."""
        return self.forward(*inputs, **named)[0]

    @core
    def definition(self, inputs: Inputs) -> tuple[Array, Array]:
        """(o, lse) from all n × m scores, with the counts of the pattern and the weights in the open."""
        xp, heads = of(inputs.q).xp, head_map(inputs.q.shape, inputs.k.shape, self.heads)
        count, see = self._counts(inputs, heads)
        unseen = ~xp.matrix_transpose(xp.any(see, axis=-2, keepdims=True))
        q = xp.where(xp.any(see, axis=-1, keepdims=True), heads.split(inputs.q), 0.0)
        k, v = (xp.where(unseen, 0.0, heads.share(x)) for x in (inputs.k, inputs.v))
        s = xp.where(see, xp.matmul(q, xp.matrix_transpose(k)) * self._scale(q), -math.inf)
        top = xp.max(xp.concat([s, filled(s, (*s.shape[:-1], 1), -math.inf)], axis=-1), axis=-1, keepdims=True)
        none = top == -math.inf
        e = count * xp.exp(s - xp.where(none, 0.0, top))
        z = xp.where(none, 1.0, xp.sum(e, axis=-1, keepdims=True))
        lse = xp.where(none, -math.inf, top + xp.log(z))
        return heads.join(xp.matmul(e / z, v)), heads.join(lse)[..., 0]

    def _counts(self, inputs: Inputs, heads: HeadMap) -> tuple[Array, Array]:
        """c_ij and [c_ij > 0] ∧ see_ij of all pairs, ready to broadcast with the scores."""
        xp, q = of(inputs.q).xp, inputs.q
        n, m = q.shape[-2], inputs.k.shape[-2]
        offset = m - n if self.align == "bottom_right" else 0
        each = self.pattern.patterns if isinstance(self.pattern, Heads) else (self.pattern,)
        count = heads.full(xp.stack([numbers(q, p.dense(n, m, offset)) for p in each]), max(q.ndim, 3))
        count = count if heads.kv is not None else count[0, :, :]
        if inputs.is_global is not None:
            column = heads.per_item(inputs.is_global, -1)
            row = xp.any(column & (numbers(q, Self().dense(n, m, offset)) > 0.0), axis=-1, keepdims=True)
            count = xp.where((row | column) & (count == 0.0), 1.0, count)
        if self.within is not None:
            count = xp.where(numbers(q, self.within.dense(n, m, offset)) > 0.0, count, 0.0)
        see = count > 0.0
        if inputs.mask is not None:
            see = see & heads.full(inputs.mask, q.ndim)
        if inputs.segment_ids is not None:
            others = inputs.segment_ids if inputs.kv_segment_ids is None else inputs.kv_segment_ids
            see = see & (heads.per_item(inputs.segment_ids, -2) == heads.per_item(others, -1))
        return count, see if inputs.key_valid is None else see & heads.per_item(inputs.key_valid, -1)

    @core
    def forward(self, inputs: Inputs, *, block: int | None) -> Saved:
        """Saved with o and lse: heads with one pattern at a time; `block` is for is_global, the words cut their own work."""
        if inputs.is_global is not None:
            heads = head_map(inputs.q.shape, inputs.k.shape, self.heads)
            q, k, v = heads.split(inputs.q), heads.share(inputs.k), heads.share(inputs.v)
            o, lse = attend_counts(q, k, v, self._all_pairs(inputs, heads), scale=self._scale(q), block=block)
            return Sparse.Saved(inputs, heads.join(o), heads.join(lse)[..., 0])
        found = []
        for part in self._parts(inputs):
            q, k, v = part.heads.split(part.inputs.q), part.heads.share(part.inputs.k), part.heads.share(part.inputs.v)
            ok = _hidden(part)
            o, lse = attend_rows(*select(ok, part.rows, q, k, v), ok, part.rows, scale=self._scale(q))
            found.append((part.heads.join(o), part.heads.join(lse)))
        o, lse = (self._whole(x) for x in zip(*found, strict=True))
        return Sparse.Saved(inputs, o, lse[..., 0])

    @core
    def vjp(self, saved: Saved, do: Array, *, dlse: Array | None = None, block: int | None) -> Inputs:
        """Gradients of ⟨do, o⟩ + ⟨dlse, lse⟩; booleans and integers have no tangent, and counts are constants.

            P_t = count_t exp(s_t − lse_i)         dP_t = do_i·v_j             for each entry t = (i, j)
            D_i = Σ_t P_t dP_t − dlse_i = do_i·o_i − dlse_i                    dS_t = scale P_t (dP_t − D_i)
            dq_i = Σ_t dS_t k_j over the entries of i;      dk_j = Σ_t dS_t q_i,  dv_j = Σ_t P_t do_i over those of j
        """
        inputs = saved.inputs
        whole = head_map(inputs.q.shape, inputs.k.shape, self.heads)
        if inputs.is_global is not None:
            q, k, v, *row = _pulled(inputs, whole, saved.o, saved.lse, do, dlse)
            pairs = self._all_pairs(inputs, whole)
            dq, dk, dv = attend_counts_vjp(q, k, v, pairs, *row, scale=self._scale(q), block=block)
            return Sparse.Inputs(whole.join(dq), whole.collect(dk), whole.collect(dv))
        found = []
        for part in self._parts(inputs):
            results = (None if x is None else part.mine(x) for x in (saved.o, saved.lse, do, dlse))
            q, k, v, *row = _pulled(part.inputs, part.heads, *results)
            ok, heads = _hidden(part), part.heads
            grads = attend_rows_vjp(*select(ok, part.rows, q, k, v), ok, part.rows, *row, scale=self._scale(q))
            found.append((heads.join(grads[0]), heads.collect(grads[1]), heads.collect(grads[2])))
        dq, dk, dv = (self._whole(x) for x in zip(*found, strict=True))
        if len(found) > 1:
            dk, dv = whole.collect(whole.split(dk)), whole.collect(whole.split(dv))
        return Sparse.Inputs(dq, dk, dv)

    def cost(self, shapes: Inputs, block: int | None = 256) -> Cost:
        """Exact for any shapes that ``forward`` takes: `shapes` is an Inputs of shape tuples or of arrays.

            forward   macs B·nnz·(d + e)       exps B·nnz     saved: o, lse             nnz pairs of the pattern, all heads
            backward  macs B·nnz·(3d + 2e)     exps B·nnz     saved: the gradients

        With is_global, nnz is H·n·m.
        """
        given = tree.map(shape_of, shapes)
        self.check(given)
        *lead, n, d = given.q
        e, rows = given.v[-1], product(lead) * n
        nnz = product(lead) // len(self._each()) * sum(self._pairs(n, given.k[-2]).values())
        nnz = nnz if given.is_global is None else rows * given.k[-2]
        gradients = sum(product(x) for x in given[:3])
        forward = Count(nnz * (d + e), nnz, rows * (e + 1))
        backward = Count(nnz * (3 * d + 2 * e), nnz, gradients)
        shown = all(x is None for x in given[3:])
        return Cost(forward, backward, nnz * (d + e) if shown else None, _peak(self, given, block))

    def _pairs(self, n: int, m: int) -> dict[Pattern, int]:
        """The pairs of an item by pattern, those of all heads that have it; of one head where all have the same."""
        offset, found = self._offset(n, m), dict.fromkeys(self._each(), 0)
        for pattern in self._each():
            found[pattern] += pattern.nnz(n, m, offset)
        return found

    def _each(self) -> tuple[Pattern, ...]:
        """The pattern of each query head, or the one of them all, in `within`."""
        each = self.pattern.patterns if isinstance(self.pattern, Heads) else (self.pattern,)
        if self.within is None:
            return each
        return tuple(p & reduce(add, (self.within,) * max(p.most, 1)) for p in each)  # a pair inside keeps its count

    def _scale(self, q: Array) -> Any:
        d = q.shape[-1]
        return self.scale if self.scale is not None else inverse_root(q, d) if d else 1.0

    def _offset(self, n: int, m: int) -> int:
        return visibility.offset(True, self.align, n, m)

    def _parts(self, inputs: Inputs) -> list[_Part]:
        """The inputs of all heads that share a pattern, for each pattern."""
        n, m = inputs.q.shape[-2], inputs.k.shape[-2]
        offset, each = self._offset(n, m), self._each()
        heads = head_map(inputs.q.shape, inputs.k.shape, self.heads)
        if len(set(each)) == 1:
            return [_Part(inputs, rows_of(each[0], n, m, offset), heads, None)]
        return [_part(inputs, rows_of(pattern, n, m, offset), heads, tuple(h for h, p in enumerate(each) if p == pattern))
                for pattern in dict.fromkeys(each)]

    def _all_pairs(self, inputs: Inputs, heads: HeadMap) -> Pairs:
        """All pairs of the pattern and of members, by item."""
        q, n, m, ids = inputs.q, inputs.q.shape[-2], inputs.k.shape[-2], inputs.segment_ids
        offset, each = self._offset(n, m), self._each()
        flags: Array = inputs.is_global
        none = filled(flags, (*flags.shape[:-1], 1), False)  # positions that have no key
        place = [i if 0 <= i < m else m for i in range(offset, offset + n)]
        mine = of(q).xp.take(of(q).xp.concat([flags, none], axis=-1), index(flags, place), axis=-1)
        others = ids if inputs.kv_segment_ids is None else inputs.kv_segment_ids
        see = Visibility(
            False,
            mask=None if inputs.mask is None else heads.full(inputs.mask, q.ndim),
            q_segments=None if ids is None else heads.per_item(ids, -2),
            k_segments=None if ids is None else heads.per_item(others, -1),
            key_valid=None if inputs.key_valid is None else heads.per_item(inputs.key_valid, -1),
        )

        def lists(at: tuple[int, ...]) -> list[Rows]:
            added: Pattern = Global(at=at) if at else ~All()
            added = added if self.within is None else added & self.within
            return [rows_of(p | added if at else p, n, m, offset) for p in each]

        members = heads.per_item(mine, -2), heads.per_item(flags, -1)
        return Pairs(each, self.within, offset, heads, members, see, lists)

    def _whole(self, parts: tuple[Array, ...]) -> Array:
        """Results of heads with one pattern, (..., some heads, ·, ·) each, in the order of all heads."""
        if len(parts) == 1:
            return parts[0]
        each = self._each()
        order = [h for pattern in dict.fromkeys(each) for h, p in enumerate(each) if p == pattern]
        xp = of(*parts).xp
        places = [order.index(h) for h in range(len(order))]
        return xp.take(xp.concat(parts, axis=-3), index(parts[0], places), axis=-3)


class _Part(NamedTuple):
    """Heads that share one pattern: their inputs, its entries, how they share keys, and which they are (None: all)."""

    inputs: Sparse.Inputs
    rows: Rows
    heads: HeadMap
    at: tuple[int, ...] | None

    def mine(self, x: Array) -> Array:
        """These heads of something (..., H, n, e) or (..., H, n), which has the axes of q or one less."""
        return x if self.at is None else _some(x, self.at, self.inputs.q.ndim - x.ndim - 3)


def _pulled(inputs: Sparse.Inputs, heads: HeadMap, o: Array, lse: Array, do: Array, dlse: Array | None) -> tuple[Array, ...]:
    """q, k, v, lse, do and D = do·o − dlse of some heads, the last three 0 where a query sees nothing."""
    xp = of(o).xp
    q, k, v = heads.split(inputs.q), heads.share(inputs.k), heads.share(inputs.v)
    o, lse = heads.split(o), heads.split(lse[..., None])
    none = lse == -math.inf
    o, lse, ct = xp.where(none, 0.0, o), xp.where(none, 0.0, lse), xp.where(none, 0.0, heads.split(do))
    D = xp.sum(ct * o, axis=-1, keepdims=True)
    return q, k, v, lse, ct, D if dlse is None else D - xp.where(none, 0.0, heads.split(dlse[..., None]))


def _some(x: Array, at: tuple[int, ...], axis: int) -> Array:
    """Some of x along an axis; one alone is no copy."""
    if len(at) == 1:
        return x[(..., slice(at[0], at[0] + 1), *(slice(None),) * (-1 - axis))]
    return of(x).xp.take(x, index(x, at), axis=axis)


def _part(inputs: Sparse.Inputs, rows: Rows, heads: HeadMap, at: tuple[int, ...]) -> _Part:
    """The heads `at` with the keys of each."""
    reads = [h % heads.kv if heads.tiled else h // heads.group for h in at] if heads.kv else []
    q, k, v = _some(inputs.q, at, -3), *(_some(x, tuple(reads), -3) for x in (inputs.k, inputs.v))
    return _Part(inputs._replace(q=q, k=k, v=v), rows, HeadMap(len(at), 1, False), at)


def _hidden(part: _Part) -> Array | None:
    """[see_ij] of each entry (..., nnz), ready to broadcast with the scores; None if nothing hides any."""
    inputs, heads, rows, factors = part.inputs, part.heads, part.rows, []
    if inputs.mask is not None:
        factors.append(_masked(inputs.mask, part))
    if inputs.segment_ids is not None:
        keys = inputs.segment_ids if inputs.kv_segment_ids is None else inputs.kv_segment_ids
        mine, theirs = (_taken(heads, x, rows, name) for x, name in ((inputs.segment_ids, "row"), (keys, "col")))
        factors.append(mine == theirs)
    if inputs.key_valid is not None:
        factors.append(_taken(heads, inputs.key_valid, rows, "col"))
    ok = None
    for factor in factors:
        ok = factor if ok is None else ok & factor
    return ok


def _masked(mask: Array, part: _Part) -> Array:
    """The mask at each entry, read where it lies: no copy of n·m truth values for some of the heads."""
    xp, rows = of(mask).xp, part.rows
    mask = xp.reshape(mask, (*(1,) * (part.inputs.q.ndim - mask.ndim), *mask.shape))
    *lead, a, b = mask.shape
    at = (rows.row if a > 1 else 0 * rows.row) * b + (rows.col if b > 1 else 0)
    if part.at is None or lead[-1] == 1:
        return part.heads.split(xp.take(xp.reshape(mask, (*lead, 1, a * b)), index(mask, at), axis=-1))[..., 0, :]
    some = xp.reshape(index(mask, [h * a * b + at for h in part.at]), (len(part.at) * rows.nnz,))
    flat = xp.take(xp.reshape(mask, (*lead[:-1], lead[-1] * a * b)), some, axis=-1)
    return xp.reshape(flat, (*lead[:-1], len(part.at), 1, rows.nnz))


def _taken(heads: HeadMap, x: Array, rows: Rows, name: str) -> Array:
    """Something per item (..., n) or (..., m) at each entry, for all heads."""
    return of(x).xp.take(heads.per_item(x, -1), rows.index(name, x), axis=-1)[..., 0, :]


def _peak(scheme: Sparse, shapes: Sparse.Inputs, block: int | None) -> int:
    """An upper bound on the elements alive in ``forward`` or ``vjp``, inputs not counted.

    ``vjp`` holds p, ds and what words make of them for each entry (and what hides it), what a word gathers, at most LIMIT
    elements or one row for each side, q, o, do and statistics of each query, and results of queries and keys before and
    after they are put in order. Where heads have several patterns, copies of their inputs and parts of results come with it.
    With is_global the entries are all pairs of `block` queries.
    An axis of length 0 counts as one of 1, and heads as those of the keys if these are more: what keys hold does not vanish.
    """
    d, e = shapes.q[-1], shapes.v[-1]
    n, m = (max(size, 1) for size in (shapes.q[-2], shapes.k[-2]))
    heads: int = product(max(one, other, 1) for one, other in zip(shapes.q[:-2], shapes.k[:-2], strict=True))
    few, pairs = max(product(shapes.k[:-2]), 1), scheme._pairs(shapes.q[-2], shapes.k[-2])
    hidden, several = any(x is not None for x in shapes[3:]), len(pairs) > 1
    width, added = max(d, e, 1), shapes.is_global is not None
    if added:
        entries, gathered = heads * min(block or n, n) * m, 0
    else:
        entries = max(heads // len(scheme._each()), product(shapes.q[:-3])) * max(pairs.values())
        gathered = min(entries * width, max(LIMIT, heads * max(n, m) * width))
    lists = (8 if hidden else 5) * entries
    queries = heads * n * ((2 + several + hidden) * d + (3 + 2 * several) * e + 8)
    keys = (heads * (2 + hidden + 2 * several + added) + few) * m * (d + e)
    most: int = lists + 2 * gathered + queries + keys + 2 * heads + 8
    return most
