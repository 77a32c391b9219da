"""LSH attention in stages that a mutant may override: a third implementation, beside the definition and the text.

    decide (hash) → sort → cut → meet (turn, admits) → tally
    keys → scores → own → gauge → weights → total → combine → statistic
    recompute → delta → pull_weights → soften → pull_own → pull_q, pull_k, pull_v → pull_keys → join

Slots are lists of tokens on the host, −1 where none stands. What they come to is a count for each pair and round, and one
dense softmax with these as weights: no row is gathered and nothing is put back in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refattn.backend import of
from refattn.testing.stages import Stages

Array = Any
Host = Any  # a NumPy array, also inside a reading
TINY = 1e-9  # of the count of 2020
WALKED = {"turn", "admits", "precedes"}
"""Stages by which ``count`` walks over slots."""
KEPT = 4
_MET: dict[Any, Any] = {}
"""Meetings that were counted last."""


@dataclass
class LSHStaged(Stages):
    """One run of configured LSH attention on its inputs (B, H, n, ·)."""

    def run(self, do: Array | None = None, dlse: Array | None = None) -> dict[str, Array]:
        self.prepare()
        s = self.do("own", self.do("scores", self.x, self.k))
        c = self.do("gauge", s)
        e = self.do("weights", s, c)
        z = self.do("total", e, s, c)
        self.o, lse = self.do("combine", e, z, self.v, s, c), self.do("statistic", z, c, s)
        self.lse, self.top, self.z = lse, c, z
        out = {"o": self.o, "lse": of(lse).xp.squeeze(lse, axis=-1)}
        return out if do is None else out | self.resume(do, dlse)

    def resume(self, do: Array, dlse: Array | None) -> dict[str, Array]:
        """The gradients from the forward's own o, top and z, as a kernel stores them."""
        o, lse, top, z = of(self.o).narrow(self.o, self.o), *(of(x).settle(x) for x in (self.lse, self.top, self.z))
        p = self.do("recompute", self.do("own", self.do("scores", self.x, self.k)), top, z, lse)
        delta = self.do("delta", do, o, None if dlse is None else of(dlse).xp.expand_dims(dlse, axis=-1), lse)
        ds = self.do("soften", p, self.do("pull_weights", do, self.v), delta, do)
        ds = self.do("pull_own", ds) * self.scale
        dq, dk = self.do("pull_q", ds, self.k), self.do("pull_keys", self.do("pull_k", ds, self.x))
        return {"dqk": self.do("join", dq, dk), "dv": self.do("pull_v", p, do)}

    # ---- decisions: who stands where, and how often pairs meet
    def prepare(self) -> None:
        """Everything that is decided before a score is computed."""
        b, h, n, _ = self.inputs.qk.shape
        valid = self.given("key_valid")
        valid = np.ones((1, n), dtype=bool) if valid is None else plain(valid)
        self.valid = np.broadcast_to(valid[..., None, :], (b, h, n))
        positions = np.arange(n) if self.given("positions") is None else plain(self.given("positions"))
        self.positions = np.broadcast_to(positions, (b, n))
        self.x, self.v = self.cleared(self.inputs.qk), self.cleared(self.inputs.v)
        self.buckets = self.do("decide")
        self.order = self.do("sort", self.buckets)
        self.slots = self.do("cut", self.order)
        self.times = self.do("meet", self.slots)
        self.met = self.times.sum(axis=2)
        self.w = self.do("tally", self.met)
        self.see = self.w > 0
        self.k, self.root = self.do("keys", self.x)

    def cleared(self, x: Array) -> Array:
        """x with zeros for padding."""
        return x if self.given("key_valid") is None else of(x).xp.where(self.valid[..., None], x, 0.0)

    def decide(self) -> Host:
        """Buckets (B, H, r, n), given or hashed."""
        b, h, *_ = self.inputs.qk.shape
        given = self.given("buckets")
        found = self.do("hash", plain(self.x), plain(self.given("rotations"))) if given is None else plain(given)
        return np.broadcast_to(found, (b, h, *found.shape[-2:]))

    def hash(self, x: Host, rotations: Host) -> Host:
        """Digit by digit the column of [xR; −xR] that is largest, the first among equals."""
        turned = np.matmul(x[..., None, :, :], rotations)
        factors, at, stride, found = self.scheme.factors or (2 * rotations.shape[-1],), 0, 1, np.int64(0)
        for f in factors:
            part = turned[..., at : at + f // 2]
            found = found + stride * self.do("digit", part)
            at, stride = at + f // 2, stride * f
        return found

    def digit(self, part: Host) -> Host:
        return np.argmax(np.concatenate([part, -part], axis=-1), axis=-1)

    def sort(self, buckets: Host) -> Host:
        """Tokens by (padding, bucket, token), (B, H, r, n)."""
        token = np.broadcast_to(np.arange(buckets.shape[-1]), buckets.shape)
        last = np.broadcast_to(~self.valid[:, :, None, :], buckets.shape)
        return np.lexsort((token, buckets, last), axis=-1)

    def cut(self, order: Host) -> Host:
        """Slots (B, H, r, K, chunk) with the token that stands there; −1 for padding and the rest of the last chunk."""
        *lead, n = order.shape
        c, chunks = self.scheme.chunk, -(-n // self.scheme.chunk)
        slots = np.full((*lead, chunks * c), -1)
        shown = np.take_along_axis(np.broadcast_to(self.valid[:, :, None, :], order.shape), order, axis=-1)
        slots[..., :n] = np.where(shown, order, -1)
        return slots.reshape(*lead, chunks, c)

    def meet(self, slots: Host) -> Host:
        """times (B, H, r, n, n): in how many slots i, in its own slot of round r, sees j. Most mistakes leave it."""
        offsets = range(-self.scheme.before, self.scheme.after + 1)
        if WALKED & self.patches.keys():
            return self.count(slots, slots, offsets)
        names = ("chunk", "before", "after", "wrap", "causal", "within_bucket")
        fields = tuple(getattr(self.scheme, name) for name in names)
        arrays = (slots, self.positions, self.buckets) if self.scheme.within_bucket else (slots, self.positions)
        key = (fields, *((x.shape, x.tobytes()) for x in arrays))
        if key not in _MET:
            while len(_MET) >= KEPT:
                del _MET[next(iter(_MET))]
            _MET[key] = self.count(slots, slots, offsets)
        return _MET[key]

    def count(self, slots: Host, keys: Host, offsets: Sequence[int]) -> Host:
        """How often tokens in `slots` meet those in `keys`, that many chunks further on."""
        b, h, r, chunks, c = slots.shape
        n, total = self.inputs.qk.shape[-2], r * chunks
        q, k, at = slots.reshape(b, h, total, c), keys.reshape(b, h, total, c), np.arange(total * c).reshape(total, c)
        times = np.zeros(b * h * r * n * n, dtype=np.int64)
        for o in offsets if total else ():
            to, there = self.do("turn", o, r, chunks)
            seen = self.do("admits", q[..., :, None], k[:, :, to, None, :], at[:, :, None], at[to][:, None, :])
            *place, row, column = np.nonzero(seen & there[:, None, None])
            rounds = place[2] // chunks
            i, j = q[(*place, row)], k[place[0], place[1], to[place[2]], column]
            flat = np.ravel_multi_index((place[0], place[1], rounds, i, j), (b, h, r, n, n))
            times += np.bincount(flat, minlength=times.size)
        return times.reshape(b, h, r, n, n)

    def turn(self, o: int, rounds: int, chunks: int) -> tuple[Host, Host]:
        """The chunk o further on from each of all rounds' chunks, and whether there is one."""
        own = np.arange(rounds * chunks)
        inside, everywhere = own % chunks + o, np.ones(own.shape, dtype=bool)
        if self.scheme.wrap == "rounds":
            return (own + o) % own.size, everywhere
        to = own - own % chunks + inside % chunks
        return to, everywhere if self.scheme.wrap == "round" else (inside >= 0) & (inside < chunks)

    def admits(self, q: Host, k: Host, at_q: Host, at_k: Host) -> Host:
        """Whether the token of a slot may see that of another; at: which slot of all rounds."""
        see = (q >= 0) & (k >= 0)
        if self.scheme.causal:
            see = see & self.do("precedes", q, k, at_q, at_k)
        if self.scheme.within_bucket:
            of_q, of_k = (self.bucket_in(x, at) for x, at in ((q, at_q), (k, at_k)))
            see = see & (self.round_of(at_q) == self.round_of(at_k)) & (of_q == of_k)
        return see

    def precedes(self, q: Host, k: Host, at_q: Host, at_k: Host) -> Host:
        item = np.arange(q.shape[0]).reshape(-1, 1, 1, 1, 1)
        return self.positions[item, q] >= self.positions[item, k]

    def round_of(self, at: Host) -> Host:
        return at // math.prod(self.slots_of_round)

    @property
    def slots_of_round(self) -> tuple[int, int]:
        n, c = self.inputs.qk.shape[-2], self.scheme.chunk
        return -(-n // c), c

    def bucket_in(self, token: Host, at: Host) -> Host:
        b, h = token.shape[:2]
        item, head = np.arange(b).reshape(-1, 1, 1, 1, 1), np.arange(h).reshape(-1, 1, 1, 1)
        return self.buckets[item, head, self.round_of(at), token]

    def tally(self, met: Host) -> Host:
        """How much each pair counts (B, H, n, n), from how often it meets."""
        if self.scheme.duplicates == "once":
            return (met > 0) * 1.0
        return met / (self.of_2020() + TINY) if self.scheme.duplicates == "2020" else met * 1.0

    def of_2020(self) -> Host:
        """Met in the own chunk or in the one before it, round by round, whatever the window is, around the end of all."""
        order, c = self.order, self.scheme.chunk
        rounds, chunks = order.shape[2], self.slots_of_round[0]
        chunk = np.argsort(order, axis=-1) // c + chunks * np.arange(rounds)[:, None]
        lag = (chunk[..., :, None] - chunk[..., None, :]) % (rounds * chunks)
        hit = (lag == 0) * 1 + (lag == 1 % max(rounds * chunks, 1))
        if self.scheme.within_bucket:
            hit = hit * (self.buckets[..., :, None] == self.buckets[..., None, :])
        return hit.sum(axis=2)

    def part(self, times: Host) -> Host:
        """What part of a pair's weight these meetings have: (B, H, n, n), for counts of one round or of some slots."""
        return times / np.maximum(self.met, 1)

    # ---- forward
    @property
    def scale(self) -> float:
        d = self.inputs.qk.shape[-1]
        return float(d**-0.5 if self.scheme.scale is None else self.scheme.scale)

    def keys(self, x: Array) -> tuple[Array, Array]:
        """k = x / √(‖x‖² + d·eps), and what is divided by; a zero stays zero."""
        xp = of(x).xp
        size = xp.sum(x * x, axis=-1, keepdims=True) + x.shape[-1] * self.scheme.eps
        root = xp.sqrt(xp.where(size == 0.0, 1.0, size))
        return (x / root if self.scheme.normalise else x), root

    def scores(self, x: Array, k: Array) -> Array:
        xp = of(x, k).xp
        return xp.matmul(x, xp.matrix_transpose(k)) * self.scale

    def own(self, s: Array) -> Array:
        """The score of a token with itself."""
        if self.scheme.self_score is None:
            return s
        return of(s).xp.where(np.eye(s.shape[-1], dtype=bool), self.scheme.self_score, s)

    def gauge(self, s: Array) -> Array:
        b = of(s)
        c = b.constant(b.xp.max(b.xp.where(self.see, s, -math.inf), axis=-1, keepdims=True))
        return b.xp.where(self.see.any(axis=-1, keepdims=True), c, 0.0)

    def exponentials(self, s: Array, c: Array) -> Array:
        """exp(s − c), 0 where nothing is seen."""
        xp = of(s, c).xp
        return xp.where(self.see, xp.exp(xp.where(self.see, s - c, 0.0)), 0.0)

    def weights(self, s: Array, c: Array) -> Array:
        e = self.exponentials(s, c)
        return e if ((self.w == 0) | (self.w == 1)).all() else e * of(e).lift(self.w)

    def total(self, e: Array, s: Array, c: Array) -> Array:
        return of(e).xp.sum(e, axis=-1, keepdims=True)

    def combine(self, e: Array, z: Array, v: Array, s: Array, c: Array) -> Array:
        xp = of(e, v).xp
        return xp.matmul(e, v) / xp.where(z == 0.0, 1.0, z)

    def statistic(self, z: Array, c: Array, s: Array) -> Array:
        xp = of(z).xp
        return xp.where(z == 0.0, -math.inf, c + xp.log(xp.where(z == 0.0, 1.0, z)))

    # ---- backward
    def recompute(self, s: Array, top: Array, z: Array, lse: Array) -> Array:
        """P from the saved statistics."""
        xp = of(z).xp
        return self.do("weights", s, top) / xp.where(z == 0.0, 1.0, z)

    def delta(self, do: Array, o: Array, dlse: Array | None, lse: Array) -> Array:
        xp = of(do, o).xp
        d = xp.sum(do * o, axis=-1, keepdims=True)
        return d if dlse is None else d - xp.where(lse == -math.inf, 0.0, dlse)

    def pull_weights(self, do: Array, v: Array) -> Array:
        xp = of(do, v).xp
        return xp.matmul(do, xp.matrix_transpose(v))

    def soften(self, p: Array, dp: Array, delta: Array, do: Array) -> Array:
        return p * (dp - delta)

    def pull_own(self, ds: Array) -> Array:
        """A score that is set has no gradient."""
        if self.scheme.self_score is None:
            return ds
        return of(ds).xp.where(np.eye(ds.shape[-1], dtype=bool), 0.0, ds)

    def pull_q(self, ds: Array, k: Array) -> Array:
        return of(ds, k).xp.matmul(ds, k)

    def pull_k(self, ds: Array, x: Array) -> Array:
        xp = of(ds, x).xp
        return xp.matmul(xp.matrix_transpose(ds), x)

    def pull_keys(self, dk: Array) -> Array:
        """Through the division by length: what lies along k is lost."""
        if not self.scheme.normalise:
            return dk
        return (dk - self.k * of(dk).xp.sum(self.k * dk, axis=-1, keepdims=True)) / self.root

    def join(self, dq: Array, dk: Array) -> Array:
        return dq + dk

    def pull_v(self, p: Array, do: Array) -> Array:
        xp = of(p, do).xp
        return xp.matmul(xp.matrix_transpose(p), do)


def plain(x: Any) -> Host:
    """Numbers as a NumPy array, also inside a reading."""
    return np.asarray(of(x).host(x))
