"""One run on one case, in this process: what a candidate is given, what it may return, and what is made of the rest."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn import rng
from refattn.errors import BackendUnavailable, UsageError
from refattn.schemes.dense import Dense
from refattn.testing.adapters import open_library
from refattn.testing.worker import Runner, open_candidate

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = {"q": (2, 3, 5, 4), "k": (2, 3, 7, 4), "v": (2, 3, 7, 6)}
DO, LSE = (2, 3, 5, 6), (2, 3, 5)
LIBRARIES = ["numpy", "jax", pytest.param("torch", marks=pytest.mark.peers)]


def draw(dtype: str = "float32", seed: int = 1, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Float64 arrays that hold values of `dtype`."""
    drawn = {name: rng.stream(seed, name).normal(size=shape) for name, shape in (SHAPES | shapes).items()}
    return {name: x.astype(BFLOAT16 if dtype == "bfloat16" else dtype).astype(np.float64) for name, x in drawn.items()}


@pytest.fixture
def opened():
    """open_candidate without its with statement."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(open_candidate(*args, **options))


def attention(q, k, v, mask=None, bias=None):
    o, saved = Dense().forward(q, k, v, mask, bias)
    return o, saved.lse


def gradients(q, k, v, o, lse, do, dlse=None, mask=None, bias=None):
    given = Dense.Saved(Dense.Inputs(q, k, v, mask, bias), o, lse)
    return {f"d{name}": g for name, g in Dense().vjp(given, do, dlse=dlse)._asdict().items() if g is not None}


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


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_values_and_dtypes_survive_the_way_there_and_back(opened, library: str, dtype: str) -> None:
    x = draw(dtype)
    x["q"][0, 0, 0, :3] = [np.nan, np.inf, -0.0]
    kinds = []

    def kernel(q, k, v, mask):
        kinds.extend(str(y.dtype).rpartition(".")[2] for y in (q, mask))
        return {"o": q, "lse": mask}

    outcome = opened(kernel, library=library, dtype=dtype).run({**x, "mask": np.ones((5, 7), bool)})
    assert (outcome.status, outcome.remark) == ("ok", "")
    assert kinds == [dtype, "bool"]
    got = outcome.outputs["o"]
    assert got.dtype == np.dtype(dtype)
    assert np.array_equal(got.astype(np.float64), x["q"], equal_nan=True)
    assert np.signbit(got[0, 0, 0, 2])
    assert outcome.outputs["lse"].dtype == np.bool_


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_result_keeps_the_dtype_that_was_returned(opened, library: str) -> None:
    def kernel(q, k, v):
        wide = {"numpy": lambda: q.astype(np.float32), "jax": lambda: q.astype("float32"), "torch": lambda: q.float()}
        return wide[library](), q

    outputs = opened(kernel, library=library, dtype="float16").run(draw("float16")).outputs
    assert (outputs["o"].dtype, outputs["lse"].dtype) == (np.float32, np.float16)


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


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 1, 5, 4), (2, 3, 1, 4), (5, 4)])
@pytest.mark.parametrize("layout", ["bhnd", "bnhd"])
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.peers)])
def test_strided_inputs_are_views_with_the_same_values(opened, library: str, layout: str, shape: tuple[int, ...]) -> None:
    x = draw("bfloat16", q=shape, k=shape, v=shape, do=shape)
    contiguous: dict[str, bool] = {}

    def forward(q, k, v):
        contiguous.update({n: y.flags.c_contiguous if library == "numpy" else y.is_contiguous()
                           for n, y in (("q", q), ("k", k), ("v", v))})
        return q

    def vjp(q, do):
        contiguous["do"] = do.flags.c_contiguous if library == "numpy" else do.is_contiguous()
        return (do,)

    runner = opened(forward, vjp=vjp, library=library, layout=layout, dtype="bfloat16")
    do = x.pop("do")
    outcome = runner.run(x, do, strided=True)
    assert (outcome.status, outcome.remark) == ("ok", "")
    assert contiguous == dict.fromkeys("qkv", False) | {"do": False}
    assert np.array_equal(outcome.outputs["o"].astype(float), x["q"])
    assert np.array_equal(outcome.outputs["dq"].astype(float), do)
    runner.run(x, do)
    assert contiguous == dict.fromkeys("qkv", True) | {"do": True}


def test_strided_rows_of_one_head_end_in_poison() -> None:
    given = open_library("numpy", "float32").give(np.ones((1, 1, 5, 4), np.float32), strided=True)
    assert np.all(np.isnan(given.base[..., 4]))


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


def jax_kernel(q, k, v, bias=None):
    import jax
    import jax.numpy as jnp

    s = jnp.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    lse = jax.nn.logsumexp(s, axis=-1)
    return jnp.einsum("bhnm,bhme->bhne", jnp.exp(s - lse[..., None]), v), lse


def torch_kernel(q, k, v, bias=None):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    lse = s.logsumexp(-1)
    return (s - lse[..., None]).exp() @ v, lse


KERNELS = {"jax": jax_kernel, "torch": torch_kernel}
DIFFERENTIATING = ["jax", pytest.param("torch", marks=pytest.mark.peers)]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("library", DIFFERENTIATING)
def test_autograd_gives_the_vjp(opened, library: str, strided: bool) -> None:
    x, dlse = draw("float64", bias=(5, 7)), rng.stream(2, "dlse").normal(size=LSE)
    do = rng.stream(2, "do").normal(size=DO)
    runner = opened(KERNELS[library], backward="autograd", library=library, dtype="float64")
    assert runner.has_backward
    outcome = runner.run(x, do, dlse, strided=strided)
    assert outcome.status == "ok", outcome.remark
    assert outcome.lse_is_differentiable
    o, saved = Dense().forward(**x)
    want = Dense().vjp(saved, do, dlse=dlse)
    expected = {"o": o, "lse": saved.lse, "dq": want.q, "dk": want.k, "dv": want.v, "dbias": want.bias}
    assert set(outcome.outputs) == set(expected)
    for name, y in expected.items():
        assert outcome.outputs[name].dtype == np.float64
        assert np.allclose(outcome.outputs[name], y, rtol=1e-12, atol=1e-12), name
    without = runner.run(x, do)
    assert np.allclose(without.outputs["dq"], Dense().vjp(saved, do).q, rtol=1e-12, atol=1e-12)
    assert without.lse_is_differentiable
    assert set(runner.run(x).outputs) == {"o", "lse"}


@pytest.mark.parametrize("library", DIFFERENTIATING)
def test_an_lse_without_a_gradient_takes_no_cotangent(opened, library: str) -> None:
    def kernel(q, k, v, sink=None):
        o, lse = KERNELS[library](q, k, v)
        if library == "torch":
            return o, lse.detach()
        import jax

        return o, jax.lax.stop_gradient(lse)

    x, do = draw("float64", sink=(3,)), rng.stream(2, "do").normal(size=DO)
    outcome = opened(kernel, backward="autograd", library=library, dtype="float64").run(x, do, np.ones(LSE))
    assert outcome.status == "ok", outcome.remark
    assert not outcome.lse_is_differentiable
    want = Dense().vjp(Dense().forward(*(x[n] for n in "qkv"))[1], do)
    assert np.allclose(outcome.outputs["dq"], want.q, rtol=1e-12, atol=1e-12)
    assert np.array_equal(outcome.outputs["dsink"], np.zeros(3))  # of what it ignores


@pytest.mark.parametrize("library", DIFFERENTIATING)
def test_autograd_in_half_precision_takes_lse_as_it_is_returned(opened, library: str) -> None:
    def kernel(q, k, v):
        wide = [x.float() if library == "torch" else x.astype("float32") for x in (q, k, v)]
        o, lse = KERNELS[library](*wide)
        return (o.to(q.dtype) if library == "torch" else o.astype(q.dtype)), lse

    outcome = opened(kernel, backward="autograd", library=library, dtype="bfloat16").run(
        draw("bfloat16"), np.ones(DO), np.ones(LSE))
    assert outcome.status == "ok", outcome.remark
    assert {name: x.dtype for name, x in outcome.outputs.items()} == {
        **dict.fromkeys(("o", "dq", "dk", "dv"), BFLOAT16), "lse": np.dtype(np.float32)}


@pytest.mark.parametrize("library", DIFFERENTIATING)
def test_autograd_of_a_result_in_the_wrong_dtype_is_there_to_be_judged(opened, library: str) -> None:
    def kernel(q, k, v):
        return q.float() * 2 if library == "torch" else q.astype("float32") * 2

    outcome = opened(kernel, backward="autograd", library=library, dtype="float16").run(draw("float16"), np.ones(SHAPES["q"]))
    assert outcome.status == "ok", outcome.remark
    assert outcome.outputs["o"].dtype == np.float32
    assert np.all(outcome.outputs["dq"] == 2)


@pytest.mark.peers
def test_a_detached_torch_result_has_no_gradient(opened) -> None:
    outcome = opened(lambda q, k, v: torch_kernel(q, k, v)[0].detach(), backward="autograd", library="torch").run(
        draw(), np.ones(DO))
    assert outcome.status == "crash"
    assert outcome.remark.startswith("o carries no gradient: it was detached")
    assert set(outcome.outputs) == {"o"}


@pytest.mark.peers
def test_arrays_of_another_library_are_no_result(opened) -> None:
    outcome = opened(lambda q, k, v: q.numpy(), library="torch").run(draw())
    assert (outcome.status, outcome.remark) == ("crash", "returned a numpy.ndarray; return o, (o, lse) or a dict of them, "
                                                         "each a torch.Tensor")


def test_float64_in_jax_leaves_the_process_as_it_was(opened) -> None:
    import jax.numpy as jnp

    assert opened(jax_kernel, library="jax", dtype="float64").run(draw("float64")).outputs["o"].dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"library": "tensorflow"}, "library='tensorflow': choose numpy, torch, jax, cupy"),
        ({"dtype": "float8"}, "dtype='float8': choose float64, float32, float16, bfloat16"),
        ({"layout": "nhd"}, "layout='nhd': choose bhnd, bnhd"),
        ({"backward": "auto"}, "backward='auto': choose 'autograd', or give vjp"),
        ({"backward": "autograd"}, "backward='autograd': numpy has none, torch and jax do; give vjp"),
        ({"backward": "autograd", "library": "jax", "vjp": gradients}, "both say how to differentiate: give one"),
        ({"vjp": "file.py:vjp"}, "give both by name or both as functions"),
        ({"vjp": 3}, "vjp=3: give 'path/file.py:function'"),
        ({"timeout": 0.0}, "timeout=0.0: give a positive number of seconds"),
        ({"timeout": float("nan")}, "timeout=nan: give a positive number of seconds"),
        ({"vjp": lambda q, k, v: q}, "takes no 'do'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught, open_candidate(attention, **options):
        pass
    assert said in str(caught.value)


def test_something_that_is_no_candidate_is_refused() -> None:
    with pytest.raises(UsageError, match=r"candidate=3: give 'path/file.py:function'"), open_candidate(3):
        pass


def test_a_run_that_the_reference_would_not_see_is_refused(opened) -> None:
    runner, x = opened(attention, vjp=gradients), draw()
    with pytest.raises(UsageError, match="q has values that float32 can't hold"):
        runner.run({**x, "q": x["q"] + 1e-12})
    with pytest.raises(UsageError, match="v has values that float32 can't hold"):
        runner.run({**x, "v": x["v"] * 1e300})
    with pytest.raises(UsageError, match="do has values that float32 can't hold"):
        runner.run(x, np.full(DO, 0.1), None, {"o": np.ones(DO), "lse": np.ones(LSE)})
    with pytest.raises(UsageError, match="inputs q, k, v, sink: the candidate takes bias, k, mask, q, v, and q, k, v"):
        runner.run({**x, "sink": np.ones(3)})
    with pytest.raises(UsageError, match="inputs q: the candidate takes"):
        runner.run({"q": x["q"]})
    with pytest.raises(UsageError, match="the vjp candidate names lse: give the reference's in saved"):
        runner.run(x, np.ones(DO), None, {"o": np.ones(DO)})


def test_a_library_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendUnavailable, match=r"torch can't be imported .*: pip install torch"):
        open_library("torch", "float32")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(BackendUnavailable, match=r"ml_dtypes can't be imported .*: pip install 'refattn\[kit\]'"):
        open_library("numpy", "bfloat16")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"CuPy is not installed .*refattn\[cuda13\]"):
        open_library("cupy", "float32")
