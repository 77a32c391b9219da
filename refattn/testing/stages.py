"""A kernel in stages that a mutant may override: what the staged kernels of all schemes have in common.

A patch is ``{stage: fn(kernel, usual, *arguments)}``; it stands in place of the method `stage` where ``do`` runs it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Array = Any
Patch = Callable[..., Any]


@dataclass
class Stages:
    """One run of a configured scheme on its inputs. dtype, tile: what patches that round or work in tiles refer to.

    A subclass says what the stages are: named array functions only, so that they run on NumPy values and under the rounding
    reading alike.
    """

    scheme: Any
    inputs: Any
    patches: Mapping[str, Patch] = field(default_factory=dict)
    dtype: str = "float32"
    tile: int = 64

    def do(self, stage: str, *args: Any) -> Any:
        """Run a stage, or the patch that stands in its place."""
        usual = getattr(self, stage)
        patch = self.patches.get(stage)
        return usual(*args) if patch is None else patch(self, usual, *args)

    def again(self, patches: Mapping[str, Patch], dtype: str, tile: int) -> Self:
        """The same kernel on the same inputs, with what it has computed so far, and other patches."""
        other = copy.copy(self)
        other.patches, other.dtype, other.tile = patches, dtype, tile
        return other

    def given(self, name: str) -> Any:
        """An optional input; None where it is not given, or where the scheme has none of this name."""
        return getattr(self.inputs, name, None)

    def option(self, name: str) -> Any:
        """A field of the scheme; None where it has none of this name."""
        return getattr(self.scheme, name, None)

    def run(self, do: Array | None = None, dlse: Array | None = None) -> dict[str, Array]:
        """Every output by name, and with `do` the gradients of ⟨do, o⟩ + ⟨dlse, lse⟩, as {"o": …, "dq": …}."""
        raise NotImplementedError

    def resume(self, do: Array, dlse: Array | None) -> dict[str, Array]:
        """The gradients alone, of a kernel whose forward has run."""
        raise NotImplementedError
