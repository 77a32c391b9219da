"""The manifest of golden vectors: what each file holds and how it is judged, as data that a closed schema describes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from refattn._version import __version__
from refattn.errors import UsageError
from refattn.expression import written
from refattn.precision import PRESETS
from refattn.testing import vectors_files as files
from refattn.testing.mutants import everything
from refattn.testing.vectors import CONTRACTS, KILLING, Vector, dtype_of, means, suite_digest, vector
from refattn.testing.vectors_cases import SEED, Recipe, recipes
from refattn.testing.vectors_flags import FLAGS

Data = dict[str, Any]
FORMAT, SUITE, MANIFEST = "refattn-vectors-1", "core", "manifest.json"

CONVENTIONS = {
    "scale": "1/sqrt(d), d the width of q and k, unless config.scale is given",
    "order": "scale, softcap, bias, mask, softmax",
    "softcap": "c * tanh(s / c)",
    "mask": "true = may attend; mask, causal order, segment_ids and key_valid must all allow a pair",
    "causal": "top_left or no alignment: key j <= query i; bottom_right: j <= i + m - n; positions replace i and j",
    "heads": "grouped: query head h reads key head h // (h_q / h_kv); tiled: h % h_kv",
    "lse": "natural logarithm, scale, bias and sink included",
    "blind": "a query that sees nothing: o = 0 (config.empty = mean: the mean of all values), lse = -inf, no gradient",
    "sink": "one more logit for each head, whose value is 0",
    "dropout": "weights where keep is true are divided by keep_rate after the softmax; lse does not know of it",
    "gradients": "of sum(do * o) + sum(dlse * lse), the second term only if dlse is given; summed over repeated axes",
    "layout": "(item, head, row, channel), last axis contiguous",
}
"""What the tensors mean, in words."""


def export(folder: Path, chosen: Iterable[Recipe] | None = None) -> Data:
    """Write vectors, manifest, schema and digests into a folder, which is made; the manifest is returned.

    Raises
    ------
    BackendUnavailable
        Without python-flint or safetensors, the extras `exact` and `kit`.
    UsageError
        If there is no such folder and none can be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} can't be made a folder for the vectors: {error.strerror}") from None
    found = [vector(recipe) for recipe in (recipes() if chosen is None else chosen)]
    groups = [_group(folder, list(part)) for _, part in groupby(found, lambda v: (v.recipe.kind, v.recipe.group))]
    data = {**_head(found), "groups": groups}
    _write_json(folder / MANIFEST, data)
    (folder / "vectors.schema.json").write_text(_schema_text(), encoding="utf-8")
    for kind in sorted({v.recipe.kind for v in found}):
        _write_json(folder / f"{kind}.digests.json", digests([v for v in found if v.recipe.kind == kind]))
    return data


def _write_json(file: Path, data: Data) -> None:
    """Indented, with lists and objects of plain values on one line where they fit."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    flat = re.sub(r"\[\n[^\[\]{}]*\]|\{\n[^\[\]{}]*\}", _one_line, text)
    file.write_text(flat + "\n", encoding="utf-8", newline="\n")


def _one_line(found: re.Match[str]) -> str:
    """A list on one line; an object too, if it is short. A string can't hold the line breaks that are taken out."""
    inside = re.sub(r"\n\s*", " ", found[0])
    flat = inside[0] + inside[1:-1].strip() + inside[-1]
    return flat if flat[0] == "[" or len(flat) < 180 else found[0]


def _head(found: list[Vector]) -> Data:
    """What all cases share. Only the flags and mutants that some case names are listed."""
    flags = {flag for v in found for flag in v.recipe.flags}
    killed = {mutant for v in found for names in v.kills.values() for mutant in names}
    return {
        "format": FORMAT,
        "suite": SUITE,
        "generator": {"name": "refattn", "version": __version__, "arithmetic": "balls of real numbers (Arb), zeros proved"},
        "digest": suite_digest({v.recipe.id: v.digests() for v in found}),
        "number_of_cases": len(found),
        "conventions": CONVENTIONS,
        "presets": {name: _preset(name) for name in CONTRACTS},
        "classes": {"0": "finite, within the bound", "1": "-inf", "2": "exact in every precision"},
        "flags": {name: _flag(name) for name in FLAGS if name in flags},
        "mutants": {
            m.id: {"family": m.family, "title": m.title, "backward": m.backward, "convention": m.instead is not None}
            for m in everything()
            if m.id in killed
        },
    }


def _preset(name: str) -> Data:
    """The dtype of inputs and results, and unit roundoffs of arithmetic, accumulation, rounded operands and results."""
    p = PRESETS[name]
    return {"dtype": dtype_of(p), "arithmetic": p.u, "accumulation": p.acc, "operands": p.operand, "results": p.out}


def _flag(name: str) -> Data:
    flag = FLAGS[name]
    return {
        "bug_type": flag.bug_type,
        "description": flag.description,
        "effect": flag.effect,
        "links": list(flag.links),
    }


def _group(folder: Path, vectors: list[Vector]) -> Data:
    """One file and its part of the manifest."""
    first = vectors[0].recipe
    file = folder / f"{first.kind}-{first.group}.safetensors"
    held = {name: x for v in vectors for name, x in _tensors(v).items()}
    files.write(file, held, {"scheme": written(first.scheme)})  # one entry: the order of more is not fixed
    return {
        "name": first.group,
        "kind": first.kind,
        "scheme": written(first.scheme),
        "config": dataclasses.asdict(first.scheme),
        "file": file.name,
        "bytes": file.stat().st_size,
        "sha256": files.sha256(file),
        "cases": [_case(v) for v in vectors],
    }


def _names(v: Vector) -> tuple[Mapping[str, str], Mapping[str, Data]]:
    """The tensors' names in the file: of inputs, and of each result's value, class and bounds."""
    at = v.recipe.id
    results = {
        name: {
            "value": f"{at}.{name}",
            "class": f"{at}.{name}.class",
            "bounds": {p: f"{at}.{name}.bound.{p}" if p in v.bounds else None for p in CONTRACTS},
        }
        for name in v.expected
    }
    return {name: f"{at}.{name}" for name in v.inputs()}, results


def _tensors(v: Vector) -> dict[str, Any]:
    given, results = _names(v)
    out = {given[name]: x for name, x in v.inputs().items()}
    for name, at in results.items():
        out[at["value"]], out[at["class"]] = v.expected[name], v.classes(name)
        out |= {where: v.bounds[p][name] for p, where in at["bounds"].items() if where is not None}
    return out


def _case(v: Vector) -> Data:
    """One case; every input and gradient of the scheme is named, null where this case has none."""
    r, (given, results) = v.recipe, _names(v)
    known = [*r.scheme.Inputs._fields, "do", "dlse"]
    return {
        "id": r.id,
        "name": r.name,
        "flags": list(r.flags),
        "family": r.family,
        "sizes": dict(r.sizes),
        "seed": [SEED, *r.path],
        "exact_in": list(v.exact_in),
        "inputs": {name: given.get(name) for name in known},
        "results": {name: results.get(name) for name in _results(r.scheme)},
        "kills": {p: list(v.kills[p]) if p in v.kills else None for p in KILLING},
        "exempt": list(r.exempt),
        "digests": v.digests(),
    }


def _results(scheme: Any) -> list[str]:
    """The names of all results that a scheme can have: outputs, then gradients of the inputs that are floats."""
    return [*scheme.outputs, *(f"d{name}" for name in scheme.Inputs._fields if name not in scheme.kinds)]


def digests(found: list[Vector]) -> Data:
    """What is committed of the vectors: digests of inputs and expected values, means of bounds by preset and result."""
    entries: Data = {}
    for v in found:
        bounds: dict[str, dict[str, float]] = {}
        for preset, name, mean in means(v):
            bounds.setdefault(preset, {})[name] = mean
        entries[str(v.recipe.id)] = {"name": v.recipe.title, **v.digests(), "bounds": bounds}
    return {"suite": SUITE, "digest": suite_digest({v.recipe.id: v.digests() for v in found}), "cases": entries}


def _schema_text() -> str:
    return resources.files("refattn.testing").joinpath("vectors.schema.json").read_text(encoding="utf-8")


def schema() -> Data:
    """The JSON schema (draft 2020-12) of the manifest: closed, with everything required."""
    loaded: Data = json.loads(_schema_text())
    return loaded
