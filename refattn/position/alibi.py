"""ALiBi: a penalty on the distance between query and key, steeper from head to head.

    distance  b_hij = −m_h |i − j|        last_key  b_hij = m_h (j − (m − 1))        key  b_hij = m_h j
    slopes    m_h = 2^(−8h / H), h = 1 … H                                           (geometric)
              the same if H is a power of 2, else those of 2^⌊log₂H⌋ heads, then the 1st, 3rd, … of twice as many   (nearest)

b: (H, n, m), or (..., H, n, m) for positions per item      m_h: (H,), an input: it has a gradient
Press et al. (arXiv:2108.12409), §3, and their code for the slopes of other numbers of heads; last_key: MPT; key: BLOOM.
Under causal order the three forms give the same weights; their lse differ by what is constant along a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.errors import OptionError, ShapeError
from refattn.position.angles import check_float, check_positions, check_sizes, check_whole, over_heads, places
from refattn.shapes import shape_of

Array = Any
FORMS = ("distance", "last_key", "key")


def alibi_slopes(heads: int, rule: str = "nearest") -> tuple[float, ...]:
    """The slopes of so many heads, steepest first; "nearest" is the rule of the authors' code, "geometric" that of the text.

    Raises
    ------
    OptionError
        For another rule, or a negative number of heads.
    """
    if rule not in ("nearest", "geometric"):
        raise OptionError(f"rule={rule!r}: choose 'nearest' or 'geometric'; they differ where heads is no power of 2")
    check_sizes(heads=heads)
    heads = int(heads)
    power = 1 << max(heads.bit_length() - 1, 0)
    if rule == "geometric" or heads == power or heads == 0:
        return _geometric(heads)
    return _geometric(power) + _geometric(2 * power)[0::2][: heads - power]


def _geometric(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1))


@dataclass(frozen=True)
class Alibi:
    """ALiBi; the module has the equation. form: "distance", "last_key" or "key". offset: the position of the first query."""

    form: str = "distance"
    offset: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise OptionError(f"form={self.form!r}: choose one of {', '.join(FORMS)}")
        check_whole("offset", self.offset)

    def __call__(self, slopes: Array, n: int, m: int, **positions: Array | None) -> Array:
        return self.forward(slopes, n, m, **positions)

    def definition(self, slopes: Array, n: int, m: int) -> Array:
        """b entry by entry."""
        self._check(slopes, n, m)
        xp = of(slopes).xp
        steps: dict[str, Callable[[int, int], int]] = {
            "distance": lambda i, j: -abs(i + self.offset - j),
            "last_key": lambda i, j: j - m + 1,
            "key": lambda i, j: j,
        }
        entries = [slopes * float(steps[self.form](i, j)) for i in range(n) for j in range(m)]
        if not entries:
            return xp.reshape(slopes[:0], (slopes.shape[0], n, m))
        return xp.reshape(xp.stack(entries, axis=-1), (slopes.shape[0], n, m))

    def forward(self, slopes: Array, n: int, m: int, *, q_positions: Array | None = None, k_positions: Array | None = None
                ) -> Array:
        """b, in the dtype of the slopes."""
        b = of(slopes)
        wide = b.widen(slopes)
        return b.narrow(wide[:, None, None] * self._steps(wide, n, m, q_positions, k_positions), slopes)

    def vjp(self, slopes: Array, db: Array, *, q_positions: Array | None = None, k_positions: Array | None = None) -> Array:
        """dm_h = Σ_ij db_hij ∂b_hij / ∂m_h, over the items too."""
        b = of(slopes, db)
        xp, (n, m) = b.xp, db.shape[-2:]
        steps = self._steps(b.widen(slopes), n, m, q_positions, k_positions)
        total = xp.sum(b.widen(db) * steps, axis=(-2, -1))
        lead = tuple(range(total.ndim - 1))
        return b.narrow(xp.sum(total, axis=lead) if lead else total, slopes)

    def _steps(self, slopes: Array, n: int, m: int, q_positions: Array | None, k_positions: Array | None) -> Array:
        """∂b / ∂slope, (n, m) or (1, m), or with leading axes and one for the heads."""
        self._check(slopes, n, m)
        for name, given, size in (("q_positions", q_positions, n), ("k_positions", k_positions, m)):
            check_positions(name, given, size, shape_of(given)[:-1] if given is not None else (),
                            self.offset if name == "q_positions" else 0)
        xp = of(slopes).xp
        j = places(k_positions, m, 0, slopes)
        if self.form == "distance":
            steps = -xp.abs(places(q_positions, n, self.offset, slopes)[..., :, None] - j[..., None, :])
        else:
            steps = (j - (m - 1) if self.form == "last_key" else j)[..., None, :]
        steps = xp.broadcast_to(steps, (*steps.shape[:-2], n, m))
        return over_heads(xp.astype(steps, slopes.dtype), 2)

    def _check(self, slopes: Array, n: int, m: int) -> None:
        check_sizes(n=n, m=m)
        check_float("slopes", slopes)
        if slopes.ndim != 1:
            raise ShapeError(f"slopes has shape {shape_of(slopes)}; give one slope for each head, (H,)")
