"""The command ``refattn``: list and show schemes, price them, and check a kernel against one.

Exit status: 0 done, or the kernel conforms; 1 it does not; 2 usage; 3 nothing could be judged. Results go to standard
output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import refattn
from refattn.errors import OptionError, RefattnError
from refattn.expression import parse, written

EXAMPLES = """\
examples:
  refattn list
  refattn show "Dense(causal=True, align='bottom_right')" --n 6 --m 9
  refattn cost "Dense(causal=True)" --n 1000000 --d 128 --block none
  refattn check kernel.py:attention --vjp kernel.py:attention_vjp --scheme "Dense(causal=True)"
  refattn check kernel.py:attention --scheme "Dense(causal=True)" --rows 32 --n 10**6
"""
CHECK = """\
CANDIDATE is path/file.py:function or package.module:function. It is called as function(q, k, v), with optional inputs (mask,
bias, sink, key_valid, ...) by keyword if its signature names them, and returns o or (o, lse). docs/check-your-kernel.md has
the whole protocol.

exit status: 0 every judged case is right, 1 some are wrong, 2 usage, 3 nothing could be judged
"""
_PLAIN = {"×": "x", "−": "-", "≤": "<=", "≥": ">=", "≠": "!=", "…": "...", "·": ".", "∞": "inf", "√": "sqrt"}
_PLAIN |= {"■": "#", "█": "#"}
DTYPES = ("float64", "float32", "float16", "bfloat16")
_BYTES = {"float64": 8, "float32": 4, "float16": 4, "bfloat16": 4}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one message."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n  ({self.prog} --help explains)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; errors of the user are one message on standard error."""
    _speak_any_encoding()
    parser = _parser()
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 2
        done: int = args.run(args)
        sys.stdout.flush()
        return done
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        print("refattn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (RefattnError, OSError) as error:
        print(f"refattn: {error}", file=sys.stderr)
        return 2


def _speak_any_encoding() -> None:
    """Characters that a stream can't encode are written in plain letters instead of raising."""
    def write_plain(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("refattn-plain", write_plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="refattn-plain")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="refattn",
        description="Reference attention schemes, and a judge for other people's kernels.",
        epilog=EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"refattn {refattn.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{list,show,cost,check}")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, **more: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False, **more)
        made.set_defaults(run=run)
        return made

    command("list", _list, "list the schemes")
    _show_options(command("show", _show, "draw who sees whom"))
    _cost_options(command("cost", _cost, "count the work and the memory of a scheme"))
    _check_options(command("check", _check, "judge a kernel against a scheme", epilog=CHECK, formatter_class=raw))
    return parser


def _show_options(p: argparse.ArgumentParser) -> None:
    _scheme_argument(p)
    p.add_argument("--n", type=_size, default=12, help="queries (default 12)")
    p.add_argument("--m", type=_size, help="keys (default: as many as queries)")
    p.add_argument("--png", metavar="FILE", help="write an image (needs the extra 'plot') instead of drawing here")


def _cost_options(p: argparse.ArgumentParser) -> None:
    _scheme_argument(p)
    p.add_argument("--n", type=_size, required=True, help="queries")
    p.add_argument("--m", type=_size, help="keys (default: n)")
    p.add_argument("--d", type=_size, default=64, help="width of queries and keys (default 64)")
    p.add_argument("--e", type=_size, help="width of values (default: d)")
    p.add_argument("--b", type=_size, default=1, help="items (default 1)")
    p.add_argument("--heads", type=_size, default=1, help="query heads (default 1)")
    p.add_argument("--kv-heads", type=_size, metavar="G", help="key and value heads (default: as many as query heads)")
    p.add_argument("--block", type=_block, default=256, metavar="K", help="query rows at a time, none for all (default 256)")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="for the size in memory (default float32)")
    p.add_argument("--json", action="store_true", help="print JSON")


def _check_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("candidate", metavar="CANDIDATE", help="the kernel: path/file.py:function or package.module:function")
    p.add_argument("--scheme", metavar="EXPR", required=True, help="what it should be, as \"Dense(causal=True)\"")
    backward = p.add_mutually_exclusive_group()
    backward.add_argument("--vjp", metavar="CANDIDATE", help="its backward, which is judged too")
    backward.add_argument("--backward", choices=["autograd"], help="differentiate the kernel by torch or jax autograd")
    libraries = ("numpy", "torch", "jax", "cupy")
    p.add_argument("--library", choices=libraries, default="numpy", help="the arrays it takes (default numpy)")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of its inputs (default float32)")
    p.add_argument("--contract", metavar="PRESET", help="precision to judge under, as fp32 or 'flash-bf16(tile=1)'")
    p.add_argument("--layout", choices=["bhnd", "bnhd"], default="bhnd", help="order of the axes (default bhnd)")
    p.add_argument("--only", metavar="FILTER", help="limits of the kernel, as 'd=64,128; n%%64=0; nq=nk; heads=1:1'")
    p.add_argument("--timeout", type=_seconds, metavar="S", help="seconds for one case (default 60; with --rows 3600)")
    p.add_argument("--strict", action="store_true", help="warnings fail too")
    p.add_argument("--json", metavar="FILE", help="write the report as JSON too; - for standard output, instead of text")
    p.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML too, a test for each case")
    p.add_argument("--verbose", action="store_true", help="tell every case")
    long = p.add_argument_group("one long sequence, judged at some of its rows")
    long.add_argument("--rows", type=_size, metavar="K", help="query rows to judge in o, lse, dq; all of dk, dv are")
    long.add_argument("--n", type=_size, help="queries")
    long.add_argument("--m", type=_size, help="keys (default: n)")
    long.add_argument("--d", type=_size, help="width of queries and keys (default 64)")
    long.add_argument("--e", type=_size, help="width of values (default: d)")
    long.add_argument("--heads", type=_size, metavar="H", help="query heads (default 1)")
    long.add_argument("--kv-heads", type=_size, metavar="G", help="key and value heads (default: as many as query heads)")


def _scheme_argument(p: argparse.ArgumentParser) -> None:
    p.add_argument("scheme", metavar="EXPR", help="a scheme, as \"Dense(causal=True, align='bottom_right')\"")


def _size(text: str) -> int:
    """A whole number ≥ 0; 1_000_000, 1e6 and 10**6 are numbers too."""
    match = re.fullmatch(r"(\d[\d_]*)(?:(e|\*\*)(\d{1,2}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give a whole number, as 4096, 10**6 or 1e6")
    base, sign, power = int(match[1].replace("_", "")), match[2], int(match[3] or 0)
    return base if sign is None else base * 10**power if sign == "e" else base**power


def _block(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if (block := _size(text)) < 1:
        raise argparse.ArgumentTypeError("a block has at least one row; none takes all rows at once")
    return block


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds above 0")


def constructors() -> dict[str, type]:
    """The public classes that an expression may name: schemes, and what they are configured with."""
    homes = ("refattn.schemes.", "refattn.patterns.", "refattn.features.", "refattn.position.")
    public = {name: getattr(refattn, name) for name in refattn.__all__}
    return {name: x for name, x in public.items() if inspect.isclass(x) and x.__module__.startswith(homes)}


def scheme(text: str) -> Any:
    """The scheme that an expression describes."""
    made = parse(text, constructors())
    if not hasattr(made, "forward"):
        raise OptionError(f"{written(made)} is not a scheme; there is {', '.join(constructors())}")
    return made


def _list(args: argparse.Namespace) -> int:
    from refattn.catalogue import ROWS

    heads = ("name", "class", "paper", "tags", "conventions")
    rows = [
        (r.name, type(r.scheme).__name__, r.paper, ", ".join(sorted(r.tags)), ", ".join(type(r.scheme).conventions))
        for r in ROWS
    ]
    print("\n".join(_table(heads, rows, _width())))
    print("\nA convention of published code is written as Dense.conventions['jax'].")
    return 0


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Columns of text; the last two share what is left of the width, folded into it."""
    wide = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    each = (width - sum(wide[:-2]) - 2 * (len(heads) - 1)) // 2
    words = [max(len(word) for row in [heads, *rows] for word in row[i].split()) for i in range(len(heads))]
    wide[-2:] = [min(w, max(each, word)) for w, word in zip(wide[-2:], words[-2:], strict=True)]
    for row in [heads, *rows]:
        cells = [textwrap.wrap(cell, w, break_on_hyphens=False) or [""] for cell, w in zip(row, wide, strict=True)]
        for i in range(max(map(len, cells))):
            line = "  ".join((cell[i] if i < len(cell) else "").ljust(w) for cell, w in zip(cells, wide, strict=True))
            yield line.rstrip()


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _show(args: argparse.Namespace) -> int:
    from refattn import draw

    made = scheme(args.scheme)
    if args.png is not None:
        file = draw.save(made, args.png, args.n, args.m, title=written(made))
        print(f"{file}: {written(made)}, {args.n} queries, {args.n if args.m is None else args.m} keys")
        return 0
    width = _width() if sys.stdout.isatty() else None
    print(draw.as_text(made, args.n, args.m, width=width))
    see = draw.sees(made, args.n, args.m)
    print(f"\n{written(made)}: {int(see.sum())} of {see.size} pairs seen")
    return 0


def _cost(args: argparse.Namespace) -> int:
    made = scheme(args.scheme)
    sizes = {"b": args.b, "heads": args.heads, "kv_heads": args.heads if args.kv_heads is None else args.kv_heads}
    sizes |= {"n": args.n, "m": args.n if args.m is None else args.m, "d": args.d, "e": args.d if args.e is None else args.e}
    b, h, g, n, m, d, e = sizes.values()
    from refattn.draw.text import needed

    more = needed(made, (b, h, n, m))
    cost = made.cost(made.Inputs((b, h, n, d), (b, g, m, d), (b, g, m, e), **more), args.block)
    if args.json:
        counts = {name: vars(getattr(cost, name)) for name in ("forward", "backward")}
        peak = {"peak": cost.peak, "dtype": args.dtype, "peak_bytes": cost.peak * _BYTES[args.dtype]}
        asked = {"scheme": written(made), "sizes": sizes, "block": args.block}
        found = {**asked, **counts, "useful_macs": cost.useful_macs, **peak}
        print(json.dumps(found, indent=2))
        return 0
    rows = "all rows at once" if args.block is None else f"{args.block} rows at a time"
    print(f"{written(made)}   {' '.join(f'{name}={size}' for name, size in sizes.items())}   {rows}\n")
    print("\n".join(_cost_lines(cost, args.dtype)))
    return 0


def _cost_lines(cost: Any, dtype: str) -> Iterator[str]:
    """The table of a cost: integers with separators, and the peak in MiB."""
    f, b = cost.forward, cost.backward
    useful = "depends on the arrays' values" if cost.useful_macs is None else f"{cost.useful_macs:,}"
    rows = [
        ("", "forward", "backward"),
        ("multiply-adds", f"{f.macs:,}", f"{b.macs:,}"),
        ("  of visible pairs only", useful, ""),
        ("exponentials", f"{f.exps:,}", f"{b.exps:,}"),
        ("elements of the results", f"{f.saved:,}", f"{b.saved:,}"),
    ]
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, *cells in rows:
        yield f"{name:<{wide[0]}}  {cells[0]:>{wide[1]}}  {cells[1]:>{wide[2]}}".rstrip()
    note = " (computed in float32)" if _BYTES[dtype] == 4 and dtype != "float32" else ""
    yield f"\npeak: at most {cost.peak:,} elements alive at once, inputs not counted"
    yield f"      {cost.peak * _BYTES[dtype] / 2**20:,.1f} MiB in {dtype}{note}"


def _check(args: argparse.Namespace) -> int:
    from refattn.precision import parse as parse_precision
    from refattn.testing import report as reports

    made = scheme(args.scheme)
    if args.contract is not None:
        parse_precision(args.contract)
    if args.backward is not None and args.library not in ("torch", "jax"):
        raise OptionError(f"--backward autograd needs --library torch or jax, not {args.library}; give --vjp CANDIDATE")
    for name, file in (("--json", args.json), ("--junit", args.junit)):
        if file not in (None, "-") and not Path(file).absolute().parent.is_dir():
            raise OptionError(f"{name} {file}: there is no folder {Path(file).absolute().parent}")
    with _progress() as progress:
        found = _judge(args)(args.candidate, made, progress=progress)
    if args.junit is not None:
        importlib.import_module("refattn.testing.junit").write(found, args.junit, strict=args.strict)
    if args.json is not None:
        text = json.dumps(reports.to_json(found), indent=2, allow_nan=False) + "\n"
        sys.stdout.write(text) if args.json == "-" else Path(args.json).write_text(text, encoding="utf-8")
    if args.json != "-":
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(reports.render(found, width=min(_width(), 120), color=color, verbose=args.verbose))
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
