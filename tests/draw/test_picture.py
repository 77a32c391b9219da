"""Who sees whom, as an image file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refattn.draw import save, sees
from refattn.errors import BackendUnavailable, OptionError
from refattn.schemes.dense import Dense

BOTTOM = Dense(causal=True, align="bottom_right")


@pytest.mark.parametrize(("n", "m"), [(12, 12), (1, 24), (40, 4), (5, 5)])
def test_each_cell_has_the_color_of_its_pair(tmp_path: Path, n: int, m: int) -> None:
    image = pytest.importorskip("matplotlib.image")
    file = save(BOTTOM, tmp_path / "picture.png", n, m, title="Dense")
    assert file == tmp_path / "picture.png"
    pixels = image.imread(file)[..., :3]
    seen = np.all(np.abs(pixels - np.array([0x2F, 0x5D, 0x8C]) / 255) < 0.01, axis=-1)
    cells = seen | np.all(np.abs(pixels - np.array([0xEE, 0xF1, 0xF4]) / 255) < 0.01, axis=-1)
    rows, columns = np.flatnonzero(cells.sum(axis=1) > 20), np.flatnonzero(cells.sum(axis=0) > 20)
    y = rows[0] + (np.arange(n) + 0.5) * (rows[-1] + 1 - rows[0]) / n
    x = columns[0] + (np.arange(m) + 0.5) * (columns[-1] + 1 - columns[0]) / m
    np.testing.assert_array_equal(seen[np.ix_(y.astype(int), x.astype(int))], sees(BOTTOM, n, m))


def test_a_name_without_an_image_format_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("picture", "picture.xyz"):
        with pytest.raises(OptionError, match=f"{name}: the name must end in an image format, as picture.png"):
            save(Dense(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'refattn\[plot\]'"):
        save(Dense(), tmp_path / "picture.png")


def test_importing_draw_does_not_load_matplotlib() -> None:
    code = "import sys, refattn.draw; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
