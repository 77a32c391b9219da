"""The pool: sizes and errors, errors of tasks, calls from tasks and from several threads, BLAS, and life after fork."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import refattn
from refattn import OptionError, threads


@pytest.fixture(autouse=True)
def chosen() -> Any:
    """The number of threads as it was before."""
    before = threads._state.chosen
    yield
    refattn.set_threads(before)


def test_the_number_is_what_was_set_then_the_variable_then_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFATTN_THREADS", "5")
    refattn.set_threads(3)
    assert refattn.get_threads() == 3
    refattn.set_threads(None)
    assert refattn.get_threads() == 5
    monkeypatch.delenv("REFATTN_THREADS")
    assert refattn.get_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("number", [0, -1, 2.0, "2", True])
def test_numbers_that_are_none(number: Any) -> None:
    with pytest.raises(OptionError, match=r"set_threads\(.*positive number of threads"):
        refattn.set_threads(number)


@pytest.mark.parametrize("number", ["0", "two", "-1", "1.5"])
def test_variables_that_are_no_number(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFATTN_THREADS", number)
    refattn.set_threads(None)
    with pytest.raises(OptionError, match=f"REFATTN_THREADS='{number}'"):
        refattn.get_threads()


@pytest.mark.parametrize("number", [1, 2, 7])
def test_every_task_runs_once_on_as_many_threads_as_asked_for(number: int) -> None:
    refattn.set_threads(number)
    start, ran, who = threading.Barrier(number), [0] * 50, set()

    def task(i: int) -> None:
        if i < number:
            start.wait(timeout=60)  # passes only if that many tasks run at once
        ran[i] += 1
        who.add(threading.get_ident())

    threads.run([lambda i=i: task(i) for i in range(50)])  # type: ignore[misc]
    assert ran == [1] * 50
    assert len(who) <= number


@pytest.mark.parametrize("number", [1, 3])
def test_the_first_error_is_raised_when_all_have_ended(number: int) -> None:
    refattn.set_threads(number)
    ran = []

    def bad(i: int) -> None:
        ran.append(i)
        raise ZeroDivisionError(f"task {i}")

    with pytest.raises(ZeroDivisionError, match="task 0"):
        threads.run([lambda i=i: bad(i) for i in range(6)])  # type: ignore[misc]
    assert number == 1 or sorted(ran) == list(range(6))


def test_a_task_may_run_tasks() -> None:
    refattn.set_threads(2)
    done: list[int] = []
    threads.run([lambda: threads.run([lambda i=i: done.append(i) for i in range(3)]) for _ in range(4)])  # type: ignore[misc]
    assert sorted(done) == sorted([0, 1, 2] * 4)


def blas() -> set[int]:
    return {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}


def test_the_number_may_change_while_other_threads_run_tasks() -> None:
    ran = []

    def often(first: int) -> None:
        for i in range(200):
            refattn.set_threads(2 + (first + i) % 3)
            threads.run([lambda: ran.append(1)] * 8)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(often, range(3)))
    finally:
        sys.setswitchinterval(before)
    assert len(ran) == 3 * 200 * 8


def test_blas_has_one_thread_in_tasks_and_its_own_number_after_overlapping_calls() -> None:
    refattn.set_threads(4)
    importlib.import_module("scipy.linalg.cython_blas")
    seen: list[set[int]] = []
    with threadpool_limits(2, user_api="blas"):
        before, first, second = blas(), threading.Event(), threading.Event()

        def one() -> None:
            first.set()
            second.wait(timeout=60)
            seen.append(blas())

        def other() -> None:
            first.wait(timeout=60)  # the second call begins inside of the first and ends after it has ended
            second.set()
            seen.append(blas())

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(threads.run, ([one, one], [other, other])))
        assert before == {2}
        assert seen == [{1}] * 4
        assert blas() == before


FORKED = """
import os, sys, numpy as np, refattn
from refattn import Dense
refattn.set_threads(2)
q = np.random.default_rng(0).standard_normal((4, 256, 16))
want = Dense(causal=True)(q, q, q)
for _ in range(2):  # a child of a process whose pool is running
    child = os.fork()
    if child == 0:
        os._exit(0 if Dense(causal=True)(q, q, q).tobytes() == want.tobytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("same", "numba" in sys.modules)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_kernels_run_in_a_forked_child() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "same True\n", done.stderr


BUSY = """
import importlib, os, threading, refattn
from refattn import threads
from threadpoolctl import threadpool_info, threadpool_limits
importlib.import_module("scipy.linalg.cython_blas")
refattn.set_threads(2)
blas = lambda: {x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"}
started, forked = threading.Event(), threading.Event()
def task():
    started.set()
    forked.wait(60)
with threadpool_limits(2, user_api="blas"):
    before = blas()
    other = threading.Thread(target=threads.run, args=([task, task],))
    other.start()
    started.wait(60)
    held, child = blas(), os.fork()
    if child == 0:
        seen = []
        threads.run([lambda: seen.append(blas())] * 4)
        os._exit(0 if blas() == before and seen == [{1}] * 4 else 1)
    print(before, held, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    forked.set()
    other.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_while_kernels_run_has_all_threads_of_blas() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{2} {1} 0\n", (done.stdout, done.stderr)
