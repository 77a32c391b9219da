"""Mistakes of the backward, given a right forward."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing import mutants_masks  # noqa: F401 - its mutants come first, and are used here
from refattn.testing.cases import Case
from refattn.testing.mutants import MUTANTS, Mutant, add
from refattn.testing.mutants_forward import blind, hides, lower, rounded, scales, tiles
from refattn.testing.mutants_layout import as_if_contiguous
from refattn.testing.staged import Staged
from refattn.testing.subjects import kernel_of

Array = Any


def groups(case: Case, dtype: str) -> bool:
    return case.sizes["g"] != case.sizes["h"]


def _unmasked(kernel: Staged, q: Array, k: Array, lse: Array) -> Array:
    """P without the mask, exp limited where a hidden score is far above the visible ones."""
    xp = of(q, k).xp
    s = kernel.add_bias(kernel.bend(kernel.scores(q, k)))
    return kernel.counted(xp.exp(xp.minimum(s - xp.where(lse == -math.inf, math.inf, lse), 80.0)))


def _unmasked_values(kernel: Staged, usual: Any, p: Array, do: Array) -> Array:
    lse = kernel.do("statistic", *_statistics(kernel))
    return usual(_unmasked(kernel, kernel.q, kernel.k, lse), do)


def _statistics(kernel: Staged) -> tuple[Array, Array, Array]:
    s = kernel.hide(kernel.add_bias(kernel.bend(kernel.scores(kernel.q, kernel.k))))
    c = kernel.gauge(s)
    return kernel.total(kernel.weights(s, c), c, s), c, s


def _last_reader(kernel: Staged, usual: Any, dx: Array) -> Array:
    return of(dx).xp.stack([dx[:, kernel.readers(g)[-1], ...] for g in range(kernel.few)], axis=1)


def _mean_reader(kernel: Staged, usual: Any, dx: Array) -> Array:
    return usual(dx) * (kernel.few / kernel.heads)


def _without_last(kernel: Staged, usual: Any, dqk: Array, k: Array) -> Array:
    end = (dqk.shape[-1] - 1) // kernel.tile * kernel.tile
    return usual(dqk[..., :end], k[..., :end, :])


def _short_dq(kernel: Staged, usual: Any, dqk: Array, k: Array) -> Array:
    end = min(-(-dqk.shape[-2] // kernel.tile) * kernel.tile, dqk.shape[-1])
    return usual(dqk[..., :end], k[..., :end, :])


def _without_first(kernel: Staged, usual: Any, x: Array, y: Array) -> Array:
    return usual(x[..., kernel.tile :, :], y[..., kernel.tile :, :])


def _in_half(kernel: Staged, parts: list[Array]) -> Array:
    """Parts added one by one, the sum rounded to half precision before each further part; the last is stored as usual."""
    total = parts[0]
    for part in parts[1:]:
        total = of(part).xp.where(part == 0.0, total, rounded(total, lower(kernel.dtype)) + part)
    return total


def _half_dq(kernel: Staged, usual: Any, dqk: Array, k: Array) -> Array:
    return _in_half(kernel, [usual(dqk[..., at], k[..., at, :]) for at in tiles(k.shape[-2], kernel.tile)])


def _half_keys(kernel: Staged, usual: Any, x: Array, y: Array) -> Array:
    return _in_half(kernel, [usual(x[..., at, :], y[..., at, :]) for at in tiles(x.shape[-2], kernel.tile)])


def _contiguous(position: int) -> Any:
    def patch(kernel: Staged, usual: Any, *args: Any) -> Array:
        return usual(*(as_if_contiguous(x) if i == position else x for i, x in enumerate(args)))

    return patch


def _no_dlse(kernel: Staged, usual: Any, do: Array, o: Array, dlse: Any, lse: Array) -> Array:
    return usual(do, o, None, lse)


def _bare_bias(kernel: Staged, usual: Any, ds: Array) -> Array:
    """Of the items that share the bias, only the last contributes."""
    return usual(ds[-1:, ...])


def _dlse_off(a: float) -> Mutant:
    """dlse times 1 + a/10."""
    factor = 1.0 + 0.1 * a

    def delta(kernel: Staged, usual: Any, do: Array, o: Array, dlse: Any, lse: Array) -> Array:
        return usual(do, o, dlse * factor, lse)

    return Mutant("B13f", "lse", f"dlse off by the factor {factor:.6g}", lambda c, _: c.dlse is not None, patches={"delta": delta},
                  at=_dlse_off)


def _without_sink(kernel: Staged, usual: Any, lse: Array) -> Array:
    xp = of(lse).xp
    z, c, _ = _statistics(kernel)
    z = z - xp.exp(kernel.sinks() - c)
    return c + xp.log(xp.where(z > 0.0, z, 1.0))


def _from_diagonal(kernel: Staged, usual: Any, x: Array, y: Array) -> Array:
    """Queries before the key's tile do not contribute: x is (…, n, m), rows are queries."""
    n, m = x.shape[-2:]
    i, j = np.arange(n)[:, None], np.arange(m)[None, :]
    return usual(of(x).xp.where(i >= j // kernel.tile * kernel.tile, x, 0.0), y)


def _nan_rows(out: Any, case: Case, dtype: str, tile: int) -> Any:
    """dq of a query that sees nothing is NaN, and so are dk and dv of every head that has one."""
    kernel = kernel_of(case.scheme)(case.scheme, case.inputs)
    kernel.prepare()
    none = np.broadcast_to(~kernel.see.any(axis=-1, keepdims=True), (*case.do.shape[:3], 1))
    heads = none.any(axis=-2, keepdims=True).reshape(case.sizes["b"], case.sizes["g"], -1, 1, 1).any(axis=2)
    if case.scheme.heads == "tiled":
        heads = none.any(axis=-2, keepdims=True).reshape(case.sizes["b"], -1, case.sizes["g"], 1, 1).any(axis=1)
    xp = of(out["dq"]).xp
    spread = {name: xp.where(heads, math.nan, out[name]) for name in ("dk", "dv")}
    return {"dq": xp.where(none, math.nan, out["dq"]), **spread}


def masked_as(m: Mutant) -> Mutant:
    """The forward is right; the backward recomputes P with the mask of another mutant."""

    def recompute(kernel: Staged, usual: Any, q: Array, k: Array, lse: Array) -> Array:
        scheme, inputs = (kernel.scheme, kernel.inputs) if m.before is None else m.before(kernel.scheme, kernel.inputs, m.tile)
        other = type(kernel)(scheme, inputs, {n: p for n, p in m.patches.items() if n == "hide"}, kernel.dtype, m.tile or 64)
        other.prepare()
        s = other.do("hide", other.add_bias(kernel.bend(kernel.scores(q, k))))
        xp = of(s, lse).xp
        none = lse == -math.inf  # a query that saw nothing has no P, whatever this mask says
        p = xp.exp(xp.minimum(xp.where(s == -math.inf, 0.0, s - xp.where(none, 0.0, lse)), 80.0))
        return other.counted(xp.where(none | (s == -math.inf), 0.0, p))

    return Mutant(f"B6-{m.id}", m.family, f"in the backward alone: {m.title}", m.applies, patches={"recompute": recompute})


def keyed(case: Case, dtype: str) -> bool:
    return case.given("keep") is not None


add(
    Mutant("B1", "scale", "dq without the scale", scales, patches={"pull_q": lambda k, usual, ds, x: usual(ds, x) / k.scale}),
    Mutant("B2", "scale", "dk without the scale", scales, patches={"pull_k": lambda k, usual, ds, x: usual(ds, x) / k.scale}),
    Mutant("B1b", "scale", "dq and dk without the scale", scales, patches={"pull_scores": lambda k, usual, ds: usual(ds) / k.scale}),
    Mutant("B3", "scale", "dq and dk with the scale twice", scales, patches={"pull_scores": lambda k, usual, ds: usual(ds) * k.scale}),
    Mutant("B3q", "scale", "dq with the scale twice", scales, patches={"pull_q": lambda k, usual, ds, x: usual(ds, x) * k.scale}),
    Mutant("B3k", "scale", "dk with the scale twice", scales, patches={"pull_k": lambda k, usual, ds, x: usual(ds, x) * k.scale}),
    Mutant("B4", "softmax", "D = Σ P·dP is omitted", patches={"delta": lambda k, usual, do, o, dlse, lse: usual(do, o, dlse, lse) * 0.0}),
    Mutant("B4s", "softmax", "D is added where it must be subtracted",
           patches={"delta": lambda k, usual, do, o, dlse, lse: usual(do, o, dlse, lse) * -1.0}),
    Mutant("B5", "precision", "D rounded to half precision", lambda c, dtype: dtype != "float64", rounds=True,
           patches={"delta": lambda k, usual, do, o, dlse, lse: rounded(usual(do, o, dlse, lse), lower(k.dtype))}),
    Mutant("B5p", "precision", "dS rounded to half precision in a kernel that promises float32", rounds=True,
           applies=lambda c, dtype: dtype in ("float32", "float64"),
           patches={"pull_scores": lambda k, usual, ds: usual(rounded(ds, lower(k.dtype)))}),
    Mutant("B6", "mask", "dv from weights that were not masked", lambda c, _: hides(c), patches={"pull_v": _unmasked_values}),
    Mutant("B6a", "mask", "the whole backward without the mask", lambda c, _: hides(c),
           patches={"recompute": lambda kernel, usual, q, k, lse: _unmasked(kernel, q, k, lse)}),
    Mutant("B7", "layout", "dk and dv exchanged", lambda c, _: c.sizes["d"] == c.sizes["e"],
           after=lambda out, case, dtype, tile: {**out, "dk": out["dv"], "dv": out["dk"]}),
    Mutant("B8", "heads", "dk and dv of a shared key head from its last query head alone", groups, patches={"gather": _last_reader}),
    Mutant("B9", "heads", "dk and dv of a shared key head averaged, not summed", groups, patches={"gather": _mean_reader}),
    Mutant("B10", "tail", "dq without the last tile of {tile} keys", tile=-1, applies=lambda c, _: c.sizes["m"] > 16,
           patches={"pull_q": _without_last}),
    Mutant("B25", "tail", "dq from as many tiles of {tile} keys as there are tiles of queries", tile=-1,
           applies=lambda c, _: -(-c.sizes["m"] // 16) > -(-c.sizes["n"] // 16), patches={"pull_q": _short_dq}),
    Mutant("B11", "tail", "dk without the first tile of {tile} queries", tile=-1, applies=lambda c, _: c.sizes["n"] > 16,
           patches={"pull_k": _without_first}),
    Mutant("B11v", "tail", "dk and dv without the first tile of {tile} queries", tile=-1, applies=lambda c, _: c.sizes["n"] > 16,
           patches={"pull_k": _without_first, "pull_v": _without_first}),
    Mutant("B24", "causal", "dk and dv from queries at the key's own index and later (tiles of {tile}), without the offset m − n", tile=-1,
           applies=lambda c, _: c.option("causal") and c.sizes["m"] > c.sizes["n"] and c.given("q_positions") is None,
           patches={"pull_k": _from_diagonal, "pull_v": _from_diagonal}),
    Mutant("B33", "blind rows", "NaN from exp(−∞ − (−∞)) where a query sees nothing", lambda c, _: blind(c), after=_nan_rows),
    Mutant("B12", "scores", "the slope of the softcap is omitted", lambda c, _: c.option("softcap") is not None,
           patches={"pull_scores": lambda k, usual, ds: ds * k.scale}),
    Mutant("B13", "lse", "dlse is ignored", lambda c, _: c.dlse is not None, patches={"delta": _no_dlse}),
    Mutant("B13s", "lse", "dlse with the wrong sign", lambda c, _: c.dlse is not None,
           patches={"delta": lambda k, usual, do, o, dlse, lse: usual(do, o, dlse * -1.0, lse)}),
    _dlse_off(1.0),
    Mutant("B14", "bias", "dbias of the last item alone, not summed over the items that share the bias",
           lambda c, _: c.given("bias") is not None and c.sizes["b"] > 1 and (c.given("bias").ndim < 4 or c.given("bias").shape[0] == 1),
           patches={"pull_bias": _bare_bias}),
    Mutant("B14s", "bias", "dbias with the scale of q·k", lambda c, d: c.given("bias") is not None and scales(c, d),
           patches={"pull_bias": lambda k, usual, ds: usual(ds) * k.scale}),
    Mutant("B15", "sink", "dsink is zero", lambda c, _: c.given("sink") is not None,
           patches={"pull_sink": lambda k, usual, delta, lse: usual(delta, lse) * 0.0}),
    Mutant("B15l", "sink", "P recomputed from an lse without the sink", lambda c, _: c.given("sink") is not None,
           patches={"saved": _without_sink}),
    Mutant("B16", "dropout", "the keep mask is missing in dP", keyed,
           patches={"pull_weights": lambda k, usual, do, v: of(do, v).xp.matmul(do, of(v).xp.matrix_transpose(v))}),
    Mutant("B16v", "dropout", "the keep mask is missing in dv", keyed,
           patches={"drop": lambda k, usual, p: p}),
    Mutant("B17", "layout", "do is taken for contiguous", lambda c, _: c.strided and c.sizes["h"] > 1,
           patches={"delta": _contiguous(0), "pull_weights": _contiguous(0), "pull_v": _contiguous(1)}),
    Mutant("B18", "lse", "P recomputed from an lse in base 2",
           patches={"saved": lambda kernel, usual, lse: lse / math.log(2.0)}),
    Mutant("B20", "precision", "dq rounded to half precision after each tile of {tile} keys", tile=-1, rounds=True,
           applies=lambda c, dtype: c.sizes["m"] > 16 and dtype != "float64", patches={"pull_q": _half_dq}),
    Mutant("B21", "precision", "dk and dv rounded to half precision after each tile of {tile} queries", tile=-1, rounds=True,
           applies=lambda c, dtype: c.sizes["n"] > 16 and dtype != "float64", patches={"pull_k": _half_keys, "pull_v": _half_keys}),
)  # fmt: skip

# The masks of forward mistakes, in the backward alone.
_MASKS = ("F20", "F21", "F22", "F23", "F23s", "F62", "F27", "F28", "F30", "F30l", "F31", "F31f", "F34", "F34p")
add(*[masked_as(m) for m in MUTANTS if m.id.partition("@")[0] in _MASKS])
