"""Twenty steps of training in float64: the curve of the hand-written backward and of benchmarks/learn.py's Adam is that of
torch's tape over the same texts, with torch's cross-entropy and torch's Adam."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from learning.taught import learn, learn_tasks
from refattn import rng, tree

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")

STEPS = 20


def on_torch(task: Any, scheme: Any, seed: int) -> list[float]:
    model = task.model(scheme)
    params = tree.map(lambda x: torch.tensor(np.array(x), requires_grad=True), task.start(model, seed))
    adam = torch.optim.Adam(tree.leaves(params), betas=(learn.MEAN, learn.SQUARE), eps=learn.LEAST)
    losses = []
    for step in range(1, STEPS + 1):
        g = rng.stream(seed, "step", step)
        ids, targets = map(torch.tensor, task.batch(g, task.items))
        given = tree.map(lambda x: torch.tensor(np.array(x)), learn_tasks.given(task, model, g, learn.ROUNDS))
        logits, _ = model.forward(ids, params, given)
        loss = torch.nn.functional.cross_entropy(torch.movedim(logits, -1, 1), targets, ignore_index=learn_tasks.IGNORED)
        adam.param_groups[0]["lr"] = learn.size_of_step(task, step, STEPS)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("scheme", learn_tasks.SCHEMES)
@pytest.mark.parametrize("task", learn_tasks.TASKS)
def test_the_curve_is_torchs(task: str, scheme: str) -> None:
    small = dataclasses.replace(learn_tasks.TASKS[task], items=2)
    own = learn.train(small, learn_tasks.SCHEMES[scheme], 3, STEPS, dtype="float64", every=10**6)["loss"]
    assert own[0] - own[-1] > 0.05
    np.testing.assert_allclose(own, on_torch(small, learn_tasks.SCHEMES[scheme], 3), rtol=0.0, atol=1e-8)
