"""The command line and schemes that compress keys: how many slots there are is asked for, and refused elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refattn import catalogue, cli

Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, *words: str) -> Any:
    """The JSON that a command prints."""
    assert cli.main(words) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "E", "F"),
    [
        ("Linformer()", (16, 64), (16, 64)),
        ("Linformer(projection='depthwise')", (4, 8), (4, 5)),
        ("Linformer(projection='dense', tail='pad')", (4, 8, 8), (4, 5, 5)),
    ],
)
def test_cost_of_compressed_keys_takes_the_number_of_slots(capsys: Captured, text: str, E: Any, F: Any) -> None:
    scheme = catalogue.scheme(text)
    cost = scheme.cost(scheme.Inputs((1, 4, 32, 8), (1, 2, 64, 8), (1, 2, 64, 5), E, F))
    sizes = ["--n", "32", "--m", "64", "--d", "8", "--e", "5", "--heads", "4", "--kv-heads", "2", "--slots", "16", "--json"]
    found = printed(capsys, "cost", text, *sizes)
    assert (found["forward"], found["backward"]) == (vars(cost.forward), vars(cost.backward))
    assert (found["peak"], found["sizes"]["slots"]) == (cost.peak, 16)


def test_cost_of_pooled_keys_asks_for_nothing_more(capsys: Captured) -> None:
    found = printed(capsys, "cost", "Linformer(projection='mean', stride=4)", "--n", "64", "--json")
    assert found["forward"]["macs"] == 64 * 16 * 128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cost", "Linformer()", "--n", "4"], "Linformer() needs --slots, 1 or more, as --slots 256"),
        (["cost", "Linformer()", "--n", "4", "--slots", "0"], "needs --slots, 1 or more"),
        (["cost", "Dense()", "--n", "4", "--slots", "2"], "--slots 2: Dense does not compress keys"),
        (["cost", "Linformer(projection='max', stride=2)", "--n", "4", "--slots", "2"], "as many slots as stride=2 leaves"),
        (["cost", "Linformer(projection='dense', tail='drop')", "--n", "9", "--slots", "5"], "tokens make 9 slots of m=9"),
        (["show", "Linformer(projection='dense', tail='drop')"], "hides the last m % c tokens, and c is the length of E"),
    ],
)
def test_slots_that_make_no_sense_are_one_message(capsys: Captured, words: list[str], said: str) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_every_convention_has_a_cost_and_a_picture(capsys: Captured) -> None:
    for name in ("fairseq", "lucidrains", "tatp22", "lra"):
        text = f"Linformer.conventions['{name}']"
        assert printed(capsys, "cost", text, "--n", "32", "--slots", "8", "--json")["sizes"]["slots"] == 8
        assert cli.main(["show", text, "--n", "3"]) == 0
        assert "9 of 9 pairs seen" in capsys.readouterr().out
