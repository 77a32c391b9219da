"""One run of a candidate on one case, in whichever process: hand the inputs over, call, take the results back."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from refattn.testing.adapters import Malformed, Numpy
from refattn.testing.candidate import Call, Fields, accepts, home, wants
from refattn.testing.messages import Arrays, Job, Outcome

Array = Any

QUERY_AXIS = {"o": -2, "dq": -2, "lse": -1}
"""Where the queries stand in results that have them."""


class Written(Exception):
    """The candidate changed what it was given; the message names it."""


class Watch:
    """Remembers digests of arrays while a candidate has them in hand."""

    def __init__(self, library: Numpy) -> None:
        self._library = library
        self._seen: dict[str, tuple[Array, bytes]] = {}

    def add(self, arrays: Arrays) -> None:
        """Remember what these arrays hold now."""
        self._seen |= {name: (x, self._bits(x)) for name, x in arrays.items() if x is not None}

    def check(self) -> None:
        """Raise Written if one of them holds something else now."""
        changed = [name for name, (x, bits) in self._seen.items() if self._bits(x) != bits]
        if changed:
            raise Written(f"writes into {', '.join(changed)}, which it was given to read")

    def _bits(self, x: Array) -> bytes:
        contiguous = np.ascontiguousarray(self._library.host(x))
        return hashlib.blake2b(contiguous.reshape(-1).view(np.uint8).data).digest()


class Trial:
    """A candidate with everything that running it on a case takes.

    forward and vjp are the candidate's functions; backward is "autograd" to differentiate forward instead, or None.
    """

    def __init__(self, forward: Callable[..., Any], vjp: Callable[..., Any] | None, backward: str | None,
                 library: Numpy, layout: str, inputs: Fields) -> None:
        self._forward, self._vjp, self._library = forward, vjp, library
        self._inputs, self._strided = inputs, inputs.heads | {"do"}
        self._swapped = with_heads(inputs) if layout == "bnhd" else frozenset()
        self.call = accepts(forward, inputs)
        self.back = Call(frozenset()) if vjp is None else wants(vjp, inputs)
        self.has_backward = vjp is not None or backward is not None
        self.homes = tuple(h for h in map(home, (forward, vjp or forward)) if h)
        self._job: Job = Job({})
        self._declined: tuple[str, ...] = ()

    def run(self, job: Job) -> Outcome:
        """Forward, and backward if there is one and the job has do. No exception of the candidate gets out."""
        outputs: dict[str, Array] = {}
        status, remark, carries, started = "ok", "", False, time.perf_counter()
        self._declined = ()
        try:
            with self._library.session():
                carries = self._run(job, outputs)
        except NotImplementedError as error:
            status, remark = "unsupported", str(error) or f"NotImplementedError {self._place(error)}".strip()
        except (Written, Malformed) as error:
            status, remark = "written" if isinstance(error, Written) else "crash", str(error)
        except (Exception, SystemExit) as error:
            status, remark = "crash", f"{says(error)} {self._place(error)}".strip()
        return Outcome(status, outputs, remark, time.perf_counter() - started, carries, self._declined)

    def _run(self, job: Job, outputs: dict[str, Array]) -> bool:
        watch = Watch(self._library)
        self._job = job
        given = {name: self._give(name, x, job.strided) for name, x in job.inputs.items()}
        watch.add(given)
        if job.do is None or not self.has_backward:
            self._take(self._results(given), outputs)
            watch.check()
            return False
        cotangents = {"do": self._give("do", job.do, job.strided)}
        if job.dlse is not None:
            cotangents["dlse"] = self._give("dlse", job.dlse, False)
        watch.add(cotangents)
        if self._vjp is None:
            return self._differentiate(given, cotangents, outputs, watch)
        return self._pull(job, given, cotangents, outputs, watch)

    def _differentiate(self, given: Arrays, cotangents: Arrays, outputs: dict[str, Array], watch: Watch) -> bool:
        floats = {name: x for name, x in given.items() if name in self._inputs.smooth}
        results, pull = self._library.vjp(lambda xs: self._results({**given, **xs}), floats)
        self._take(results, outputs)
        watch.check()
        grads, carries = pull(cotangents["do"], cotangents.get("dlse"))
        self._take({f"d{name}": g for name, g in grads.items()}, outputs)
        watch.check()
        return carries

    def _pull(self, job: Job, given: Arrays, cotangents: Arrays, outputs: dict[str, Array], watch: Watch) -> bool:
        results = self._results(given)
        self._take(results, outputs)
        watch.check()
        own = {name: self._give(name, x, False) for name, x in job.saved.items() if name not in results} | results
        watch.add(own)
        assert self._vjp is not None
        raw = self._vjp(**self.back.pick({**given, **own, **cotangents}))
        self._take(self._gradients(raw, given), outputs)
        watch.check()
        return "dlse" in self.back.names

    def _give(self, name: str, x: Array, strided: bool) -> Array:
        if self._job.rows is not None:
            return self._library.lift(np.ascontiguousarray(self._swap(name, x)))
        return self._library.give(self._swap(name, x), strided and name in self._strided)

    def _take(self, arrays: Arrays, outputs: dict[str, Array]) -> None:
        """Add NumPy copies of what the candidate returned to outputs, of the wanted rows alone where the job has rows."""
        for name, x in arrays.items():
            y = self._library.host(x)
            if y.dtype.kind not in "biufc" and y.dtype.type.__module__ != "ml_dtypes":
                raise Malformed(f"{name} is returned in dtype {y.dtype}, which holds no numbers")
            y = self._swap(name, y)
            outputs[name] = np.array(y, order="C") if self._job.rows is None else self._wanted(name, y, self._job.rows)

    def _wanted(self, name: str, x: Array, rows: Array) -> Array:
        if name not in QUERY_AXIS:
            return np.ascontiguousarray(x)
        axis, n = QUERY_AXIS[name], self._job.inputs["q"].shape[-2]
        if x.ndim < -axis or x.shape[axis] != n:
            raise Malformed(f"{name} is returned in shape {x.shape}, without an axis of {n} queries where it belongs")
        return np.take(x, rows, axis)

    def _swap(self, name: str, x: Array) -> Array:
        return x.swapaxes(-3, -2) if name in self._swapped and x.ndim > 2 else x

    def _results(self, given: Arrays) -> dict[str, Array]:
        """o, and what else is returned of the other outputs and of decisions, of one forward call."""
        raw = self._forward(*(given[name] for name in self._inputs.required), **self.call.pick(given))
        names, found = self._inputs.outputs, {}
        match raw:
            case dict():
                unknown = sorted(str(name) for name in raw if name not in names + self._inputs.decided)
                if unknown or "o" not in raw:
                    may = _and(names + self._inputs.decided)
                    raise Malformed(f"returned a dict with {', '.join(map(str, raw)) or 'nothing'}; it may have {may}")
                found = {name: raw.get(name) for name in names + self._inputs.decided}
            case tuple() if 1 < len(raw) == len(names):
                found = dict(zip(names, raw, strict=True))
            case _ if self._library.is_array(raw):
                found = {"o": raw}
            case _:
                pair = f", ({', '.join(names)})" if len(names) > 1 else ""
                raise Malformed(f"returned {_a(raw)}; return o{pair} or a dict of them, each a {self._library.kind}")
        return self._arrays("returned", {name: x for name, x in found.items() if x is not None or name == "o"})

    def _gradients(self, raw: Any, given: Arrays) -> dict[str, Array]:
        """What a vjp candidate returned, by name, without None.

        Declined are gradients in whose place NotImplemented stands, and those of inputs that its signature does not name,
        unless it names none: then it has them from elsewhere, and owes them all.
        """
        names = [f"d{name}" for name in self._inputs.names if name in given and name in self._inputs.smooth]
        own = [name for name in names if name[1:] in self.back.names]
        if isinstance(raw, dict):
            unknown = [name for name, x in raw.items() if not (x is None or x is NotImplemented) and name not in names]
            if unknown:
                raise Malformed(f"the vjp returned {', '.join(map(str, unknown))}; this case has {', '.join(names)}")
            pairs = raw
        elif isinstance(raw, tuple):
            if len(raw) != len(own):
                raise Malformed(f"the vjp returned a tuple of {len(raw)}; it was given {len(own)} differentiable inputs, "
                                f"so ({', '.join(own)}) is expected, or a dict")
            pairs = dict(zip(own, raw, strict=True))
        else:
            raise Malformed(f"the vjp returned {_a(raw)}; return a dict of {', '.join(names)}, or a tuple in this order")
        found = {name: x for name, x in pairs.items() if x is not None and x is not NotImplemented}
        said = {name for name, x in pairs.items() if x is NotImplemented}
        self._declined = tuple(n for n in names if n in said or (own and n not in own and n not in found))
        return self._arrays("the vjp returned", found)

    def _arrays(self, who: str, found: dict[str, Any]) -> dict[str, Array]:
        for name, x in found.items():
            if not self._library.is_array(x):
                raise Malformed(f"{who} {_a(x)} for {name}, not a {self._library.kind}")
        return found

    def _place(self, error: BaseException) -> str:
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
        return place(reversed(frames), self.homes) or place(reversed(frames), ())


def with_heads(inputs: Fields) -> frozenset[str]:
    """Tensors (..., H, n, d), which layout "bnhd" has as (..., n, H, d); lse (..., H, n) and all others stay as they are."""
    return inputs.heads | {f"d{name}" for name in inputs.heads} | {"o", "do"}


def _and(names: tuple[str, ...]) -> str:
    """o, lse and buckets."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def place(frames: Iterable[tuple[str, int]], homes: tuple[str, ...]) -> str:
    """"(file:line)" of the first frame in one of the folders `homes`, installed packages in them apart; "" if none is."""
    for name, line in frames:
        path = Path(name)
        if not homes or (any(path.is_relative_to(h) for h in homes) and "site-packages" not in path.parts):
            return f"({path.name}:{line})"
    return ""


def says(error: BaseException) -> str:
    """An exception on one line, as Python prints it."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    return text if len(text) <= 400 else text[:397] + "..."


def _a(x: Any) -> str:
    if x is None:
        return "None"
    return f"a {type(x).__module__}.{type(x).__qualname__}".replace(" builtins.", " ") + (
        f" of {len(x)}" if isinstance(x, list | tuple) else "")
