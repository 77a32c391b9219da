"""Another backend for NumPy arrays, for a while."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from refattn import backend as backends


@contextmanager
def computing_in(backend):
    """Inside it NumPy arrays belong to `backend`."""
    before = dict(backends._FINDERS)
    backends._FINDERS[np.ndarray] = lambda _: backend
    try:
        yield backend
    finally:
        backends._FINDERS.clear()
        backends._FINDERS.update(before)
