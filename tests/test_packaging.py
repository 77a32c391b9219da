"""refattn imports lightly, from every kind of installation, and its package holds what it should."""

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from layout import LINK, ROOT, floor, packages, python_files

HEAVY = {"cupy", "hypothesis", "jax", "matplotlib", "numba", "onnx", "rich", "scipy", "torch"}
LEFT_BY_WORK = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
needs_link = pytest.mark.skipif(not LINK.is_symlink(), reason="this checkout has no link refattn/backends")


def python(code: str, *, where: Path, path: Path | None = None, executable: str = sys.executable) -> str:
    """What a fresh interpreter prints that sees `path` and its own packages; warnings are errors there too."""
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    around |= {"PYTHONPATH": str(path)} if path else {}
    command = [executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=where, env=around, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def place(package: str) -> tuple[bool, bool, int]:
    """Where a package stands in the list: refattn, then the plug-ins, then the floors from the lowest."""
    return package != "refattn", not package.startswith("refattn.backends"), floor(package) or 0


def test_the_listed_packages_are_the_folders_in_floor_order() -> None:
    listed = settings()["options"]["packages"].split()
    assert sorted(listed) == sorted(packages())
    assert listed == sorted(listed, key=place)


def test_each_plug_in_package_is_mapped_to_its_folder() -> None:
    lines = settings()["options"]["package_dir"].strip().splitlines()
    mapped = dict(tuple(part.strip() for part in line.split("=")) for line in lines)
    inside = {name for name in packages() if name.startswith("refattn.backends")}
    assert mapped == {name: name.removeprefix("refattn.").replace(".", "/") for name in inside}


@needs_link
def test_the_link_is_relative() -> None:
    assert os.readlink(LINK) == "../backends"


@needs_link
def test_a_checkout_works_without_installation(tmp_path: Path) -> None:
    code = "import refattn, refattn.backends as b; print(refattn.__file__); print(b.__file__)"
    found = python(code, where=tmp_path, path=ROOT).splitlines()
    assert found == [str(ROOT / "refattn" / "__init__.py"), str(LINK / "__init__.py")]


def test_plug_ins_cannot_be_imported_by_their_folder_name() -> None:
    code = "try:\n    import backends\nexcept ImportError as error:\n    print(error)"
    assert "import refattn.backends, not backends" in python(code, where=ROOT)


def test_importing_refattn_loads_no_heavy_library(tmp_path: Path) -> None:
    code = "import sys, refattn, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = set(json.loads(python(code, where=tmp_path, path=ROOT)))
    assert "refattn" in loaded
    assert loaded & HEAVY == set()


def test_importing_refattn_takes_little_time_beyond_numpy(tmp_path: Path) -> None:
    code = "import time, numpy; start = time.process_time(); import refattn; print(time.process_time() - start)"
    seconds = [float(python(code, where=tmp_path, path=ROOT)) for _ in range(5)]
    assert min(seconds) < 0.3


def test_the_readme_gives_the_command_that_continuous_integration_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    (command,) = (shlex.split(line)[0].removeprefix("tests=") for line in script if line.startswith("tests="))
    assert command.endswith("-m pytest -n auto")
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    assert command in readme.read_text(encoding="utf-8").splitlines()


def pip(*arguments: str | Path) -> None:
    pytest.importorskip("pip")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "copy", symlinks=True, ignore=LEFT_BY_WORK))


@pytest.mark.sweep
def test_the_wheel_holds_every_module_and_the_typing_marker(copy: Path, tmp_path: Path) -> None:
    pip("wheel", "-q", "--no-deps", "-w", tmp_path / "wheels", copy)
    (wheel,) = (tmp_path / "wheels").glob("refattn-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("refattn-")}
    sources = {file.relative_to(ROOT).as_posix() for file in python_files("refattn")}
    plug_ins = {f"refattn/{file.relative_to(ROOT).as_posix()}" for file in python_files("backends")}
    data = {file.relative_to(ROOT).as_posix() for file in (ROOT / "refattn" / "testing").glob("*.json")}
    assert held == sources | plug_ins | data | {"refattn/py.typed"}


@pytest.mark.sweep
@pytest.mark.parametrize("editable", [False, True], ids=["regular", "editable"])
def test_a_checkout_without_links_works_once_installed(copy: Path, tmp_path: Path, editable: bool) -> None:
    link = copy / "refattn" / "backends"
    link.unlink(missing_ok=True)
    link.write_text("../backends")  # what git leaves there under core.symlinks=false

    home = tmp_path / "venv"
    venv.create(home)
    executable = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip("--python", executable, "install", "-q", "--no-deps", *(["-e"] if editable else []), copy)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    code = "import refattn.backends.numpy_backend; print(refattn.__file__); print(refattn.backends.__file__)"
    found = [Path(line) for line in python(code, where=tmp_path, executable=str(executable)).splitlines()]
    assert [file.parent for file in found] == [
        copy / "refattn" if editable else site / "refattn",
        copy / "backends" if editable else site / "refattn" / "backends",
    ]
