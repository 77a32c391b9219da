"""The list of everything: one row for each scheme, read by the laws, the command line, the documentation and the kit."""

from __future__ import annotations

from typing import Any

from refattn.catalogue.base import Row, Variant
from refattn.catalogue.dense import DENSE
from refattn.catalogue.linear import LINEAR
from refattn.catalogue.linformer import LINFORMER
from refattn.catalogue.lsh import LSH_ROW
from refattn.catalogue.sparse import SPARSE
from refattn.errors import OptionError
from refattn.expression import parse, written
from refattn.features.elu import Elu
from refattn.features.identity import Identity
from refattn.features.relu import Relu
from refattn.patterns import (
    All,
    Alternate,
    Axial,
    Blocks,
    Causal,
    Coarse,
    Cross,
    Fixed,
    Global,
    Heads,
    Local,
    LogSparse,
    Pattern,
    Random,
    Self,
    Short,
    Split,
    Strided,
)
from refattn.patterns.named import PAPERS

__all__ = ["DENSE", "FEATURES", "LINEAR", "LINFORMER", "LSH_ROW", "PATTERNS", "ROWS", "SPARSE", "Row", "Variant",
           "constructors", "row", "scheme", "scheme_or_pattern"]

ROWS: tuple[Row, ...] = (DENSE, SPARSE, LINEAR, LINFORMER, LSH_ROW)
"""A new scheme's row is appended here."""

FEATURES: tuple[type, ...] = (Elu, Relu, Identity)
"""The feature maps of linear attention."""

PATTERNS: tuple[type, ...] = (
    All, Self, Causal, Local, Strided, LogSparse, Global, Fixed, Blocks, Split, Random, Axial, Cross, Coarse, Short, Heads,
    Alternate, *PAPERS,
)  # fmt: skip
"""The classes that patterns are written with; those of papers have named constructors only."""


def constructors() -> dict[str, type]:
    """The classes that an expression may name, by name: schemes first, then feature maps and patterns."""
    return {**_schemes(), **{cls.__name__: cls for cls in (*FEATURES, *PATTERNS)}}


def _schemes() -> dict[str, type]:
    return {type(r.scheme).__name__: type(r.scheme) for r in ROWS}


def scheme(text: Any) -> Any:
    """The scheme that an expression describes, as ``"Dense(causal=True)"``; a scheme is itself.

    Raises
    ------
    OptionError
        For text that is no expression, or describes something that is not a scheme.
    """
    made = parse(text, constructors()) if isinstance(text, str) else text
    if isinstance(made, type) and hasattr(made, "forward"):
        raise OptionError(f"{made.__name__} is a class, not a scheme: write {made.__name__}()")
    if not hasattr(made, "forward"):
        raise OptionError(f"{written(made)} is not a scheme; there is {', '.join(_schemes())}")
    return made


def scheme_or_pattern(text: Any) -> Any:
    """The scheme or pattern that an expression describes, as ``"Local(2, 0) | Global(first=1)"``.

    Raises
    ------
    OptionError
        For text that is no expression, or describes something else.
    """
    made = parse(text, constructors()) if isinstance(text, str) else text
    if not hasattr(made, "forward") and not isinstance(made, Pattern | Heads | Alternate):
        raise OptionError(f"{written(made)} is neither a scheme nor a pattern; there is {', '.join(constructors())}")
    return made


def row(name: str) -> Row:
    """The row called `name`."""
    return next(r for r in ROWS if r.name == name)
