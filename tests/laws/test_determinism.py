"""The same bits every time, alone and from several threads at once; what one thread reads is not what another computes."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from laws.bounds import case as make
from laws.bounds import defined
from refattn import load, using
from refattn.catalogue import ROWS

THREADS = 4


def bits(nest):
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in nest.items()}


@pytest.fixture
def impatient():
    """Threads that take turns every few microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("block", [None, 3])
def test_the_same_bits_every_time(row, variant, case, block):
    want = bits(case.run(block=block) | {f"definition {n}": x for n, x in defined(case.scheme, case.inputs).items()})
    for _ in range(2):
        got = case.run(block=block) | {f"definition {n}": x for n, x in defined(case.scheme, case.inputs).items()}
        assert bits(got) == want


@pytest.mark.parametrize("row_", ROWS, ids=lambda row: row.name)
def test_the_same_bits_from_several_threads_at_once(row_, impatient):
    """Every thread runs every variant, each starting with another."""
    cases = [make(v.scheme, row_.draw(v, 1)) for v in row_.variants]
    want = [bits(case.run()) for case in cases]
    start = threading.Barrier(THREADS)

    def work(first):
        order = np.roll(np.arange(len(cases)), first * 3).tolist() * 2
        start.wait(timeout=60)
        return [bits(cases[i].run()) == want[i] for i in order]

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(all(same) for same in pool.map(work, range(THREADS)))


def test_a_reading_in_one_thread_is_not_seen_in_another(row, variant, case):
    inside, done = threading.Event(), threading.Event()

    def read():
        with using(load("counting")):
            inside.set()
            return done.wait(timeout=60)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(read)
        try:
            assert inside.wait(timeout=60)
            got = case.run()
        finally:
            done.set()
        assert other.result()
    assert {type(x) for x in got.values()} == {np.ndarray}
