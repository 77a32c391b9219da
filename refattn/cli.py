"""The command ``refattn``: list and show schemes, price them, check a kernel against one, verify claims, time them.

Exit status: 0 done, or the kernel conforms; 1 it does not; 2 usage; 3 nothing could be judged. Results go to standard
output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import refattn
from refattn import cli_bench, cli_check, cli_vectors
from refattn.arguments import DTYPES, refuse_files, scheme_argument, size, width
from refattn.catalogue import scheme, scheme_or_pattern
from refattn.errors import OptionError, RefattnError
from refattn.expression import written
from refattn.images import drawing
from refattn.ops.visibility import ALIGNS

EXAMPLES = """\
examples:
  refattn list
  refattn show "Dense(causal=True, align='bottom_right')" --n 6 --m 9
  refattn show "Local(2, 2) | Global(first=1)"
  refattn show "SparseTransformer.strided(4, part='alternate')" --hops 2 --residual
  refattn cost "Dense(causal=True)" --n 1000000 --d 128 --block none
  refattn check kernel.py:attention --vjp kernel.py:attention_vjp --scheme "Dense(causal=True)"
  refattn check kernel.py:attention --scheme "Dense(causal=True)" --rows 32 --n 10**6
  refattn vectors export vectors
  refattn verify growth
  refattn bench --n 1024 --dtype float32
"""
_PLAIN = {"×": "x", "−": "-", "≤": "<=", "≥": ">=", "≠": "!=", "…": "...", "·": ".", "∞": "inf", "√": "sqrt"}
_PLAIN |= {"■": "#", "█": "#", "–": "-"}
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
        args, unknown = parser.parse_known_args(argv)
        if unknown:  # told by the command that they were given to, which argparse does not do
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
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
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"refattn {refattn.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{list,show,cost,check,vectors,verify,bench}")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, **more: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False, **more)
        made.set_defaults(run=run, parser=made)
        return made

    command("list", _list, "list the schemes")
    _show_options(command("show", _show, "draw who sees whom"))
    _cost_options(command("cost", _cost, "count the work and the memory of a scheme"))
    cli_check.options(
        command("check", cli_check.run, "judge a kernel against a scheme", epilog=cli_check.EPILOG, formatter_class=raw)
    )
    cli_vectors.options(command("vectors", cli_vectors.check, "write golden vectors, or judge results against them"))
    cli_bench.options(command("bench", cli_bench.run, "time schemes beside other people's code", epilog=cli_bench.EPILOG,
                              formatter_class=raw))
    _verify_options(command("verify", _verify, "put a claim about schemes to the test, or list the claims"))
    return parser


def _show_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("scheme", metavar="EXPR", help='a scheme or a pattern, as "Local(2, 0) | Global(first=1)"')
    p.add_argument("--n", type=size, default=12, help="queries (default 12)")
    p.add_argument("--m", type=size, help="keys (default: as many as queries)")
    p.add_argument("--align", choices=ALIGNS[1:], help="of a pattern, where n and m differ")
    p.add_argument("--hops", type=size, metavar="M", help="what outputs of M layers depend on, instead of one layer")
    p.add_argument("--residual", action="store_true", help="with --hops: every layer passes its input on, too")
    p.add_argument("--png", metavar="FILE", help="write an image (needs the extra 'plot') instead of drawing here")


def _cost_options(p: argparse.ArgumentParser) -> None:
    scheme_argument(p)
    p.add_argument("--n", type=size, required=True, help="queries")
    p.add_argument("--m", type=size, help="keys (default: n)")
    p.add_argument("--d", type=size, default=64, help="width of queries and keys (default 64)")
    p.add_argument("--e", type=size, help="width of values (default: d)")
    p.add_argument("--b", type=size, default=1, help="items (default 1)")
    p.add_argument("--heads", type=size, default=1, help="query heads (default 1)")
    p.add_argument("--kv-heads", type=size, metavar="G", help="key and value heads (default: as many as query heads)")
    p.add_argument("--rounds", type=size, metavar="R", help="rounds of hashing, for LSH (default 1)")
    p.add_argument("--slots", type=size, metavar="K", help="slots that keys are compressed to, for Linformer")
    p.add_argument("--block", type=_block, default=256, metavar="K", help="query rows at a time, none for all (default 256)")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="for the size in memory (default float32)")
    p.add_argument("--json", action="store_true", help="print JSON")


def _verify_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", nargs="?", help="a claim; without it they are listed")
    p.add_argument("--png", metavar="FILE", help="write a plot (needs the extra 'plot')")
    p.add_argument("--json", metavar="FILE", help="write what was measured as JSON")
    seeds = p.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, metavar="N", help="draw with this seed instead of always the same one")
    seeds.add_argument("--fresh", action="store_true", help="draw with a seed that nobody chose, and print it")


def _verify(args: argparse.Namespace) -> int:
    from refattn.verify import command

    refuse_files({"--png": args.png, "--json": args.json})
    return command.main(args.name, png=args.png, json=args.json, seed=args.seed, fresh=args.fresh)


def _block(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if (block := size(text)) < 1:
        raise argparse.ArgumentTypeError("a block has at least one row; none takes all rows at once")
    return block


def _list(args: argparse.Namespace) -> int:
    from refattn.catalogue import PATTERNS, ROWS

    heads = ("name", "class", "paper", "tags", "conventions")
    rows = [
        (r.name, type(r.scheme).__name__, r.paper, ", ".join(sorted(r.tags)), ", ".join(type(r.scheme).conventions))
        for r in ROWS
    ]
    print("\n".join(_table(heads, rows, width())))
    print("\nA convention of published code is written as Dense.conventions['jax'].")
    print("\n".join(textwrap.wrap(f"Patterns: {', '.join(cls.__name__ for cls in PATTERNS)}.", width())))
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


def _show(args: argparse.Namespace) -> int:
    from refattn import draw

    refuse_files({"--png": args.png})
    if args.png is not None:
        drawing(args.png)
    made = scheme_or_pattern(args.scheme)
    options = {"align": args.align, "hops": args.hops, "residual": args.residual}
    name, composed = written(made), ""
    if not hasattr(made, "forward"):  # a pattern is called as it was asked for, and shown as it is composed
        name, composed = " ".join(args.scheme.split()), name
    if args.hops is not None:
        name += f", {args.hops} layer{'s' * (args.hops != 1)}" + ", residual" * args.residual
    if args.png is not None:
        file = draw.save(made, args.png, args.n, args.m, title=name, **options)
        print(f"{file}: {name}, {args.n} queries, {args.n if args.m is None else args.m} keys")
        return 0
    print(draw.as_text(made, args.n, args.m, width=width() if sys.stdout.isatty() else None, **options))
    print(f"\n{name}: {_seen(draw.panels(made, args.n, args.m, **options))}")
    if "".join(composed.split()) not in ("", "".join(args.scheme.split())):
        print(f"    = {composed}")
    return 0


def _seen(panels: Sequence[Any]) -> str:
    """How many pairs there are, are seen, and are seen again."""
    size, seen = sum(p.counts.size for p in panels), sum(int((p.counts > 0).sum()) for p in panels)
    again = sum(int(p.counts.sum()) for p in panels)
    several = f" in {len(panels)} different matrices" if len(panels) > 1 else ""
    return f"{seen} of {size} pairs seen{several}" + (f", {again} with multiplicities" if again > seen else "")


def _cost(args: argparse.Namespace) -> int:
    made = scheme(args.scheme)
    sizes = {"b": args.b, "heads": args.heads, "kv_heads": args.heads if args.kv_heads is None else args.kv_heads}
    sizes |= {"n": args.n, "m": args.n if args.m is None else args.m, "d": args.d, "e": args.d if args.e is None else args.e}
    cost = made.cost(_asked(made, args, sizes), args.block)
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


def _asked(made: Any, args: argparse.Namespace, sizes: dict[str, int]) -> Any:
    """The Inputs of shapes that the options describe; what hashes gets 2·⌈n/chunk⌉ buckets, as published code has."""
    from refattn.draw.panels import needed

    b, h, g, n, m, d, e = sizes.values()
    fields = made.Inputs._fields
    if args.slots is not None and "E" not in fields:
        raise OptionError(f"--slots {args.slots}: {type(made).__name__} does not compress keys")
    if "qk" not in fields:
        if args.rounds is not None:
            raise OptionError(f"--rounds {args.rounds}: {type(made).__name__} does not hash")
        extra = needed(made, (b, h, n, m)) | (_compressed(made, args.slots, sizes) if "E" in fields else {})
        shapes = made.Inputs((b, h, n, d), (b, g, m, d), (b, g, m, e), **extra)
        if args.slots is not None and made.slots(shapes) != args.slots:
            found = made.slots(shapes)
            raise OptionError(f"--slots {args.slots}: segments of whole tokens make {found} slots of m={m} tokens")
        return shapes
    if (n, h) != (m, g):
        raise OptionError(f"{type(made).__name__} has queries and keys in one: leave --m and --kv-heads away")
    sizes["rounds"] = args.rounds or 1
    w = max(-(-n // made.chunk), 1) if made.factors is None else sum(made.factors) // 2
    return made.Inputs((b, h, n, d), (b, h, n, e), rotations=(sizes["rounds"], d, w))


def _compressed(made: Any, slots: int | None, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """E and F, the same for all heads, that make so many slots of m tokens."""
    m, d, e = (sizes[x] for x in "mde")
    if made.projection in ("mean", "max"):
        if slots is not None:
            raise OptionError(f"--slots {slots}: {written(made)} has as many slots as stride={made.stride} leaves")
        return {}
    if not slots:
        raise OptionError(f"{written(made)} needs --slots, 1 or more, as --slots 256: how many slots E makes of the keys "
                          "(k in the paper)")
    sizes["slots"], c = slots, max(m // slots, 1)
    both = {"linear": ((slots, m), (slots, m)), "depthwise": ((c, d), (c, e)), "dense": ((c, d, d), (c, e, e))}
    return dict(zip("EF", both[made.projection], strict=True))


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


