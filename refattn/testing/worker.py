"""Runs candidates on cases: functions named by a spec in a process of their own, Python callables in this one.

A worker process (``python -m refattn.testing.serve``) imports the candidate once and runs one case after the other. It
may die, hang or print what it likes: then the case is a crash or a hang, and the next case gets a new process. A callable
runs here, where exceptions are caught, but nothing can be done about a segmentation fault or an endless loop.

NumPy arrays, strings and numbers go to and fro, pickled, over pipes that only the worker knows: what the candidate writes
to standard output goes to standard error, whose last words are kept for the remark on how the process died.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from refattn import errors
from refattn.errors import RefattnError, UsageError
from refattn.testing import adapters, candidate
from refattn.testing.candidate import Fields
from refattn.testing.messages import Hello, Job, Outcome, Refusal, Setup
from refattn.testing.process import Died, Process
from refattn.testing.trial import Trial

__all__ = ["Outcome", "Runner", "open_candidate"]

Array = Any
LAYOUTS = ("bhnd", "bnhd")
IMPORT_SECONDS = 120.0
"""How long a candidate may take to be imported, at least; a longer timeout of its cases holds for the import too."""


class Runner:
    """An open candidate.

    accepts: the inputs that its forward takes; cases with others are not for it. wants: what its vjp names among the
    inputs, o, lse, do, dlse (empty for autograd). has_backward: whether gradients come with a case that has do.
    """

    accepts: frozenset[str]
    wants: frozenset[str]
    has_backward: bool

    def __init__(self, dtype: str, inputs: Fields, has_backward: bool) -> None:
        self._dtype, self._inputs, self.has_backward = dtype, inputs, has_backward

    def run(self, inputs: Mapping[str, Array], do: Array | None = None, dlse: Array | None = None,
            saved: Mapping[str, Array] | None = None, strided: bool = False, rows: Array | None = None) -> Outcome:
        """One case: forward, and with `do` backward if there is one.

        inputs, do, dlse: arrays (..., H, n, d) and so on, whose floats are exact in the candidate's dtype; dlse and saved
        lse are handed over in float32 where that is a half precision. saved: the reference's lse (and o), for a vjp that
        names it where the forward does not return it. strided: q, k, v and do as non-contiguous views (jax: as they are).
        rows: queries; of o, lse and dq these come back alone, and the arrays are handed over without a copy (see Job).

        Raises
        ------
        UsageError
            If an input is not the scheme's or not accepted, or values are not exact in the dtype, or saved misses something.
        """
        self._check(inputs, do, saved or {})
        exact, rounded = adapters.dtype_of(self._dtype), adapters.statistic(self._dtype)
        arrays = {name: _exactly(name, x, exact) if name in self._inputs.floats else np.asarray(x)
                  for name, x in inputs.items()}
        kept = {name: np.asarray(x).astype(rounded if name == "lse" else exact, copy=False)
                for name, x in (saved or {}).items()}
        return self._run(Job(
            {name: arrays[name] for name in self._inputs.names if name in arrays},
            None if do is None else _exactly("do", do, exact),
            None if dlse is None else _exactly("dlse", dlse, rounded), kept, strided, rows))

    def _check(self, inputs: Mapping[str, Array], do: Array | None, saved: Mapping[str, Array]) -> None:
        missing = [name for name in self._inputs.required if name not in inputs]
        strange = [name for name in inputs if name not in self.accepts]
        if missing or strange:
            raise UsageError(f"inputs {', '.join(inputs)}: the candidate takes {', '.join(sorted(self.accepts))}, "
                             f"and {', '.join(self._inputs.required)} always")
        if do is not None and "lse" in self.wants and "lse" not in saved:
            raise UsageError("the vjp candidate names lse: give the reference's in saved, if the forward does not return it")

    def _run(self, job: Job) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        """End what was started."""


class InProcess(Runner):
    """A candidate that is a Python callable: called in this process, its warnings silenced as a worker's would be."""

    def __init__(self, forward: Callable[..., Any], vjp: Callable[..., Any] | None, setup: Setup) -> None:
        super().__init__(setup.dtype, setup.inputs, vjp is not None or setup.backward is not None)
        library = adapters.open_library(setup.library, setup.dtype)
        self._trial = Trial(forward, vjp, setup.backward, library, setup.layout, setup.inputs)
        self.accepts = frozenset(setup.inputs.required) | self._trial.call.names
        self.wants = self._trial.back.names

    def _run(self, job: Job) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._trial.run(job)


class OutOfProcess(Runner):
    """A candidate with a worker process, which is started anew after it has died or was ended."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.dtype, setup.inputs, setup.vjp is not None or setup.backward is not None)
        self._setup = setup
        self._homes: tuple[str, ...] = ()
        self._process: Process | None = None
        hello = self._start()
        self.accepts = frozenset(setup.inputs.required) | hello.optional
        self.wants = hello.wants

    def _start(self) -> Hello:
        process = Process("refattn.testing.serve")
        limit = max(self._setup.timeout, IMPORT_SECONDS)
        try:
            hello = process.ask(self._setup, limit)
        except TimeoutError:
            process.kill()
            raise UsageError(f"candidate {self._setup.forward!r}: importing it took more than {limit:g} s") from None
        except Died:
            raise UsageError(f"candidate {self._setup.forward!r}: importing it ended the process: {process.obituary(())}"
                             ) from None
        except BaseException:
            process.kill()
            raise
        if isinstance(hello, Refusal):
            process.close()
            raise getattr(errors, hello.error)(hello.message)
        assert isinstance(hello, Hello)
        self._process, self._homes = process, hello.homes
        return hello

    def _run(self, job: Job) -> Outcome:
        if self._process is None or not self._process.alive():
            self.close()
            try:
                self._start()
            except RefattnError as error:
                return Outcome("crash", remark=f"the process could not be started again: {error}")
        process = self._process
        assert process is not None
        started = time.perf_counter()
        try:
            outcome: Outcome = process.ask(job, self._setup.timeout)
            return outcome
        except TimeoutError:
            process.kill()
            where = process.place(self._homes)
            status, remark = "hang", f"no result within {self._setup.timeout:g} s {where}".strip()
        except Died:
            status, remark = "crash", process.obituary(self._homes)
        self._process = None
        return Outcome(status, remark=remark, seconds=time.perf_counter() - started)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


@contextmanager
def open_candidate(forward: str | Callable[..., Any], *, vjp: str | Callable[..., Any] | None = None,
                   backward: str | None = None, library: str = "numpy", dtype: str = "float32", layout: str = "bhnd",
                   timeout: float = 60.0, scheme: Any = None) -> Iterator[Runner]:
    """Import a candidate and have it ready to be run on cases of `scheme` (default: Dense), for a with statement.

    forward, vjp: specs (see ``refattn.testing.candidate``), run in a process of their own, or Python callables, run in this
    one. backward: "autograd" differentiates forward instead (torch, jax). library, layout: what arrays it is given and
    returns. timeout: seconds that a case may take before the process is ended; callables can't be interrupted.

    Raises
    ------
    UsageError
        If an option is none, the candidate can't be imported or called, or the scheme has no cases.
    BackendUnavailable
        If the library is not installed or has no device.
    """
    _check_options(forward, vjp, backward, library, layout, timeout)
    from refattn.schemes.dense import Dense

    scheme = Dense if scheme is None else scheme
    adapters.dtype_of(dtype)
    specs = {"forward": forward if isinstance(forward, str) else None, "vjp": vjp if isinstance(vjp, str) else None}
    setup = Setup(**specs, backward=backward, library=library, dtype=dtype, layout=layout, inputs=candidate.fields(scheme),
                  timeout=float(timeout), path=tuple(p or os.getcwd() for p in sys.path))
    runner: Runner
    if isinstance(forward, str):
        runner = OutOfProcess(setup)
    else:
        assert not isinstance(vjp, str)
        runner = InProcess(forward, vjp, setup)
    try:
        yield runner
    finally:
        runner.close()


def _check_options(forward: Any, vjp: Any, backward: str | None, library: str, layout: str, timeout: float) -> None:
    for what, x in (("candidate", forward), ("vjp", vjp)):
        if not (isinstance(x, str) or callable(x) or (x is None and what == "vjp")):
            raise UsageError(f"{what}={x!r}: give 'path/file.py:function', 'package.module:function' or a function")
    if vjp is not None and isinstance(vjp, str) != isinstance(forward, str):
        raise UsageError(f"candidate {forward!r} and vjp {vjp!r}: give both by name or both as functions")
    if backward not in (None, "autograd"):
        raise UsageError(f"backward={backward!r}: choose 'autograd', or give vjp")
    if backward is not None and vjp is not None:
        raise UsageError(f"backward={backward!r} and vjp={vjp!r} both say how to differentiate: give one")
    if not isinstance(library, str) or library not in adapters.LIBRARIES:
        raise UsageError(f"library={library!r}: choose {', '.join(adapters.LIBRARIES)}")
    if backward == "autograd" and not adapters.LIBRARIES[library].autograd:
        raise UsageError(f"backward='autograd': {library} has none, torch and jax do; give vjp")
    if layout not in LAYOUTS:
        raise UsageError(f"layout={layout!r}: choose {', '.join(LAYOUTS)}")
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise UsageError(f"timeout={timeout!r}: give a positive number of seconds for a case")


def _exactly(name: str, x: Array, dtype: np.dtype[Any]) -> Array:
    """x in `dtype`, refused if that changes a value: the reference would be computed from other numbers than the result."""
    x = np.asarray(x)
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore", under="ignore"):
        y = x.astype(dtype)
    if not np.array_equal(x.astype(np.float64), y.astype(np.float64), equal_nan=True):
        raise UsageError(f"{name} has values that {dtype.name} can't hold: round it before computing the reference")
    return y
