"""Every kind of position as a case: arrays, its forward, its explicit n × n form and its vjp, each of the arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refattn import Alibi, RelativeShift, Rope, RotaryBias, Sinusoid, T5Bias, ToeplitzBias, rng
from refattn.backend import of


class Case(NamedTuple):
    """arrays: floats that have gradients. forward, definition: of the arrays. vjp: of the arrays and a cotangent."""

    arrays: tuple[Any, ...]
    forward: Callable[..., Any]
    definition: Callable[..., Any]
    vjp: Callable[..., tuple[Any, ...]]


def drawn(*shapes, name="position"):
    return tuple(rng.short(rng.stream(5, name, i).normal(size=shape)) for i, shape in enumerate(shapes))


def scores(rope, at=None, to=None, n=5, m=6, lead=(2, 3)):
    """Rope by what it does to products; `at`, `to`: positions that are given, on the host."""

    def here(x, given):
        return None if given is None else of(x).lift(given, x)

    def forward(q, k):
        xp = of(q, k).xp
        return xp.matmul(rope(q, here(q, at)), xp.matrix_transpose(rope(k, here(k, to))))

    def vjp(q, k, ds):
        xp = of(q, k).xp
        dq, dk = xp.matmul(ds, rope(k, here(k, to))), xp.matmul(xp.matrix_transpose(ds), rope(q, here(q, at)))
        return rope.vjp(dq, here(q, at)), rope.vjp(dk, here(k, to))

    def definition(q, k):
        return rope.definition(q, k, here(q, at), here(k, to))

    return Case(drawn((*lead, n, 6), (*lead, m, 6)), forward, definition, vjp)


def sized(position, arrays, n, m, vjp=None):
    """A bias made from parameters for n queries and m keys."""

    def pulled(*given):
        out = position.vjp(*given)
        return out if isinstance(out, tuple) else (out,)

    return Case(arrays, lambda *x: position(*x, n, m), lambda *x: position.definition(*x, n, m), vjp or pulled)


def shift(above, *shape):
    position = RelativeShift(above)
    return Case(drawn(shape), position.forward, position.definition, lambda raw, dout: (position.vjp(dout),))


def sinusoid(position, *arrays):
    return Case(arrays, position.forward, position.definition,
                lambda x, *rest: position.vjp(x, *(rest if len(rest) == 2 else (None, *rest)))[: len(rest)])  # fmt: skip


AT, TO = np.array([[7, 3, 0, 1, 90], [1, 1, 2, 3, 5]]), np.array([[0, 4, 8, 5, 6, 2], [9, 8, 7, 6, 5, 4]])
SLOPES = np.array([0.5, 0.25, 0.125])
CASES = {
    "rope halves": scores(Rope("halves")),
    "rope neighbours": scores(Rope("neighbours")),
    "rope partial, offset": scores(Rope("neighbours", width=4, offset=11)),
    "rope halves partial, base": scores(Rope("halves", width=2, base=500.0)),
    "rope of no features": scores(Rope("halves", width=0)),
    "rope positions": scores(Rope("halves"), AT, TO),
    "rope without heads": scores(Rope("halves"), AT[0], TO[0], lead=()),
    "rope of one token": scores(Rope("halves"), n=1, m=1),
    "rope of none": scores(Rope("neighbours"), n=0, m=3),
    "alibi": sized(Alibi(), (SLOPES,), 4, 6),
    "alibi offset": sized(Alibi(offset=2), (SLOPES,), 4, 6),
    "alibi last_key": sized(Alibi("last_key"), (SLOPES,), 4, 6),
    "alibi key": sized(Alibi("key"), (SLOPES,), 1, 3),
    "alibi of none": sized(Alibi(), (SLOPES,), 0, 3),
    "t5": sized(T5Bias(8, 7), drawn((8, 3)), 9, 12),
    "t5 causal": sized(T5Bias(8, 20, bidirectional=False, offset=3), drawn((8, 3)), 9, 12),
    "t5 of one query": sized(T5Bias(8, 7), drawn((8, 3)), 1, 12),
    "t5 of none": sized(T5Bias(8, 7), drawn((8, 3)), 3, 0),
    "toeplitz": sized(ToeplitzBias(), drawn((9,)), 5, 5),
    "toeplitz heads, offset": sized(ToeplitzBias(offset=2), drawn((2, 13)), 3, 6),
    "toeplitz n = 1": sized(ToeplitzBias(), drawn((1,)), 1, 1),
    "toeplitz longer": sized(ToeplitzBias(), drawn((3, 9)), 1, 3),
    "rotary bias": sized(RotaryBias(), drawn((6,), (6,)), 5, 5),
    "rotary bias heads, offset": sized(RotaryBias("neighbours", base=50.0, offset=3), drawn((2, 4), (2, 4)), 3, 7),
    "rotary bias n = 1": sized(RotaryBias(), drawn((6,), (6,)), 1, 1),
    "shift": shift("zero", 2, 4, 7),
    "shift square": shift("zero", 3, 3),
    "shift as published": shift("wrapped", 2, 3, 4, 6),
    "shift as published, few keys": shift("wrapped", 2, 7, 2),
    "shift of one query": shift("wrapped", 1, 5),
    "shift of no key": shift("zero", 3, 0),
    "sinusoid": sinusoid(Sinusoid("neighbours"), *drawn((2, 5, 6))),
    "sinusoid halves, offset": sinusoid(Sinusoid("halves", offset=40), *drawn((5, 6))),
    "scaled sinusoid": sinusoid(Sinusoid("halves"), *drawn((2, 5, 6)), np.asarray(0.375)),
    "scaled sinusoid of none": sinusoid(Sinusoid("halves"), *drawn((0, 6)), np.asarray(0.375)),
}
