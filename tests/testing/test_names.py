"""The names that the kit offers are the same however its modules were imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from refattn import testing


@pytest.mark.parametrize("first", ["", "import refattn.testing.check", "from refattn.testing import check_rows",
                                   "import refattn.testing.plugin, refattn.testing.sampled"])  # fmt: skip
def test_a_name_is_the_function_and_not_the_module_that_it_is_in(first: str) -> None:
    lines = [f"from refattn.testing import {x}\nassert callable({x}) and {x} is testing.{x}" for x in testing.__all__]
    code = "\n".join([first, "from refattn import testing", *lines])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chek'; it has Report, assert_conforms, check"):
        _ = testing.chek
