"""refattn: reference implementations of attention schemes on NumPy, CuPy or any array API library, and a kit for kernels.

Names load when they are first used, so that ``import refattn`` is quick and pulls in no array library but NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from refattn._version import __version__

if TYPE_CHECKING:
    from refattn.backend import load, of, using
    from refattn.cost import Cost, Count
    from refattn.errors import (
        BackendUnavailable,
        DtypeError,
        LibraryError,
        OptionError,
        RefattnError,
        ShapeError,
        UsageError,
    )
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
    from refattn.patterns.named import (
        AxialTransformer,
        BigBird,
        BlockBERT,
        CCNet,
        Diet,
        LocalBlocks,
        LogTrans,
        Longformer,
        SparseTransformer,
    )
    from refattn.position.alibi import Alibi, alibi_slopes
    from refattn.position.rope import Rope
    from refattn.position.rotary_bias import RotaryBias
    from refattn.position.shift import RelativeShift
    from refattn.position.sinusoid import Sinusoid
    from refattn.position.t5 import T5Bias
    from refattn.position.toeplitz import ToeplitzBias
    from refattn.precision import PRESETS, Precision
    from refattn.schemes.dense import Dense
    from refattn.schemes.linear import Linear
    from refattn.schemes.linformer import Linformer
    from refattn.schemes.lsh import LSH
    from refattn.schemes.sparse import Sparse
    from refattn.threads import get_threads, set_threads, warmup

_HOMES = {
    "refattn.backend": ("load", "of", "using"),
    "refattn.cost": ("Cost", "Count"),
    "refattn.errors": ("BackendUnavailable", "DtypeError", "LibraryError", "OptionError", "RefattnError", "ShapeError",
                       "UsageError"),
    "refattn.features.elu": ("Elu",),
    "refattn.features.identity": ("Identity",),
    "refattn.features.relu": ("Relu",),
    "refattn.patterns": ("All", "Alternate", "Axial", "Blocks", "Causal", "Coarse", "Cross", "Fixed", "Global", "Heads",
                         "Local", "LogSparse", "Pattern", "Random", "Self", "Short", "Split", "Strided"),
    "refattn.patterns.named": ("AxialTransformer", "BigBird", "BlockBERT", "CCNet", "Diet", "LocalBlocks", "LogTrans",
                          "Longformer", "SparseTransformer"),
    "refattn.position.alibi": ("Alibi", "alibi_slopes"),
    "refattn.position.rope": ("Rope",),
    "refattn.position.rotary_bias": ("RotaryBias",),
    "refattn.position.shift": ("RelativeShift",),
    "refattn.position.sinusoid": ("Sinusoid",),
    "refattn.position.t5": ("T5Bias",),
    "refattn.position.toeplitz": ("ToeplitzBias",),
    "refattn.precision": ("PRESETS", "Precision"),
    "refattn.schemes.dense": ("Dense",),
    "refattn.schemes.linear": ("Linear",),
    "refattn.schemes.sparse": ("Sparse",),
    "refattn.schemes.linformer": ("Linformer",),
    "refattn.schemes.lsh": ("LSH",),
    "refattn.threads": ("get_threads", "set_threads", "warmup"),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LSH",
    "PRESETS",
    "Alibi",
    "All",
    "Alternate",
    "Axial",
    "AxialTransformer",
    "BackendUnavailable",
    "BigBird",
    "BlockBERT",
    "Blocks",
    "CCNet",
    "Causal",
    "Coarse",
    "Cost",
    "Count",
    "Cross",
    "Dense",
    "Diet",
    "DtypeError",
    "Elu",
    "Fixed",
    "Global",
    "Heads",
    "Identity",
    "LibraryError",
    "Linear",
    "Linformer",
    "Local",
    "LocalBlocks",
    "LogSparse",
    "LogTrans",
    "Longformer",
    "OptionError",
    "Pattern",
    "Precision",
    "Random",
    "RefattnError",
    "RelativeShift",
    "Relu",
    "Rope",
    "RotaryBias",
    "Self",
    "ShapeError",
    "Short",
    "Sinusoid",
    "Sparse",
    "SparseTransformer",
    "Split",
    "Strided",
    "T5Bias",
    "ToeplitzBias",
    "UsageError",
    "__version__",
    "alibi_slopes",
    "get_threads",
    "load",
    "of",
    "set_threads",
    "using",
    "warmup",
]


def __getattr__(name: str) -> Any:
    value = getattr(importlib.import_module(_WHERE[name]), name) if name in _WHERE else _catalogued(name)
    globals()[name] = value
    return value


def _catalogued(name: str) -> Any:
    """A scheme, feature map or pattern that is in the catalogue and not in the list above; modules have small letters."""
    known: dict[str, Any] = {} if not name[:1].isupper() else importlib.import_module("refattn.catalogue").constructors()
    if name not in known:
        raise AttributeError(f"module 'refattn' has no attribute {name!r}; it has {', '.join(sorted({*_WHERE, *known}))}")
    return known[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
