"""What the checkout holds: its Python files, its packages, and the floor that each part of refattn stands on."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = ROOT / "refattn" / "backends"

FLOORS = (
    {"_version", "backend", "buckets", "kernels", "rows", "prefix", "precision", "cost", "shapes", "tree", "errors", "rng",
     "threads"},
    {"ops"},
    {"patterns", "features", "position"},
    {"schemes"},
    {"layers"},
    {"catalogue", "expression", "images", "verify"},
    {"testing", "draw", "bench"},
    {"cli", "cli_bench", "cli_check", "cli_vectors", "arguments", "__main__", ""},
)


def floor(module: str) -> int | None:
    """The floor of refattn.<part>...., the package itself (part "") on the highest; None for a part without one."""
    part = module.partition(".")[2].partition(".")[0]
    return next((number for number, parts in enumerate(FLOORS) if part in parts), None)


def python_files(*folders: str) -> Iterator[Path]:
    """The Python files in folders of the checkout, each once: links are not followed."""
    for folder in folders:
        for where, inside, names in os.walk(ROOT / folder):
            inside.sort()
            yield from (Path(where, name) for name in sorted(names) if name.endswith(".py"))


def module_name(file: Path) -> str:
    """backends/x.py is refattn.backends.x, refattn/ops/__init__.py is refattn.ops."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    package = ("refattn", *parts) if parts[0] == "backends" else parts
    return ".".join(package[:-1] if package[-1] == "__init__" else package)


def packages() -> set[str]:
    """Every package on the disk, by the name it is imported by."""
    return {module_name(file) for file in python_files("refattn", "backends") if file.name == "__init__.py"}
