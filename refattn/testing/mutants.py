"""Known mistakes of attention kernels, as small changes of the reference: what does it do instead?

A mutant is one of three kinds, or a chain of them: ``before`` changes the configuration or the inputs (a neighbour, a
convention, a dropped key); ``patches`` override stages of the staged kernel; ``after`` changes the results. Ids F… are
mistakes of the forward, B… of the backward. Mutants that work in tiles exist once for each tile size, F28@64.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refattn.backend import active, of, using
from refattn.testing.cases import Case
from refattn.testing.stages import Stages
from refattn.testing.subjects import kernel_of, subject_of
from refattn.testing.tolerance import band
from refattn.testing.verdicts import Band

Array = Any
Outputs = dict[str, Array]
TILES = (16, 32, 64, 128)
LAYOUT = "F39t"
"""The mistake of a kernel that is judged under the wrong ``--layout``."""
FORWARD, BACKWARD = ("o", "lse"), ("dq", "dk", "dv", "dbias", "dsink")


@dataclass(frozen=True)
class Mutant:
    """One mistake. rounds: it adds roundings, which a bound can't tell from noise, so that only the matched filter names
    it. several: it needs more than one tile. instead: the scheme under which it would be right, if it is one; else None.
    equivalent_to: the id that gives the same results on every case that both apply to. at: for a mistake that has a size,
    the same mistake `a` times as large.
    """

    id: str
    family: str
    title: str
    applies: Callable[[Case, str], bool] = lambda case, dtype: True
    before: Callable[[Any, Any, int], tuple[Any, Any]] | None = None
    patches: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    after: Callable[[Outputs, Case, str, int], Outputs] | None = None
    tile: int = 0
    several: bool = True
    rounds: bool = False
    at: Callable[[float], Any] | None = None
    instead: Callable[[Any], Any] | None = None
    equivalent_to: str | None = None

    @property
    def backward(self) -> bool:
        """True if it is a mistake of the backward alone."""
        return self.id.startswith("B")

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of softmax attention in which the mistake is looked for."""
        return BACKWARD if self.backward else FORWARD

    def concerns(self, name: str) -> bool:
        """True if the mistake is looked for in this result: gradients are those whose names begin with d."""
        return name.startswith("d") == self.backward

    def values(self, case: Case, dtype: str, right: Stages | None = None) -> Outputs:
        """What a kernel with this mistake returns in exact arithmetic: the tensors of its side, as float64 arrays.

        right: an unpatched kernel that has run on this case, whose forward a mistake of the backward starts from.
        """
        with np.errstate(all="ignore"):  # a mistake may overflow; that is what it is
            if right is not None and self.backward:
                out = right.again(self.patches, dtype, self.tile or 64).resume(case.do, case.dlse)
                out = out if self.after is None else self.after(out, case, dtype, self.tile)
            else:
                do, dlse = (case.do, case.dlse) if self.backward else (None, None)
                out = self._run(case, case.inputs, do, dlse, dtype)
        return {name: x for name, x in out.items() if self.concerns(name)}

    def bands(self, case: Case, dtype: str, backend: Any) -> dict[str, Band]:
        """The same under the rounding reading `backend`: the mutant's own bounds."""
        found = self._read(case, dtype, backend, self.backward)
        return {name: x for name, x in found.items() if self.concerns(name)}

    def gradients(self, case: Case, dtype: str, backend: Any) -> dict[str, Band]:
        """The gradients of a kernel with this mistake in its forward, which its backward follows, and their bounds."""
        return {name: x for name, x in self._read(case, dtype, backend, True).items() if name.startswith("d")}

    def _read(self, case: Case, dtype: str, backend: Any, backward: bool) -> dict[str, Band]:
        with using(backend) as b, np.errstate(all="ignore"):
            inputs = type(case.inputs)(*(x if x is None else b.lift(x) for x in case.inputs))
            do, dlse = (None if x is None else b.lift(x) for x in (case.do, case.dlse)) if backward else (None, None)
            out = self._run(case, inputs, do, dlse, dtype)
            return {name: band(stored(b, name, x)) for name, x in out.items()}

    def _run(self, case: Case, inputs: Any, do: Array, dlse: Array, dtype: str) -> Outputs:
        scheme = case.scheme
        if self.before is not None:
            scheme, inputs = self.before(scheme, inputs, self.tile)
        kernel = kernel_of(scheme)(scheme, inputs, self.patches, dtype, self.tile or 64)
        out = kernel.run(do, dlse)
        return out if self.after is None else self.after(out, case, dtype, self.tile)


def stored(b: Any, name: str, x: Array) -> Array:
    """A result as a kernel stores it: statistics settled, everything else rounded to the output precision."""
    return b.settle(x) if name == "lse" else b.narrow(x, x)


MUTANTS: list[Mutant] = []


def add(*mutants: Mutant) -> None:
    """Enter mutants into the dictionary, each once for each tile size if it works in tiles (tile = −1)."""
    for m in mutants:
        if m.tile == -1:
            MUTANTS.extend(_tiled(m, t) for t in ((8, *TILES) if m.rounds else TILES))
        else:
            MUTANTS.append(m)


def _tiled(m: Mutant, tile: int) -> Mutant:
    def applies(case: Case, dtype: str) -> bool:
        long = max(case.sizes["n"], case.sizes["m"]) > tile
        return m.applies(case, dtype) and (long or not m.several)

    changed = {"id": f"{m.id}@{tile}", "title": m.title.format(tile=tile), "tile": tile, "applies": applies}
    return Mutant(**{**vars(m), **changed})


def everything() -> tuple[Mutant, ...]:
    """The dictionary of softmax attention, loaded."""
    for name in ("forward", "layout", "masks", "backward", "terms"):
        importlib.import_module(f"refattn.testing.mutants_{name}")  # fills the dictionary when it is first imported
    return tuple(MUTANTS)


def applicable(case: Case, dtype: str, backward: bool) -> list[Mutant]:
    """The mutants that change something on this case; those of the backward only if it is judged."""
    if case.soft or 0 in case.sizes.values():
        return []
    known = subject_of(case.scheme).mutants(case.scheme)
    return [m for m in known if (backward or not m.backward) and m.applies(case, dtype)]


def host(x: Array) -> Any:
    """Booleans and integers of inputs as NumPy arrays, inside a reading too."""
    return of(x).host(x)


def reading() -> bool:
    """True inside a reading, where values carry bounds."""
    return active() is not None
