"""Array libraries: values that survive the way there and back, strides, gradients by their own differentiation."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from attending import BFLOAT16, DO, LSE, SHAPES, draw
from refattn import rng
from refattn.errors import BackendUnavailable
from refattn.schemes.dense import Dense
from refattn.testing.adapters import open_library

LIBRARIES = ["numpy", "jax", pytest.param("torch", marks=pytest.mark.peers)]


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

    outcome = opened(kernel, backward="autograd", library=library, dtype="float16").run(
        draw("float16"), np.ones(SHAPES["q"]))
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
