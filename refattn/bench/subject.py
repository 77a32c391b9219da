"""What is timed: a scheme on inputs of some length, who takes part, the work that counts, and what must hold."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Array = Any
Pair = tuple[Callable[[], object], Callable[[], object] | None]
FORWARD, BOTH = "forward", "forward and backward"
NUMBA, GENERIC = "numba", "generic"


class Target(NamedTuple):
    """must and goal: bounds of a ratio; upper: whether they are largest values (False: smallest)."""

    must: float
    goal: float
    upper: bool = True

    def met(self, ratio: float, bound: float) -> bool:
        """Whether a measured ratio keeps to one of the bounds, with the tenth that repeated runs differ by."""
        return ratio <= bound * 1.1 if self.upper else ratio >= bound / 1.1


class Key(NamedTuple):
    """Which ratio a target is for: "ours" to "theirs" at some work; n: the least length that it holds from."""

    ours: str
    theirs: str
    dtype: str
    work: str
    n: int = 0


class Problem(NamedTuple):
    """A scheme with its Inputs and the cotangent of o, NumPy arrays of one dtype."""

    scheme: Any
    inputs: Any
    do: Array

    @property
    def dtype(self) -> str:
        """The dtype of the numbers."""
        return str(self.do.dtype)


@dataclass(frozen=True)
class Contender:
    """Somebody who computes a problem. library: what must be installed. make: forward, and forward with backward (None if
    there is none), as functions without arguments; None if it can't. alone: it is timed in a process of its own, beside
    the yardsticks, because what it leaves running or allocated slows others.
    """

    library: str
    make: Callable[[Problem], Pair | None]
    alone: bool = False


@dataclass(frozen=True)
class Subject:
    """One thing that is timed.

    title: the shape, for the table. problem: by length and dtype. work: useful floating-point operations of a problem, by
    the kind of work and by who does it (a yardstick of products does others than the scheme). yardsticks: contenders to
    whose processor time every other is a ratio; rate: the one to whose operations a second every other is a share.
    peak: by length, what must hold of the extra memory of forward and backward, in units of the first input. family: its
    kernels are compiled for it first, which is timed. memory: whether everyone's extra memory is measured beside time.
    warm: the length of a shorter problem on which everyone is warmed up, where calls are long; 0: on the problem itself.
    """

    name: str
    title: str
    problem: Callable[[int, str], Problem]
    contenders: Mapping[str, Contender]
    work: Callable[[Problem, str, str], float]
    yardsticks: tuple[str, ...]
    rate: str | None = None
    lengths: tuple[int, ...] = (512, 2048)
    dtypes: tuple[str, ...] = ("float32",)
    targets: Mapping[Key, Target] = field(default_factory=dict)
    peak: Mapping[int, Target] = field(default_factory=dict)
    family: bool = False
    memory: bool = False
    warm: int = 0

    def target(self, ours: str, theirs: str, dtype: str, work: str, n: int) -> Target | None:
        """What must hold of this ratio; None if nothing must."""
        return next((t for key, t in self.targets.items() if key[:4] == (ours, theirs, dtype, work) and n >= key.n), None)


@contextmanager
def compiled(on: bool) -> Iterator[None]:
    """Compiled kernels on or off."""
    before = os.environ.get("REFATTN_NUMBA")
    os.environ["REFATTN_NUMBA"] = str(int(on))
    try:
        yield
    finally:
        os.environ.pop("REFATTN_NUMBA")
        os.environ.update({} if before is None else {"REFATTN_NUMBA": before})


def _ours(on: bool) -> Callable[[Problem], Pair]:
    def make(p: Problem) -> Pair:
        def forward() -> object:
            with compiled(on):
                return p.scheme.forward(*p.inputs)

        def both() -> object:
            with compiled(on):
                o, saved = p.scheme.forward(*p.inputs)
                return o, p.scheme.vjp(saved, p.do)

        return forward, both

    return make


OURS = {NUMBA: Contender("numba", _ours(True)), GENERIC: Contender("numpy", _ours(False))}
"""refattn with its compiled kernels, and its texts alone."""


def on_torch(p: Problem, attention: Callable[..., Any], backward: bool = True, which: tuple[int, ...] = (0, 1, 2)) -> Pair:
    """``attention`` of the inputs `which`, as torch tensors on one thread, and its gradients by autograd."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    given = [torch.tensor(p.inputs[i], requires_grad=backward) for i in which]
    do = torch.tensor(p.do)

    def forward() -> object:
        with torch.no_grad():
            return attention(*given)

    def both() -> object:
        o = attention(*given)
        return o, torch.autograd.grad(o, given, do)

    return forward, both if backward else None


def installed(library: str) -> bool:
    """Whether it can be imported."""
    return importlib.util.find_spec(library) is not None
