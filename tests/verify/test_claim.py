"""Claims: how they come out, print, are written and drawn; and the command that runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layout import ROOT
from refattn import verify
from refattn.errors import BackendUnavailable, OptionError, UsageError
from refattn.verify import Claim, Curve, Heat, Picture, command

CLAIM = Claim(
    name="coins",
    statement="fall on their edge at most once in a thousand times",
    source="a drawer, 2024",
    bound=1e-3,
    measured=0.25,
    trials=4,
    holds=False,
    false_alarm=1e-6,
    picture=Picture("throws", "edges", (Curve("bound", (1, 99), (1, 99), bound=True), Curve("found", (1, 10), (2, 5)))),
)


@pytest.mark.parametrize(
    ("holds", "stated", "comes_out", "verdict"),
    [
        (True, True, True, "holds, as stated"),
        (False, False, True, "is false, as stated"),
        (True, False, False, "holds: NOT AS STATED"),
        (False, True, False, "is false: NOT AS STATED"),
    ],
)
def test_a_claim_comes_out_as_stated_or_not(holds: bool, stated: bool, comes_out: bool, verdict: str) -> None:
    claim = replace(CLAIM, holds=holds, stated=stated)
    assert claim.as_stated is comes_out
    assert str(claim).splitlines()[0] == f"coins fall on their edge at most once in a thousand times: {verdict}"


def test_a_claim_prints_its_numbers_and_its_source() -> None:
    assert str(CLAIM).splitlines()[1:] == [
        "    bound     0.001",
        "    measured  0.25   (4 trials, false alarm 1e-06)",
        "    source    a drawer, 2024",
    ]
    exact = replace(CLAIM, bound="n²", measured=12345678, trials=1, false_alarm=0.0)
    assert str(exact).splitlines()[1:3] == ["    bound     n²", "    measured  12,345,678   (1 trial, exact)"]
    strong = str(replace(CLAIM, power="a chance of 0.02")).splitlines()
    assert strong[3] == "    power     a chance of 0.02 would have been caught"
    assert len(strong) == 5


def test_a_claim_that_could_not_be_tested_says_so_and_is_not_as_stated() -> None:
    for stated in (True, False):
        claim = replace(CLAIM, holds=None, stated=stated, measured="needs dice: pip install dice")
        assert not claim.as_stated
        assert str(claim).splitlines() == [
            "coins fall on their edge at most once in a thousand times: NOT PUT TO THE TEST",
            "    needs dice: pip install dice",
            "    source    a drawer, 2024",
        ]
        assert json.loads(json.dumps(claim.to_json()))["holds"] is None


def test_json_has_every_field_but_the_picture() -> None:
    record = json.loads(json.dumps(CLAIM.to_json()))
    assert set(record) == {*vars(CLAIM), "as_stated"} - {"picture"}
    assert (record["bound"], record["holds"], record["as_stated"]) == (1e-3, False, False)


def colours(file: Path) -> dict[str, int]:
    """How many pixels have each of the first two colours of claims, in full or paled as lines are."""
    image = pytest.importorskip("matplotlib.image")
    pixels = image.imread(file)[..., :3]
    wanted = {"first": (0x2F, 0x5D, 0x8C), "second": (0xC2, 0x57, 0x1A)}
    return {n: int(np.sum(np.all(np.abs(pixels - np.array(c) / 255) < 0.01, axis=-1))) for n, c in wanted.items()}


def test_a_claim_is_drawn_and_claims_on_the_same_axes_share_a_panel(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    one = CLAIM.plot(tmp_path / "one.png")
    assert one == tmp_path / "one.png"
    found = colours(one)
    assert found["first"] > 20
    assert found["second"] == 0
    from refattn.verify.chart import save

    assert CLAIM.picture is not None
    other = replace(CLAIM, picture=replace(CLAIM.picture, y="faces", logarithmic=False))
    both, two = save([CLAIM, CLAIM], tmp_path / "both.png"), save([CLAIM, other], tmp_path / "two.png")
    assert min(colours(both).values()) > 20
    widths = [image.imread(file).shape[1] for file in (one, both, two)]
    assert widths == [widths[0], widths[0], 2 * widths[0]]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match=r"claim\.xyz: the name must end in an image format, as claim\.png; there are"):
        CLAIM.plot(tmp_path / "claim.xyz")
    from refattn.verify.chart import save

    with pytest.raises(OptionError, match="nothing to draw: there is no claim"):
        save([], tmp_path / "claim.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'refattn\[plot\]'"):
        CLAIM.plot(tmp_path / "claim.png")
    assert list(tmp_path.iterdir()) == []


def dark(file: Path) -> int:
    """How many pixels are far from white."""
    pixels = pytest.importorskip("matplotlib.image").imread(file)[..., :3]
    return int(np.sum(pixels.max(axis=-1) < 0.5))


def test_a_claim_without_a_picture_is_drawn_in_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    short = replace(CLAIM, picture=None).plot(tmp_path / "short.png")
    long = replace(CLAIM, picture=None, statement=CLAIM.statement * 3).plot(tmp_path / "long.png")
    assert 500 < dark(short) < dark(long)
    assert colours(short) == {"first": 0, "second": 0}


def test_a_table_is_drawn_in_shades_with_its_numbers(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    values = tuple(tuple(0.1 * (x + y) for x in range(4)) for y in range(3))
    heat = replace(CLAIM, picture=Heat("head", "layer", "a table", values))
    pixels = image.imread(heat.plot(tmp_path / "heat.png"))[..., :3]
    h, w = pixels.shape[:2]
    blue = pixels[:, :, 2] - pixels[:, :, 0]  # light cells are pale, dark ones blue
    assert blue[int(0.2 * h), int(0.2 * w)] < blue[int(0.75 * h), int(0.9 * w)]
    flat = replace(CLAIM, picture=replace(heat.picture, values=((0.5, 0.5),)))
    assert flat.plot(tmp_path / "flat.png").stat().st_size > 1000


def test_many_panels_are_laid_out_in_lines(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    from refattn.verify.chart import ACROSS, COLOURS, save

    assert CLAIM.picture is not None
    many = [replace(CLAIM, picture=replace(CLAIM.picture, y=f"faces {i}")) for i in range(ACROSS + 1)]
    alike = [CLAIM] * (len(COLOURS) * ACROSS + 1)  # as many in a panel as there are colours to tell them apart
    one, *others = (image.imread(save(some, tmp_path / "x.png", dpi=50)).shape for some in (many[:1], many, alike))
    for several in others:
        assert several[:2] == (2 * one[0], ACROSS * one[1])


def test_importing_verify_loads_neither_matplotlib_nor_scipy() -> None:
    code = "import sys, refattn.verify.growth, refattn.verify.command; print({'matplotlib', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


@pytest.fixture
def coins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A list of claims that `verify coins` runs."""
    made: list[Claim] = []
    monkeypatch.setitem(verify._CLAIMS, "coins", "whether coins stand")
    monkeypatch.setitem(sys.modules, "refattn.verify.coins", SimpleNamespace(run=lambda: made))  # type: ignore[arg-type]
    return made


def test_the_command_lists_what_there_is(capsys: pytest.CaptureFixture[str], coins: list[Claim]) -> None:
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(verify.claims())
    assert list(verify.claims()) == ["growth", "jl", "linformer", "lsh", "spectrum", "attention", "coins"]


def test_the_command_runs_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str], coins: list[Claim]) -> None:
    pytest.importorskip("matplotlib")
    coins += [replace(CLAIM, stated=False), replace(CLAIM, name="dice", holds=True)]
    assert command.main("coins", png=tmp_path / "c.png", json=tmp_path / "c.json") == 0
    assert capsys.readouterr().out.endswith("2 of 2 as stated\n")
    assert colours(tmp_path / "c.png")["second"] > 20
    record = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert record["name"] == "coins"
    assert [claim["name"] for claim in record["claims"]] == ["coins", "dice"]


def test_one_claim_that_is_not_as_stated_makes_status_1(capsys: pytest.CaptureFixture[str], coins: list[Claim]) -> None:
    coins += [replace(CLAIM, name="dice", holds=True), CLAIM]
    assert command.main("coins") == 1
    assert capsys.readouterr().out.endswith("1 of 2 as stated; not: coins\n")


def test_a_claim_that_could_not_be_tested_makes_status_3(capsys: pytest.CaptureFixture[str], coins: list[Claim]) -> None:
    coins += [replace(CLAIM, name="dice", holds=True), replace(CLAIM, holds=None)]
    assert command.main("coins") == 3
    assert capsys.readouterr().out.endswith("1 of 2 as stated; not put to the test: coins\n")
    coins += [replace(CLAIM, name="cards")]
    assert command.main("coins") == 1
    assert capsys.readouterr().out.endswith("1 of 3 as stated; not: cards; not put to the test: coins\n")


def test_a_seed_is_handed_on_written_down_and_refused_where_nothing_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, coins: list[Claim]
) -> None:
    with pytest.raises(UsageError, match="coins draws nothing: a seed would change nothing"):
        command.main("coins", seed=3)
    asked: list[int] = []
    drawing = SimpleNamespace(run=lambda seed=0: (asked.append(seed), (replace(CLAIM, holds=True),))[1])
    monkeypatch.setitem(sys.modules, "refattn.verify.coins", drawing)  # type: ignore[arg-type]
    assert command.main("coins", seed=3, json=tmp_path / "c.json") == 0
    assert json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["seed"] == 3
    assert command.main("coins", json=tmp_path / "c.json") == 0
    assert json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["seed"] == 0
    capsys.readouterr()
    assert command.main("coins", fresh=True) == 0
    assert asked[:2] == [3, 0]
    assert capsys.readouterr().out.startswith(f"seed {asked[2]}\n")


def test_a_picture_that_can_not_be_saved_is_refused_before_the_test_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], coins: list[Claim]
) -> None:
    coins += [CLAIM]
    begun = SimpleNamespace(run=lambda: pytest.fail("the test began"))
    monkeypatch.setitem(sys.modules, "refattn.verify.coins", begun)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"c\.xyz: the name must end in an image format, as claim\.png; there are"):
        command.main("coins", png=tmp_path / "c.xyz", json=tmp_path / "c.json")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendUnavailable, match="pictures need matplotlib"):
        command.main("coins", png=tmp_path / "c.png", fresh=True)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_every_name_has_its_part_of_the_documentation() -> None:
    lines = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in lines if line.startswith("## ")) == sorted(f"## `{name}`" for name in verify.claims())


def test_a_name_that_does_not_exist_and_a_file_for_no_name_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no claim is called 'groth'; there are growth"):
        command.main("groth")
    with pytest.raises(UsageError, match="Name one claim of growth"):
        command.main(png=tmp_path / "c.png")
