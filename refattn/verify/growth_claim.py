"""The claim that exact counts grow as a form."""

from __future__ import annotations

from collections.abc import Sequence

from refattn.errors import OptionError
from refattn.verify.claim import Claim, Curve, Picture
from refattn.verify.forms import FORMS, Form, Law, Point, derive

DRIFT = 0.01
"""A fit stands for its form if the ratio to the count moves less than this over the three largest sizes."""


def claim(name: str, law: str, source: str, points: Sequence[Point], forms: Sequence[Form] = FORMS) -> Claim:
    """The claim that the counts at `points` grow as the form called `law`; points go from small to large.

    Raises
    ------
    OptionError
        If `law` is none of `forms`, or the points can't tell these apart.
    """
    if law not in {f.name for f in forms}:
        raise OptionError(f"{name}: {law!r} is none of the forms {', '.join(f.name for f in forms)}")
    found = derive(points, forms)
    return Claim(
        name=name,
        statement=f"grow as {law}",
        source=source,
        bound=law,
        measured=_measured(found, points),
        trials=len(points),
        holds=found.leading == law and found.drift <= DRIFT,
        picture=_picture(name, found, points),
    )


def _measured(law: Law, points: Sequence[Point]) -> str:
    first, last = (", ".join(f"{x} = {size:,}" for x, size in at.items()) for at in (law.since, points[-1][0]))
    if law.solved:
        return f"{law}, identically: {law.solved} sizes fix it, {law.held} more obey it, from {first} to {last}"
    return f"{law}, a fit: off by up to {law.drift:.2%} from {first} to {last}"


def _picture(name: str, law: Law, points: Sequence[Point]) -> Picture:
    """The counts over n as marks, the law as a line where it holds."""
    counted = Curve("_", tuple(at["n"] for at, _ in points), tuple(count for _, count in points))
    sizes = [at for at, _ in points]
    since = sizes[sizes.index(law.since) :]
    line = Curve(f"{name}\n{law}", tuple(at["n"] for at in since), tuple(law.real(at) for at in since), bound=True)
    return Picture("n", "elements" if "elements" in name else "steps", (line, counted))
