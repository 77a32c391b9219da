"""Linformer's theorems: claims come out as stated, and do not where what they rest on is wrong; residuals by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import Linformer, OptionError, ShapeError, rng
from refattn.verify import linformer
from refattn.verify.sketches import FAMILIES, Sketch


def test_every_claim_comes_out_as_stated(undocumented: Any) -> None:
    claims = linformer.run()
    assert undocumented(claims, "linformer: ") == []
    for claim in claims:
        print(claim)
        assert claim.as_stated
        assert bool(claim.power) == (claim.false_alarm > 0.0)
    assert {claim.name for claim in claims if not claim.stated} == {
        "linformer: theorem 1, Pw = 0:",
        "linformer: theorem 1 as printed:",
        "linformer: theorem 2's construction:",
        "linformer: accuracy:",
    }
    assert len({claim.name for claim in claims}) == len(claims) == 13
    assert all(claim.false_alarm <= 1e-6 for claim in claims)


def test_a_seed_is_what_is_drawn() -> None:
    one, again, other = (linformer.weights_that_cancel(seed).measured for seed in (1, 1, 2))
    assert one == again != other


def test_the_mean_error_of_draws_is_near_the_identity() -> None:
    """Not exact: a hundred times as many draws as ten percent need."""
    P, w = linformer._weights(3, 64)
    want = ((P**2).sum() * (w**2).sum() + ((P @ w) ** 2).sum()) / 16
    drawn = [((P @ (z - w)) ** 2).sum() for z in linformer._approximations(3, "mean", w, 16, 2000)]
    assert float(np.mean(drawn)) == pytest.approx(float(want), rel=0.1)


def data() -> tuple[Any, Any, Any]:
    x = rng.stream(4, "residual").normal(size=(3, 2, 6, 5))
    return x[0], x[1], x[2]


@pytest.mark.parametrize("scale", [None, 0.7])
def test_a_residual_by_hand(scale: float | None) -> None:
    q, k, v = data()
    E = rng.stream(5, "E").normal(size=(3, 6))

    def attention(keys: Any, values: Any) -> tuple[Any, Any]:
        e = np.exp(np.einsum("hid,hjd->hij", q, keys) * (5**-0.5 if scale is None else scale))
        p = e / e.sum(axis=-1, keepdims=True)
        return p, np.einsum("hij,hje->hie", p, values)

    p, o = attention(k, v)
    _, other = attention(np.einsum("sj,hjd->hsd", E, k), np.einsum("sj,hjd->hsd", E, v))
    found = linformer.residual(q, k, v, scheme=Linformer(scale=scale), E=E)
    assert found.error == pytest.approx(np.linalg.norm(other - o) / np.linalg.norm(o))
    assert found.zeros == 1.0
    rows = [[abs(x[h, i, c]) / (np.linalg.norm(p[h, i]) * np.linalg.norm(v[h, :, c])) for h in range(2) for i in range(6)
             for c in range(5)] for x in (other - o, o)]  # fmt: skip
    assert (found.row, found.row_of_zeros) == pytest.approx(tuple(map(max, rows)))


def test_a_residual_of_what_does_not_fit_is_refused() -> None:
    q, k, v = data()
    with pytest.raises(ShapeError, match="E has shape"):
        linformer.residual(q, k, v, E=np.zeros((3, 5)))
    with pytest.raises(ShapeError, match=r"q has shape \(2, 6, 5\) and k \(1, 6, 5\): repeat key heads"):
        linformer.residual(q, k[:1], v[:1], E=np.eye(6))
    with pytest.raises(OptionError, match="key_valid is given: a residual is of tokens without padding"):
        linformer.residual(q, k, v, E=np.eye(6), key_valid=np.arange(6) < 4)


def test_a_residual_of_nothing_is_zero() -> None:
    """A channel without values, all of them, no query, no key: numbers, never 0/0."""
    q, k, v = data()
    v[..., 0] = 0.0
    E = rng.stream(5, "E").normal(size=(3, 6))
    assert linformer.residual(q, k, v, E=E) == linformer.residual(q, k, v[..., 1:], E=E)
    assert linformer.residual(q, k, 0.0 * v, E=E) == linformer.Residual(0.0, 0.0, 0.0, 0.0)
    assert linformer.residual(q[:, :0], k, v, E=E) == linformer.Residual(0.0, 0.0, 0.0, 0.0)
    assert linformer.residual(q, k[:, :0], v[:, :0], E=E[:, :0]) == linformer.Residual(0.0, 0.0, 0.0, 0.0)


class Off(Sketch):
    """Normal entries of a variance that is too large."""

    def matrix(self, k: int, n: int, draws: Any) -> Any:
        return 3.0 * super().matrix(k, n, draws)

    def law(self, x: Any, y: Any, k: int) -> Any:
        return FAMILIES[1].law(x, y, k)


def test_wrong_matrices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linformer, "GAUSSIAN", Off("gaussian"))
    assert not linformer.corrected(0).as_stated
    assert not linformer.error_identity().as_stated


def test_a_theorem_that_would_be_true_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the approximation is no approximation, the statements that are false as printed come out true."""
    monkeypatch.setattr(linformer, "_approximations", lambda seed, name, w, k, trials: [w] * trials)
    assert not linformer.theorem_one(0).as_stated
    assert not linformer.weights_that_cancel(0).as_stated


class Ones(Sketch):
    """A projection that would keep the first value: every slot is the sum of all of them."""

    def matrix(self, k: int, n: int, draws: Any) -> Any:
        return np.ones((k, n))


def test_a_construction_that_works_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linformer, "GAUSSIAN", Ones("gaussian"))
    assert not linformer.construction(0).as_stated


def test_weights_with_which_zeros_would_not_do_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linformer, "_data", lambda seed, n, d=64, e=8: (np.zeros((n, d)), np.zeros((n, d)), np.ones((n, e))))
    assert not linformer.nothing_at_all(0).as_stated


def test_what_governs_is_k_and_a_projection_governed_by_another_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """n/4 rows for k, and as many for every k: what a projection of another size would do."""
    right = linformer._approximations
    for slots in (lambda w, k: len(w) // 4, lambda w, k: 64):
        wrong = lambda seed, name, w, k, trials, slots=slots: right(seed, name, w, slots(w, k), trials)  # noqa: E731
        monkeypatch.setattr(linformer, "_approximations", wrong)
        assert not linformer.what_governs(0, trials=400).as_stated


def test_what_governs_does_not_hang_on_a_cosine_that_is_drawn() -> None:
    """This seed draws values of a cosine of 0.30 with the row of the shortest sequence."""
    claim = linformer.what_governs(680, trials=400)
    print(claim)
    assert claim.as_stated
