"""Faults of layers that their laws have been seen to find; what a fault is stands in faults.py."""

from __future__ import annotations

from laws.faults_operations import Fault

LAW = "test_layers.py::test_"
LAYERS = "refattn/layers/"
ATTENTION, FEED_FORWARD, BLOCK = LAYERS + "attention.py", LAYERS + "feed_forward.py", LAYERS + "block.py"

STACKED = [
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "the residual pulls nothing", BLOCK,
          "dy = dy + dx", "dy = dx"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "the gate pulls what the value does", FEED_FORWARD,
          "xp.concat([dvalue, dgate], axis=-1)", "xp.concat([dvalue, dvalue], axis=-1)"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "all weights are cut at one width", ATTENTION,
          "start += w.shape[1]", "start += weights[0].shape[1]"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "the context of cross-attention is lost", BLOCK,
          'found["context"] = inner.context', 'found["context"] = inner.context * 0.5'),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "rotations are not turned back", ATTENTION,
          "self._turned}, positions, -1.0)", "self._turned}, positions, 1.0)"),
    Fault(LAW + "nothing_leaks_from_later_tokens_through_a_stack", "a query sees its successor", "refattn/ops/visibility.py",
          "self.k_positions <= self.q_positions[..., at, :]", "self.k_positions <= self.q_positions[..., at, :] + 1"),
    Fault(LAW + "items_do_not_see_each_other", "items are merged in another order", ATTENTION,
          "xp.reshape(xp.moveaxis(x, -3, -2), (*lead, n, h * k))",
          "xp.reshape(xp.flip(xp.moveaxis(x, -3, -2), axis=0), (*lead, n, h * k))"),
]
READINGS = [
    Fault(LAW + "a_float32_run_is_within_the_bound_of_fp32", "float32 is said to round to 36 bits", "refattn/precision.py",
          "_FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-24", "_FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-36"),
    Fault(LAW + "a_stack_keeps_float32", "eps is a float64 array", "refattn/ops/layer_norm.py",
          "mean(centred * centred) + self.eps", "mean(centred * centred) + of(x).lift(self.eps)"),
    Fault(LAW + "the_strict_device_gives_the_values_of_a_stack", "new arrays are made on the host",
          "backends/array_api_backend.py",
          'device = None if like is None or self.name == "jax" else like.device', "device = None"),
    Fault(LAW + "the_strict_device_gives_float32_within_its_bound", "a slice beyond the end", FEED_FORWARD,
          "first.w[:, f:], bg", "first.w[:, f : 2 * f + 1], bg"),
    Fault(LAW + "balls_are_within_the_bound_of_fp64", "a ball of another function", "backends/exact_words.py",
          "_erf = each(arb.erf)", "_erf = each(lambda x: arb.erf(x) * (1 + arb(2) ** -20))"),
    Fault(LAW + "balls_of_a_stack_are_within_the_bound_of_fp64", "a ball of another function", "backends/exact_rules.py",
          '"sqrt": _function(_sqrt)', '"sqrt": _function(lambda x: _sqrt(x) * (1 + arb(2) ** -16))'),
    Fault(LAW + "half_precision_is_computed_in_float32_and_stored_once", "half precision is computed in half precision",
          LAYERS + "base.py", "text(self, tree.map(b.widen, inputs), block=block)", "text(self, inputs, block=block)"),
]
SIZES = [
    Fault(LAW + "stated_costs_are_counted_ones", "the backward is said to remember activations", FEED_FORWARD,
          "inner.forward.exps + inner.backward.exps", "inner.backward.exps"),
    Fault(LAW + "stated_parameters_are_those_of_init", "the gate has no bias", FEED_FORWARD,
          "(first * f + e if self.bias else 0)", "(f + e if self.bias else 0)"),
    Fault(LAW + "init_is_the_same_every_time_and_different_everywhere", "all weights are drawn from one stream", ATTENTION,
          'dense_weight(rng.at(f"w_{x}"), *shape)', "dense_weight(rng, *shape)"),
    Fault(LAW + "axes_of_length_zero", "the last of no rows", "refattn/ops/lookup.py", "if rows == 0:", "if rows < 0:"),
]
OF_LAYERS = [*STACKED, *READINGS, *SIZES]
