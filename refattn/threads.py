"""How many threads compiled kernels run on, and the pool that they share.

Kernels release the interpreter's lock and split their work into tasks that write to disjoint memory, so that any number of
threads gives the same bits. While tasks run, BLAS is held to one thread each; outside of kernels it is left alone.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from refattn.backend import load
from refattn.errors import OptionError

Task = Callable[[], None]
VARIABLE = "REFATTN_THREADS"


class _State:
    """What belongs to one process: a fork gets its own, since neither threads nor held locks survive it."""

    def __init__(self, chosen: int | None = None) -> None:
        self.chosen = chosen
        self.lock = threading.Lock()
        self.pool: ThreadPoolExecutor | None = None
        self.size = 0
        self.inside = 0  # calls that hold BLAS to one thread
        self.limit: Any = None


_state = _State()
_here = threading.local()


def _after_fork() -> None:
    """The kernels that ran in the parent's other threads do not go on here: BLAS is no longer theirs."""
    global _state
    held, _state = _state.limit, _State(_state.chosen)
    _here.working = False
    if held is not None:
        _lift(*held)


os.register_at_fork(after_in_child=_after_fork)


def set_threads(number: int | None) -> None:
    """Run kernels on `number` threads; None: on REFATTN_THREADS of them, or on the cores this process may use.

    Raises
    ------
    OptionError
        If the number is not a positive integer.
    """
    if number is not None:
        number = _positive(number, f"set_threads({number!r})")
    _state.chosen = number


def get_threads() -> int:
    """How many threads kernels run on: what ``set_threads`` chose, else REFATTN_THREADS, else the usable cores."""
    if _state.chosen is not None:
        return _state.chosen
    given = os.environ.get(VARIABLE, "").strip()
    if given:
        return _positive(int(given) if given.isdecimal() else given, f"{VARIABLE}={given!r}")
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warmup(backend: str = "numpy") -> None:
    """Compile the kernels of a backend now, or read them from the cache, not in the first call that needs them.

    Nothing is done where REFATTN_NUMBA=0 turns them off.
    """
    for prepare in getattr(load(backend), "warmups", ()):
        prepare()


def _positive(number: Any, said: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise OptionError(f"{said}: give a positive number of threads")
    return number


def run(tasks: Iterable[Task]) -> None:
    """Run every task, on the pool if there are several, and return when all have ended; the first error is raised."""
    todo = list(tasks)
    with _one_blas_thread():
        if min(get_threads(), len(todo)) < 2 or getattr(_here, "working", False):
            for task in todo:
                task()
            return
        futures = _submitted(todo)
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def _work(task: Task) -> None:
    _here.working = True  # a task that calls a kernel runs it itself: waiting for its own pool would never end
    try:
        task()
    finally:
        _here.working = False


def _submitted(todo: list[Task]) -> list[Future[None]]:
    """All tasks on the pool. Nobody else may take it away in between: a pool that was shut down takes no more tasks."""
    wanted, state = get_threads(), _state
    with state.lock:
        if state.pool is None or state.size != wanted:
            if state.pool is not None:
                state.pool.shutdown(wait=False)
            state.pool, state.size = ThreadPoolExecutor(wanted, thread_name_prefix="refattn"), wanted
        return [state.pool.submit(_work, task) for task in todo]


@functools.cache
def _blas(loaded: bool) -> Any:
    """The BLAS libraries of this process, looked for again when SciPy's, which compiled kernels call, has been loaded."""
    return importlib.import_module("threadpoolctl").ThreadpoolController()


def _take_control(controller: Any) -> None:
    """Let this thread set the limits: newer versions of threadpoolctl heed only the thread that did so first."""
    for library in controller.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def _lift(controller: Any, limit: Any) -> None:
    """Give BLAS its own number of threads back."""
    _take_control(controller)
    limit.restore_original_limits()
    _take_control(controller)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """BLAS at one thread while any kernel runs. Overlapping calls share one limit: the first sets it, the last lifts it."""
    state = _state
    with state.lock:
        state.inside += 1
        if state.inside == 1:
            controller = _blas("scipy.linalg.cython_blas" in sys.modules)
            _take_control(controller)
            state.limit = controller, controller.limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with state.lock:
            state.inside -= 1
            if state.inside == 0:
                _lift(*state.limit)
                state.limit = None
