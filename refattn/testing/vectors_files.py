"""Files of tensors: golden vectors are written and read, and dumps of any language are read, as safetensors.

A file is eight bytes (the header's length, little-endian), a JSON header (name → dtype, shape, where its bytes lie), and
the bytes, little-endian with the last axis first. https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refattn.errors import BackendUnavailable, UsageError
from refattn.testing.tolerance import storage

Values = Any
READ = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "I64": "int64",
        "U8": "uint8", "BOOL": "bool"}  # fmt: skip


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailable(f"safetensors is not installed ({error}): pip install 'refattn[kit]'") from None


def write(file: Path, tensors: Mapping[str, Values], metadata: Mapping[str, str]) -> None:
    """One file; the same tensors give the same bytes."""
    whole = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    file.write_bytes(_library("safetensors.numpy").save(whole, metadata=dict(metadata)))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tensors(file: Path) -> dict[str, Values]:
    """The tensors of one file by name.

    Raises
    ------
    UsageError
        If it is no safetensors file, or holds a dtype that is not read here.
    """
    library = _library("safetensors")
    try:
        found = library.deserialize(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from None
    except library.SafetensorError as error:
        raise UsageError(f"{file} is no safetensors file: {error}") from None
    out = {}
    for name, x in found:
        if x["dtype"] not in READ:
            raise UsageError(f"{file}: {name} is {x['dtype']}; {', '.join(READ)} are read")
        kind = storage(READ[x["dtype"]]).newbyteorder("<")
        out[name] = np.frombuffer(bytes(x["data"]), kind).reshape(x["shape"])
    return out


def dump(path: Path) -> dict[str, Values]:
    """The tensors of a dump: one safetensors file, or all of a folder.

    Raises
    ------
    UsageError
        If there is none, or it can't be read, or two files have a tensor of the same name.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path} (looked in {Path.cwd()})")
    files: Iterable[Path] = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    out: dict[str, Values] = {}
    home: dict[str, Path] = {}
    for file in files:
        for name, x in tensors(file).items():
            if name in out:
                raise UsageError(f"{name} is in {home[name]} and in {file}: which one is meant?")
            out[name], home[name] = x, file
    if not home:
        raise UsageError(f"{path} has no tensors: write the results into .safetensors files, as docs/vectors-format.md says")
    return out
