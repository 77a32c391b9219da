"""Linear attention of other people's packages against the conventions of ``Linear``, forward and backward.

In float64, except fast-transformers' causal product, which exists in float32 only; fla's naive forms are read from their
file, which needs torch and einops alone, while the package around it needs triton.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laws.bounds import Band, outside, rounded
from refattn import Linear
from refattn.features.identity import Identity

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch")
B, H, N, D, E = 2, 3, 65, 8, 8  # fast-transformers' product and the bucketed form take values as wide as keys
VALID = np.arange(N) < np.array([[N], [41]])


def imported(name: str, package: str) -> Any:
    """A module whose import may warn; skips without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"pip install {package}")


def draw(n: int = N, dtype: str = "float64") -> tuple[Linear.Inputs, Any]:
    """Inputs exact in float32, and do."""
    g = np.random.default_rng(7)
    q, k, v, do = (g.normal(size=(B, H, n, d)).astype("float32").astype(dtype) for d in (D, D, E, E))
    return Linear.Inputs(q, k, v), do


def ran(attention: Callable[..., Any], inputs: Any, do: Any, dtype: str = "float64") -> dict[str, Any]:
    """o and gradients of attention(q, k, v) on torch tensors (B, H, n, ·), by autograd."""
    q, k, v = (torch.tensor(x.astype(dtype), requires_grad=True) for x in inputs[:3])
    o = attention(q, k, v)
    grads = torch.autograd.grad(o, (q, k, v), torch.tensor(do.astype(dtype)))
    return {"o": o.detach().numpy(), **{f"d{name}": g.numpy() for name, g in zip("qkv", grads, strict=True)}}


def off(scheme: Linear, inputs: Any, do: Any, got: dict[str, Any], preset: str = "fp64") -> dict[str, float]:
    """Which results are beyond twice the bound of one run, and by how much."""
    bands = rounded(preset, scheme, inputs, {"o": do})
    return outside(got, {name: Band(x.value, 2.0 * x.bound) for name, x in bands.items()})


def elu(x: Any) -> Any:
    return torch.nn.functional.elu(x) + 1


def tokens_first(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Of something on (B, n, H, ·), the same on (B, H, n, ·)."""
    return lambda *x: attention(*(y.transpose(1, 2) for y in x)).transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_fast_transformers(causal: bool, padded: bool) -> None:
    """Its causal product is compiled for float32; without order it is torch in any dtype."""
    masking = imported("fast_transformers.masking", "pytorch-fast-transformers==0.4.0, without nvcc on PATH")
    name = "causal_linear_attention" if causal else "linear_attention"
    module = imported(f"fast_transformers.attention.{name}", "pytorch-fast-transformers==0.4.0")
    dtype, preset = ("float32", "fp32") if causal else ("float64", "fp64")
    kernel = module.CausalLinearAttention(D) if causal else module.LinearAttention(D)
    order = masking.TriangularCausalMask(N) if causal else masking.FullMask(N)
    lengths = masking.LengthMask(torch.tensor(VALID.sum(axis=1) if padded else [N, N]), max_len=N)
    inputs, do = draw()
    inputs = inputs._replace(key_valid=VALID if padded else None)
    attention = tokens_first(lambda q, k, v: kernel(q, k, v, order, lengths, lengths))
    with DefaultDtype(dtype):
        got = ran(attention, inputs, do, dtype)
    if padded:  # its padded values are multiplied by features that are 0
        got["dk"], got["dv"] = (x * VALID[:, None, :, None] for x in (got["dk"], got["dv"]))
    scheme = replace(Linear.conventions["fast-transformers"], causal=causal)
    assert off(scheme, inputs, do, got, preset) == {}
    assert off(replace(scheme, eps=0.5), inputs, do, got, preset) != {}


class DefaultDtype:
    """torch's default dtype for a while: masks become numbers of that dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.before = getattr(torch, dtype), torch.get_default_dtype()

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.before)


def test_the_causal_product_of_fast_transformers_is_prefix_mix() -> None:
    product = imported("fast_transformers.causal_product", "pytorch-fast-transformers==0.4.0").causal_dot_product
    scheme = Linear(causal=True, feature=Identity(), normalise=False)
    inputs, do = draw()
    assert off(scheme, inputs, do, ran(product, inputs, do, "float32"), "fp32") == {}


@pytest.mark.parametrize("causal", [False, True])
def test_performer_pytorch_and_its_epsilon(causal: bool) -> None:
    """In order ε is added to every feature of the sum of keys, without order there is none; φ is its caller's."""
    module = imported("performer_pytorch.performer_pytorch", "performer-pytorch==1.1.4")
    attention = (lambda *x: module.causal_linear_attention_noncuda(*x, eps=EPS)) if causal else module.linear_attention
    inputs, do = draw()
    got = ran(lambda q, k, v: attention(elu(q), elu(k), v), inputs, do)
    scheme = replace(Linear.conventions["performer-pytorch"], causal=causal, eps=EPS if causal else 0.0)
    assert Linear.conventions["performer-pytorch"].eps == module.causal_linear_attention_noncuda.__defaults__[-1]
    assert off(scheme, inputs, do, got) == {}
    assert off(replace(scheme, eps=EPS, eps_at="sum"), inputs, do, got) != {}


EPS = 0.125  # large enough to be told from another ε in every tensor


@pytest.mark.parametrize("padded", [False, True])
def test_linear_attention_transformer(padded: bool) -> None:
    """φ(q) is a softmax over features and φ(k) one over the sequence: no normaliser is left."""
    module = imported("linear_attention_transformer.linear_attention_transformer", "linear-attention-transformer==0.19.1")
    inputs, do = draw()
    mask = torch.tensor(VALID) if padded else None
    got = ran(lambda q, k, v: module.linear_attn(q, k.clone(), v.clone(), mask), inputs, do)  # which it writes into

    def mapped(q: Any, k: Any) -> tuple[Any, Any]:
        k = k if mask is None else k.masked_fill(~mask[:, None, :, None], -torch.inf)
        return q.softmax(dim=-1) * D**-0.5, k.softmax(dim=-2)

    scheme = Linear(feature=Identity(), normalise=False)
    assert within_features(scheme, inputs._replace(key_valid=VALID if padded else None), do, got, mapped)


def test_linear_attention_transformer_in_order() -> None:
    """With buckets of one token; longer ones let a query see earlier buckets only, and the sum is at least ε = 10⁻³."""
    module = imported("linear_attention_transformer.linear_attention_transformer", "linear-attention-transformer==0.19.1")
    inputs, do = draw()
    got = ran(lambda q, k, v: module.causal_linear_attn(q, k, v, bucket_size=1), inputs, do)
    scheme = Linear(causal=True, feature=Identity())

    def mapped(q: Any, k: Any) -> tuple[Any, Any]:
        return q.softmax(dim=-1) * D**-0.5, k.exp()

    assert within_features(scheme, inputs, do, got, mapped)
    assert not within_features(replace(scheme, causal=False), inputs, do, got, mapped)


def within_features(scheme: Linear, inputs: Any, do: Any, got: dict[str, Any], mapped: Callable[..., Any]) -> bool:
    """Whether o and gradients are those of the scheme on features that torch makes and pulls back.

    The features' own roundings have no bound here: 10⁻¹¹ of the largest element.
    """
    q, k = (torch.tensor(x, requires_grad=True) for x in inputs[:2])
    features = mapped(q, k)
    o, saved = scheme.forward(*(x.detach().numpy() for x in features), *inputs[2:])
    grads = scheme.vjp(saved, do)
    dq, dk = torch.autograd.grad(features, (q, k), [torch.tensor(x) for x in grads[:2]])
    want = {"o": o, "dq": dq.numpy(), "dk": dk.numpy(), "dv": grads.v}
    return all(bool(np.max(np.abs(got[name] - x)) <= 1e-11 * np.max(np.abs(x))) for name, x in want.items())


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("which", ["chunk", "recurrent"])
def test_flas_naive_forms(which: str, normalised: bool) -> None:
    """Chunks of 64 tokens in any dtype; token by token always in float32. Weights are positive where they are normalised."""
    found = importlib.util.find_spec("fla")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("fla is not installed: pip install --no-deps fla-core")
    naive = loaded(Path(found.submodule_search_locations[0]) / "ops" / "linear_attn" / "naive.py")
    dtype, preset = ("float64", "fp64") if which == "chunk" else ("float32", "fp32")
    inputs, do = draw(128)
    if normalised:
        inputs = Linear.Inputs(*(abs(x) for x in inputs[:2]), inputs.v)
    kernel = {"chunk": naive.naive_chunk_linear_attn, "recurrent": naive.naive_recurrent_linear_attn}[which]

    def attention(*x: Any) -> Any:
        o = kernel(*x, normalize=normalised)
        return o if which == "chunk" else o[0]

    got = ran(tokens_first(attention), inputs, do, dtype)
    scheme = Linear.conventions["fla-normalised" if normalised else "fla"]
    assert off(scheme, inputs, do, got, preset) == {}


def loaded(file: Path) -> Any:
    """A module by its file, without its package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
