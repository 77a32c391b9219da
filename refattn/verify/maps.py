"""Is attention low rank, and higher layers more so? Linformer's figure 1 on maps of a pretrained model.

Each claim is about a share of all passages of the text; each event is one drawn passage, so that binomial tests are exact.
"""

from __future__ import annotations

from typing import Any

from refattn.errors import BackendUnavailable
from refattn.verify.claim import Claim
from refattn.verify.exact_tests import ALPHA, Outcome, at_most
from refattn.verify.spectra import cumulative, heads, layers, spectra

Array = Any
_FIGURE = ("Wang et al. 2020 (arXiv:2006.04768), figure 1 and §3, who measured RoBERTa; here all-MiniLM-L6-v2 on pydoc's "
           "topics")  # fmt: skip
STATEMENTS = {
    "every layer": "on half of all passages every layer is more skewed than the one before it (c at n/4, mean over heads)",
    "upper layers": "on nine passages of ten layers 4 to 6 are more skewed than layers 1 to 3 (c at n/4, mean over heads)",
    "every head": "on half of all passages a quarter of the singular values has half of their sum in every layer and head",
    "every head is low rank": "on half of all passages a matrix of rank n/4 is within 1/2 of the map of every layer "
    "and head (operator norm)",
}


def claims(seed: int, passages: int, n: int = 128) -> tuple[Claim, ...]:
    """One for each statement; where the model is not installed, none of them is put to the test."""
    try:
        values = spectra(n, passages, seed)
    except BackendUnavailable as error:
        return tuple(Claim(_name(name), text, _FIGURE, "", str(error), 0, None) for name, text in STATEMENTS.items())
    return *_by_layer(values), *_by_head(values)


def _by_layer(values: Array) -> tuple[Claim, Claim]:
    passages, n = values.shape[0], values.shape[-1]
    means = cumulative(values)[..., n // 4 - 1].mean(axis=-1)  # (passages, layers)
    last, half = means.shape[1], means.shape[1] // 2
    falls = {f"{i} to {i + 1}": int((means[:, i] <= means[:, i - 1]).sum()) for i in range(1, last)}
    steps = [at_most(count, passages, 0.5, ALPHA / len(falls)) for count in falls.values()]
    upper, lower = means[:, half:].mean(axis=1), means[:, :half].mean(axis=1)
    halves = at_most(int((upper <= lower).sum()), passages, 0.1)
    shown = ", ".join(f"{step} on {count}" for step, count in falls.items())
    return (
        _claim("every layer", f"c = {_row(means.mean(axis=0))}; it falls from {shown} of {passages}", steps[0], values,
               holds=all(s.holds for s in steps), stated=False, picture=layers(values)),
        _claim("upper layers", f"c = {_row([upper.mean(), lower.mean()])}; otherwise on {halves.measured}", halves, values,
               picture=heads(values)),
    )  # fmt: skip


def _by_head(values: Array) -> tuple[Claim, Claim]:
    passages, n = values.shape[0], values.shape[-1]
    c, past = cumulative(values)[..., n // 4 - 1], values[..., n // 4]
    low = c.mean(axis=0)
    layer, head = divmod(int(low.argmin()), low.shape[1])
    at = f"layer {layer + 1}, head {head + 1}:"
    tails, ranks = (at_most(int(x.any(axis=(1, 2)).sum()), passages, 0.5) for x in (c < 0.5, past > 0.5))
    return (
        _claim("every head", f"{at} c = {float(low[layer, head]):.3f}; otherwise on {tails.measured}", tails, values,
               stated=False),
        _claim("every head is low rank", f"{at} σ_(n/4 + 1) = {float(past[:, layer, head].mean()):.3f}; otherwise on "
               f"{ranks.measured}", ranks, values, stated=False),
    )  # fmt: skip


def _claim(name: str, measured: str, found: Outcome, values: Array, holds: bool | None = None, **more: Any) -> Claim:
    passages, n = values.shape[0], values.shape[-1]
    power = f"{found.power.replace('a chance', 'a share')} of passages on which it is otherwise"
    return Claim(_name(name), f"{STATEMENTS[name]} (n = {n})", _FIGURE, "otherwise on so few passages", measured, passages,
                 found.holds if holds is None else holds, false_alarm=ALPHA, power=power, **more)  # fmt: skip


def _name(name: str) -> str:
    return f"spectrum: {name}:"


def _row(numbers: Any) -> str:
    return ", ".join(f"{float(x):.3f}" for x in numbers)
