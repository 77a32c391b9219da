"""The worker process, ``python -m refattn.testing.serve``: it imports one candidate and runs it on case after case."""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
from typing import IO

from refattn.errors import RefattnError
from refattn.testing import adapters, candidate
from refattn.testing.messages import Hello, Job, Outcome, Refusal, Setup
from refattn.testing.trial import Trial


def _private_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output as only we know them; the candidate gets an empty input, and standard error for output."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


def _prepare(setup: Setup) -> Trial:
    assert setup.forward is not None
    library = adapters.open_library(setup.library, setup.dtype)
    with library.session():
        forward = candidate.load(setup.forward)
        vjp = None if setup.vjp is None else candidate.load(setup.vjp)
    return Trial(forward, vjp, setup.backward, library, setup.layout, setup.inputs)


def serve() -> None:
    """The worker process: one Setup, then Jobs until the other side closes the pipe."""
    requests, replies = _private_pipes()
    faulthandler.enable(file=2)

    def reply(message: Hello | Refusal | Outcome) -> None:
        pickle.dump(message, replies, protocol=5)
        replies.flush()

    setup: Setup = pickle.load(requests)
    sys.path[:] = setup.path
    try:
        trial = _prepare(setup)
    except RefattnError as error:
        return reply(Refusal(type(error).__name__, str(error)))
    reply(Hello(trial.call.names, trial.back.names, trial.homes))
    while True:
        try:
            job: Job = pickle.load(requests)
        except EOFError:
            return
        # A little before the other side loses patience, so that it can say where.
        faulthandler.dump_traceback_later(0.9 * setup.timeout, file=2)
        outcome = trial.run(job)
        faulthandler.cancel_dump_traceback_later()
        reply(outcome)


if __name__ == "__main__":
    serve()
