"""What is special to single operations: refusals, conventions of published code, edges. The laws are in tests/laws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refattn import OptionError, ShapeError
from refattn.ops.activation import KINDS, Activation
from refattn.ops.cross_entropy import CrossEntropy
from refattn.ops.depthwise_conv import DepthwiseConv
from refattn.ops.glu import GLU
from refattn.ops.layer_norm import LayerNorm
from refattn.ops.logsumexp import LogSumExp
from refattn.ops.lookup import Lookup
from refattn.ops.projection import Projection
from refattn.ops.rms_norm import RMSNorm
from refattn.ops.scale_norm import ScaleNorm
from refattn.ops.softmax import Softmax
from refattn.ops.strided_conv import StridedConv
from refattn.ops.temperature_kl import TemperatureKL

G = np.random.default_rng(0)


def x(*shape):
    return G.normal(size=shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerNorm(eps=0.0), r"eps=0\.0: give a positive"),
        (lambda: RMSNorm(eps=-1.0), r"eps=-1\.0"),
        (lambda: ScaleNorm(eps=math.inf), r"eps=inf"),
        (lambda: ScaleNorm(length="l1"), r"length='l1': choose one of 'norm', 'rms'"),
        (lambda: ScaleNorm(guard="clip"), r"guard='clip'"),
        (lambda: Activation("swish"), r"kind='swish': choose one of 'relu', .*'laplace'"),
        (lambda: GLU("geglu"), r"kind='geglu'"),
        (lambda: DepthwiseConv("valid"), r"padding='valid': choose one of 'causal', 'same'"),
        (lambda: StridedConv(0), r"stride=0"),
        (lambda: StridedConv(True), r"stride=True"),
        (lambda: StridedConv(2, padding=3), r"padding=3"),
        (lambda: StridedConv(2, padding=(1, -1)), r"padding=\(1, -1\)"),
        (lambda: StridedConv(2, tail="floor"), r"tail='floor'"),
        (lambda: CrossEntropy("batchmean"), r"reduction='batchmean'"),
        (lambda: CrossEntropy(ignore=True), r"ignore=True"),
        (lambda: TemperatureKL(0.0), r"temperature=0\.0"),
        (lambda: DepthwiseConv().forward(x(3, 2), x(2, 2), block=0), r"block=0"),
    ],
)
def test_options_that_mean_nothing(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Projection().forward(x(4), x(4, 3)), r"x has shape \(4,\)"),
        (lambda: Projection().forward(x(2, 4), x(5, 3)), r"d=4 but w has d=5; x: \(2, 4\), w: \(5, 3\)"),
        (lambda: Projection().forward(x(2, 4), x(4, 3), x(4)), r"e=3 but b has e=4"),
        (lambda: Softmax().forward(x(2, 4), x(3, 4) > 0), r"see has shape \(3, 4\)"),
        (lambda: LogSumExp().forward(np.float64(1.0)), r"s has shape \(\)"),
        (lambda: LayerNorm().forward(x(2, 4), x(3)), r"x has d=4 but g has d=3"),
        (lambda: RMSNorm().forward(x(2, 4), x(1, 4)), r"g has shape \(1, 4\)"),
        (lambda: ScaleNorm().forward(x(2, 4), x(1)), r"g has shape \(1,\)"),
        (lambda: GLU().forward(x(2, 4), x(2, 3)), r"\(2, 4\).*\(2, 3\)"),
        (lambda: DepthwiseConv().forward(x(2, 4), x(0, 4)), r"r=0 taps"),
        (lambda: DepthwiseConv().forward(x(2, 4), x(3, 5)), r"d=4 but w has d=5"),
        (lambda: StridedConv(3).forward(x(7, 4), x(3, 4, 2)), r"n=7.*tail='drop'.*tail='pad'"),
        (lambda: StridedConv(1).forward(x(2, 4), x(3, 4, 2)), r"n=2"),
        (lambda: Lookup().forward(x(4), np.arange(3)), r"table has shape \(4,\)"),
        (lambda: CrossEntropy().forward(x(2, 4), np.arange(3)), r"targets has shape \(3,\); it must be \(2,\)"),
        (lambda: CrossEntropy().forward(x(2, 0), np.arange(2)), r"no class"),
        (lambda: TemperatureKL().forward(x(2, 4), x(2, 5)), r"v=4 but teacher has v=5"),
    ],
)
def test_shapes_that_do_not_fit(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_a_constant_row_has_mean_zero_and_no_variance():
    for value in (0.0, 3.7, -1e4):
        y, saved = LayerNorm(eps=1e-5).forward(np.full((2, 7), value), np.full(7, 2.0), np.full(7, 0.5))
        np.testing.assert_allclose(y, 0.5, atol=1e-9)
        grads = LayerNorm(eps=1e-5).vjp(saved, x(2, 7))
        assert np.isfinite(grads.x).all()
    for norm in (RMSNorm(), *(lambda c: (c[n] for n in c))(ScaleNorm.conventions)):
        inputs = (np.zeros((2, 7)),) if isinstance(norm, RMSNorm) else (np.zeros((2, 7)), np.asarray(2.0))
        y, saved = norm.forward(*inputs)
        np.testing.assert_array_equal(y, 0.0)
        assert np.isfinite(norm.vjp(saved, np.ones((2, 7))).x).all()


def test_the_three_scale_norms_differ_as_published():
    d, v = 16, x(3, 16)
    length = np.sqrt((v**2).sum(-1, keepdims=True))
    at = {name: norm.forward(v, np.asarray(1.0))[0] for name, norm in ScaleNorm.conventions.items()}
    np.testing.assert_allclose(at["nguyen-salazar"], v / length, rtol=1e-14)
    np.testing.assert_allclose(at["lucidrains"], v / length * math.sqrt(d), rtol=1e-14)
    np.testing.assert_allclose(at["flash"], v / np.sqrt(length**2 / d + 1e-5), rtol=1e-14)
    short = v / length * 1e-6  # below every guard
    at = {name: norm.forward(short, np.asarray(1.0))[0] for name, norm in ScaleNorm.conventions.items()}
    np.testing.assert_allclose(at["nguyen-salazar"], short / 1e-5, rtol=1e-14)
    np.testing.assert_allclose(at["lucidrains"], short / 1e-5, rtol=1e-14)
    np.testing.assert_allclose(at["flash"], short / np.sqrt(1e-12 / d + 1e-5), rtol=1e-14)


def test_a_causal_convolution_reads_nothing_later():
    op, w = DepthwiseConv("causal"), x(4, 3)
    first = x(9, 3)
    second = first.copy()
    second[5:] = x(4, 3)
    np.testing.assert_array_equal(op.forward(first, w)[0][:5], op.forward(second, w)[0][:5])
    both = DepthwiseConv("same")
    assert not np.array_equal(both.forward(first, w)[0][:5], both.forward(second, w)[0][:5])


def test_a_convolution_of_one_segment_each_is_a_projection_of_segments():
    v, w = x(2, 12, 3), x(4, 3, 5)
    want = v.reshape(2, 3, 12) @ w.reshape(12, 5)
    np.testing.assert_allclose(StridedConv(4).forward(v, w)[0], want, rtol=1e-13)


@pytest.mark.parametrize(("tail", "outputs"), [("drop", 3), ("pad", 4)])
def test_a_tail_is_dropped_or_padded_as_told(tail, outputs):
    v, w = x(10, 2), x(3, 2, 2)
    op = StridedConv(3, tail=tail)
    y, saved = op.forward(v, w)
    assert y.shape[0] == op.outputs(10, 3) == outputs
    dx = op.vjp(saved, np.ones_like(y)).x
    assert (dx[9] == 0.0).all() == (tail == "drop")


def test_ignored_targets_count_nothing():
    logits, targets = x(6, 4), np.array([0, -100, 3, 3, -100, 1])
    keep = targets != -100
    y, saved = CrossEntropy().forward(logits, targets)
    alone, _ = CrossEntropy(ignore=None).forward(logits[keep], targets[keep])
    assert y == pytest.approx(float(alone), rel=1e-14)
    grads = CrossEntropy().vjp(saved, np.asarray(1.0))
    assert (grads.logits[~keep] == 0.0).all()
    assert grads.targets is None
    poisoned = logits.copy()
    poisoned[1] = np.nan
    assert float(CrossEntropy().forward(poisoned, targets)[0]) == float(y)
    np.testing.assert_array_equal(CrossEntropy().vjp(CrossEntropy().forward(poisoned, targets)[1], np.asarray(1.0)).logits,
                                  grads.logits)


@pytest.mark.parametrize(("target", "ignore"), [(4, -100), (-1, -100), (-100, None)])
def test_a_target_that_names_no_class_is_refused(target, ignore):
    with pytest.raises(OptionError, match=rf"targets from .*{target}.*, but the classes are 0 … 3 and ignore={ignore}"):
        CrossEntropy(ignore=ignore).forward(x(3, 4), np.array([0, target, 3]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_without_any_target_is_zero(reduction):
    op, targets = CrossEntropy(reduction), np.full(3, -100)
    y, saved = op.forward(x(3, 4), targets)
    assert not np.any(y)
    assert not np.any(op.vjp(saved, np.ones_like(y)).logits)


def test_the_divergence_of_equal_distributions_is_zero():
    s = x(3, 5)
    y, saved = TemperatureKL(2.0).forward(s, s + np.array([[1.0], [2.0], [-3.0]]))
    assert abs(float(y)) < 1e-14
    grads = TemperatureKL(2.0).vjp(saved, np.asarray(1.0))
    assert max(np.abs(g).max() for g in grads) < 1e-14


def test_as_temperature_grows_the_loss_tends_to_half_the_squared_distance_of_centred_logits():
    """Hinton et al., §2.1, eq. 4: T² KL → Σ (s − t)²/2v, both with mean 0."""
    s, t = x(1, 6), x(1, 6)
    s, t = s - s.mean(), t - t.mean()
    got = float(TemperatureKL(1e4).forward(s, t)[0])
    assert got == pytest.approx(float(((s - t) ** 2).sum() / (2 * 6)), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_at_infinity_and_in_one_number(kind):
    y, _ = Activation(kind).forward(np.asarray(0.75))
    assert y.shape == ()
    far, _ = Activation(kind).forward(np.array([40.0, -40.0, -745.0]))
    assert far[0] == {"sigmoid": 1.0, "laplace": 1.0, "squared_relu": 1600.0}.get(kind, 40.0)
    assert (np.abs(far[1:]) < 1e-15).all()


def test_laplace_is_near_the_squared_relu_where_it_was_fitted():
    """Ma et al. chose its constants so that value and slope agree with those of x² at x = √2/2."""
    at = np.array([math.sqrt(0.5)])
    laplace, square = Activation("laplace"), Activation("squared_relu")
    (y, saved), (z, other) = laplace.forward(at), square.forward(at)
    np.testing.assert_allclose(y, z, rtol=1e-15)
    np.testing.assert_allclose(laplace.vjp(saved, np.ones(1)).x, square.vjp(other, np.ones(1)).x, rtol=1e-15)


def test_softmax_of_what_may_not_be_seen_leaks_nothing():
    s, see = x(3, 4), np.array([[True, False, True, True], [False] * 4, [True] * 4])
    dirty = np.where(see, s, np.nan)
    for op in (Softmax(), LogSumExp()):
        (y, saved), (z, other) = op.forward(s, see), op.forward(dirty, see)
        np.testing.assert_array_equal(y, z)
        dy = np.where(np.isfinite(y), 1.5, np.inf)
        np.testing.assert_array_equal(op.vjp(saved, dy).s, op.vjp(other, dy).s)
        assert np.isfinite(op.vjp(saved, dy).s).all()
