"""Linformer in the order of its official code: what keys and values are made of is compressed, and then projected.

    k = (E c) W_k + b_k,   v = (F c′) W_v + b_v          c = x, or the context; c′ = c, or `values`; padding is at zero
    y as in the attention layer inside, whose queries attend to the slots

x: (..., n, d)   context, values: (..., m, c)   E, F: (s, m), or weights of a convolution over c   y: (..., n, o)
Wang et al. (arXiv:2006.04768), eq. 7, and fairseq's MultiheadLinearAttention. ``Attention(Linformer())`` has the other
order, E (c W_k + b_k): the same without biases, or where the rows of E sum to one. Here E and F are the same for all heads,
and W_k and W_v multiply s rows in place of m. A maximum in this order is one over features of c and not of heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from refattn import tree
from refattn.backend import of
from refattn.cost import Count, Passes
from refattn.errors import OptionError, ShapeError
from refattn.layers.base import Wrapper, gradients_of, layer
from refattn.ops.compress import WEIGHTS
from refattn.schemes.dense import Dense
from refattn.schemes.linformer import Linformer
from refattn.shapes import product, shape_of

Array = Any


@dataclass(frozen=True)
class ProjectInput(Wrapper):
    """inner: an Attention whose scheme is Linformer. Inputs and parameters are those of `inner`, E and F in the same places.

    Raises OptionError, ShapeError, DtypeError or LibraryError for what it can't honour.
    """

    class Saved(NamedTuple):
        inputs: Any
        attention: Any  # what attention to the slots saves, the compressed inputs among it

    inner: Any

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.inner, "scheme", None), Linformer):
            raise OptionError(f"inner={self.inner!r} is no Attention(Linformer(…)): nothing in it is compressed")
        if self.inner.rotary is not None:
            raise OptionError("rotary positions are those of tokens: slots, which are projected to keys here, have none")

    @property
    def _to_slots(self) -> Any:
        """Attention to keys that are slots already."""
        scheme = self.inner.scheme
        return replace(self.inner, scheme=Dense(scale=scheme.scale, heads=scheme.heads))

    def check(self, inputs: Any) -> None:
        """Refuse E, F, key_valid and slot_valid that do not fit what is compressed; attention checks the rest."""
        made = self._linformer(tree.map(shape_of, inputs))
        axes = len(WEIGHTS[self.inner.scheme.projection].split())
        for name, most in (("E", axes), ("F", axes), ("slot_valid", 1)):
            shape = getattr(made, name)
            if shape is not None and len(shape) > most:
                raise ShapeError(f"{name} has shape {shape}: before the projection there are no heads that could have "
                                 "slots of their own")
        self.inner.scheme.check(made._replace(q=(*made.q[:-1], made.k[-1])))

    def _linformer(self, inputs: Any) -> Any:
        """Inputs, arrays or shapes, of the Linformer whose one head is what keys and values are made of."""
        extra = {n: leaf for nest in (inputs.params.scheme, inputs.others) for n, leaf in tree.items(nest)}
        context = inputs.x if inputs.context is None else inputs.context
        values = context if inputs.values is None else inputs.values
        return Linformer.Inputs(*(_one_head(x) for x in (inputs.x, context, values)), **extra)

    def _at_slots(self, inputs: Any, k: Any, v: Any) -> Any:
        """Inputs of attention to slots, k′ and v′ (None if they are one), arrays or shapes."""
        valid = None if inputs.others is None else inputs.others.slot_valid
        others = None if valid is None else Dense.Inputs(None, None, None, key_valid=valid)
        return self.inner.Inputs(inputs.x, inputs.params._replace(scheme=None), k, others, values=v)

    def result(self, given: Any) -> tuple[int, ...]:
        """The shape of y."""
        shape: tuple[int, ...] = self.inner.result(given)
        return shape

    @layer
    def forward(self, inputs: Any, *, block: Any) -> tuple[Array, Saved]:
        """y, with what attention to the slots saves."""
        made, scheme = self._linformer(inputs), self.inner.scheme
        k = _no_head(scheme.compress(made, "k"))
        v = None if _once(inputs, made) else _no_head(scheme.compress(made, "v"))
        y, kept = self._to_slots.forward(*self._at_slots(inputs, k, v), block=block)
        return y, self.Saved(inputs, kept)

    @layer
    def vjp(self, saved: Saved, dy: Array, *, block: Any) -> Any:
        """Through attention to the slots, and from the slots to what they are made of: dc = Eᵀ dk W_kᵀ, dE = dk W_kᵀ cᵀ."""
        inputs, scheme = saved.inputs, self.inner.scheme
        pulled, made = self._to_slots.vjp(saved.attention, dy, block=block), self._linformer(inputs)
        dcontext, dE = scheme.compress_vjp(made, "k", _one_head(pulled.context))
        back, dF = {"x": pulled.x, "context": None, "values": None}, None
        where = "x" if inputs.context is None else "context"
        back[where] = tree.add(back[where], _no_head(dcontext))
        if not _once(inputs, made):
            dvalues, dF = scheme.compress_vjp(made, "v", _one_head(pulled.values))
            where = where if inputs.values is None else "values"
            back[where] = tree.add(back[where], _no_head(dvalues))
        if made.F is None:
            dE, dF = tree.add(dE, dF), None
        learned, given = (_placed(nest, dE, dF) for nest in (inputs.params.scheme, inputs.others))
        return inputs._replace(**back, params=pulled.params._replace(scheme=learned), others=given)

    def cost(self, shapes: Any) -> Passes:
        """Compression and attention to the slots, which are kept."""
        given = tree.map(shape_of, shapes)
        made, scheme = self._linformer(given), self.inner.scheme
        names = ("k",) if _once(given, made) else ("k", "v")
        macs = sum(scheme.compress_macs(made, name) for name in names)
        slots = [(*x[:-3], scheme.slots(made), x[-1]) for x in (getattr(made, name) for name in names)]
        total = self._to_slots.cost(self._at_slots(given, slots[0], slots[1] if len(slots) > 1 else None))
        total += Passes(Count(macs, 0, sum(map(product, slots))), Count(2 * macs, 0, 0))
        grads = gradients_of(given, self.kinds, self.fixed)
        return Passes(total.forward, Count(total.backward.macs, total.backward.exps, grads))


def _once(inputs: Any, made: Any) -> bool:
    """Whether keys and values are made of the same slots."""
    return made.F is None and inputs.values is None


def _one_head(x: Any) -> Any:
    """(..., m, c) → (..., 1, m, c) of an array or a shape."""
    return (*x[:-2], 1, *x[-2:]) if isinstance(x, tuple) else of(x).xp.expand_dims(x, axis=-3)


def _no_head(x: Array) -> Array:
    """(..., 1, m, c) → (..., m, c)."""
    return of(x).xp.squeeze(x, axis=-3)


def _placed(nest: Any, dE: Any, dF: Any) -> Any:
    """The gradients of E and F in the nest where they were given."""
    if nest is None:
        return None
    found = {"E": dE, "F": dF}
    return type(nest)(*(found.get(name) if x is not None else None for name, x in zip(nest._fields, nest, strict=True)))
