"""Sorted tokens in chunks: which token stands in which slot, and which slots the tokens of a chunk see.

Tokens are sorted in each of r rounds and cut into chunks of c slots; the rest of a round's last chunk is empty. Chunks of
all rounds stand one after another, K of them. A slot without a token holds n, the row that ``blank`` puts behind all others
and fills with zeros, so that nothing need be selected where nothing is. Nothing here is differentiated: order is a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refattn.backend import of
from refattn.buckets import bucket_sort
from refattn.shapes import product

Array = Any
WRAPS = ("none", "round", "rounds")


@dataclass(frozen=True)
class Window:
    """c slots in a chunk, which sees itself, `before` chunks before it and `after` after it; wrap: see ``LSH``."""

    chunk: int
    before: int
    after: int
    wrap: str
    within_bucket: bool

    @property
    def offsets(self) -> range:
        return range(-self.before, self.after + 1)

    @property
    def width(self) -> int:
        """Slots that a slot sees."""
        return self.chunk * len(self.offsets)

    def pairs(self, n: int, rounds: int) -> int:
        """How many slots with a token slots with a token see, in all rounds of n tokens."""
        chunks = -(-n // self.chunk)
        full = [self.chunk] * (chunks - 1) + [n - (chunks - 1) * self.chunk] * (chunks > 0)
        around = [(k, k + o) for k in range(chunks) for o in self.offsets if self.wrap != "none" or 0 <= k + o < chunks]
        return rounds * sum(full[k] * full[at % chunks] for k, at in around)


@dataclass(frozen=True)
class Slots:
    """place: (items, r, n), slots in which tokens stand; queries: (items, K, c), tokens by slot; keys: (items, K, width),
    tokens that each chunk sees. buckets of both if a bucket is seen from within only, else None.
    """

    window: Window
    rounds: int
    place: Array
    queries: Array
    keys: Array
    query_buckets: Array | None
    key_buckets: Array | None

    def shared(self, at: slice) -> Array | None:
        """(items, chunks, c, width) bool: the slots of a query's own bucket; None: it may see all of them."""
        if self.query_buckets is None or self.key_buckets is None:
            return None
        return self.query_buckets[:, at, :, None] == self.key_buckets[:, at, None, :]

    def unsorted(self, x: Array) -> Array:
        """What slots have, (items, K, c, ·), as (items, r, n, ·) for tokens."""
        xp, (items, rounds, n) = of(x).xp, self.place.shape
        x = xp.reshape(x, (items, x.shape[1] * x.shape[2], x.shape[3]))
        return xp.reshape(rows(x, xp.reshape(self.place, (items, rounds * n))), (items, rounds, n, x.shape[-1]))

    def gathered(self, x: Array) -> Array:
        """What windows have, (items, K, width, ·), summed into the slots that they see, (items, K, c, ·)."""
        c, total = self.window.chunk, None
        for w, o in enumerate(self.window.offsets):
            part = _moved(x[:, :, w * c : (w + 1) * c, :], self._groups, -o)
            total = part if total is None else total + part
        return total

    def meets(self, once: bool) -> list[tuple[int, int, int]]:
        """(o, r, a): a token met is in round a in the chunk o further on than that of the query in round r, a ≠ r only where
        chunks wrap into other rounds. once: see ``multiplicity``.
        """
        around, everywhere = self._around(once), not once and not self.window.within_bucket
        return [(o, r, a) for o in around.offsets for r in range(self.rounds)
                for a in (range(self.rounds) if around.wrap == "rounds" and everywhere else (r,))]

    def further(self, o: int, once: bool) -> Array:
        """(K,): the chunk o further on than each, −1 if there is none."""
        b, all_ = of(self.queries), self.queries.shape[1]
        return shifted(b.lift(range(all_), self.queries)[None, :, None], self.rounds, self._around(once), o, -1)[0, :, 0]

    def _around(self, once: bool) -> Window:
        return Window(self.window.chunk, 1, 0, "rounds", False) if once else self.window

    @property
    def _groups(self) -> int:
        return 1 if self.window.wrap == "rounds" else self.rounds


def make(buckets: Array, valid: Array | None, window: Window) -> Slots:
    """Slots of tokens by buckets (items, r, n); tokens that are not valid (items, n) stand last and in no slot."""
    b, (items, rounds, n), c = of(buckets), buckets.shape, window.chunk
    xp, chunks = b.xp, -(-n // c)
    blank = b.lift(range(n, n + 1), buckets)
    order, place = bucket_sort(buckets)
    shown = order
    if valid is not None and n:
        order, place, there = _last(order, place, xp.broadcast_to(valid[:, None, :], buckets.shape))
        shown = xp.where(there, order, blank)

    def cut(x: Array) -> Array:
        rest = xp.broadcast_to(blank, (items, rounds, chunks * c - n))
        return xp.reshape(xp.concat([x, rest], axis=-1), (items, rounds * chunks, c))

    def seen(x: Array) -> Array:
        return xp.concat([shifted(x, rounds, window, o, n) for o in window.offsets], axis=2)

    if n:
        place = place + b.lift(range(0, rounds * chunks * c, chunks * c), buckets)[:, None]
    queries = cut(shown)
    keys, of_queries, of_keys = seen(queries), None, None
    if window.within_bucket and n:
        of_queries = cut(xp.take_along_axis(buckets, order, axis=-1))
        of_keys = seen(of_queries)
        keys = xp.where(_one_round(queries, rounds, window), keys, blank)
    return Slots(window, rounds, place, queries, keys, of_queries, of_keys)


def _last(order: Array, place: Array, valid: Array) -> tuple[Array, Array, Array]:
    """Order and place with what is not valid behind the rest, and what is valid in that order.

    By a second sort: there may be no whole number above the largest bucket.
    """
    xp = of(order).xp
    there = xp.take_along_axis(valid, order, axis=-1)
    again, moved = bucket_sort(xp.where(there, order * 0, order * 0 + 1))
    return (xp.take_along_axis(order, again, axis=-1), xp.take_along_axis(moved, place, axis=-1),
            xp.take_along_axis(there, again, axis=-1))


def _one_round(like: Array, rounds: int, window: Window) -> Array:
    """(K, width) bool: the slots of a chunk's own round."""
    b, (_, all_, c) = of(like), like.shape
    xp = b.xp
    own = xp.reshape(xp.broadcast_to(b.lift(range(rounds), like)[:, None], (rounds, all_ // rounds)), (1, all_, 1))
    own = xp.broadcast_to(own, (1, all_, c))
    seen = [shifted(own, rounds, window, o, rounds) for o in window.offsets]
    return xp.concat(seen, axis=2)[0, :, :] == own[0, :, :1]


def shifted(x: Array, rounds: int, window: Window, o: int, blank: int) -> Array:
    """What chunks have, (items, K, ·), o chunks further on; `blank` where there is no such chunk."""
    b, (_, all_, width) = of(x), x.shape
    if not o:
        return x
    moved = _moved(x, 1 if window.wrap == "rounds" else rounds, o)
    if window.wrap != "none":
        return moved
    chunk, chunks = b.lift(range(o, o + all_ // rounds), x), all_ // rounds
    inside = b.xp.broadcast_to(((chunk >= 0) & (chunk < chunks))[None, :, None], (rounds, chunks, width))
    return b.xp.where(b.xp.reshape(inside, (all_, width)), moved, blank)


def _moved(x: Array, groups: int, o: int) -> Array:
    """Axis 1 rolled by o chunks, within each of so many groups."""
    xp, (items, all_, *rest) = of(x).xp, x.shape
    if not o:
        return x
    apart = xp.roll(xp.reshape(x, (items, groups, all_ // groups, *rest)), -o, axis=2)
    return xp.reshape(apart, (items, all_, *rest))


def blank(x: Array) -> Array:
    """(items, n, ·) with a row of zeros behind the others."""
    xp = of(x).xp
    return xp.concat([x, xp.zeros_like(x[:, :1, :] if x.shape[1] else xp.sum(x, axis=1, keepdims=True))], axis=1)


def rows(x: Array, at: Array) -> Array:
    """The rows `at` (items, ...) of x (items, m, ·), as (items, ..., ·)."""
    b, (items, m, width) = of(x, at), x.shape
    xp, size = b.xp, product(at.shape[1:])
    flat = xp.reshape(at, (items, size))
    if items > 1 and m:
        flat = flat + b.lift(range(0, items * m, m), at)[:, None]
    found = xp.take(xp.reshape(x, (items * m, width)), xp.reshape(flat, (items * size,)), axis=0)
    return xp.reshape(found, (*at.shape, width))


def multiplicity(slots: Slots, buckets: Array, queries: Array, keys: Array, like: Array, once: bool) -> Array:
    """In how many slots a query sees the token of each slot of its window, as numbers in the shape of `like`.

    once: met in the same round, as the code of 2020 counted: in the query's own chunk, and in the chunk before it.
    """
    b, within, chunks = of(like), slots.window.within_bucket, slots.queries.shape[1]
    xp = b.xp
    table = blank(xp.matrix_transpose(_chunks(slots, chunks)))
    of_queries, of_keys = rows(table, queries), rows(table, keys)
    label = blank(xp.matrix_transpose(buckets)) if within else None
    pair = None if label is None else (rows(label, queries), rows(label, keys))
    flat, total, zeros = xp.reshape(of_queries, (product(of_queries.shape),)), xp.zeros_like(like), xp.zeros_like(like)
    aims = {o: xp.reshape(xp.take(slots.further(o, once), flat), of_queries.shape) for o, _, _ in slots.meets(once)}
    for o, r, a in slots.meets(once):
        hit = aims[o][..., r][:, :, :, None] == of_keys[..., a][:, :, None, :]
        if pair is not None:
            hit = hit & (pair[0][..., r][:, :, :, None] == pair[1][..., r][:, :, None, :])
        total = total + xp.where(hit, 1.0, zeros)
    return total


def _chunks(slots: Slots, all_: int) -> Array:
    """The chunk, 0 … K − 1, of each token in each round: (items, r, n)."""
    b, place, c = of(slots.place), slots.place, slots.window.chunk
    xp = b.xp
    owner = xp.reshape(xp.broadcast_to(b.lift(range(all_), place)[:, None], (all_, c)), (all_ * c,))
    return xp.reshape(xp.take(owner, xp.reshape(place, (product(place.shape),))), place.shape)
