"""What ``refattn verify`` does: list the claims, or put one to the test, print it, draw it and write it down."""

from __future__ import annotations

import json as encoder
import secrets
from pathlib import Path

from refattn import _version
from refattn.errors import UsageError
from refattn.images import drawing
from refattn.verify import claims, usual_seed, verify


def main(name: str | None = None, *, png: str | Path | None = None, json: str | Path | None = None,
         seed: int | None = None, fresh: bool = False) -> int:
    """Exit status of ``refattn verify [NAME] [--png F] [--json F] [--seed N | --fresh]``.

    0: everything came out as stated. 1: something did not. 3: nothing came out otherwise, but something could not be put to
    the test, and says what to install. seed: of what is drawn; fresh: one that nobody chose, which is printed first.

    Raises
    ------
    UsageError
        For a name that does not exist, and for a file without a name: what the command line calls status 2.
    BackendUnavailable, OptionError, OSError
        If a file was asked for that can't be written: before anything is computed, where that can be told.
    """
    if name is None:
        if png is not None or json is not None:
            raise UsageError(f"a picture or a record of what? Name one claim of {', '.join(claims())}")
        width = max(map(len, claims()))
        for known, sentence in claims().items():
            print(f"{known:<{width}}  {sentence}")
        return 0
    if png is not None:
        drawing(png, "claim.png")
    if fresh:
        seed = secrets.randbelow(2**32)
        print(f"seed {seed}\n")
    found = verify(name, seed)
    for claim in found:
        print(claim, end="\n\n")
    untested = [claim.name for claim in found if claim.holds is None]
    wrong = [claim.name for claim in found if claim.holds is not None and not claim.as_stated]
    print(f"{sum(claim.as_stated for claim in found)} of {len(found)} as stated"
          + (f"; not: {', '.join(wrong)}" if wrong else "")
          + (f"; not put to the test: {', '.join(untested)}" if untested else ""))  # fmt: skip
    if json is not None:
        shown = [claim.to_json() for claim in found]
        used = usual_seed(name) if seed is None else seed
        record = {"refattn": _version.__version__, "name": name, "seed": used, "claims": shown}
        Path(json).write_text(encoder.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if png is not None:
        from refattn.verify.chart import save

        save(found, png)
    return 1 if wrong else 3 if untested else 0
