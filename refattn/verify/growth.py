"""How work and memory grow with n: laws derived from exact counts of the texts themselves, not from timings.

Every text is run by the counting reading at growing n, up to 2²⁰, and the law is derived from the counts: an identity in
the forms of ``refattn.verify.forms`` wherever there is one. Other sizes stay as they are, so that the numbers in a law are
multiples of d = e = 64 for one head of one item. Patterns are counted by the pairs that they see, with all their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refattn.backend import load, using
from refattn.catalogue import ROWS, Row, Variant
from refattn.errors import OptionError
from refattn.verify.claim import Claim
from refattn.verify.growth_claim import claim
from refattn.verify.growth_patterns import pattern_claims
from refattn.verify.sizes import at_sizes

FIXED = {"b": 1, "h": 1, "g": 1, "d": 64, "e": 64}
BLOCK = 4096
WHOLE = tuple(2**k for k in range(2, 21))
BLOCKED = tuple(BLOCK * k for k in (2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256))


def run(rows: Iterable[Row] = ROWS) -> tuple[Claim, ...]:
    """A claim for each statement about each row, under the row's first variant, and those about patterns.

    Raises
    ------
    OptionError
        For a row about whose growth nothing is stated.
    """
    return (*(claim for row in rows for claim in row_claims(row, row.variants[0])), *pattern_claims())


def row_claims(row: Row, variant: Variant, blocked: bool = True) -> list[Claim]:
    """The claims about one variant of a row; `blocked`: those at a fixed block too, which take longest to count."""
    if not row.growth:
        raise OptionError(f"nothing is stated about the growth of {row.name}: give its row in refattn/catalogue a growth")
    fixed, at = {x: size for x, size in FIXED.items() if x in variant.sizes}, at_sizes(row, variant)

    def counted(n: int, block: int | None) -> tuple[Mapping[str, int], dict[str, int]]:
        return {"n": n}, counts(variant.scheme, at({**fixed, **{x: n for x in "nm" if x in variant.sizes}}), block)

    whole = [counted(n, None) for n in WHOLE]
    tiled = [counted(n, BLOCK) for n in BLOCKED] if blocked else []
    made = []
    for s in row.growth:
        if s.blocked and not blocked:
            continue
        points = [(sizes, found[s.quantity]) for sizes, found in (tiled if s.blocked else whole)]
        what = f"{s.quantity}, {BLOCK} rows at a time" if s.blocked else s.quantity
        made.append(claim(f"{row.name}: {what}", s.law, s.source, points))
    return made


def counts(scheme: Any, inputs: Any, block: int | None) -> dict[str, int]:
    """Exact counts of forward and vjp for `inputs` (an Inputs of shapes), `block` queries at a time."""
    reading: Any = load("counting")
    inputs = reading.shaped(inputs, scheme.kinds)
    forward, saved = _counted(reading, lambda: scheme.forward(*inputs, block=block)[1])
    do, *others = (reading.shaped(getattr(saved, name)) for name in scheme.outputs)
    cotangents = {f"d{name}": x for name, x in zip(scheme.outputs[1:], others, strict=True)}
    backward, _ = _counted(reading, lambda: scheme.vjp(saved, do, **cotangents, block=block))
    found = {"elements saved": forward.live}
    for word, tally in (("forward", forward), ("vjp", backward)):
        found |= {
            f"multiply-adds of {word}": tally.macs,
            f"exponentials of {word}": tally.exps,
            f"elements moved by {word}": tally.moved,
            f"peak elements of {word}": tally.peak,
        }
    return found


def _counted(reading: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    with using(reading), reading.counted() as tally:
        result = call()
    return tally, result
