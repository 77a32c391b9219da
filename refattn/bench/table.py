"""The results of a run as text, and whether it keeps what it must."""

from __future__ import annotations

from typing import Any

from refattn.bench.subjects import SUBJECTS


def table(found: dict[str, Any]) -> str:
    """Lines for a terminal, which are also Markdown tables: one for each subject, one for whole processes."""
    m = found["machine"]
    out = [ran_on(m), "Processor time on one thread, medians taken in turn; useful FLOPs."]
    for name in dict.fromkeys(row["scheme"] for row in found["rows"]):
        subject = SUBJECTS[name]
        shares = (subject.rate,) if subject.rate else ()
        mine = [row for row in found["rows"] if row["scheme"] == name]
        weighed = ("extra MB", *(f"/ {y}" for y in subject.yardsticks)) if any("extra" in row for row in mine) else ()
        bounds = ("must", "goal") if subject.targets else ()
        head = ("dtype", "n", "work", "who", "ms", "GFLOP/s", *(f"/ {y}" for y in subject.yardsticks),
                *(f"of {y}" for y in shares), *weighed, *bounds)
        rows = [(*_row(row, (*subject.yardsticks, *shares)), *(_extra(row, subject.yardsticks) if weighed else ()),
                 *(_bounds(row["targets"], x) for x in bounds)) for row in mine]
        out += ["", f"**{name}**: {subject.title}", "", *_lines(head, rows)]
    if found["processes"]:
        out += ["", *_lines(("whole process", "measured", "must", "goal"), [_process(row) for row in found["processes"]])]
    if found["absent"]:
        out += ["", f"not installed, not measured: {', '.join(found['absent'])}"]
    if found["busy"]:
        out += ["", f"Nothing can be concluded: the machine is busy ({found['busy']})."]
    return "\n".join(out)


def ran_on(m: dict[str, Any], *libraries: str) -> str:
    """The machine in words; libraries: whose versions are told, if not everyone's."""
    told = libraries or tuple(m["versions"])
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items() if name in told)
    return f"{m['processor']}, {m['cores']} cores; Python {m['python']}, {versions}; {', '.join(m['blas'])}"


def _extra(row: dict[str, Any], yardsticks: tuple[str, ...]) -> tuple[str, ...]:
    """Extra memory and its ratios to the yardsticks'."""
    if row.get("extra") is None:
        return ("", *("" for _ in yardsticks))
    ratios = [f"{row['extra ratios'][name]:.2f}" if name in row["extra ratios"] else "" for name in yardsticks]
    return (f"{row['extra'] / 1e6:.1f}", *ratios)


def _row(row: dict[str, Any], yardsticks: tuple[str, ...]) -> tuple[str, ...]:
    ratios = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in yardsticks]
    return (row["dtype"], str(row["n"]), row["work"], row["who"], f"{row['ms']:.2f}", f"{row['gflops']:.0f}", *ratios)


def _process(row: dict[str, Any]) -> tuple[str, ...]:
    if row["ratio"] is None:
        return row["what"], "not measurable here", "", ""
    return row["what"], f"{row['ratio']:.2f}", _bounds([row], "must"), _bounds([row], "goal")


def _bounds(targets: list[dict[str, Any]], which: str) -> str:
    return ", ".join(f"{'≤' if t['upper'] else '≥'} {t[which]:.2f} {'yes' if t[f'{which} met'] else 'NO'}" for t in targets)


def _lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    marks = tuple("-" * w for w in widths)
    return ["| " + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " |" for row in (head, marks, *rows)]


def missed(found: dict[str, Any]) -> list[str]:
    """What must be and is not, in words."""
    rows = [(f"{r['who']}, {r['scheme']} {r['dtype']} n={r['n']}, {r['work']}, {t['against']}", t)
            for r in found["rows"] for t in r["targets"]]
    rows += [(r["what"], r) for r in found["processes"] if r["ratio"] is not None]
    return [f"{what}: {t['ratio']:.2f}, must be {'≤' if t['upper'] else '≥'} {t['must']:.2f}" for what, t in rows
            if not t["must met"]]
