"""What goes to a candidate's process and comes back: NumPy arrays, strings and numbers, in these few shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refattn.testing.candidate import Fields

Array = Any
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Setup:
    """All that a process needs to know before the first case. path: where Python looks for modules."""

    forward: str | None
    vjp: str | None
    backward: str | None
    library: str
    dtype: str
    layout: str
    inputs: Fields
    timeout: float
    path: tuple[str, ...]


@dataclass(frozen=True)
class Hello:
    """What a worker process says once the candidate is there. homes: the folders of its code."""

    optional: frozenset[str]
    wants: frozenset[str]
    homes: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a worker process could not start: the name of an error of refattn, and its message."""

    error: str
    message: str


@dataclass(frozen=True)
class Job:
    """What a candidate is run on, NumPy arrays in its dtype. saved: the reference's o and lse, if its vjp asks for them.

    rows: the queries whose o, lse and dq are wanted, None for all. With rows the arrays are large: the candidate gets them
    themselves instead of copies, and of what it returns the rows alone are kept.
    """

    inputs: Arrays
    do: Array | None = None
    dlse: Array | None = None
    saved: Arrays = field(default_factory=dict)
    strided: bool = False
    rows: Array | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run went. status: "ok", "unsupported", "crash", "hang" or "written" (into its inputs); remark: what happened.

    outputs: "o", "lse" and gradients ("dq", ...) as far as the run came, in the layout (..., H, n, d) and the dtypes that
    were returned, bfloat16 as ml_dtypes arrays. lse_is_differentiable: the gradients have the share of a cotangent of lse.
    declined: gradients that the vjp says it does not give; all others of the case's floats are owed.
    """

    status: str
    outputs: Arrays = field(default_factory=dict)
    remark: str = ""
    seconds: float = 0.0
    lse_is_differentiable: bool = False
    declined: tuple[str, ...] = ()
