"""Who may look at whom, as one value: causal order, mask, segments and key validity, asked for in blocks of queries.

    see_ij = [q_position_i ≥ k_position_j]  ∧  mask_ij  ∧  [segment_i = kv_segment_j]  ∧  key_valid_j

Each factor is there only if it was given. Without explicit positions q_position_i = i + offset and k_position_j = j, where
offset is m − n for "bottom_right" and 0 for "top_left".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.ops.heads import HeadMap
from refattn.shapes import broadcasts, shape_of

Array = Any
Shape = tuple[int, ...]
ALIGNS = (None, "top_left", "bottom_right")


@dataclass(frozen=True)
class Visibility:
    """Every array broadcasts to (..., n, m) of the scores: per query (..., n, 1), per key (..., 1, m), or both.

    diagonal: the positions are i + diagonal and j, so that a kernel need not look at them; None: they were given.
    """

    causal: bool
    q_positions: Array | None = None
    k_positions: Array | None = None
    mask: Array | None = None
    q_segments: Array | None = None
    k_segments: Array | None = None
    key_valid: Array | None = None
    diagonal: int | None = None

    def rows(self, at: slice) -> Array | None:
        """see (..., rows, m) of the queries in `at`, each axis possibly of size 1; None if all see everything."""
        factors = []
        if self.q_positions is not None:
            factors.append(self.k_positions <= self.q_positions[..., at, :])
        if self.mask is not None:
            factors.append(query_rows(self.mask, at))
        if self.q_segments is not None:
            factors.append(self.q_segments[..., at, :] == self.k_segments)
        if self.key_valid is not None:
            factors.append(self.key_valid)
        see = None
        for factor in factors:
            see = factor if see is None else see & factor
        return see


def query_rows(x: Array, at: slice) -> Array:
    """The rows `at` of an array (..., n, m) that may have one row for all queries."""
    return x if x.shape[-2] == 1 else x[..., at, :]


def from_inputs(heads: HeadMap, inputs: Any, causal: bool, offset: int) -> Visibility:
    """The visibility that a scheme's inputs (mask, segment_ids, key_valid, positions) describe."""
    queries, keys = inputs.q_positions, inputs.k_positions
    if causal:
        lift, n, m = of(inputs.q).lift, inputs.q.shape[-2], inputs.k.shape[-2]
        queries = lift(range(offset, offset + n), inputs.q) if queries is None else queries
        keys = lift(range(m), inputs.q) if keys is None else keys
    segments, others = inputs.segment_ids, inputs.kv_segment_ids
    others = segments if others is None else others
    return Visibility(
        causal,
        heads.per_item(queries, -2) if causal else None,
        heads.per_item(keys, -1) if causal else None,
        None if inputs.mask is None else heads.full(inputs.mask, inputs.q.ndim),
        None if segments is None else heads.per_item(segments, -2),
        None if segments is None else heads.per_item(others, -1),
        None if inputs.key_valid is None else heads.per_item(inputs.key_valid, -1),
        offset if causal and inputs.q_positions is None else None,
    )


def depends_on_values(shapes: Any) -> bool:
    """True if any of these inputs is given, so that shapes alone do not say how many pairs are visible."""
    return any(x is not None for x in (shapes.mask, shapes.segment_ids, shapes.key_valid, shapes.q_positions))


def pairs(n: int, m: int, offset: int) -> int:
    """How many pairs a causal order shows: Σ_{0≤i<n} min(max(i + offset + 1, 0), m), in closed form."""

    def up_to(x: int) -> int:
        """Σ_{t≤x} min(max(t, 0), m)."""
        inside = min(max(x, 0), m)
        return inside * (inside + 1) // 2 + max(x - m, 0) * m

    return up_to(offset + n) - up_to(offset)


def check_align(causal: bool, align: str | None) -> None:
    """Refuse an alignment that does not exist, or that nothing would use."""
    if not isinstance(align, str | None) or align not in ALIGNS:
        raise OptionError(f"align={align!r}: choose None, 'top_left' or 'bottom_right'")
    if align is not None and not causal:
        raise OptionError(f"align={align!r} with causal=False would be ignored: set causal=True or leave align=None")


def offset(causal: bool, align: str | None, n: int, m: int) -> int:
    """How far query i looks: keys j ≤ i + offset."""
    return m - n if causal and align == "bottom_right" else 0


def check_inputs(inputs: Any, causal: bool, align: str | None) -> None:
    """Refuse visibility inputs of the wrong shape, without their partner, or that the configuration would ignore."""
    q, k = shape_of(inputs.q), shape_of(inputs.k)
    n, m = q[-2], k[-2]
    given = {name for name in inputs._fields if getattr(inputs, name) is not None}
    positions = given & {"q_positions", "k_positions"}
    if causal and n != m and align is None and not positions:
        raise ShapeError(
            f"q has n={n} but k has m={m}; causal attention with n ≠ m needs align='top_left' or 'bottom_right', "
            f"or q_positions and k_positions (q: {q}, k: {k})"
        )
    if positions and not causal:
        raise OptionError(f"{' and '.join(sorted(positions))} without causal=True would be ignored")
    if positions and align is not None:
        raise OptionError(f"align={align!r} and {' and '.join(sorted(positions))} contradict: give one of the two")
    if positions == {"k_positions"}:
        raise OptionError("k_positions is given without q_positions: give both, or q_positions alone (keys are 0 … m − 1)")
    if "kv_segment_ids" in given and "segment_ids" not in given:
        raise OptionError("kv_segment_ids is given without segment_ids (n,): give both")
    if "segment_ids" in given and "kv_segment_ids" not in given and n != m:
        raise ShapeError(f"segment_ids alone needs as many keys as queries, but n={n} and m={m}: give kv_segment_ids")
    _check_shapes(inputs, q, n, m)


def _check_shapes(inputs: Any, q: Shape, n: int, m: int) -> None:
    per_item = {"segment_ids": n, "kv_segment_ids": m, "key_valid": m, "is_global": m, "q_positions": n, "k_positions": m}
    for name, size in per_item.items():
        x = getattr(inputs, name, None)  # each scheme has some of them
        if x is None:
            continue
        shape = shape_of(x)
        if not shape or shape[-1] != size:
            axis = "n (queries)" if size == n and name[0] in "sq" else "m (keys)"
            raise ShapeError(f"{name} has shape {shape}; its last axis is {axis} and must be {size}")
        broadcasts(name, shape[:-1], q[:-3], "leading axes of q before the head axis")
    if inputs.mask is not None:
        broadcasts("mask", shape_of(inputs.mask), (*q[:-1], m), "..., H, n, m" if len(q) > 2 else "n, m")
