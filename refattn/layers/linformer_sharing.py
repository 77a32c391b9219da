"""The projection matrices E, F of a stack of Linformer layers, and who shares them.

    none        E_(l,i), F_(l,i)    for each layer l and key head i         2·L·H matrices
    headwise    E_l, F_l            for all heads                           2·L
    key-value   E_l                 for keys and values, too                L
    layerwise   E                   for all layers, too                     1

E, F: (s, m).  Wang et al. (arXiv:2006.04768), §4. Sharing changes neither results (of equal matrices) nor work, but which
gradients come together. What is shared stands once among the parameters, and its gradient is the sum over all that read it:
over heads, keys and values in the scheme, over layers in the stack (``Stack.tied``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refattn import tree
from refattn.errors import OptionError
from refattn.ops.base import one_of
from refattn.rng import Source
from refattn.schemes.linformer import Linformer

SHARING = ("none", "headwise", "key-value", "layerwise")


@dataclass(frozen=True)
class LinformerSharing:
    """sharing: one of the above. tokens: m. slots: s, or one for each layer. heads: key heads, whom "none" tells apart.

    For a Stack of Blocks of Attention(Linformer()), or of ProjectInput of it, which has no matrices for each head:
    ``Stack(layers, tied=sharing.tied)`` reads what ``placed`` makes. Raises OptionError for what it can't honour.
    """

    sharing: str
    tokens: int
    slots: int | tuple[int, ...]
    heads: int = 1

    def __post_init__(self) -> None:
        one_of(SHARING, sharing=self.sharing)
        sizes = self.slots if isinstance(self.slots, tuple) else (self.slots,)
        for name, size in (("tokens", self.tokens), ("heads", self.heads), *(("slots", s) for s in sizes)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise OptionError(f"{name}={size!r}: give a whole number, 1 or more")
        if self.sharing == "layerwise" and len(set(sizes)) > 1:
            raise OptionError(f"slots={self.slots}: with sharing='layerwise' one E serves all layers, and has one number of "
                              "slots; take 'key-value' for layers of different ones")

    @property
    def tied(self) -> tuple[str, ...]:
        """What the stack ties."""
        return ("attention.scheme.E",) if self.sharing == "layerwise" else ()

    def shapes(self, layer: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of E and F that stand with a layer, by name."""
        s = self.slots[layer] if isinstance(self.slots, tuple) else self.slots
        one = (*((self.heads,) if self.sharing == "none" else ()), s, self.tokens)
        both = {"E": one, "F": one} if self.sharing in ("none", "headwise") else {"E": one}
        return {} if self.sharing == "layerwise" and layer else both

    def placed(self, params: Any, rng: Source) -> Any:
        """Parameters of a stack, to which E and F are added as ``layers.l0.attention.scheme.E``, …

        Their entries are normal with variance 1/s, so that they keep lengths in the mean.
        """
        many = len(params.layers)
        if isinstance(self.slots, tuple) and len(self.slots) != many:
            raise OptionError(f"slots={self.slots} for {many} layers: give one number for each")
        return params._replace(layers=tree.row(self._placed(p, i, rng.at(i)) for i, p in enumerate(params.layers)))

    def _placed(self, params: Any, layer: int, rng: Source) -> Any:
        shapes = self.shapes(layer)
        if not shapes:
            return params
        made = {name: rng.at(name).normal(shape, shape[-2] ** -0.5) for name, shape in shapes.items()}
        scheme = Linformer.Inputs(None, None, None, **made)
        return params._replace(attention=params.attention._replace(scheme=scheme))

    def matrices(self, layers: int) -> int:
        """How many s × m matrices a stack of so many layers has."""
        each = {"none": 2 * self.heads, "headwise": 2, "key-value": 1}
        return each[self.sharing] * layers if self.sharing in each else 1
