"""What learn.py found, as a line, as tables and as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learn_tasks import TASKS

from refattn.draw.picture import INK, SEEN, TWICE

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PICTURES, DOCS = ROOT / "benchmarks/results/learn.json", ROOT / "docs/pictures", ROOT / "docs/learning.md"
BEGIN, END = "<!-- learn: begin -->", "<!-- learn: end -->"
COLORS = {"dense": INK, "strided": SEEN, "lsh": TWICE, "window": "#8a9299"}
DASHES = {"dense": "-", "strided": "--", "lsh": "-", "window": ":"}


def line(task: str, scheme: str, seed: int, run: dict[str, Any]) -> str:
    """One run."""
    step, accuracy, loss = run["held_out"][-1]
    rounds = " ".join(f"{r}: {x:.4f} ({run['random'][r]:.3f})" for r, x in run["rounds"].items())
    return (f"{task:10} {scheme:8} seed {seed}  after {step} steps: accuracy {accuracy:.4f}, loss {loss:.4f}, "
            f"{run['seconds']:.0f} s" + (f"\n{'':22}rounds of hashing (of random buckets) {rounds}" if rounds else ""))


def tables(found: dict[str, Any]) -> str:
    """Markdown: the last accuracy and loss of every scheme, from the worst seed to the best, and what rounds give."""
    rows = ["| scheme | copy task: accuracy | characters: loss, nats |", "|---|---|---|"]
    for scheme in found["copy"]:
        accuracy, loss = (sorted(run["held_out"][-1][at] for run in found[task][scheme])
                          for task, at in (("copy", 1), ("characters", 2)))
        rows.append(f"| {scheme} | {accuracy[0]:.3f} … {accuracy[-1]:.3f} | {loss[0]:.2f} … {loss[-1]:.2f} |")
    rows += ["", "| rounds | hashed | random buckets |", "|---|---|---|"]
    runs = found["copy"]["lsh"]
    for r in runs[0]["rounds"]:
        hashed, drawn = (sorted(run[how][r] for run in runs) for how in ("rounds", "random"))
        rows.append(f"| {r} | {hashed[0]:.3f} … {hashed[-1]:.3f} | {drawn[0]:.3f} … {drawn[-1]:.3f} |")
    return "\n".join(rows)


def write(found: dict[str, Any]) -> None:
    """Keep the results, and renew the tables of docs/learning.md and its pictures."""
    kept = {task: {name: [{key: x for key, x in run.items() if key != "loss"} for run in runs] for name, runs in of.items()}
            for task, of in found.items()}
    kept = json.loads(json.dumps(kept), parse_float=lambda x: round(float(x), 6))
    RESULTS.write_text(json.dumps(kept).replace('{"held_out"', '\n{"held_out"') + "\n", encoding="utf-8")
    page = DOCS.read_text(encoding="utf-8")
    page = page[: page.index(BEGIN) + len(BEGIN)] + f"\n\n{tables(kept)}\n\n" + page[page.index(END) :]
    DOCS.write_text(page, encoding="utf-8")
    pictures(kept)


def pictures(found: dict[str, Any]) -> None:
    """The copy task: accuracy by steps, and by rounds; characters: loss by steps."""
    PICTURES.mkdir(exist_ok=True)
    figure, (left, right) = _figure(2)
    _curves(left, found["copy"], 1, "accuracy on what is held out", "Copy task 0w0w, three seeds")
    _rounds(right, found["copy"]["lsh"])
    left.legend(frameon=False, labelcolor=INK, loc="center right")
    figure.savefig(PICTURES / "learning_copy.png", bbox_inches="tight", pad_inches=0.15)
    figure, (axes,) = _figure(1)
    _curves(axes, found["characters"], 2, "loss on what is held out, nats", "Characters of difflib.py, three seeds")
    pairs = TASKS["characters"].of_pairs()
    axes.axhline(pairs, color=INK, linewidth=0.8)
    axes.annotate("counted pairs of characters", (0.99, pairs), xycoords=("axes fraction", "data"), color=INK,
                  ha="right", va="bottom", fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, loc="upper right")
    figure.savefig(PICTURES / "learning_characters.png", bbox_inches="tight", pad_inches=0.15)


def _figure(panels: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4 * panels, 3.6), dpi=80, facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, panels, squeeze=False, gridspec_kw={"wspace": 0.25})[0]


def _curves(axes: Any, runs: dict[str, Any], at: int, what: str, title: str) -> None:
    for name, found in runs.items():
        for seed, run in enumerate(found):
            steps, values = [x[0] for x in run["held_out"]], [x[at] for x in run["held_out"]]
            axes.plot(steps, values, DASHES[name], color=COLORS[name], linewidth=1.3, label=name if seed == 0 else None)
    _finish(axes, "steps of Adam", what, title)


def _rounds(axes: Any, runs: list[dict[str, Any]]) -> None:
    for how, dashes, label in (("rounds", "-", "buckets hashed"), ("random", ":", "buckets drawn at random")):
        for seed, run in enumerate(runs):
            xs = [int(r) for r in run[how]]
            axes.plot(xs, list(run[how].values()), dashes, marker="o", markersize=3.5, color=TWICE, linewidth=1.3,
                      label=label if seed == 0 else None)
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.set_ylim(0.0, 1.04)
    axes.legend(frameon=False, labelcolor=INK, loc="lower right")
    _finish(axes, "rounds of hashing", "accuracy", "LSH, trained with four rounds")


def _finish(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=10)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
