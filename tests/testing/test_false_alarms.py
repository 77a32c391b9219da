"""No correct kernel is called wrong: simulated ones, in many styles and precisions, before every known mistake.

A kernel raises an alarm if a tensor fails, or if on its one case, with no other case to contradict, a mutant of power 30
has an amplitude near 1 in every quarter of the rows: LOOKS LIKE, or CONVENTION where the mutant is one.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import Dense
from refattn.precision import Precision
from refattn.testing.cases import Case
from refattn.testing.diagnose import CERTAIN, Diagnosis, granted
from refattn.testing.judge import judge
from refattn.testing.match import Match, match
from refattn.testing.mutants import applicable
from refattn.testing.staged import Staged
from refattn.testing.tolerance import expect, storage
from refattn.testing.verdicts import Band, Level
from simulated import draws, styles
from simulated.arithmetic import rounded
from simulated.kernel import Kernel, Problem

Array = Any
EACH, FEW = 91, 30  # of each of eleven styles: a thousand and one kernels, of which every run has the first third
CHUNKS = 11  # in the sweep, which has all of them and ten thousand more
HEADS = ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2))


def problems(rng: np.random.Generator, form: str, extras: bool) -> tuple[list[Problem], int, str]:
    """One problem for each query head, how many heads share a key head, and the kind of mask (the same for all heads)."""
    heads, few = HEADS[int(rng.integers(len(HEADS)))]
    kind, n, d = str(rng.choice(draws.MASKS)), int(rng.integers(2, 65)), int(rng.choice([8, 16, 24, 32]))
    found = [draws.problem(rng, form, n=n, d=d, kind=kind, extras=extras)]

    def normal(x: Array) -> Array:
        return rounded(rng.normal(size=x.shape).astype(x.dtype), form)

    for h in range(1, heads):
        p = found[-1]
        own = {} if h % (heads // few) else {"k": normal(p.k), "v": p.v[rng.permutation(n)]}
        found.append(p._replace(q=p.q[:, rng.permutation(d)], do=normal(p.do), **own))
    return found, heads // few, kind


def case(parts: list[Problem], ratio: int, kind: str, dtype: str) -> Case:
    """The heads as one case of the kit: one item, causal by configuration where the mask is."""
    p = parts[0]
    wide = {name: np.stack([getattr(x, name) for x in parts])[None].astype(np.float64) for name in ("q", "k", "v", "do")}
    inputs = {"q": wide["q"], "k": wide["k"][:, ::ratio], "v": wide["v"][:, ::ratio]}
    if kind not in ("full", "causal"):
        inputs["mask"] = p.see[None, None]
    inputs |= {name: np.broadcast_to(getattr(p, name), (1, len(parts), *p.see.shape)).astype(kind)
               for name, kind in (("bias", float), ("keep", bool)) if getattr(p, name) is not None}  # fmt: skip
    if p.sink is not None:
        inputs["sink"] = np.full(len(parts), p.sink, np.float64)
    scheme = Dense(causal=kind == "causal", softcap=p.softcap, keep_rate=None if p.keep is None else p.keep_rate)
    sizes = dict(zip("bhgnmde", (1, len(parts), len(parts) // ratio, *p.see.shape, p.q.shape[1], p.v.shape[1]), strict=True))
    return Case(f"{kind}", kind, "", "", scheme, scheme.Inputs(**inputs), wide["do"], None, sizes)


def run(kernel: Kernel, parts: list[Problem], ratio: int) -> dict[str, Array]:
    """All heads of a kernel's results; gradients that heads share are added in the compute dtype and stored once."""
    compute, found = np.dtype(kernel.compute), []
    summing = replace(kernel, result=kernel.compute)
    for p in parts:
        p = p._replace(**{name: getattr(p, name).astype(compute) for name in ("q", "k", "v", "do")})
        o, lse = kernel.forward(p)
        found.append({"o": o, "lse": lse[:, 0], **(summing if ratio > 1 else kernel).backward(p, o, lse)})
    out = {name: np.stack([x[name] for x in found])[None] for name in found[0]}
    if ratio > 1:
        for name in ("dk", "dv"):
            x = out[name]
            out[name] = x.reshape(1, -1, ratio, *x.shape[2:]).sum(axis=2, dtype=compute)
        out |= {name: kernel.store(x) for name, x in out.items() if name.startswith("d")}
    if "dsink" in out:
        out["dsink"] = out["dsink"][0]
    return out


def draw(style: str, number: int) -> tuple[Kernel, Precision, Case, dict[str, Array]]:
    """Kernel `number` of a style with its case and its results in the dtype that it promises."""
    rng = np.random.default_rng([zlib.crc32(style.encode()), number, 1])
    kernel, precision = styles.draw(style, rng)
    parts, ratio, kind = problems(rng, kernel.result, extras=number % 2 == 0)
    got = run(kernel, parts, ratio)
    dtype = kernel.result
    stored = {name: x.astype(storage(kernel.compute if name == "lse" else dtype)) for name, x in got.items()}
    return kernel, precision, case(parts, ratio, kind, dtype), stored


def looks(got: dict[str, Array], c: Case, dtype: str, precision: Precision, ref: dict[str, Band]
          ) -> Iterator[tuple[str, Match]]:
    """The mistakes and conventions that a kernel looks like on this case alone."""
    values = {name: x.astype(np.float64) for name, x in got.items()}
    rule, right = Diagnosis(dtype, precision, True), Staged(c.scheme, c.inputs)
    right.run(c.do, c.dlse)
    for m in applicable(c, dtype, True):
        found = match(values, ref, m.values(c, dtype, right))
        if found.power >= CERTAIN and rule._like(found) and not granted(m, precision):
            yield m.id, found


def alarms(style: str, first: int, count: int) -> tuple[list[str], Counter[str]]:
    """False alarms among the kernels of a style, numbered from `first`, and how many tensors warn and why."""
    wrong, warned = [], Counter[str]()
    for number in range(first, first + count):
        kernel, precision, c, got = draw(style, number)
        ref = expect(c.scheme, c.inputs, precision, c.do, c.dlse)
        verdicts = [judge(name, got[name], ref[name], kernel.result) for name in ref]
        warned.update(f"{v.tensor} {v.reason}" for v in verdicts if v.level == Level.WARN)
        bad = [f"{v.tensor} {v.level} {v.reason} {v.where}" for v in verdicts if v.level > Level.WARN]
        bad += [f"like {i}, {m}" for i, m in looks(got, c, kernel.result, precision, ref)]
        wrong += [f"{style} {number} {c.sizes} {c.family}: {bad} by {kernel}"] if bad else []
    return wrong, warned


@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_raises_an_alarm(style: str) -> None:
    rarely_warned(style, 0, FEW)


def rarely_warned(style: str, first: int, count: int) -> None:
    wrong, warned = alarms(style, first, count)
    print(f"{style}: {count} kernels, warnings {dict(warned)}")
    assert wrong == []
    assert warned.total() <= 0.1 * count, "warnings are for what correct kernels hardly ever do"


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("style", styles.STYLES)
def test_no_correct_kernel_raises_an_alarm_in_a_sweep(style: str, chunk: int) -> None:
    if chunk:
        assert alarms(style, chunk * EACH, EACH)[0] == []
    else:
        rarely_warned(style, 0, EACH)


def test_there_are_a_thousand_kernels_and_ten_thousand() -> None:
    assert len(styles.STYLES) * EACH >= 1000
    assert len(styles.STYLES) * EACH * (CHUNKS - 1) >= 10_000


# ---- the same rules do raise an alarm
def faulty(change: Any, number: int, style: str = "online") -> tuple[Case, dict[str, Array], Precision, str]:
    """Kernel `number` on inputs that are changed behind the reference's back."""
    rng = np.random.default_rng([zlib.crc32(style.encode()), number, 1])
    kernel, precision = styles.draw(style, rng)
    parts, ratio, kind = problems(rng, kernel.result, extras=False)
    got = run(kernel, [change(p) for p in parts], ratio)
    stored = {name: x.astype(storage(kernel.compute if name == "lse" else kernel.result)) for name, x in got.items()}
    return case(parts, ratio, kind, kernel.result), stored, precision, kernel.result


FAULTS = {
    "F3": lambda p: p._replace(q=(p.q * 1.01).astype(p.q.dtype)),
    "F30l": lambda p: p._replace(see=p.see & (np.arange(p.see.shape[1]) < p.see.shape[1] - 1)),
    "F9": lambda p: p._replace(q=(p.q * np.log(2)).astype(p.q.dtype)),
}


@pytest.mark.parametrize("style", ["online", "flash_bf16", "truncating"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_with_a_mistake_looks_like_it(name: str, style: str) -> None:
    """In most draws the single case shows it; some have a power below 30 or a mask that hides it."""
    alarmed, failed = 0, 0
    for number in range(12):
        c, got, precision, dtype = faulty(FAULTS[name], number, style)
        ref = expect(c.scheme, c.inputs, precision, c.do, c.dlse)
        alarmed += name in {i.partition("@")[0] for i, _ in looks(got, c, dtype, precision, ref)}
        failed += any(judge(n, got[n], ref[n], dtype).level == Level.FAIL for n in ref)
    print(f"{name} in {style}: {alarmed} of 12 look like it, {failed} fail")
    assert alarmed >= 7
