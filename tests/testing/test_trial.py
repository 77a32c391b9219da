"""One run on one case, in this process: what a candidate is given, what it may return, and what is made of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attending import BFLOAT16, DO, LSE, attention, draw, gradients
from refattn import rng
from refattn.schemes.dense import Dense
from refattn.testing.worker import Runner


def test_inputs_come_positionally_and_by_name(opened) -> None:
    seen: dict[str, Any] = {}

    def kernel(query, *others, mask, sink=None, **options):
        seen.update(query=query, others=others, mask=mask, sink=sink, options=options)
        return query

    runner: Runner = opened(kernel)
    assert runner.accepts == set(Dense.Inputs._fields)
    assert not runner.has_backward
    assert runner.wants == frozenset()
    x = draw(bias=(5, 7))
    ids = np.arange(10).reshape(2, 5)
    outcome = runner.run({"bias": x["bias"], "v": x["v"], "k": x["k"], "segment_ids": ids, "q": x["q"]})
    assert outcome.status == "ok"
    assert [seen["query"].shape, *(y.shape for y in seen["others"])] == [x["q"].shape, x["k"].shape, x["v"].shape]
    assert seen["mask"] is None
    assert seen["sink"] is None
    assert set(seen["options"]) == {"bias", "segment_ids"}
    assert seen["options"]["bias"].dtype == np.float32
    assert seen["options"]["segment_ids"].dtype == ids.dtype
    assert np.array_equal(seen["options"]["segment_ids"], ids)


def test_the_candidate_has_copies_and_so_have_we(opened) -> None:
    x, buffer = draw("float64"), np.zeros(DO)

    def kernel(q, k, v):
        assert not any(np.shares_memory(mine, theirs) for mine, theirs in zip(x.values(), (q, k, v), strict=True))
        buffer[...] += 1
        return buffer

    runner = opened(kernel, dtype="float64")
    first, second = runner.run(x).outputs["o"], runner.run(x).outputs["o"]
    assert np.all(first == 1)
    assert np.all(second == 2)


def test_tokens_before_heads_on_request(opened) -> None:
    x = draw("float64")
    do, dlse = rng.stream(2, "do").normal(size=DO), rng.stream(2, "dlse").normal(size=LSE)
    seen: dict[str, Any] = {}

    def swap(y):
        return y.swapaxes(-3, -2)

    def forward(q, k, v):
        seen.update(q=q.shape, k=k.shape, v=v.shape)
        o, lse = attention(*map(swap, (q, k, v)))
        return swap(o), lse

    def vjp(q, k, v, o, lse, do, dlse):
        seen.update(o=o.shape, do=do.shape, lse=lse.shape, dlse=dlse.shape)
        grads = gradients(*map(swap, (q, k, v, o)), lse, swap(do), dlse)
        return tuple(map(swap, grads.values()))

    saved = dict(zip(("o", "lse"), attention(*x.values()), strict=True))
    plain = opened(attention, vjp=gradients, dtype="float64").run(x, do, dlse, saved)
    swapped = opened(forward, vjp=vjp, dtype="float64", layout="bnhd").run(x, do, dlse, saved)
    assert (plain.status, swapped.status) == ("ok", "ok"), swapped.remark
    assert (seen["q"], seen["k"], seen["v"]) == ((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 6))
    assert (seen["o"], seen["do"], seen["lse"], seen["dlse"]) == ((2, 5, 3, 6), (2, 5, 3, 6), LSE, LSE)
    assert set(swapped.outputs) == {"o", "lse", "dq", "dk", "dv"}
    for name, y in plain.outputs.items():
        assert np.array_equal(y, swapped.outputs[name]), name


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda o: None, "returned None; return o, (o, lse) or a dict of them, each a numpy.ndarray"),
        (lambda o: [o, o], "returned a list of 2;"),
        (lambda o: (o,), "returned a tuple of 1;"),
        (lambda o: (o, o, o), "returned a tuple of 3;"),
        (lambda o: (None, o), "returned None for o, not a numpy.ndarray"),
        (lambda o: (o, 3.0), "returned a float for lse, not a numpy.ndarray"),
        (lambda o: {"out": o}, "returned a dict with out; it may have o and lse"),
        (lambda o: {}, "returned a dict with nothing; it may have o and lse"),
        (lambda o: {"o": o, "lsee": o}, "returned a dict with o, lsee; it may have o and lse"),
        (lambda o: o.astype(object), "o is returned in dtype object, which holds no numbers"),
        (lambda o: np.array(["a"]), "o is returned in dtype <U1, which holds no numbers"),
    ],
)
def test_a_result_of_the_wrong_kind_is_a_crash_that_says_what_is_expected(opened, returned, said: str) -> None:
    outcome = opened(lambda q, k, v: returned(q)).run(draw())
    assert outcome.status == "crash"
    assert outcome.remark.startswith(said)
    assert outcome.outputs == {}


@pytest.mark.parametrize("returned", [lambda o: o, lambda o: (o, None), lambda o: {"o": o}, lambda o: {"o": o, "lse": None}])
def test_lse_may_be_left_out(opened, returned) -> None:
    outcome = opened(lambda q, k, v: returned(q)).run(draw())
    assert (outcome.status, list(outcome.outputs)) == ("ok", ["o"])


def test_a_result_without_axes_stays_so(opened) -> None:
    assert opened(lambda q, k, v: np.array(1.0)).run(draw()).outputs["o"].shape == ()


def test_not_implemented_means_unsupported(opened) -> None:
    def odd(q, k, v):
        raise NotImplementedError("n must be a multiple of 64")

    def mute(q, k, v):
        raise NotImplementedError

    outcome = opened(odd).run(draw())
    assert (outcome.status, outcome.remark) == ("unsupported", "n must be a multiple of 64")
    assert opened(mute).run(draw()).remark.startswith("NotImplementedError (test_trial.py:")


def test_an_exception_is_a_crash_with_its_place_in_the_candidates_code(opened) -> None:
    def kernel(q, k, v):
        return np.matmul(q, v)

    line = kernel.__code__.co_firstlineno + 1
    outcome = opened(kernel).run(draw())
    assert outcome.status == "crash"
    assert outcome.remark.startswith("ValueError: matmul: Input operand 1 has a mismatch")
    assert outcome.remark.endswith(f" (test_trial.py:{line})")
    assert outcome.seconds > 0


def test_an_exception_inside_a_library_has_the_place_of_the_call(opened) -> None:
    def kernel(q, k, v):
        return np.linalg.inv(q)

    remark = opened(kernel).run(draw()).remark
    assert remark.startswith("numpy.linalg.LinAlgError: ")
    assert remark.endswith(f" (test_trial.py:{kernel.__code__.co_firstlineno + 1})")


def test_what_else_a_candidate_may_throw(opened) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    def leave(q, k, v):
        raise SystemExit(4)

    def silent(q, k, v):
        raise Silent

    def long(q, k, v):
        raise ValueError("one\n  two\n" + "x" * 1000)

    assert opened(leave).run(draw()).remark.startswith("SystemExit: 4 (test_trial.py:")
    assert opened(silent).run(draw()).status == "crash"
    remark = opened(long).run(draw()).remark
    assert remark.startswith("ValueError: one two xxx")
    assert len(remark) < 450


def test_an_interrupt_is_no_crash(opened) -> None:
    def kernel(q, k, v):
        raise KeyboardInterrupt

    runner = opened(kernel)
    with pytest.raises(KeyboardInterrupt):
        runner.run(draw())


def test_warnings_of_a_kernel_are_no_errors(opened) -> None:
    def kernel(q, k, v):
        return np.log(q - q)

    assert opened(kernel).run(draw()).status == "ok"


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.peers)])
def test_written_inputs_are_named(opened, library: str, strided: bool) -> None:
    def kernel(q, k, v, mask):
        k *= 1.0000001  # changes some last bits, at most
        v[..., -1, -1] = 0.0
        mask[0, 0] = False
        return q

    outcome = opened(kernel, library=library).run({**draw(), "mask": np.ones((5, 7), bool)}, strided=strided)
    assert outcome.status == "written"
    assert outcome.remark == "writes into k, v, mask, which it was given to read"
    assert set(outcome.outputs) == {"o"}


def test_what_the_backward_writes_into_is_named(opened) -> None:
    def vjp(q, k, v, o, lse, do, dlse):
        for x in (o, do, lse, dlse, q):
            x += 1
        return q, k, v

    outcome = opened(attention, vjp=vjp, dtype="float64").run(
        draw("float64"), np.ones(DO), np.ones(LSE), {"o": np.ones(DO), "lse": np.ones(LSE)})
    assert outcome.status == "written"
    assert outcome.remark == "writes into q, do, dlse, o, lse, which it was given to read"


def test_a_vjp_is_given_what_it_names(opened) -> None:
    seen: dict[str, Any] = {}

    def vjp(*, do, lse, k, mask, o, sink=None):
        seen.update(do=do, lse=lse, k=k, mask=mask, o=o, sink=sink)
        return (2 * k,)

    runner = opened(attention, vjp=vjp)
    assert runner.has_backward
    assert runner.wants == {"do", "lse", "k", "mask", "o", "sink"}
    x = draw()
    o, lse = attention(*(y.astype(np.float32) for y in x.values()))
    outcome = runner.run(x, np.ones(DO), None, {"o": 0 * o, "lse": 0 * lse})
    assert outcome.status == "ok", outcome.remark
    assert np.array_equal(seen["o"], o)  # its own, for it returned them
    assert np.array_equal(seen["lse"], lse)
    assert seen["mask"] is None
    assert set(outcome.outputs) == {"o", "lse", "dk"}
    assert not outcome.lse_is_differentiable


def test_a_vjp_is_given_the_references_statistics_if_the_forward_returns_none(opened) -> None:
    seen: dict[str, Any] = {}

    def vjp(q, k, v, o, lse, do, dlse):
        seen.update(o=o, lse=lse, dlse=dlse)
        return gradients(q, k, v, o, lse, do, dlse)

    saved = {"o": np.zeros(DO), "lse": rng.stream(3, "lse").normal(size=LSE)}
    runner = opened(lambda q, k, v: attention(q, k, v)[0], vjp=vjp, dtype="bfloat16")
    outcome = runner.run(draw("bfloat16"), np.ones(DO), np.ones(LSE), saved)
    assert outcome.status == "ok", outcome.remark
    assert seen["o"].dtype == BFLOAT16
    assert np.array_equal(seen["o"], outcome.outputs["o"])  # its own
    assert seen["lse"].dtype == seen["dlse"].dtype == np.float32
    assert np.array_equal(seen["lse"], saved["lse"].astype(np.float32))
    assert outcome.outputs["dq"].dtype == BFLOAT16
    assert outcome.lse_is_differentiable


def test_no_backward_without_a_cotangent(opened) -> None:
    def vjp(do):
        raise AssertionError

    assert opened(attention, vjp=vjp).run(draw()).status == "ok"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda g: None, "the vjp returned None; return a dict of dq, dk, dv, dbias, or a tuple in this order"),
        (lambda g: g["dq"], "the vjp returned a numpy.ndarray; return a dict"),
        (lambda g: (g["dq"],), "the vjp returned a tuple of 1; it was given 3 differentiable inputs, so (dq, dk, dv) is"),
        (lambda g: {**g, "dmask": g["dq"]}, "the vjp returned dmask; this case has dq, dk, dv, dbias"),
        (lambda g: {"dq": 1.5}, "the vjp returned a float for dq, not a numpy.ndarray"),
    ],
)
def test_gradients_of_the_wrong_kind(opened, returned, said: str) -> None:
    def vjp(q, k, v, do, mask=None):
        return returned({"dq": q, "dk": k, "dv": v})

    x = draw(bias=(5, 7))
    outcome = opened(attention, vjp=vjp).run({**x, "mask": np.ones((5, 7), bool)}, np.ones(DO))
    assert outcome.status == "crash"
    assert outcome.remark.startswith(said)
    assert set(outcome.outputs) == {"o", "lse"}


def test_gradients_may_be_left_out(opened) -> None:
    def vjp(q, k, v, do):
        return {"dq": q, "dk": None, "dbias": None}

    assert set(opened(attention, vjp=vjp).run(draw(), np.ones(DO)).outputs) == {"o", "lse", "dq"}
