"""What docs/add-a-scheme.md says is all there is to do: its example, put where it says, keeps every law."""

from __future__ import annotations

import re
import shutil

import pytest

from laws.test_faults import judge, planted
from layout import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def added(folder):
    """A copy of the package and its laws with sigmoid attention: its file, its row, and the row's name in ROWS."""
    planted(folder)
    shutil.copy(EXAMPLES / "sigmoid_scheme.py", folder / "refattn" / "schemes" / "sigmoid.py")
    shutil.copy(EXAMPLES / "sigmoid_row.py", folder / "refattn" / "catalogue" / "sigmoid.py")
    rows = folder / "refattn" / "catalogue" / "__init__.py"
    text = rows.read_text(encoding="utf-8")
    text = text.replace("from refattn.errors", "from refattn.catalogue.sigmoid import SIGMOID\nfrom refattn.errors", 1)
    text, changed = re.subn(r"^(ROWS: .*?)\)$", r"\1, SIGMOID)", text, count=1, flags=re.MULTILINE | re.DOTALL)
    assert changed == 1
    rows.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.sweep
def test_the_example_keeps_every_law(tmp_path):
    done = judge(added(tmp_path), "", options=("-k", "sigmoid"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 50


@pytest.mark.sweep
def test_a_mistake_in_it_is_found(tmp_path):
    scheme = added(tmp_path) / "refattn" / "schemes" / "sigmoid.py"
    text = scheme.read_text(encoding="utf-8")
    scheme.write_text(text.replace("w * (1.0 - w) * xp.matmul", "w * xp.matmul"), encoding="utf-8")
    assert scheme.read_text(encoding="utf-8") != text
    done = judge(tmp_path, "test_vjp.py", options=("-k", "sigmoid"))
    assert done.returncode == 1
    assert "test_vjp_is_the_adjoint_of_the_derivative[" in done.stdout
