"""NumPy: the namespace, and which generic kernels Numba replaces."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from refattn.backends import buckets_engine, by_head, by_item, linear_engine, rows_engine, slots_engine, tile_engine
from refattn.backends.buckets_engine import BucketsEngine
from refattn.backends.linear_engine import Mixer
from refattn.backends.mixed_rows import MixedRows
from refattn.backends.rows_engine import RowsEngine
from refattn.backends.slots_engine import SlotsEngine
from refattn.backends.tile_engine import Engine
from refattn.backends.tiled_rows import TiledRows
from refattn.kernels import compiling, text

HALF = ("float16", "bfloat16")


def erf(x: Any) -> Any:
    """SciPy's, which loads when it is first used."""
    return importlib.import_module("scipy.special").erf(x)


WORDS: dict[str, Callable[..., Any]] = {"erf": erf}
ENGINE, ROWS, TILED, MIXER, BUCKETS, SLOTS = Engine(), RowsEngine(), TiledRows(), Mixer(), BucketsEngine(), SlotsEngine()


def kernels(engine: Engine = ENGINE, pairs: int = 2**14, rows: RowsEngine = ROWS, tiled: TiledRows | None = TILED,
            mixer: Mixer = MIXER, buckets: BucketsEngine = BUCKETS, slots: SlotsEngine = SLOTS
            ) -> dict[str, Callable[..., Any]]:
    """The overrides, by the names of the generic texts. What the tile engine leaves, heads of `pairs` pairs, goes by head;
    rows go by tiles, by lists or by both, whatever costs least.
    """

    def attend(q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
        out = engine.attend(q, k, v, *others, **options)
        if out is NotImplemented and by_head.apart(q, k, v, pairs):
            return by_head.attend(text("attend"), q, k, v, *others, **options)
        return out

    def attend_vjp(q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
        out = engine.attend_vjp(q, k, v, *others, **options)
        if out is NotImplemented and by_head.apart(q, k, v, pairs):
            return by_head.attend_vjp(text("attend_vjp"), q, k, v, *others, **options)
        return out

    several = (rows,) if tiled is None else (MixedRows(tiled, rows), tiled, rows)

    def attend_rows(*args: Any, **options: Any) -> Any:
        outs = (engine.attend_rows(*args, **options) for engine in several)
        return next((out for out in outs if out is not NotImplemented), NotImplemented)

    def attend_rows_vjp(*args: Any, **options: Any) -> Any:
        outs = (engine.attend_rows_vjp(*args, **options) for engine in several)
        return next((out for out in outs if out is not NotImplemented), NotImplemented)

    items: dict[str, Callable[..., Any]] = {"attend_counts": by_item.attend_counts}
    items["attend_counts_vjp"] = by_item.attend_counts_vjp
    mine = {"attend": attend, "attend_vjp": attend_vjp, "attend_rows": attend_rows, "attend_rows_vjp": attend_rows_vjp}
    of_lists = {**rows.kernels(), **buckets.kernels(), **slots.kernels()}
    return {**WORDS, **of_lists, **mixer.kernels(), **items, **mine}


def _warmup() -> None:
    """Every engine's, unless nothing compiled is to run."""
    if compiling():
        for engine in (tile_engine, rows_engine, linear_engine, buckets_engine, slots_engine):
            engine.warmup()


@dataclass(frozen=True)
class NumpyBackend:
    """Arrays in host memory; half precision is computed in float32."""

    name: str = "numpy"
    xp: Any = xp
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: kernels())
    block: int | None = 256
    warmups: tuple[Callable[[], None], ...] = (_warmup,)

    def lift(self, x: Any, like: Any = None) -> Any:
        return np.arange(x.start, x.stop, x.step) if isinstance(x, range) else np.asarray(x)

    def host(self, x: Any) -> Any:
        return np.asarray(x)

    def constant(self, x: Any) -> Any:
        return x

    def widen(self, x: Any) -> Any:
        if x.dtype.itemsize != 2:  # a dtype's name takes long to find
            return x
        return x.astype(np.float32) if x.dtype.name in HALF else x

    def narrow(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype, copy=False)

    def settle(self, x: Any) -> Any:
        return x


def backend() -> NumpyBackend:
    """The NumPy backend."""
    return NumpyBackend()
