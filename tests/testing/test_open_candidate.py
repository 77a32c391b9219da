"""What open_candidate and a runner refuse: options, and cases whose reference would be another case's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attending import DO, LSE, attention, draw, gradients
from refattn.errors import UsageError
from refattn.testing.worker import open_candidate


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"library": "tensorflow"}, "library='tensorflow': choose numpy, torch, jax, cupy"),
        ({"dtype": "float8"}, "dtype='float8': choose float64, float32, float16, bfloat16"),
        ({"layout": "nhd"}, "layout='nhd': choose bhnd, bnhd"),
        ({"backward": "auto"}, "backward='auto': choose 'autograd', or give vjp"),
        ({"backward": "autograd"}, "backward='autograd': numpy has none, torch and jax do; give vjp"),
        ({"backward": "autograd", "library": "jax", "vjp": gradients}, "both say how to differentiate: give one"),
        ({"vjp": "file.py:vjp"}, "give both by name or both as functions"),
        ({"vjp": 3}, "vjp=3: give 'path/file.py:function'"),
        ({"timeout": 0.0}, "timeout=0.0: give a positive number of seconds"),
        ({"timeout": float("nan")}, "timeout=nan: give a positive number of seconds"),
        ({"vjp": lambda q, k, v: q}, "takes no 'do'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught, open_candidate(attention, **options):
        pass
    assert said in str(caught.value)


def test_something_that_is_no_candidate_is_refused() -> None:
    with pytest.raises(UsageError, match=r"candidate=3: give 'path/file.py:function'"), open_candidate(3):
        pass


def test_a_run_that_the_reference_would_not_see_is_refused(opened) -> None:
    runner, x = opened(attention, vjp=gradients), draw()
    with pytest.raises(UsageError, match="q has values that float32 can't hold"):
        runner.run({**x, "q": x["q"] + 1e-12})
    with pytest.raises(UsageError, match="v has values that float32 can't hold"):
        runner.run({**x, "v": x["v"] * 1e300})
    with pytest.raises(UsageError, match="do has values that float32 can't hold"):
        runner.run(x, np.full(DO, 0.1), None, {"o": np.ones(DO), "lse": np.ones(LSE)})
    with pytest.raises(UsageError, match="inputs q, k, v, sink: the candidate takes bias, k, mask, q, v, and q, k, v"):
        runner.run({**x, "sink": np.ones(3)})
    with pytest.raises(UsageError, match="inputs q: the candidate takes"):
        runner.run({"q": x["q"]})
    with pytest.raises(UsageError, match="the vjp candidate names lse: give the reference's in saved"):
        runner.run(x, np.ones(DO), None, {"o": np.ones(DO)})
