"""The scripts benchmarks/learn*.py as modules: they import each other by name, as scripts of one folder do."""

from __future__ import annotations

import sys

from layout import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # last: tests/ has modules of its own
import learn
import learn_pictures
import learn_tasks

__all__ = ["learn", "learn_pictures", "learn_tasks"]
