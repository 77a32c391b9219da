"""The catalogue as parameters, and what docs/verify.md says of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from layout import ROOT
from refattn.catalogue import ROWS
from refattn.verify import Claim

CASES = [pytest.param(row, v, id=f"{row.name}-{i}-{v}") for row in ROWS for i, v in enumerate(row.variants)]


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize(("row", "variant"), CASES)


@pytest.fixture(scope="session")
def undocumented() -> Callable[[Iterable[Claim], str], list[str]]:
    """Names of claims, less a prefix, that docs/verify.md lacks, or whose outcome it states otherwise."""
    lines = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8").splitlines()

    def missing(claims: Iterable[Claim], prefix: str) -> list[str]:
        wanted = {claim.name.removeprefix(prefix).removesuffix(":"): claim.stated for claim in claims}
        found = {name for name, holds in wanted.items() for line in lines
                 if line.startswith(f"- `{name}`: ") and f"**{'Holds' if holds else 'False'}**" in line}  # fmt: skip
        return sorted(set(wanted) - found)

    return missing
