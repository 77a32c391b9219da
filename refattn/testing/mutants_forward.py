"""Mistakes of scores, softmax, heads, layout and stored results."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant, add, reading
from refattn.testing.staged import Staged, sum_of
from refattn.testing.subjects import kernel_of
from refattn.testing.tolerance import exact_in, toward_zero

Array = Any
HALF = ("bfloat16", "float16")


def scaled(new: Any) -> Any:
    """A neighbour whose scale is new(own, d, e)."""

    def before(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
        d, e = inputs.q.shape[-1], inputs.v.shape[-1]
        own = d**-0.5 if scheme.scale is None else scheme.scale
        return replace(scheme, scale=new(own, d, e)), inputs

    return before


def rounded(x: Array, dtype: str) -> Array:
    """x rounded to a storage dtype, as values; in a reading x itself (the mutant is then named by its values alone)."""
    return x if reading() else exact_in(x, dtype)


def lower(dtype: str) -> str:
    """The precision that a careless kernel of `dtype` falls back to."""
    return {"float64": "float32", "float32": "bfloat16"}.get(dtype, dtype)


def own_scale(case: Case) -> float:
    return float(case.sizes["d"] ** -0.5 if case.option("scale") is None else case.option("scale"))


def scales(case: Case, dtype: str) -> bool:
    """True if the scale does something: a second time, or if it is left out."""
    return own_scale(case) not in (0.0, 1.0)


def tiles(m: int, tile: int) -> list[slice]:
    return [slice(a, min(a + tile, m)) for a in range(0, m, tile)]


def _scale_off(a: float) -> Mutant:
    factor = 1.0 + 0.01 * a
    title = f"scale off by the factor {factor:.6g}" if abs(a) > 1e-3 else f"scale off by the factor 1 {0.01 * a:+.2g}"
    return Mutant("F3", "scores", title, before=scaled(lambda own, d, e: own * factor), at=_scale_off)


def _epsilon(a: float) -> Mutant:
    title = f"{1e-3 * a:.3g} added to the sum of weights exp(s − max)"
    return Mutant("F50", "softmax", title, at=_epsilon, patches={"total": lambda k, usual, e, c, s: usual(e, c, s) + 1e-3 * a})


def _raw_half(kernel: Staged, q: Array, k: Array) -> Array:
    xp = of(q, k).xp
    return rounded(xp.matmul(q, xp.matrix_transpose(k)), kernel.dtype) * kernel.scale


# ---- scores
add(
    Mutant("F1", "scores", "scale omitted (scores are q·k)", lambda c, _: own_scale(c) != 1, scaled(lambda own, d, e: 1.0)),
    Mutant("F2", "scores", "scale applied twice", scales, scaled(lambda own, d, e: own * own)),
    _scale_off(1.0),
    Mutant("F3w", "scores", "scale 1/√e from the width of v, for 1/√d", lambda c, _: c.sizes["d"] != c.sizes["e"],
           scaled(lambda own, d, e: e**-0.5)),
    Mutant("F3h", "scores", "scale 1/√(H·d) from all heads together, for 1/√d", lambda c, _: c.sizes["h"] > 1,
           lambda s, x, t: scaled(lambda own, d, e: own * x.q.shape[1] ** -0.5)(s, x, t)),
    Mutant("F9", "scores", "exp2 without the factor log2(e)", before=scaled(lambda own, d, e: own * math.log(2.0))),
    Mutant("F9e", "scores", "log2(e) applied, then exp instead of exp2", before=scaled(lambda own, d, e: own / math.log(2.0))),
)  # fmt: skip


def _half_keys(scheme: Any, inputs: Any, tile: int) -> tuple[Any, Any]:
    d = inputs.q.shape[-1]
    return replace(scheme, scale=1.0), inputs._replace(k=inputs.k * (d**-0.5 if scheme.scale is None else scheme.scale))


def _round_keys(kernel: Staged, usual: Any, q: Array, k: Array) -> Array:
    return usual(q, rounded(k, kernel.dtype))


add(
    Mutant("F4", "scores", "scale folded into k in half precision",
           lambda c, dtype: dtype in HALF and abs(math.frexp(own_scale(c))[0]) not in (0.0, 0.5), _half_keys, {"scores": _round_keys}, rounds=True),
    Mutant("F5", "scores", "bias added before the scale, so scaled too", lambda c, _: c.given("bias") is not None and own_scale(c) != 1,
           lambda s, x, t: (s, x._replace(bias=x.bias * (x.q.shape[-1] ** -0.5 if s.scale is None else s.scale)))),
    Mutant("F6", "scores", "softcap omitted", lambda c, _: c.option("softcap") is not None, lambda s, x, t: (replace(s, softcap=None), x)),
    Mutant("F6m", "scores", "softcap applied after the mask, so hidden keys get −softcap",
           lambda c, _: c.option("softcap") is not None and hides(c),
           patches={"hide": lambda kernel, usual, s: of(s).xp.where(kernel.see, s, -kernel.option("softcap"))}),
    Mutant("F6s", "scores", "softcap applied before the scale", lambda c, _: c.option("softcap") is not None and scales(c, _),
           patches={"bend": lambda k, usual, s: usual(s / k.scale) * k.scale}),
    Mutant("F6b", "scores", "softcap applied after the bias", lambda c, _: c.option("softcap") is not None and c.given("bias") is not None,
           patches={"bend": lambda k, usual, s: usual(s + k.given("bias")) - k.given("bias")}),
    Mutant("F14r", "precision", "products q·k held in half precision before they are scaled: beyond its range they are infinite",
           lambda c, dtype: dtype == "float16", rounds=True, patches={"scores": lambda k, usual, q, x: _raw_half(k, q, x)}),
    Mutant("F14", "precision", "scores rounded to half precision", lambda c, dtype: dtype != "float64", rounds=True,
           patches={"scores": lambda k, usual, q, x: rounded(usual(q, x), lower(k.dtype))}),
)  # fmt: skip


# ---- softmax
def hides(case: Case) -> bool:
    """True if some pair of the case is hidden."""
    hiding = ("mask", "key_valid", "segment_ids")
    return placed(case) or any(case.given(name) is not None for name in hiding)


def placed(case: Case) -> bool:
    """True if it matters where queries and keys stand: causal order, or a pattern."""
    return bool(case.option("causal")) or case.option("pattern") is not None


def _overflow(kernel: Staged, usual: Any, s: Array) -> Array:
    """No row maximum is subtracted: the stabiliser is 0, and exp leaves float32 beyond 88.7."""
    xp = of(s).xp
    return xp.zeros_like(usual(s))


def _burst(outputs: Any, case: Case, dtype: str, tile: int) -> Any:
    """exp(s) overflows the accumulator's format where lse does: inf/inf is NaN, log(inf) is inf."""
    if reading():
        return outputs
    limit = 709.7 if dtype == "float64" else 88.7
    beyond = np.asarray(outputs["lse"]) > limit
    return {"o": np.where(beyond[..., None], np.nan, outputs["o"]), "lse": np.where(beyond, np.inf, outputs["lse"])}




def _by_query(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    """Softmax over queries: every column of weights sums to one."""
    xp = of(e, v).xp
    there = s > -math.inf
    top = of(s).constant(xp.max(s, axis=-2, keepdims=True))
    top = xp.where(top == -math.inf, 0.0, top)
    w = xp.where(there, xp.exp(xp.where(there, s - top, 0.0)), 0.0)
    w = kernel.counted(w)
    total = xp.sum(w, axis=-2, keepdims=True)
    return xp.matmul(w / xp.where(total == 0.0, 1.0, total), v)


def running(kernel: Staged, s: Array, c: Array) -> list[tuple[slice, Array]]:
    """(keys of a tile, the row maximum when that tile is done) of an online softmax."""
    b, out, top = of(s), [], None
    for at in tiles(s.shape[-1], kernel.tile):
        here = b.xp.max(s[..., at], axis=-1, keepdims=True)
        top = here if top is None else b.xp.maximum(top, here)
        out.append((at, b.xp.where(top == -math.inf, c, b.constant(top))))
    return out


def _stale_total(kernel: Staged, usual: Any, e: Array, c: Array, s: Array) -> Array:
    """z accumulated as if the maximum never moved: Σ_tiles Σ_j exp(s_j − running maximum)."""
    xp, z = of(e).xp, None
    for at, top in running(kernel, s, c):
        part = xp.sum(kernel.weights(s[..., at], top, at), axis=-1, keepdims=True)
        z = part if z is None else z + part
    return z if kernel.given("sink") is None else z + xp.exp(kernel.sinks() - c)


def _stale_combine(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    xp = of(e, v).xp
    parts = [kernel.weights(s[..., at], top, at) for at, top in running(kernel, s, c)]
    return usual(xp.concat(parts, axis=-1), z, v, c, s)


def long(case: Case, tile: int) -> bool:
    return case.sizes["m"] > tile


def splits(kernel: Staged, m: int) -> list[slice]:
    """Keys in two parts, in four, or in four of whole tiles, by the kernel's `tile` (2, 4, 16 and 64)."""
    count = 2 if kernel.tile == 2 else 4
    size = -(-m // count)
    size = size if kernel.tile <= 4 else -(-size // kernel.tile) * kernel.tile
    return tiles(m, size)


def _parts(kernel: Staged, e: Array, v: Array, s: Array) -> list[tuple[Array, Array, Array, Array]]:
    """(Σ e v, Σ e, 0 where the part sees nothing, its row maximum) of each part of the keys."""
    b, out = of(e, v), []
    for a in splits(kernel, e.shape[-1]):
        z = b.xp.sum(e[..., a], axis=-1, keepdims=True)
        top = b.constant(b.xp.max(s[..., a], axis=-1, keepdims=True))
        out.append((b.xp.matmul(e[..., a], v[..., a, :]), b.xp.where(z == 0.0, 1.0, z), z, top))
    return out


def _merged(parts: list[tuple[Array, Array]]) -> Array:
    """Σ w o / Σ w."""
    total = sum_of([w for w, _ in parts])
    return sum_of([w * o for w, o in parts]) / of(total).xp.where(total == 0.0, 1.0, total)


def _even_merge(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    return _merged([(z * 0.0 + 1.0, a / safe) for a, safe, z, _ in _parts(kernel, e, v, s)])


def _max_merge(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    """Parts weighted by exp(maximum) where exp(lse) belongs."""
    xp = of(e, v).xp
    parts = _parts(kernel, e, v, s)
    ws = [xp.where(t == -math.inf, 0.0, xp.exp(xp.where(t == -math.inf, 0.0, t - c))) for *_, t in parts]
    return _merged([(w, a / safe) for w, (a, safe, _, _) in zip(ws, parts, strict=True)])


def _base_merge(power: float) -> Any:
    """Parts weighted by a power of what they must be: lse in base 2 under exp is 1/log 2, lse under exp2 is log 2."""

    def combine(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
        xp = of(e, v).xp
        parts = _parts(kernel, e, v, s)
        ws = [xp.where(y == 0.0, 0.0, xp.exp(xp.log(safe) * power)) for _, safe, y, _ in parts]
        return _merged([(w, a / safe) for w, (a, safe, _, _) in zip(ws, parts, strict=True)])

    return combine


def _raw_merge(kernel: Staged, usual: Any, e: Array, z: Array, v: Array, c: Array, s: Array) -> Array:
    """Parts merged by their lse without having been divided by their sums."""
    return _merged([(y, a) for a, _, y, _ in _parts(kernel, e, v, s)])


MERGES = (
    ("F48", "keys", "parts averaged, not weighted", _even_merge),
    ("F48m", "keys", "parts weighted by exp(maximum), not exp(lse)", _max_merge),
    ("F48e", "keys", "parts weighted by exp of an lse in base 2", _base_merge(1 / math.log(2.0))),
    ("F48x", "keys", "parts weighted by exp2 of a natural lse", _base_merge(math.log(2.0))),
    ("F49", "keys", "parts merged without having been divided by their sums", _raw_merge),
)
def _mixed_statistic(kernel: Staged, usual: Any, z: Array, c: Array, s: Array) -> Array:
    """log 2 · (M + log Σ exp(L − M)) over the parts' L = lse / log 2, M their largest."""
    b = of(s)
    parts = [kernel.do("weights", s[..., a], c, a) for a in splits(kernel, s.shape[-1])]
    sums = [b.xp.sum(e, axis=-1, keepdims=True) for e in parts]
    ls = [b.xp.where(y == 0.0, -math.inf, (c + b.xp.log(b.xp.where(y == 0.0, 1.0, y))) / math.log(2.0)) for y in sums]
    top = ls[0]
    for x in ls[1:]:
        top = b.xp.maximum(top, x)
    none = top == -math.inf
    safe = b.xp.where(none, 0.0, top)
    w = sum_of([b.xp.where(x == -math.inf, 0.0, b.xp.exp(b.xp.where(x == -math.inf, 0.0, x - safe))) for x in ls])
    return b.xp.where(none, -math.inf, (safe + b.xp.log(b.xp.where(none, 1.0, w))) * math.log(2.0))


SPLITS = {2: "two", 4: "four", 16: "four of whole tiles of 16", 64: "four of whole tiles of 64"}


def _bare_statistic(kernel: Staged, usual: Any, z: Array, c: Array, s: Array) -> Array:
    return usual(of(s).xp.sum(kernel.weights(s, c), axis=-1, keepdims=True), c, s)


def two(case: Case, dtype: str) -> bool:
    return case.sizes["m"] > 2 and case.given("sink") is None and case.given("keep") is None


add(
    Mutant("F7", "softmax", "no row maximum subtracted: exp overflows", lambda c, _: c.family in ("large", "rising", "half range"),
           patches={"gauge": _overflow}, after=_burst, rounds=True),
    Mutant("F10", "softmax", "never divided by the sum of weights", lambda c, _: c.sizes["m"] > 1,
           patches={"combine": lambda k, usual, e, z, v, c, s: of(e, v).xp.matmul(e, v)}),
    Mutant("F11", "softmax", "softmax over queries instead of keys", lambda c, _: c.sizes["n"] > 1, patches={"combine": _by_query}),
    Mutant("F12", "softmax", "online softmax in tiles of {tile}: the sum is not rescaled when the maximum moves", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16, patches={"total": _stale_total}),
    Mutant("F13", "softmax", "online softmax in tiles of {tile}: the accumulator is not rescaled when the maximum moves", tile=-1,
           applies=lambda c, _: c.sizes["m"] > 16, patches={"combine": _stale_combine}),
    Mutant("F15", "precision", "accumulator rounded to half precision after each tile of {tile}", tile=-1, rounds=True,
           applies=lambda c, dtype: c.sizes["m"] > 16 and dtype != "float64",
           patches={"combine": lambda k, usual, e, z, v, c, s: _half_accumulator(k, e, z, v)}),
    Mutant("F15z", "precision", "sum of weights rounded to half precision after each tile of {tile}", tile=-1, several=False, rounds=True,
           applies=lambda c, dtype: c.sizes["m"] > 1 and dtype != "float64",
           patches={"total": lambda k, usual, e, c, s: _half_total(k, usual, e, c, s)}),
    Mutant("F16", "precision", "weights rounded to float8 e4m3", rounds=True,
           patches={"combine": lambda k, usual, e, z, v, c, s: usual(e if reading() else _e4m3(e), z, v, c, s)}),
    Mutant("F16b", "precision", "weights rounded to half precision in a kernel that promises float32", rounds=True,
           applies=lambda c, dtype: dtype in ("float32", "float64"),
           patches={"combine": lambda k, usual, e, z, v, c, s: usual(rounded(e, lower(k.dtype)), z, v, c, s)}),
    Mutant("F18", "softmax", "sink omitted", lambda c, _: c.given("sink") is not None, lambda s, x, t: (s, x._replace(sink=None))),
    Mutant("F18v", "softmax", "the sink's weight is given to the first value", lambda c, _: c.given("sink") is not None,
           patches={"combine": lambda k, usual, e, z, v, c, s: usual(e, z, v, c, s) + of(z).xp.exp(k.sinks() - c) / z * v[..., :1, :]}),
    Mutant("F18l", "lse", "lse without the sink", lambda c, _: c.given("sink") is not None, patches={"statistic": _bare_statistic}),
    Mutant("F19", "heads", "the sink of head h is that of head h − 1", lambda c, _: c.given("sink") is not None and c.sizes["h"] > 1,
           lambda s, x, t: (s, x._replace(sink=of(x.sink).xp.roll(x.sink, 1)))),
    Mutant("F19b", "heads", "the bias of head h is that of head h − 1",
           lambda c, _: c.given("bias") is not None and c.given("bias").ndim > 2 and c.given("bias").shape[-3] > 1,
           lambda s, x, t: (s, x._replace(bias=of(x.bias).xp.roll(x.bias, 1, axis=-3)))),
    Mutant("F45", "softmax", "dropout without dividing by the keep rate", lambda c, _: c.given("keep") is not None,
           patches={"combine": lambda k, usual, e, z, v, c, s: usual(e, z, v, c, s) * k.option("keep_rate")}),
    *(Mutant(f"{i}@{t}", "merge", f"{way} split into {text}: {what}", two, patches={"combine": patch}, tile=t)
      for i, way, what, patch in MERGES for t, text in SPLITS.items()),
    *(Mutant(f"F48c@{t}", "merge", f"keys split into {text}: parts and their lse merged by exp and log of an lse in base 2", two,
             patches={"combine": _base_merge(1 / math.log(2.0)), "statistic": _mixed_statistic}, tile=t) for t, text in SPLITS.items()),
    _epsilon(1.0),
)  # fmt: skip


def _half_accumulator(kernel: Staged, e: Array, z: Array, v: Array) -> Array:
    acc = None
    for at in tiles(e.shape[-1], kernel.tile):
        part = of(e, v).xp.matmul(e[..., at], v[..., at, :])
        acc = rounded(part if acc is None else acc + part, lower(kernel.dtype))
    return acc / of(z).xp.where(z == 0.0, 1.0, z)


def _half_total(kernel: Staged, usual: Any, e: Array, c: Array, s: Array) -> Array:
    """z of an online softmax whose running sum is rounded each time it is rescaled and added to."""
    if reading():
        return usual(e, c, s)
    z, top = np.zeros(c.shape), None
    for at, now in running(kernel, s, c):
        z = z if top is None else z * np.exp(top - now)
        z, top = rounded(z + kernel.weights(s[..., at], now, at).sum(axis=-1, keepdims=True), lower(kernel.dtype)), now
    z = z if top is None else z * np.exp(top - c)
    return z if kernel.given("sink") is None else z + np.exp(kernel.sinks() - c)


def _e4m3(x: Array) -> Array:
    from refattn.rng import short

    return short(x)


# ---- stored results
def _truncated(out: Any, case: Case, dtype: str, tile: int) -> Any:
    if reading():
        return out
    return {**out, "o": toward_zero(np.asarray(out["o"]), dtype)}


def _unscaled_statistic(kernel: Staged, usual: Any, z: Array, c: Array, s: Array) -> Array:
    raw = s / kernel.scale
    top = kernel.gauge(raw)
    return usual(kernel.total(kernel.weights(raw, top), top, raw), top, raw)


add(
    Mutant("F17", "precision", "o truncated towards zero, not rounded", lambda c, dtype: dtype in HALF, after=_truncated, rounds=True),
    Mutant("F46", "lse", "lse in base 2", after=lambda out, case, dtype, tile: {**out, "lse": out["lse"] / math.log(2.0)}),
    Mutant("F47", "lse", "lse without the row maximum", patches={"statistic": lambda k, usual, z, c, s: usual(z, c * 0.0, s)}),
    Mutant("F47u", "lse", "lse of scores without their scale",
           lambda c, _: scales(c, _) and c.given("bias") is None and c.option("softcap") is None and c.given("sink") is None,
           patches={"statistic": _unscaled_statistic}),
    Mutant("F46i", "lse", "lse = +∞ for a query that sees nothing", lambda c, _: blind(c),
           after=lambda out, case, dtype, tile: {**out, "lse": of(out["lse"]).xp.where(out["lse"] == -math.inf, math.inf, out["lse"])}),
)  # fmt: skip


def blind(case: Case) -> bool:
    """True if some query of the case sees nothing and there is no sink."""
    if case.given("sink") is not None or not hides(case):
        return False
    kernel = kernel_of(case.scheme)(case.scheme, case.inputs)
    kernel.prepare()
    return bool((~kernel.see.any(axis=-1)).any())
