"""What a golden vector is drawn from: a recipe, with a number for life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn import rng
from refattn.errors import UsageError
from refattn.testing.cases import Case
from refattn.testing.tolerance import exact_in
from refattn.testing.vectors_flags import FLAGS

Values = Any
SEED = 0
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Draws:
    """The random numbers of one case: a stream for each tensor, so that one never changes another."""

    recipe: Recipe

    def stream(self, tensor: str) -> np.random.Generator:
        return rng.stream(SEED, *self.recipe.path, tensor)

    def normal(self, tensor: str, *axes: str) -> Values:
        return self.stream(tensor).normal(size=tuple(self.recipe.sizes[a] for a in axes))


@dataclass(frozen=True)
class Recipe:
    """id: never given to another case, never changed. group: the cases of one configuration, which make one file.

    make: draws the inputs, floats of any precision, which are then rounded to ``rng.short`` unless `ranged`. family: what
    mutants may ask a case for. exempt: the null models that are right here (``Case``). dlse: lse has a cotangent too.
    """

    id: int
    kind: str
    group: str
    name: str
    flags: tuple[str, ...]
    scheme: Any
    sizes: Mapping[str, int]
    make: Callable[[Draws], Mapping[str, Values]]
    dlse: bool = False
    ranged: bool = False
    family: str = ""
    exempt: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What reports call the case: group/id-name."""
        return f"{self.group}/{self.id}-{self.name}"

    @property
    def path(self) -> tuple[str | int, ...]:
        """The name of its random numbers: ``rng.stream(0, *path, tensor)``."""
        return ("vectors", self.kind, self.id)

    def case(self) -> Case:
        """The drawn case."""
        draws = Draws(self)
        inputs = {name: self._rounded(x) for name, x in self.make(draws).items()}
        do = rng.short(draws.normal("do", *"bhne"))
        dlse = rng.short(draws.normal("dlse", *"bhn")) if self.dlse else None
        return made(self, self.scheme.Inputs(**inputs), do, dlse)

    def _rounded(self, x: Values) -> Values:
        return rng.short(x) if x.dtype.kind == "f" and not self.ranged else x


def made(recipe: Any, inputs: Any, do: Values, dlse: Values) -> Case:
    """The case of a recipe, or of a manifest's entry with the same fields, and its tensors."""
    flag = FLAGS[recipe.flags[0]]
    return Case(
        recipe.title, recipe.family, flag.description, flag.effect, recipe.scheme, inputs, do, dlse, recipe.sizes,
        exempt=recipe.exempt,
    )  # fmt: skip


def dtypes(case: Case) -> tuple[str, ...]:
    """The dtypes that hold every number of the case exactly, widest first; float8_e4m3fn among them."""
    floats = [x for x in (*case.inputs, case.do, case.dlse) if x is not None and x.dtype.kind == "f"]
    held = tuple(dtype for dtype in DTYPES if all(np.array_equal(exact_in(x, dtype), x) for x in floats))
    return (*held, "float8_e4m3fn") if all(np.array_equal(rng.short(x), x) for x in floats) else held


def recipes() -> tuple[Recipe, ...]:
    """Every recipe of the core tier, by id within its kind.

    Raises
    ------
    UsageError
        If two recipes share an id or a name, or a flag does not exist.
    """
    from refattn.testing import vectors_dense

    found = vectors_dense.RECIPES
    ids = [r.id for r in found]
    if len(set(ids)) < len(ids) or len({r.title for r in found}) < len(ids):
        raise UsageError(f"golden vectors: an id or a name is given twice among {', '.join(r.title for r in found)}")
    if unknown := {flag for r in found for flag in r.flags} - set(FLAGS):
        raise UsageError(f"golden vectors: no flag is called {', '.join(sorted(unknown))}")
    return tuple(found)
