"""The command ``refattn vectors``: golden vectors are written, and the results of kernels in any language judged."""

from __future__ import annotations

import argparse
from pathlib import Path

from refattn import cli_check
from refattn.arguments import refuse_files

EPILOG = """\
DUMP is a .safetensors file, or a folder of them, with results named as in the manifest (29.o, 29.lse, 29.dq, ...), in F64,
F32, F16 or BF16. docs/vectors-format.md has the format; cases that are not in the dump are not judged.

exit status: 0 every judged case is right, 1 some are wrong, 2 usage, 3 nothing could be judged
"""


def options(p: argparse.ArgumentParser) -> None:
    actions = p.add_subparsers(dest="action", metavar="{export,check}", required=True)
    made = actions.add_parser("export", help="write the vectors and their manifest into a folder", allow_abbrev=False)
    made.set_defaults(run=export, parser=made)
    made.add_argument("folder", metavar="DIR", type=Path, help="the folder, which is made if it is not there")
    made.add_argument("--tier", choices=["core"], default="core", help="which suite (default core, 4 MB)")
    raw = argparse.RawDescriptionHelpFormatter
    made = actions.add_parser(
        "check", help="judge the results of a kernel", epilog=EPILOG, formatter_class=raw, allow_abbrev=False
    )
    made.set_defaults(run=check, parser=made)
    made.add_argument("folder", metavar="DIR", type=Path, help="the vectors, as export wrote them")
    made.add_argument("dump", metavar="DUMP", type=Path, help="what the kernel made of their inputs")
    made.add_argument("--contract", metavar="PRESET", help="precision to judge under (default: the strictest of the dtype)")
    cli_check.report_options(made)


def export(args: argparse.Namespace) -> int:
    from refattn.testing.vectors_manifest import export

    found = export(args.folder)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    print(f"{args.folder}: {found['number_of_cases']} cases in {len(found['groups'])} files, {size / 1e6:.1f} MB in all")
    print(f"digest {found['digest']}")
    return 0


def check(args: argparse.Namespace) -> int:
    refuse_files({"--json": args.json, "--junit": args.junit})
    from refattn.testing.vectors_check import check_dump

    return cli_check.tell(check_dump(args.folder, args.dump, args.contract), args)
