"""LSH itself as a candidate, which hands its buckets back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refattn import LSH

Array = Any


def text_of(scheme: LSH) -> tuple[Any, Any]:
    """The scheme itself as a candidate."""

    def forward(qk: Array, v: Array, rotations: Any = None, buckets: Any = None, positions: Any = None,
                key_valid: Any = None) -> Any:
        bare = scheme if buckets is None else replace(scheme, factors=None)
        o, saved = bare.forward(qk, v, rotations, buckets, positions, key_valid)
        return {"o": o, "lse": saved.lse, "buckets": buckets if saved.buckets is None else saved.buckets}

    def vjp(qk: Array, v: Array, do: Array, buckets: Array, dlse: Any = None, positions: Any = None,
            key_valid: Any = None) -> Any:
        bare = replace(scheme, factors=None)
        _, saved = bare.forward(qk, v, None, buckets, positions, key_valid)
        grads = bare.vjp(saved, do, dlse=dlse)
        return {"dqk": grads.qk, "dv": grads.v}

    return forward, vjp
