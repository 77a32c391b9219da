"""Who may import whom: no import points up, array libraries stay in the plug-ins, contractions can be counted."""

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass

import pytest

from layout import floor, module_name, python_files

PLUG_INS = "refattn.backends"
APART = {"schemes", "features", "layers"}
NUMERIC = {"numpy", "cupy", "cupyx", "numba", "scipy", "matplotlib"}
ALLOWED = {
    "rng": {"numpy"},  # draws are made on the host
    "rows": {"numpy"},  # so are index arrays
    "patterns": {"numpy"},  # index arrays are made on the host
    "testing": {"numpy"},  # candidates and files are on the host
    "verify": {"scipy", "matplotlib"},  # a claim can be drawn
    "draw": {"matplotlib"},
    "images": {"matplotlib"},
    "bench": {"numpy"},  # problems are drawn on the host
}
ARRAY_LIBRARIES = {"numpy", "cupy", "torch", "jax", "array_api_strict"}
COUNTED = {"ops", "patterns", "features", "position", "schemes", "layers"}


@dataclass(frozen=True)
class Module:
    name: str
    source: str
    package: bool = False

    @property
    def part(self) -> str:
        return self.name.partition(".")[2].partition(".")[0]

    @property
    def plug_in(self) -> bool:
        return within(self.name, PLUG_INS)


def within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def on_disk() -> list[Module]:
    return [
        Module(module_name(file), file.read_text(encoding="utf-8"), file.name == "__init__.py")
        for file in python_files("refattn", "backends")
    ]


def absolute(module: Module, dots: int, name: str) -> str:
    """The name that `from <dots><name> import` means inside a module."""
    if not dots:
        return name
    parts = module.name.split(".")
    home = parts[: len(parts) - dots + module.package]
    return ".".join([*home, name] if name else home)


@dataclass(frozen=True, order=True)
class Import:
    line: int
    target: str
    at_run_time: bool = False


def imports(module: Module, known: Set[str]) -> Iterator[Import]:
    """What a module imports, inside functions too: of refattn the module that is meant, of others the full name."""
    for node in ast.walk(ast.parse(module.source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=name, names=names, level=dots):
                base = absolute(module, dots, name or "")
                for alias in names:
                    full = f"{base}.{alias.name}"
                    yield Import(node.lineno, full if full in known or not within(base, "refattn") else base)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                dots = len(name) - len(name.lstrip("."))
                yield Import(node.lineno, absolute(module, dots, name[dots:]), at_run_time=True)


def library(target: str) -> str:
    """The library that an import brings in; array_api_compat.numpy is NumPy."""
    first, _, rest = target.partition(".")
    return rest.partition(".")[0] if first == "array_api_compat" and rest else first


def upward(module: Module, what: Import) -> str | None:
    target = what.target
    if not within(target, "refattn") or within(target, PLUG_INS):
        return None
    here, there = floor(module.name), floor(target)
    if there is None:
        return f"{target} stands on no floor; give it one in tests/layout.py"
    if module.plug_in and there > 0:
        return f"a plug-in knows floor 0 only, {target} is on floor {there}"
    if here is not None and there > here:
        return f"the import points up, from floor {here} to {target} on floor {there}"
    return None


def sibling(module: Module, what: Import) -> str | None:
    home, target = f"refattn.{module.part}", what.target
    if module.part not in APART or module.name == home or not within(target, home):
        return None
    if target in {home, f"{home}.base"}:
        return None
    return f"{module.part} do not import each other; what {target} shares belongs on a lower floor"


def foreign(module: Module, what: Import) -> str | None:
    name = library(what.target)
    if module.plug_in or name not in NUMERIC or name in ALLOWED.get(module.part, ()):
        return None
    return f"only plug-ins may import {name}"


def plug_in(module: Module, what: Import) -> str | None:
    finder = module.name == "refattn.backend" and what.at_run_time
    if module.plug_in or finder or not within(what.target, PLUG_INS):
        return None
    return f"{what.target} is found at run time, by refattn.backend.load"


def faults(module: Module, known: Set[str]) -> list[str]:
    """Everything wrong with the imports and the operators of one module."""
    found = []
    if not module.plug_in and floor(module.name) is None:
        found.append(f"{module.name} stands on no floor; give it one in tests/layout.py")
    brought = sorted(set(imports(module, known)))
    for what in brought:
        complaints = (rule(module, what) for rule in (upward, sibling, foreign, plug_in))
        found += [f"{module.name}:{what.line}: {complaint}" for complaint in complaints if complaint]
    arrays = {library(what.target) for what in brought if not what.at_run_time} & ARRAY_LIBRARIES
    if module.plug_in and len(arrays) > 1:
        found.append(f"{module.name}: a plug-in knows one array library, not {', '.join(sorted(arrays))}")
    if module.part in COUNTED:
        found += [f"{module.name}:{line}: @ cannot be counted, xp.matmul can" for line in operators(module)]
    return found


def operators(module: Module) -> Iterator[int]:
    """The lines that contract with @."""
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield node.lineno


def test_the_modules_on_the_disk_keep_to_their_floors() -> None:
    modules = on_disk()
    known = {module.name for module in modules}
    assert {"refattn._version", PLUG_INS} <= known
    assert [fault for module in modules for fault in faults(module, known)] == []


KNOWN = {
    "refattn",
    "refattn.tree",
    "refattn.rng",
    "refattn.cli",
    "refattn.catalogue",
    "refattn.ops",
    "refattn.ops.softmax",
    "refattn.schemes",
    "refattn.schemes.base",
    "refattn.schemes.dense",
    "refattn.schemes.linear",
    "refattn.layers",
    "refattn.layers.block",
    "refattn.testing",
    PLUG_INS,
    f"{PLUG_INS}.shell",
    f"{PLUG_INS}.numpy_backend",
}
PLANTED = [
    ("refattn.tree", "from refattn.ops.softmax import softmax", "from floor 0 to refattn.ops.softmax on floor 1"),
    ("refattn.ops.softmax", "from ..schemes import dense", "from floor 1 to refattn.schemes.dense on floor 3"),
    ("refattn.ops.softmax", "def f():\n    import refattn.catalogue", "refattn.ops.softmax:2: the import points up"),
    ("refattn.testing", "from refattn import Dense", "from floor 6 to refattn on floor 7"),
    ("refattn.testing", "import_module('refattn.cli')", "from floor 6 to refattn.cli on floor 7"),
    ("refattn.stray", "", "refattn.stray stands on no floor"),
    ("refattn.cli", "import refattn.stray", "refattn.stray stands on no floor"),
    ("refattn.schemes.linear", "from .dense import Dense", "schemes do not import each other"),
    ("refattn.schemes.linear", "from refattn.schemes import dense", "schemes do not import each other"),
    ("refattn.layers.gau", "from . import block", "layers do not import each other"),
    ("refattn.schemes.linear", "import numpy as np", "only plug-ins may import numpy"),
    ("refattn.schemes.linear", "from scipy.special import erf", "only plug-ins may import scipy"),
    ("refattn.ops.softmax", "import array_api_compat.cupy as xp", "only plug-ins may import cupy"),
    ("refattn.ops.softmax", "from array_api_compat import numpy", "only plug-ins may import numpy"),
    ("refattn.rng", "import numba", "only plug-ins may import numba"),
    ("refattn.testing", "import matplotlib.pyplot as plt", "only plug-ins may import matplotlib"),
    ("refattn.cli", "importlib.import_module('numpy')", "only plug-ins may import numpy"),
    ("refattn.cli", "from refattn.backends import numpy_backend", "is found at run time"),
    ("refattn.cli", "from .backends.numpy_backend import backend", "is found at run time"),
    ("refattn.cli", "import_module('refattn.backends.numpy_backend')", "is found at run time"),
    ("refattn.backend", "from refattn.backends import numpy_backend", "is found at run time"),
    (f"{PLUG_INS}.shell", "from ..ops.softmax import softmax", "a plug-in knows floor 0 only"),
    (f"{PLUG_INS}.shell", "import refattn", "a plug-in knows floor 0 only"),
    (f"{PLUG_INS}.shell", "import numpy, torch", "one array library, not numpy, torch"),
    ("refattn.schemes.dense", "s = q @ k", "refattn.schemes.dense:1: @ cannot be counted"),
    ("refattn.ops.softmax", "\ns @= k", "refattn.ops.softmax:2: @ cannot be counted"),
]


@pytest.mark.parametrize(("name", "source", "complaint"), PLANTED)
def test_a_planted_fault_is_found(name: str, source: str, complaint: str) -> None:
    found = faults(Module(name, source), KNOWN)
    assert any(complaint in fault for fault in found), found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("refattn.schemes.linear", "from .base import core\nfrom ..ops.softmax import softmax\nfrom .. import tree"),
        ("refattn.schemes.linear", "from typing import Any\n@core\ndef f(): ..."),
        ("refattn.rng", "import numpy as np"),
        ("refattn.testing.judge", "import numpy as np\nfrom refattn.catalogue import ROWS\nimport torch"),
        ("refattn.backend", "import array_api_compat\nimport_module(f'refattn.backends.{name}_backend')"),
        ("refattn.backend", "import_module('refattn.backends')"),
    ("refattn.cli", "from refattn.schemes.dense import Dense"),
        (f"{PLUG_INS}.numpy_backend", "import numpy\nimport numba\nfrom scipy import special\nfrom . import shell"),
        (f"{PLUG_INS}.any_backend", "import numpy\nstop = import_module('jax').lax.stop_gradient"),
    (f"{PLUG_INS}.shell", "from refattn import tree\nfrom ..rng import draw\ns = q @ k"),
    ],
)
def test_what_is_allowed_is_not_a_fault(name: str, source: str) -> None:
    assert faults(Module(name, source), KNOWN) == []


def test_a_package_resolves_its_dots_from_itself() -> None:
    inside = Module("refattn.schemes", "from .dense import Dense", package=True)
    assert list(imports(inside, KNOWN)) == [Import(1, "refattn.schemes.dense")]
    assert faults(inside, KNOWN) == []
