"""Who may look at whom: patterns as values, their algebra, and those of the papers by name (in ``named``)."""

from __future__ import annotations

from refattn.patterns.algebra import All, Pattern
from refattn.patterns.blocks import Blocks, Coarse, Split
from refattn.patterns.chosen import Alternate, Heads, Short
from refattn.patterns.columns import Fixed, Global
from refattn.patterns.grid import Axial, Cross
from refattn.patterns.local import Causal, Local, LogSparse, Self, Strided
from refattn.patterns.random import Random
from refattn.patterns.reach import reach

__all__ = [
    "All",
    "Alternate",
    "Axial",
    "Blocks",
    "Causal",
    "Coarse",
    "Cross",
    "Fixed",
    "Global",
    "Heads",
    "Local",
    "LogSparse",
    "Pattern",
    "Random",
    "Self",
    "Short",
    "Split",
    "Strided",
    "reach",
]
