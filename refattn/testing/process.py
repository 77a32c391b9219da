"""A child process that answers one pickled message with another, and what is left of it when it does not."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from refattn.testing.trial import place

ROOT = Path(__file__).absolute().parents[2]
KEPT = 1 << 16
GRACE = 2.0
FRAME = re.compile(r'^\s*File "(.+)", line (\d+) in ', re.MULTILINE)


class Died(Exception):
    """The process ended without an answer."""


class Process:
    """``python -m module`` with this Python, a session of its own (signals from the keyboard are ours) and our environment.

    The module is found where refattn was found, installed or not. The last 64 KiB of standard error are kept.
    """

    def __init__(self, module: str) -> None:
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
        self._words = b""
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()
        self._talk: threading.Thread | None = None

    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._popen.poll() is None

    def ask(self, message: Any, seconds: float) -> Any:
        """Send a message and wait for the answer.

        Raises
        ------
        TimeoutError
            If there is none after `seconds`; the process is still running then: kill it.
        Died
            If the process has ended; it is cleared away.
        """
        answers: list[Any] = []
        done = threading.Event()
        self._words = b""
        self._talk = threading.Thread(target=self._exchange, args=(message, answers, done), daemon=True)
        self._talk.start()
        end = time.monotonic() + seconds
        # The pipe does not tell when the process has died but a fork of it lives on.
        while not done.wait(max(0.0, min(0.2, end - time.monotonic()))):
            if not self.alive():
                done.wait(GRACE)
                break
            if time.monotonic() >= end:
                raise TimeoutError
        if not answers:
            self._end(kill=False)
            raise Died
        return answers[0]

    def _exchange(self, message: Any, answers: list[Any], done: threading.Event) -> None:
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump(message, stdin, protocol=5)
            stdin.flush()
            answers.append(pickle.load(stdout))
        except (OSError, ValueError, EOFError, pickle.UnpicklingError):
            pass  # the process is gone, or was ended because it took too long: no answer says so
        finally:
            done.set()

    def _listen(self) -> None:
        stderr = self._popen.stderr
        assert stderr is not None
        with suppress(OSError, ValueError):
            while words := os.read(stderr.fileno(), KEPT):
                self._words = (self._words + words)[-KEPT:]

    def kill(self) -> None:
        """End the process and those that it started, at once."""
        self._end(kill=True)

    def close(self) -> None:
        """Let the process end, or end it if it does not."""
        self._end(kill=self._talk is not None and self._talk.is_alive())

    def _end(self, kill: bool) -> None:
        popen = self._popen
        if not kill:
            with suppress(OSError):
                popen.stdin.close()  # type: ignore[union-attr]
            with suppress(subprocess.TimeoutExpired):
                popen.wait(GRACE)
        if self.alive():
            self._kill_group()
        popen.wait()
        if not self._quiet():  # a fork of it still holds the pipes
            self._kill_group()
            self._quiet()
        talking = self._talk is not None and self._talk.is_alive()
        for pipe in (popen.stderr, *(() if talking else (popen.stdin, popen.stdout))):
            with suppress(OSError):
                pipe.close()

    def _kill_group(self) -> None:
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._popen.pid, signal.SIGKILL)
            else:
                self._popen.kill()

    def _quiet(self) -> bool:
        """Whether nobody is at the other end of the pipes any more, give or take a moment."""
        threads = [thread for thread in (self._ear, self._talk) if thread is not None]
        for thread in threads:
            thread.join(GRACE)
        return not any(thread.is_alive() for thread in threads)

    def place(self, homes: tuple[str, ...]) -> str:
        """"(file:line)" in one of the folders `homes` where the process was, if it has said so."""
        frames = FRAME.findall(self._words.decode(errors="replace")) if homes else []
        return place([(name, int(line)) for name, line in frames], homes)

    def obituary(self, homes: tuple[str, ...]) -> str:
        """How the process ended, and where, or else its last words."""
        status = self._popen.returncode
        if status is not None and status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            how = f"the process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        else:
            how = f"the process ended with exit status {status}"
        where = self.place(homes)
        lines = [line.strip() for line in self._words.decode(errors="replace").splitlines() if line.strip()]
        if where:
            return f"{how} {where}"
        return f"{how}; its last words: {' | '.join(lines[-3:])}" if lines else how
