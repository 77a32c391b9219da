"""Faults of operations that their laws have been seen to find; what a fault is stands in faults.py."""

from __future__ import annotations

from typing import NamedTuple

LAW = "test_operations.py::test_"
OPS = "refattn/ops/"


class Fault(NamedTuple):
    """law: file::test in tests/laws that must fail. mistake: what is wrong, in words. file: where, from the top level."""

    law: str
    mistake: str
    file: str
    old: str
    new: str


FORWARD = [
    Fault(LAW + "forward_is_the_definition", "the variance is that of a sample", OPS + "layer_norm.py",
          "mean(centred * centred) + self.eps", "mean(centred * centred) * x.shape[-1] / (x.shape[-1] - 1) + self.eps"),
    Fault(LAW + "forward_is_the_definition", "eps beside the root", OPS + "rms_norm.py",
          "xp.sqrt(mean(x * x) + self.eps)", "xp.sqrt(mean(x * x)) + self.eps"),
    Fault(LAW + "forward_is_the_definition", "lucidrains' form divides by √d once more", OPS + "scale_norm.py",
          'max(x.shape[-1], 1) if self.length == "rms" else 1', "max(x.shape[-1], 1)"),
    Fault(LAW + "forward_is_the_definition", "the constants of another Laplace function", OPS + "activation.py",
          "return 0.5 * (1.0 + erf((x - root(x, 0.5)) * root(x, 2.0 * pi(x))))",
          "return 0.5 * (1.0 + erf((x - 0.707107) / (0.282095 * 2.0**0.5)))"),
    Fault(LAW + "forward_is_the_definition", "the padding of an even filter stands on the right", OPS + "depthwise_conv.py",
          "else r // 2", "else (r - 1) // 2"),
    Fault(LAW + "forward_is_the_definition", "the mean is over all targets, ignored ones too", OPS + "cross_entropy.py",
          "1.0 / xp.maximum(many, 1.0)", "1.0 / max(product(lse.shape), 1)"),
    Fault(LAW + "forward_is_the_definition", "T instead of T²", OPS + "temperature_kl.py",
          "self.temperature**2 * self._share", "self.temperature * self._share"),
    Fault(LAW + "forward_is_the_definition", "a row that sees nothing is uniform", OPS + "softmax.py",
          "p = e / xp.where(z == 0.0, 1.0, z)", "p = xp.where(z == 0.0, 1.0 / s.shape[-1], e / xp.where(z == 0.0, 1.0, z))"),
]
BACKWARD = [
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "the mean of h is forgotten", OPS + "layer_norm.py",
          "(h - mean(h) - unit", "(h - unit"),
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "a gradient where the guard holds the length", OPS + "scale_norm.py",
          'if self.guard == "max":\n            pull', 'if self.guard == "never":\n            pull'),
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "the filter is not turned round", OPS + "depthwise_conv.py",
          "_correlate(dy, xp.flip(w, axis=0), w.shape[0]", "_correlate(dy, w, w.shape[0]"),
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "windows that overlap overwrite each other", OPS + "strided_conv.py",
          "for a in range(reach)], axis=-1)", "for a in [0] * reach], axis=-1)"),
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "the last row of a name wins", OPS + "lookup.py",
          "x[step:, :] + xp.where(same[:, None], x[:-step, :], 0.0)", "x[step:, :]"),
    Fault(LAW + "vjp_is_the_adjoint_of_the_derivative", "the teacher's normaliser is a constant", OPS + "temperature_kl.py",
          "p * (apart - mean) * pull", "p * apart * pull"),
    Fault(LAW + "the_vjp_is_what_jax_differentiates_forward_to", "the slope of silu lacks a term", OPS + "activation.py",
          "s * (1.0 + x * (1.0 - s))", "s * (1.0 + (1.0 - s))"),
    Fault(LAW + "the_vjp_is_what_jax_differentiates_forward_to", "the length is a constant", OPS + "scale_norm.py",
          "xp.maximum(square, self.eps**2)", "xp.maximum(of(x).constant(square), self.eps**2)"),
]
READINGS = [
    Fault(LAW + "balls_are_within_the_bound_of_fp64", "a ball of another function", "backends/exact_words.py",
          "_erf = each(arb.erf)", "_erf = each(lambda x: arb.erf(x) * (1 + arb(2) ** -40))"),
    Fault(LAW + "a_float32_run_is_within_the_bound_of_fp32", "float32 is said to round to 32 bits", "refattn/precision.py",
          "_FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-24", "_FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-32"),
    Fault(LAW + "the_bound_of_fp32_is_not_vacuous", "sums of rows are said to be long", "backends/rounding_contractions.py",
          "steps = np.maximum(np.bincount(at.value, minlength=size)[:, None] - 1.0, 0.0)",
          "steps = np.full((size, 1), 50.0 * x.shape[0])"),
    Fault(LAW + "the_strict_device_gives_float32_within_its_bound", "a slice beyond the end", OPS + "strided_conv.py",
          "first : min(first + length - before, n), :]", "first : first + length - before, :]"),
    Fault(LAW + "the_strict_device_gives_float32_within_its_bound", "π is a float64 array", OPS + "erf.py",
          "    return math.pi\n", "    return of(like).lift(math.pi, like)\n"),
]
COSTS = [
    Fault(LAW + "stated_costs_are_counted_ones", "taps on the padding are not multiplied", OPS + "depthwise_conv.py",
          "Count(size * at[\"r\"], 0, size)", "Count(size * at[\"r\"] - product(at[\"*\"]), 0, size)"),
    Fault(LAW + "stated_costs_are_counted_ones", "erf takes nothing", OPS + "activation.py",
          '_times(_gelu_slope), 1, 2)', '_times(_gelu_slope), 1, 1)'),
    Fault(LAW + "stated_costs_are_counted_ones", "rows that are cut off stay alive", OPS + "strided_conv.py",
          "xp.concat([_fit(dx, -self.padding[0], n)], axis=-2)", "_fit(dx, -self.padding[0], n)"),
]
EDGES = [
    Fault(LAW + "axes_of_length_zero", "the mean of nothing", OPS + "base.py",
          "keepdims=True) / max(x.shape[-1], 1)", "keepdims=True) / x.shape[-1]"),
    Fault(LAW + "large_inputs", "x³ overflows", OPS + "activation.py",
          "near, factor = bounded(x, FAR), root", "near, factor = x, root"),
    Fault(LAW + "large_inputs", "no stabiliser", OPS + "cross_entropy.py",
          "c = row_max(logits, None)", "c = row_max(logits * 0.0, None)"),
    Fault(LAW + "layouts_do_not_matter_and_nothing_is_written", "the cotangent is scaled where it lies", OPS + "rms_norm.py",
          "        h = dy if g is None else dy * g\n", "        h = dy\n        h *= 1.0 if g is None else g\n"),
    Fault(LAW + "one_item_needs_no_leading_axis", "items are mixed where channels come first", OPS + "depthwise_conv.py",
          "xp.reshape(xp.matrix_transpose(y), (*lead, at.stop - at.start, d))",
          "xp.reshape(xp.flip(xp.matrix_transpose(y), axis=0), (*lead, at.stop - at.start, d)) if lead else "
          "xp.reshape(xp.matrix_transpose(y), (at.stop - at.start, d))"),
    Fault(LAW + "blocks_do_not_matter", "the gradient of the filter is that of the last block", OPS + "depthwise_conv.py",
          "dw = part if dw is None else dw + part", "dw = part"),
]
OPERATIONS = [*FORWARD, *BACKWARD, *READINGS, *COSTS, *EDGES]
