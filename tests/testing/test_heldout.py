"""Faults that the dictionary of mistakes does not have: none passes, the right kernel that they change does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from heldout.kernel import CAUSAL, Attention
from heldout.pairs import PAIRS
from heldout.reported import REPORTED
from heldout.trial import checked, drawn, misnamed, power
from refattn.testing import check
from refattn.testing.diagnose import CERTAIN
from refattn.testing.mutants import everything
from refattn.testing.verdicts import Level

ROOT = Path(__file__).parents[2]
FAULTS = REPORTED + PAIRS
ORDINARY = "family=normal,more keys,mask,blind rows,segments,positions,bias,sink,shared heads,padding,strided"


@pytest.mark.parametrize("fault", [*REPORTED, *(pytest.param(f, marks=pytest.mark.sweep) for f in PAIRS)],
                         ids=lambda f: f.__name__)
def test_a_fault_that_the_inputs_can_see_does_not_conform(fault: type[Attention]) -> None:
    seen = max(power(fault, c, "flash-bf16", "bfloat16") for c in drawn(fault, "bfloat16"))
    report = checked(fault, "bfloat16")
    print(f"{fault.__name__}: power {seen:.3g}, {report.level}")
    assert seen >= CERTAIN, "the families chosen for this fault do not show it"
    assert report.level in (Level.FAIL, Level.LOOKS_LIKE, Level.CONVENTION)
    assert not misnamed(fault, report), report.names


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.sweep), "bfloat16"])
def test_the_kernel_without_a_fault_conforms(dtype: str) -> None:
    right = Attention()
    report = check(right.forward, CAUSAL, vjp=right.vjp, dtype=dtype, only=ORDINARY)
    assert report.level == Level.OK, [(c.case, str(c.level), c.tensors) for c in report.cases if c.level > Level.OK]
    assert len(report.judged) >= 20


def test_there_are_at_least_ten_and_each_says_what_it_does_and_where_it_is_from() -> None:
    assert len(REPORTED) >= 10
    titles = {m.title for m in everything()}
    ids = {m.id.partition("@")[0] for m in everything()}
    for fault in FAULTS:
        assert len(fault.title.split()) > 2
        assert fault.title not in titles
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+ (PR )?#\d+", f.source) for f in REPORTED)
    assert all(set(f.near) <= ids and len(set(f.near)) == 2 for f in PAIRS)


@pytest.mark.sweep
def test_the_quick_table_has_no_false_alarm_and_kills_what_the_documentation_says(tmp_path: Path) -> None:
    out = tmp_path / "power.json"
    command = [sys.executable, "benchmarks/power.py", "--quick", "--json", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    found = json.loads(out.read_text())
    documented = re.findall(r"^\| `([\w-]+)` \| quick \| (\d+) \|", (ROOT / "docs/power.md").read_text(), re.MULTILINE)
    assert {name for name, _ in documented} <= found.keys()
    assert len(found) >= 5
    for name in found:
        assert found[name]["alarms"]["FAIL"] == 0
        assert found[name]["alarms"]["LOOKS LIKE"] == 0
    for name, killed in documented:
        assert found[name]["killed"] >= int(killed), f"{name}: fewer mistakes are found than docs/power.md says"
