"""Golden vectors read back from their files: cases with their expected values and bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refattn import catalogue
from refattn.errors import UsageError
from refattn.precision import Precision
from refattn.testing import vectors_files as files
from refattn.testing.cases import Case
from refattn.testing.vectors import bound, read
from refattn.testing.vectors_cases import made
from refattn.testing.vectors_manifest import FORMAT, MANIFEST
from refattn.testing.verdicts import Band

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Golden:
    """One case of the files: what it is drawn for, its expected values, and the bounds that are stored, by preset."""

    id: int
    case: Case
    exact_in: tuple[str, ...]
    expected: Arrays
    bounds: Mapping[str, Arrays]

    def bands(self, precision: Precision) -> dict[str, Band]:
        """What a kernel of this precision may return."""
        found = read(self.case, precision)
        given = self.bounds.get(precision.name) or {n: bound(self.expected[n], b.bound) for n, b in found.items()}
        return {n: Band(self.expected[n], given[n].astype(np.float64), found[n].sigma) for n in self.expected}


@dataclass(frozen=True)
class Entry:
    """What a manifest says of a case, by the names of a recipe."""

    title: str
    flags: tuple[str, ...]
    scheme: Any
    sizes: Mapping[str, int]
    family: str
    exempt: tuple[str, ...]


def load(folder: Path) -> list[Golden]:
    """The vectors of a folder that ``refattn vectors export`` has written.

    Raises
    ------
    UsageError
        If the manifest is missing or of another format, or a file is not the one that it describes.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise UsageError(f"{folder} has no {MANIFEST}: write the vectors there with refattn vectors export {folder}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise UsageError(f"{file} has format {manifest['format']!r}; this version reads {FORMAT}")
        return [golden for group in manifest["groups"] for golden in _group(folder, group)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file} is not as refattn vectors export writes it ({type(error).__name__}: {error})") from None


def _group(folder: Path, group: Mapping[str, Any]) -> list[Golden]:
    file = folder / group["file"]
    if not file.is_file() or files.sha256(file) != group["sha256"]:
        state = "is not the file that the manifest describes" if file.is_file() else "is missing"
        raise UsageError(f"{file} {state}: write the vectors again with refattn vectors export {folder}")
    scheme, tensors = catalogue.scheme(group["scheme"]), files.tensors(file)
    return [_golden(entry, group["name"], scheme, tensors) for entry in group["cases"]]


def _golden(entry: Mapping[str, Any], group: str, scheme: Any, tensors: Arrays) -> Golden:
    given = {name: tensors[where] for name, where in entry["inputs"].items() if where is not None}
    given = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in given.items()}
    do, dlse = given.pop("do"), given.pop("dlse", None)
    about = Entry(
        f"{group}/{entry['id']}-{entry['name']}", tuple(entry["flags"]), scheme, entry["sizes"], entry["family"],
        tuple(entry["exempt"]),
    )  # fmt: skip
    results = {name: where for name, where in entry["results"].items() if where is not None}
    presets = {preset for where in results.values() for preset, at in where["bounds"].items() if at is not None}
    return Golden(
        entry["id"],
        made(about, scheme.Inputs(**given), do, dlse),
        tuple(entry["exact_in"]),
        {name: tensors[where["value"]] for name, where in results.items()},
        {preset: {name: tensors[where["bounds"][preset]] for name, where in results.items()} for preset in presets},
    )
