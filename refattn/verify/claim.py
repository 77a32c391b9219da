"""A statement put to the test: what it says, who says it, the bound that it gives, what was measured, whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Number = int | float


@dataclass(frozen=True)
class Curve:
    """Points of a claim's picture: measured ones are drawn as marks, a bound as a line."""

    label: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    bound: bool = False


@dataclass(frozen=True)
class Picture:
    """What a claim shows: curves over one pair of axes, on logarithmic scales or not."""

    x: str
    y: str
    curves: tuple[Curve, ...]
    logarithmic: bool = True


@dataclass(frozen=True)
class Heat:
    """What a claim shows of a table of numbers: shades in rows and columns, each with its number."""

    x: str
    y: str
    title: str
    values: tuple[tuple[float, ...], ...]
    """A row for each y, from 1 on."""


@dataclass(frozen=True)
class Claim:
    """A statement and its test.

    name: how it is asked for and told apart. bound, measured: what the statement promises and what was found, as a number or
    as a law. trials: how many times it was measured. false_alarm: the chance that a true statement fails by bad luck, 0
    where nothing is drawn. holds: whether the measurement is within the bound; None: it could not be put to the test, and
    `measured` says what to install. stated: what is expected of ``holds``: a statement that is false as printed is stated
    False and comes out as stated when its counter-example is found. power: the deviation that would have been caught in 99
    of 100 runs, in words.
    """

    name: str
    statement: str
    source: str
    bound: Number | str
    measured: Number | str
    trials: int
    holds: bool | None
    false_alarm: float = 0.0
    stated: bool = True
    picture: Picture | Heat | None = None
    power: str = ""

    @property
    def as_stated(self) -> bool:
        """Whether the test was made and came out as it is expected to."""
        return self.holds is self.stated

    def __str__(self) -> str:
        if self.holds is None:
            return f"{self.name} {self.statement}: NOT PUT TO THE TEST\n    {self.measured}\n    source    {self.source}"
        verdict = f"{'holds' if self.holds else 'is false'}{', as stated' if self.as_stated else ': NOT AS STATED'}"
        chance = "exact" if self.false_alarm == 0.0 else f"false alarm {self.false_alarm:.0e}"
        return "\n".join(
            (
                f"{self.name} {self.statement}: {verdict}",
                f"    bound     {_shown(self.bound)}",
                f"    measured  {_shown(self.measured)}   ({self.trials} trial{'s' * (self.trials != 1)}, {chance})",
                *([f"    power     {self.power} would have been caught"] if self.power else []),
                f"    source    {self.source}",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the picture, in the types that JSON has."""
        shown = {name: value for name, value in vars(self).items() if name != "picture"}
        return {**shown, "as_stated": self.as_stated}

    def plot(self, file: str | Path) -> Path:
        """Draw the claim into an image file (its ending decides the format) and return the path.

        A claim without a picture, as an equality of two numbers, is drawn in its own words.

        Raises
        ------
        BackendUnavailable
            If matplotlib is not installed.
        OptionError
            If the ending of `file` is no image format.
        OSError
            If the file can't be written.
        """
        from refattn.verify.chart import save

        return save([self], file)


def _shown(value: Number | str) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else value
