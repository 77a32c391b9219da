"""How near an approximation of exact attention is, as its knob grows: slots of Linformer, rounds of LSH, width of a window.

Every row of the catalogue that is tagged approximates(dense) has claims here, on random tokens. What a bound says and what
was measured are set side by side; where an approximation does not come nearer, the claim that it does is stated False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from refattn.catalogue import ROWS, Row
from refattn.errors import OptionError
from refattn.verify import rounds, slots, windows
from refattn.verify.claim import Claim

TAG = "approximates(dense)"
KNOBS: Mapping[str, Callable[[int], tuple[Claim, ...]]] = {
    "linformer": slots.claims,
    "lsh": rounds.claims,
    "sparse": windows.claims,
}
"""The claims about a row of the catalogue, on draws of a seed; a tagged row that is not here is refused."""


def run(seed: int = 0, rows: Iterable[Row] = ROWS) -> tuple[Claim, ...]:
    """The claims about every tagged row.

    Raises
    ------
    OptionError
        For a tagged row about whose knob nothing is stated.
    """
    tagged = [row.name for row in rows if TAG in row.tags]
    if missing := [name for name in tagged if name not in KNOBS]:
        raise OptionError(f"nothing is stated about the knob of {', '.join(missing)}: add it to KNOBS in "
                          "refattn/verify/attention.py")
    return tuple(claim for name in tagged for claim in KNOBS[name](seed))
