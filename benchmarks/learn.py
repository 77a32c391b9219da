"""Schemes learn: Adam on models of refattn.layers, no autodiff, on NumPy or CuPy.

    python benchmarks/learn.py [--task copy] [--scheme dense] [--seeds 3] [--steps N] [--backend cupy] [--write]

Without --task and --scheme all of them. --write keeps what was found in benchmarks/results/learn.json and draws it in
docs/pictures; it needs the full run.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import learn_pictures
from learn_tasks import IGNORED, SCHEMES, TASKS, given, hashes

from refattn import load, of, rng, tree
from refattn.ops.cross_entropy import CrossEntropy

ROUNDS, EVALUATED = 4, (1, 2, 4, 8)  # rounds of hashing: those of a step, and those that are tried afterwards
MEAN, SQUARE, LEAST = 0.9, 0.98, 1e-8
entropy = CrossEntropy(ignore=IGNORED)


def size_of_step(task: Any, step: int, steps: int) -> float:
    """Up for 50 steps, down to almost 0 at the last."""
    return float(task.rate * min(1.0, step / 50) * (1.0 - (step - 1) / steps))


def adam(params: Any, grads: Any, moments: Any, step: int, size: float) -> tuple[Any, Any]:
    """Kingma and Ba (arXiv:1412.6980), algorithm 1: the parameters after a step, and the two moments of each."""
    sqrt, moved, found = of(*tree.leaves(params)).xp.sqrt, [], []
    for x, g, (m, v) in zip(tree.leaves(params), tree.leaves(grads), moments, strict=True):
        m, v = MEAN * m + (1.0 - MEAN) * g, SQUARE * v + (1.0 - SQUARE) * g * g
        moved.append(x - size * (m / (1.0 - MEAN**step)) / (sqrt(v / (1.0 - SQUARE**step)) + LEAST))
        found.append((m, v))
    rest = iter(moved)
    return tree.map(lambda _: next(rest), params), found


def train(task: Any, scheme: Any, seed: int = 0, steps: int | None = None, backend: str = "numpy", dtype: str = "float32",
          every: int = 20) -> dict[str, Any]:
    """Loss by step; accuracy and loss on what is held out; for LSH accuracy by rounds of hashing, and of random buckets."""
    b, model, start = load(backend), task.model(scheme), time.process_time()
    steps = task.steps if steps is None else steps

    def moved(nest: Any) -> Any:
        return tree.map(lambda x: b.lift(x.astype(dtype) if x.dtype.kind == "f" else x), nest)

    def held_out(rounds: int, items: int = 0) -> tuple[float, float]:
        """Accuracy and loss, with the same rotations in every call."""
        ids, targets = map(b.lift, task.held_out())
        logits, _ = model.forward(ids, params, moved(given(task, model, rng.stream(seed, "held out"), rounds, items)))
        right, counted = (b.xp.count_nonzero(x) for x in (b.xp.argmax(logits, axis=-1) == targets, targets != IGNORED))
        return int(right) / int(counted), float(entropy.forward(logits, targets)[0])

    params = moved(task.start(model, seed))
    moments = [(x * 0.0, x * 0.0) for x in tree.leaves(params)]
    losses, seen = [], []
    for step in range(1, steps + 1):
        g = rng.stream(seed, "step", step)
        ids, targets = map(b.lift, task.batch(g, task.items))
        logits, saved = model.forward(ids, params, moved(given(task, model, g, ROUNDS)))
        loss, kept = entropy.forward(logits, targets)
        grads = model.vjp(saved, entropy.vjp(kept, 1.0).logits).params
        params, moments = adam(params, grads, moments, step, size_of_step(task, step, steps))
        losses.append(float(loss))
        if step % every == 0 or step == steps:
            seen.append((step, *held_out(ROUNDS)))
    by = {name: {str(r): held_out(r, items)[0] for r in EVALUATED if hashes(model)}
          for name, items in (("rounds", 0), ("random", len(task.held_out()[0])))}
    return {"loss": losses, "held_out": seen, "seconds": time.process_time() - start, **by}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--task", choices=TASKS)
    p.add_argument("--scheme", choices=SCHEMES)
    p.add_argument("--seeds", type=int, default=3, help="how many runs of each (default 3)")
    p.add_argument("--steps", type=int, help="of Adam, in place of the task's own")
    p.add_argument("--backend", choices=("numpy", "cupy"), default="numpy")
    p.add_argument("--write", action="store_true", help="keep the results and draw them")
    args = p.parse_args()
    if args.write and (args.task or args.scheme or args.steps or args.seeds != 3):
        p.error("--write needs the full run: leave --task, --scheme, --steps and --seeds out")
    found: dict[str, Any] = {}
    for task, scheme in ((t, s) for t in TASKS for s in SCHEMES if args.task in (None, t) and args.scheme in (None, s)):
        for seed in range(args.seeds):
            run = train(TASKS[task], SCHEMES[scheme], seed, args.steps, args.backend)
            found.setdefault(task, {}).setdefault(scheme, []).append(run)
            print(learn_pictures.line(task, scheme, seed, run), flush=True)
    if args.write:
        learn_pictures.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
