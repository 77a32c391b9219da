"""Score terms: from products q·k to what softmax sees.

    s = softcap·tanh(scale·q·k / softcap) + bias          (scale·q·k + bias without a softcap)
    ds/d(q·k) = scale·(1 − tanh²)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.kernels import kernel
from refattn.ops.visibility import query_rows

Array = Any


@kernel("inverse_root")
def inverse_root(like: Array, d: int) -> Any:
    """1/√d, as a number. Overridden where the float nearest to it is not what the equation means."""
    return d**-0.5


@dataclass(frozen=True)
class Scores:
    """scale, softcap: numbers; bias: (..., n | 1, m | 1) or None, added after the softcap."""

    scale: Any
    softcap: float | None = None
    bias: Array | None = None

    def rows(self, products: Array, at: slice) -> tuple[Array, Array | None]:
        """Scores of the queries in `at` from their products (..., rows, m), and the tanh that their slope needs."""
        s, bent = products * self.scale, None
        if self.softcap is not None:
            bent = of(s).xp.tanh(s / self.softcap)
            s = bent * self.softcap
        return (s if self.bias is None else s + query_rows(self.bias, at)), bent

    def pull(self, ds: Array, bent: Array | None) -> Array:
        """The cotangent of scale·q·k from that of the scores; the factor `scale` is left to dq and dk."""
        return ds if bent is None else ds * (1.0 - bent * bent)
