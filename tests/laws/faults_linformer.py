"""Faults of attention to compressed keys that the laws of schemes have been seen to find."""

from __future__ import annotations

from laws.faults_operations import Fault

COMPRESS, LINFORMER = "refattn/ops/compress.py", "refattn/schemes/linformer.py"
BEFORE, STACK = "refattn/layers/project_input.py", "refattn/layers/stack.py"
DERIVED = "test_layers.py::test_every_gradient_is_what_jax_differentiates_forward_to"
OF_SLOTS = [
    Fault("test_definition.py::test_forward_equals_definition",
          "a mean is divided by one token less", COMPRESS,
          "return xp.sum(segments, axis=-2) / segments.shape[-2]",
          "return xp.sum(segments, axis=-2) / (segments.shape[-2] - 1)"),
    Fault("test_definition.py::test_forward_equals_definition",
          "all heads have the slots of the first", LINFORMER,
          "of(valid).xp.expand_dims(valid, axis=-2)", "of(valid).xp.expand_dims(valid[..., :1, :], axis=-2)"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative",
          "what E does for the values is forgotten", LINFORMER,
          "dE, dF = dE + dF, None", "dF = None"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative",
          "whoever was the largest so far has a share of the gradient", COMPRESS,
          "beat if later is None else beat & ~later", "beat"),
    Fault("test_counted.py::test_stated_costs_are_counted_ones",
          "compressing again is not stated", LINFORMER,
          "Count(3 * c + rows", "Count(2 * c + rows"),
    Fault("test_counted.py::test_peak_is_an_upper_bound_that_is_not_idle",
          "gradients of tokens hold nothing", LINFORMER,
          "3 * few * m * (d + e)", "few * (d + e)"),
    Fault(DERIVED, "of keys and values that one E compresses the last alone pulls x", BEFORE,
          "back[where] = tree.add(back[where], _no_head(dvalues))", "back[where] = _no_head(dvalues)"),
    Fault(DERIVED, "padding is compressed, too", LINFORMER,
          "x = self._there(inputs, getattr(inputs, name))", "x = getattr(inputs, name)"),
    Fault(DERIVED, "the first layer alone pulls what all layers read", STACK,
          "self.params[0] = tree.add(self.params[0], self.stack._common(params))", "pass"),
    Fault("test_layers.py::test_stated_costs_are_counted_ones", "slots that are kept are not stated", BEFORE,
          "Count(macs, 0, sum(map(product, slots)))", "Count(macs, 0, 0)"),
]
