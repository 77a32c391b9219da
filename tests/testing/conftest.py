"""Candidates that stay open until the end of a test."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from refattn.testing.worker import open_candidate


@pytest.fixture
def opened():
    """open_candidate without its with statement."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(open_candidate(*args, **options))
