"""The few words of JSON schema that ours use, applied: every object is closed and everything in it is required."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

KNOWN = {"$ref", "$schema", "$defs", "title", "description", "type", "additionalProperties", "required", "properties",
         "const", "enum", "items", "minimum", "anyOf", "pattern"}  # fmt: skip
PYTHON = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}


def invalid(x: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "report") -> list[str]:
    """What a schema has against x; a word that is not known here is an error."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        return invalid(x, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "anyOf" in schema:
        found = [invalid(x, option, root, at) for option in schema["anyOf"]]
        return [] if [] in found else [wrong for option in found for wrong in option]
    names = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if names and not any(is_a(x, name) for name in names):
        return [f"{at}: {x!r} is no {' or '.join(names)}"]
    if x not in schema.get("enum", [x]) or x != schema.get("const", x):
        return [f"{at}: {x!r} is not allowed"]
    if "minimum" in schema and x < schema["minimum"]:
        return [f"{at}: {x} is too small"]
    if "pattern" in schema and re.search(schema["pattern"], x) is None:
        return [f"{at}: {x!r} does not match {schema['pattern']}"]
    if isinstance(x, list):
        return [wrong for i, item in enumerate(x) for wrong in invalid(item, schema["items"], root, f"{at}[{i}]")]
    return members(x, schema, root, at) if isinstance(x, dict) else []


def is_a(x: Any, name: str) -> bool:
    return isinstance(x, bool) if name == "boolean" else isinstance(x, PYTHON[name]) and not isinstance(x, bool)


def members(x: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    known, other = schema.get("properties", {}), schema["additionalProperties"]
    found = [f"{at}: {name} is missing" for name in schema.get("required", []) if name not in x]
    for name, value in x.items():
        inner = known.get(name, other)
        found += [f"{at}: {name} is unknown"] if inner is False else invalid(value, inner, root, f"{at}.{name}")
    return found


def open_objects(schema: Any, at: str = "#") -> Iterator[str]:
    """Every object of a schema with fixed members that would take others, or do without one."""
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            closed = schema.get("additionalProperties") is False
            if not closed or set(schema.get("required", [])) != set(schema["properties"]):
                yield at
        for name, inner in schema.items():
            yield from open_objects(inner, f"{at}/{name}")
