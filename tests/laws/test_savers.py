"""What saves memory computes the same, and saves what it says: gradients of the plain stack, counted peaks and work."""

from __future__ import annotations

import dataclasses
import pickle
from typing import ClassVar

import numpy as np
import pytest

from laws.stacks import DEEP, GATED, PLAIN, SHARED, THREE, TIED, D, F, drawn, short
from refattn import LSH, Dense, load, rng, tree
from refattn.layers.attention import Attention
from refattn.layers.block import Block
from refattn.layers.checkpoint import Checkpoint
from refattn.layers.chunked_ff import ChunkedFF
from refattn.layers.feed_forward import FeedForward
from refattn.layers.micro_batches import MicroBatches
from refattn.layers.reversible import Reversible
from refattn.layers.stack import Stack
from refattn.ops.angular_hash import angular_hash
from refattn.ops.layer_norm import LayerNorm

SIZES = {"d": D, "f": F}
STACK = Stack((*THREE, GATED), LayerNorm())


def called(layer, inputs, dy=None):
    y, saved = layer.forward(*inputs)
    dy = short(9, "dy", *y.shape) if dy is None else dy
    return {"y": y} | {f"d{name}": g for name, g in tree.items(layer.vjp(saved, dy))}, dy


def inputs_of(layer, batch=4, n=5, **more):
    return layer.Inputs(short(1, "x", batch, n, D), drawn(layer, SIZES, 1), **more)


def close(got, want, rtol=1e-12):
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert np.max(np.abs(got[name] - x)) <= rtol * max(1.0, np.max(np.abs(x))), name


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("stack", [STACK, SHARED, TIED], ids=["apart", "shared", "tied"])
def test_checkpoints_change_no_bit(stack, every):
    inputs = inputs_of(stack)
    (want, dy), (got, _) = called(stack, inputs), called(Checkpoint(stack, every), inputs)
    assert got.keys() == want.keys()
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x)
    assert dy.any()


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("gated", [False, True])
def test_chunks_of_positions_are_the_whole(gated, rows):
    plain = FeedForward("silu", gated)
    inputs = inputs_of(plain)
    close(called(ChunkedFF(plain, rows), inputs)[0], called(plain, inputs)[0])


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_batches_are_the_whole_batch(parts):
    masks = tree.row([Dense.Inputs(None, None, None, mask=np.tri(5, dtype=bool)), None, None, None])
    inputs = inputs_of(STACK, others=masks)
    (want, dy), layer = called(STACK, inputs), MicroBatches(STACK, parts)
    close(called(layer, inputs)[0], want)
    seen = []

    def pull(y, at):
        seen.append(y)
        return dy[at]

    grads = layer.accumulate(inputs, pull)
    close({"y": np.concatenate(seen)} | {f"d{name}": g for name, g in tree.items(grads)}, want)


def stored(stack, join, inputs, dy):
    """The two streams with everything kept: gradients at the very inputs of each part, none of them recovered."""
    y1 = y2 = inputs.x
    kept = []
    for i, f in enumerate(stack.layers):
        given = stack.given(i, inputs, inputs.x)
        made = f.branch("attention", given, y2, block=None)
        y1 = y1 + made[0]
        more = f.branch("feed_forward", given, y1, block=None)
        y2 = y2 + more[0]
        kept.append((f, made[1:], more[1:]))
    y, norm = stack.last(inputs.params, np.concatenate([y1, y2], -1) if join == "concat" else (y1 + y2) / 2)
    pull, dnorm = stack.last_vjp(norm, dy)
    dy1, dy2 = (pull[..., :D], pull[..., D:]) if join == "concat" else (pull / 2, pull / 2)
    found = {"y": y} | {f"dparams.norm.{name}": g for name, g in tree.items(dnorm)}
    for i, (f, attention, feed) in reversed(list(enumerate(kept))):
        dx, inner, outer = f.branch_vjp("feed_forward", *feed, dy2, block=None)
        dy1 = dy1 + dx
        dx, inner_, outer_ = f.branch_vjp("attention", *attention, dy1, block=None)
        dy2 = dy2 + dx
        for name, nest in (("feed_forward", inner.params), ("norm_feed_forward", outer), ("attention", inner_.params),
                           ("norm_attention", outer_)):
            found |= {f"dparams.layers.l{i}.{name}.{leaf}": g for leaf, g in tree.items(nest)}
    return found | {"dx": dy1 + dy2}


@pytest.mark.parametrize("join", ["concat", "mean"])
def test_a_reversible_stack_has_the_gradients_of_one_that_keeps_everything(join):
    """A dropout mask is drawn once and read twice."""
    keep = rng.stream(1, "keep").random((4, 3, 5, 5)) < 0.8
    first = Block(Attention(Dense(keep_rate=0.8), 3), FeedForward())
    stack = dataclasses.replace(STACK, layers=(first, *STACK.layers[1:]))
    row = tree.row([Dense.Inputs(None, None, None, keep=keep), None, None, None])
    layer = Reversible(stack, join)
    inputs = inputs_of(layer, others=row)
    got, dy = called(layer, inputs)
    close(got, stored(stack, join, inputs, dy), 1e-11)
    other = tree.row([Dense.Inputs(None, None, None, keep=~keep), None, None, None])
    assert not np.allclose(got["y"], layer.forward(*inputs._replace(others=other))[0])


def counted(layer, shape, sizes):
    """The tally of a forward and a backward, of arrays that are only shapes."""
    reading = load("counting")
    params = tree.map(np.shape, layer.init(sizes, rng.Source(0)))
    given = reading.shaped(layer.Inputs(shape, params))
    dy = reading.shaped(layer.result(tree.map(lambda a: a.shape, given)))
    with reading.counted() as tally:
        y, saved = layer.forward(*given)
        layer.vjp(saved, dy)
    del y, saved
    return tally, layer.parameters(sizes)


WIDE, SHAPE = {"d": 12, "f": 48}, (2, 300, 12)
BLOCK = Block(PLAIN, FeedForward())


def peaks(wrap, depths):
    """Peaks of the activations alone: gradients of the parameters grow with the depth, whatever is saved."""
    each = BLOCK.parameters(WIDE)
    return [counted(wrap(Stack((BLOCK,) * many)), SHAPE, WIDE)[0].peak - many * each for many in depths]


def test_a_plain_stack_keeps_so_much_for_each_layer():
    steps = np.diff(peaks(lambda stack: stack, range(2, 7)))
    each = BLOCK.cost(BLOCK.Inputs(SHAPE, tree.map(np.shape, BLOCK.init(WIDE, rng.Source(0))))).forward.saved
    assert set(steps.tolist()) == {each}


@pytest.mark.parametrize("join", ["concat", "mean"])
def test_the_peak_of_a_reversible_stack_does_not_depend_on_its_depth(join):
    assert len(set(peaks(lambda stack: Reversible(stack, join), (2, 3, 5, 9)))) == 1


def test_checkpoints_every_root_of_the_depth_need_its_root():
    """At L = k²: k inputs and what k layers save, an affine function of k."""
    found = [counted(Checkpoint(Stack((BLOCK,) * k * k), k), SHAPE, WIDE)[0].peak - (k * k - k) * BLOCK.parameters(WIDE)
             for k in range(2, 7)]
    steps = set(np.diff(found).tolist())
    each = BLOCK.cost(BLOCK.Inputs(SHAPE, tree.map(np.shape, BLOCK.init(WIDE, rng.Source(0))))).forward.saved
    assert steps == {each + int(np.prod(SHAPE))}


@pytest.mark.parametrize("wrap", [lambda s: Checkpoint(s, 2), Reversible, lambda s: MicroBatches(s, 2)],
                         ids=["checkpoint", "reversible", "micro-batches"])
def test_the_price_is_one_more_forward(wrap):
    stack = Stack((BLOCK,) * 4)
    plain, saving = counted(stack, SHAPE, WIDE)[0], counted(wrap(stack), SHAPE, WIDE)[0]
    once = 4 * BLOCK.cost(BLOCK.Inputs(SHAPE, tree.map(np.shape, BLOCK.init(WIDE, rng.Source(0))))).forward.macs
    assert saving.macs - plain.macs == once
    assert saving.peak < plain.peak


def test_micro_batches_that_accumulate_compute_nothing_twice():
    """The peak falls by what is saved of the items that wait."""
    stack, reading = Stack((BLOCK,) * 4), load("counting")
    params = tree.map(np.shape, stack.init(WIDE, rng.Source(0)))
    given = reading.shaped(stack.Inputs((8, 300, 12), params))
    found = []
    for parts in (1, 2, 4, 8):
        with reading.counted() as tally:
            MicroBatches(stack, parts).accumulate(given, lambda y, at: reading.shaped(y.shape))
        found.append((tally.macs, tally.peak))
    assert len({macs for macs, _ in found}) == 1
    assert found[0][0] == counted(stack, (8, 300, 12), WIDE)[0].macs
    assert found[3][1] < 0.6 * found[2][1] < 0.4 * found[1][1] < 0.25 * found[0][1]


def test_the_hidden_layer_is_never_there_at_once():
    """Peak = a + b·rows: of f, (..., n, f), there is nothing but a chunk."""
    layer, shape = FeedForward(), (2, 960, 12)
    found = [counted(ChunkedFF(layer, rows), shape, {"d": 12, "f": 480})[0].peak for rows in (60, 120, 240)]
    assert found[2] - found[1] == 2 * (found[1] - found[0])
    assert found[0] < counted(layer, shape, {"d": 12, "f": 480})[0].peak / 6


def causal(layer):
    inner = layer.layers if isinstance(layer, Stack) else layer.inner.layers
    blocks = tuple(dataclasses.replace(f, attention=Attention(Dense(causal=True), 3)) for f in inner)
    stack = dataclasses.replace(layer if isinstance(layer, Stack) else layer.inner, layers=blocks)
    return stack if isinstance(layer, Stack) else dataclasses.replace(layer, inner=stack)


@pytest.mark.parametrize("layer", [STACK, Checkpoint(STACK, 2), Reversible(STACK), Reversible(STACK, "mean"),
                                   MicroBatches(STACK, 2)], ids=["stack", "checkpoint", "concat", "mean", "micro-batches"])
def test_nothing_leaks_from_later_tokens_through_a_wrapper(layer):
    layer = causal(layer)
    inputs = inputs_of(layer)
    later = inputs.x.copy()
    later[:, 3:] += 0.5
    y, saved = layer.forward(*inputs)
    z, _ = layer.forward(*inputs._replace(x=later))
    np.testing.assert_array_equal(z[:, :3], y[:, :3])
    assert not np.array_equal(z[:, 3:], y[:, 3:])
    dy = np.ones(y.shape) * np.arange(y.shape[-1])
    dy[:, 3:] = 0.0
    assert not layer.vjp(saved, dy).x[:, 3:].any()


@pytest.mark.parametrize("case_", DEEP, ids=str)
def test_parameters_can_be_stored_and_read(case_):
    params = case_.draw(1).params
    again = pickle.loads(pickle.dumps(params))
    assert type(again) is type(params)
    assert tree.names(again) == tree.names(params)
    for x, y in zip(tree.leaves(again), tree.leaves(params), strict=True):
        np.testing.assert_array_equal(x, y)


@dataclasses.dataclass(frozen=True)
class Signed(Dense):
    """A query sees the keys whose first number has the sign of its own: a decision, which it takes if it isn't told."""

    taken: ClassVar[list[tuple[int, ...]]] = []

    def forward(self, *inputs, block=None, **named):
        given = self.Inputs(*inputs, **named)
        if given.mask is None:
            self.taken.append(given.q.shape)
            given = given._replace(mask=(given.q[..., :1] >= 0.0) == (given.k[..., :1] >= 0.0)[..., None, :, 0])
        return super().forward(*given, block=block)

    def replay(self, given, saved):
        return given._replace(mask=saved.inputs.mask)

    def replay_shapes(self, shapes):
        return shapes._replace(mask=(*shapes.q[:-1], shapes.k[-2]))


def costs_are_counted(layer, inputs):
    reading, stated = load("counting"), layer.cost(tree.map(np.shape, inputs))
    with reading.counted() as forward:
        y, saved = layer.forward(*reading.shaped(inputs))
    dy = reading.shaped(y.shape)
    del y
    with reading.counted() as backward:
        grads = layer.vjp(saved, dy)
    assert (forward.macs, forward.exps, forward.live) == tuple(vars(stated.forward).values())
    assert (backward.macs, backward.exps, backward.live) == tuple(vars(stated.backward).values())
    assert grads


@pytest.mark.parametrize("wrap", [Reversible, lambda stack: Checkpoint(stack, 2)], ids=["reversible", "checkpoint"])
def test_what_was_decided_is_not_decided_again(wrap):
    """Recovered inputs differ by rounding: what hangs on a sign, or on a bucket, is decided once for both passes."""
    Signed.taken.clear()
    stack = Stack((Block(Attention(Signed(), 3), FeedForward()),) * 3)
    layer = wrap(stack)
    inputs = inputs_of(layer)
    y, saved = layer.forward(*inputs)
    assert len(Signed.taken) == 3
    dy = short(9, "dy", *y.shape)
    got = {"y": y} | {f"d{name}": g for name, g in tree.items(layer.vjp(saved, dy))}
    assert len(Signed.taken) == 3
    if isinstance(layer, Reversible):
        close(got, stored(stack, "concat", inputs, dy), 1e-11)
    else:
        close(got, called(stack, inputs, dy)[0], 0.0)
    costs_are_counted(layer, inputs)


def hashing(factors=None):
    """Three blocks of hashed attention, with a pair of directions that differ in their last bit: a rounding decides."""
    stack = Stack((Block(Attention(LSH(chunk=4, causal=True, factors=factors), 3), FeedForward()),) * 3)
    turn = rng.stream(1, "rotations").normal(size=(3, 2, 2, 3))
    turn[..., 1] = turn[..., 0] * (1.0 + 2.0**-52)
    row = tree.row([LSH.Inputs(None, None, rotations=turn)] * 3)
    return stack, {"others": row}


@pytest.mark.parametrize("factors", [None, (4, 2)], ids=["one", "factors"])
@pytest.mark.parametrize("wrap", [Reversible, lambda stack: Reversible(stack, "mean"), lambda stack: Checkpoint(stack, 2)],
                         ids=["concat", "mean", "checkpoint"])
def test_the_second_forward_has_the_buckets_of_the_first(wrap, factors, monkeypatch):
    hashed = []

    def seen(x, rotations, factors):
        hashed.append((x, rotations, factors, angular_hash(x, rotations, factors)))
        return hashed[-1][-1]

    monkeypatch.setattr("refattn.schemes.lsh.angular_hash", seen)
    stack, given = hashing(factors)
    layer = wrap(stack)
    inputs = inputs_of(layer, n=24, **given)
    y, saved = layer.forward(*inputs)
    x, rotations, _, buckets = hashed[-1]
    assert np.any(angular_hash(x * (1.0 + 2.0**-50), rotations, factors) != buckets)  # as recovered inputs might be
    assert len(hashed) == 3
    dy = short(9, "dy", *y.shape)
    got = {"y": y} | {f"d{name}": g for name, g in tree.items(layer.vjp(saved, dy))}
    assert len(hashed) == 3
    if isinstance(layer, Reversible):
        close(got, stored(stack, layer.join, inputs, dy), 1e-11)
    else:
        close(got, called(stack, inputs, dy)[0], 0.0)
    monkeypatch.undo()  # what was seen is kept
    costs_are_counted(layer, inputs)
