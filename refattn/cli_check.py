"""The command ``refattn check``: its options, and how it runs, tells its progress and writes its report."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from refattn.arguments import DTYPES, refuse_files, seconds, size, width
from refattn.catalogue import scheme
from refattn.errors import OptionError

EPILOG = """\
CANDIDATE is path/file.py:function or package.module:function. It is called as function(q, k, v), with optional inputs (mask,
bias, sink, key_valid, ...) by keyword if its signature names them, and returns o or (o, lse). docs/check-your-kernel.md has
the whole protocol.

exit status: 0 every judged case is right, 1 some are wrong, 2 usage, 3 nothing could be judged
"""


def options(p: argparse.ArgumentParser) -> None:
    p.add_argument("candidate", metavar="CANDIDATE", help="the kernel: path/file.py:function or package.module:function")
    p.add_argument("--scheme", metavar="EXPR", required=True,
                   help="what it should be, as \"Dense(causal=True)\" or \"Sparse(Local(7, 0))\"")
    backward = p.add_mutually_exclusive_group()
    backward.add_argument("--vjp", metavar="CANDIDATE", help="its backward, which is judged too")
    backward.add_argument("--backward", choices=["autograd"], help="differentiate the kernel by torch or jax autograd")
    libraries = ("numpy", "torch", "jax", "cupy")
    p.add_argument("--library", choices=libraries, default="numpy", help="the arrays it takes (default numpy)")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of its inputs (default float32)")
    p.add_argument("--contract", metavar="PRESET", help="precision to judge under, as fp32 or 'flash-bf16(tile=1)'")
    p.add_argument("--layout", choices=["bhnd", "bnhd"], default="bhnd", help="order of the axes (default bhnd)")
    p.add_argument("--only", metavar="FILTER", help="limits of the kernel, as 'd=64,128; n%%64=0; nq=nk; heads=1:1'")
    p.add_argument("--timeout", type=seconds, metavar="S", help="seconds for one case (default 60; with --rows 3600)")
    report_options(p)
    long = p.add_argument_group("one long sequence, judged at some of its rows")
    long.add_argument("--rows", type=size, metavar="K", help="query rows to judge in o, lse, dq; all of dk, dv are")
    long.add_argument("--n", type=size, help="queries")
    long.add_argument("--m", type=size, help="keys (default: n)")
    long.add_argument("--d", type=size, help="width of queries and keys (default 64)")
    long.add_argument("--e", type=size, help="width of values (default: d)")
    long.add_argument("--heads", type=size, metavar="H", help="query heads (default 1)")
    long.add_argument("--kv-heads", type=size, metavar="G", help="key and value heads (default: as many as query heads)")


def report_options(p: argparse.ArgumentParser) -> None:
    """How a report is told, and what fails."""
    p.add_argument("--strict", action="store_true", help="warnings fail too")
    p.add_argument("--json", metavar="FILE", help="write the report as JSON too; - for standard output, instead of text")
    p.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML too, a test for each case")
    p.add_argument("--verbose", action="store_true", help="tell every case")


def run(args: argparse.Namespace) -> int:
    from refattn.precision import parse as parse_precision

    made = scheme(args.scheme)
    if args.contract is not None:
        parse_precision(args.contract)
    if args.backward is not None and args.library not in ("torch", "jax"):
        raise OptionError(f"--backward autograd needs --library torch or jax, not {args.library}; give --vjp CANDIDATE")
    refuse_files({"--json": args.json, "--junit": args.junit})
    with _progress() as progress:
        found = _judge(args)(args.candidate, made, progress=progress)
    return tell(found, args)


def tell(found: Any, args: argparse.Namespace) -> int:
    """Write a report wherever it was asked for; the exit status."""
    from refattn.testing import report as reports

    if args.junit is not None:
        importlib.import_module("refattn.testing.junit").write(found, args.junit, strict=args.strict)
    if args.json is not None:
        text = json.dumps(reports.to_json(found), indent=2, allow_nan=False) + "\n"
        sys.stdout.write(text) if args.json == "-" else Path(args.json).write_text(text, encoding="utf-8")
    if args.json != "-":
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(reports.render(found, width=min(width(), 120), color=color, verbose=args.verbose))
    status: int = found.status(args.strict)
    return status


def _judge(args: argparse.Namespace) -> Callable[..., Any]:
    """``check``, or with --rows ``check_rows``, with the options that were given."""
    options = {name: getattr(args, name) for name in ("vjp", "backward", "library", "dtype", "contract", "layout")}
    sizes = {name: getattr(args, name) for name in ("n", "m", "d", "e", "heads", "kv_heads")}
    given = {name: size for name, size in sizes.items() if size is not None}
    if args.rows is None:
        if given:
            name = next(iter(given)).replace("_", "-")
            raise OptionError(f"--{name} needs --rows K; the sizes of short cases are chosen by --only")
        check = importlib.import_module("refattn.testing.check").check
        return functools.partial(check, **options, only=args.only, timeout=60.0 if args.timeout is None else args.timeout)
    if args.n is None or args.only is not None:
        wrong = "needs --n N" if args.n is None else f"makes one case: --only {args.only!r} has nothing to choose from"
        raise OptionError(f"--rows {args.rows} {wrong}")
    check_rows = importlib.import_module("refattn.testing.sampled").check_rows
    limit = {} if args.timeout is None else {"timeout": args.timeout}
    return functools.partial(check_rows, rows=args.rows, **given, **options, **limit)


Progress = Callable[[int, int, str, str], None]


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A callback (cases done, all cases, case, level): a bar on a terminal, a line for each quarter in a pipe."""
    if not sys.stderr.isatty():
        yield _quarters()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        tell = functools.partial(print, end="", file=sys.stderr, flush=True)
        yield lambda done, total, case, level: tell(f"\r{done} of {total}  {case[:50]:<50}")
        tell("\r" + " " * 70 + "\r")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, case, level: bar.update(task, completed=done, total=total, description=case)


def _quarters() -> Progress:
    told = [0]

    def tell(done: int, total: int, case: str, level: str) -> None:
        quarter = 4 * done // total if total else 4
        if quarter > told[0]:
            told[0] = quarter
            print(f"refattn: {done} of {total} cases", file=sys.stderr, flush=True)

    return tell
