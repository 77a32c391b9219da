"""Kernels over patterns as strangers write them: right ones, and some with a mistake; NumPy float32 in blocks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from refattn.testing.cases import Case
from refattn.testing.mutants import Mutant

Array = Any


def softmax(s: Array, v: Array) -> tuple[Array, Array]:
    """o and lse of scores; a row without keys is 0 and −inf."""
    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    safe = np.where(np.isinf(top), np.float32(0), top)
    p = np.exp(s - safe)
    z = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(z == 0, np.float32(-np.inf), safe + np.log(np.where(z == 0, np.float32(1), z)))
    return p @ v / np.where(z == 0, np.float32(1), z), lse[..., 0]


def shared(q: Array, *keys: Array) -> tuple[Array, ...]:
    return tuple(np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in keys)


def window(left: int, right: int, tile: int = 16, wrong: int = 0) -> Callable[..., Any]:
    """A sliding window in tiles of queries, `wrong` keys wider to the left than it says."""

    def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        k, v = shared(q, k, v)
        n, m, shift = q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2]
        o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.zeros(q.shape[:-1], np.float32)
        for a in range(0, n, tile):
            at = slice(a, min(a + tile, n))
            first, stop = max(a + shift - left - wrong, 0), max(min(at.stop + shift + right, m), 0)
            keys = slice(first, max(first, stop))
            i, j = np.arange(at.start, at.stop)[:, None] + shift, np.arange(keys.start, keys.stop)
            see = (j >= i - left - wrong) & (j <= i + right)
            s = q[..., at, :] @ k[..., keys, :].swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
            o[..., at, :], lse[..., at] = softmax(np.where(see, s, np.float32(-np.inf)), v[..., keys, :])
        return o, lse

    return attention


def blocks(size: int, back: int, tail: bool = True) -> Callable[..., Any]:
    """Blocks of queries see their own block and `back` before; without `tail` the last, shorter block is forgotten."""

    def attention(q: Array, k: Array, v: Array, key_valid: Array | None = None) -> tuple[Array, Array]:
        k, v = shared(q, k, v)
        n = q.shape[-2]
        o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], -np.inf, np.float32)
        for a in range(0, n if tail else n // size * size, size):
            at, keys = slice(a, min(a + size, n)), slice(max(a - back * size, 0), min(a + size, n))
            s = q[..., at, :] @ k[..., keys, :].swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
            if key_valid is not None:
                s = np.where(key_valid[:, None, None, keys], s, np.float32(-np.inf))
            o[..., at, :], lse[..., at] = softmax(s, v[..., keys, :])
        return o, lse

    return attention


def listed(scheme: Any, *, count: Callable[[Array], Array] = lambda c: c) -> Callable[..., Any]:
    """Row by row from lists of keys, each as often as its count, or as `count` makes of that."""

    def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        k, v = shared(q, k, v)
        n, m = q.shape[-2], k.shape[-2]
        parts = getattr(scheme.pattern, "patterns", (scheme.pattern,) * q.shape[1])
        offset = m - n if scheme.align == "bottom_right" else 0
        o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.zeros(q.shape[:-1], np.float32)
        for h, pattern in enumerate(parts):
            for i, row in enumerate(count(pattern.dense(n, m, offset))):
                keys = np.repeat(np.arange(m), row)
                s = (q[:, h, None, i] @ k[:, h, keys].swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5)
                found, statistic = softmax(s, v[:, h, keys])
                o[:, h, i], lse[:, h, i] = found[:, 0], statistic[:, 0]
        return o, lse

    return attention


def text(scheme: Any, *accepts: str) -> Callable[..., Any]:
    """The scheme's own forward, taking these optional inputs."""

    def forward(q: Array, k: Array, v: Array, **given: Array) -> tuple[Array, Array]:
        o, saved = scheme.forward(q, k, v, **given)
        return o, saved.lse

    names = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("q", "k", "v")]
    names += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in accepts]
    forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return forward


def pullback(scheme: Any) -> Callable[..., Any]:
    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array) -> dict[str, Array]:
        grads = scheme.vjp(scheme.Saved(scheme.Inputs(q, k, v), o, lse), do, dlse=dlse)
        return {f"d{name}": g for name, g in grads._asdict().items() if g is not None}

    return vjp


def mistaken(mutant: Mutant, scheme: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A forward and a backward, one of which makes this mistake."""

    def case(q: Array, k: Array, v: Array, do: Array, dlse: Array | None) -> Case:
        (b, h, n, d), (g, m, e) = q.shape, v.shape[1:]
        sizes = dict(zip("bhgnmde", (b, h, g, n, m, d, e), strict=True))
        inputs = scheme.Inputs(*(x.astype(np.float64) for x in (q, k, v)))
        wide = (None if x is None else x.astype(np.float64) for x in (do, dlse))
        return Case("", "", "", "", scheme, inputs, *wide, sizes)

    def forward(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        o, saved = scheme.forward(q, k, v)
        out = {"o": o, "lse": saved.lse}
        x = case(q, k, v, np.zeros_like(o), None)
        if not mutant.backward and mutant.applies(x, "float32"):
            out |= mutant.values(x, "float32")
        return out["o"].astype(q.dtype), out["lse"].astype(np.float32)

    def vjp(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, dlse: Array) -> dict[str, Array]:
        x = case(q, k, v, do, dlse)
        out = pullback(scheme)(q, k, v, o, lse, do, dlse)
        if mutant.backward and mutant.applies(x, "float32"):
            out |= mutant.values(x, "float32")
        return {name: y.astype(q.dtype) for name, y in out.items()}

    return forward, vjp
