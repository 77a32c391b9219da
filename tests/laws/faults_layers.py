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
    Fault(LAW + "stated_parameters_of_a_stack_are_those_of_init", "biases are those of one key head", ATTENTION,
          "(shape[1] if self.bias else 0) for shape", "(shape[1] // self.groups if self.bias else 0) for shape"),
    Fault(LAW + "init_is_the_same_every_time_and_different_everywhere", "all weights are drawn from one stream", ATTENTION,
          'dense_weight(rng.at(f"w_{x}"), *shape)', "dense_weight(rng, *shape)"),
    Fault(LAW + "axes_of_length_zero", "the last of no rows", "refattn/ops/lookup.py", "if rows == 0:", "if rows < 0:"),
]
STACK, CHECKPOINT, REVERSIBLE = LAYERS + "stack.py", LAYERS + "checkpoint.py", LAYERS + "reversible.py"
CHUNKED, PARTS, SAVERS = LAYERS + "chunked_ff.py", LAYERS + "micro_batches.py", "test_savers.py::test_"
WHOLE = [
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "the last reader of shared parameters alone pulls",
          STACK, "self.params[s] = tree.add(self.params[s], params)", "self.params[s] = params"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "the first reader of a context alone pulls", STACK,
          "tree.add(self.common[name], getattr(grads, name, None))", "getattr(grads, name, None)"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "a tied table is pulled by the head alone",
          LAYERS + "language_model.py", "table=table.table + of(head.w)", "table=of(head.w)"),
    Fault(LAW + "every_gradient_is_what_jax_differentiates_forward_to", "x is read by one stream only", REVERSIBLE,
          "sums.nest(dy1 + dy2, dnorm)", "sums.nest(dy1, dnorm)"),
    Fault(LAW + "stated_costs_are_counted_ones", "the last checkpoint is said to be dropped", CHECKPOINT,
          "len(self._segments) * product(given.x)", "(len(self._segments) - 1) * product(given.x)"),
    Fault(LAW + "stated_parameters_are_those_of_init", "the last norm is said to be as wide as a stream", REVERSIBLE,
          'self.inner.parameters(sizes, self._width(size(sizes, "d", self)))', "self.inner.parameters(sizes)"),
    Fault(SAVERS + "checkpoints_change_no_bit", "segments go backward from their first layer", CHECKPOINT,
          "for i in reversed(segment):", "for i in segment:"),
    Fault(SAVERS + "chunks_of_positions_are_the_whole", "the last chunk alone pulls the parameters", CHUNKED,
          "dparams = tree.add(dparams, grads.params)", "dparams = grads.params"),
    Fault(SAVERS + "micro_batches_are_the_whole_batch", "gradients are the mean over parts", PARTS,
          "total[i] = tree.add(total[i], g)", "total[i] = tree.add(total[i], g / self.parts)"),
    Fault(SAVERS + "a_reversible_stack_has_the_gradients_of_one_that_keeps_everything", "inputs are off", REVERSIBLE,
          "y = y - made", "y = y - 0.5 * made"),
    Fault(SAVERS + "what_was_decided_is_not_decided_again", "what was decided is not handed on", REVERSIBLE,
          "given = given._replace(others=decided[i])", "given = given._replace(others=given.others)"),
    Fault(SAVERS + "what_was_decided_is_not_decided_again", "a checkpoint forgets what was decided", CHECKPOINT,
          "block=block, replay=replay)", "block=block)"),
    Fault(SAVERS + "the_second_forward_has_the_buckets_of_the_first", "recovered tokens are hashed anew",
          "refattn/schemes/lsh.py", "return given if saved.buckets is None else given._replace(rotations=None, "
          "buckets=saved.buckets)", "return given"),
    Fault(SAVERS + "the_second_forward_has_the_buckets_of_the_first", "the hash of a second forward is counted", REVERSIBLE,
          "again + f.cost(second).forward", "again + f.cost(part).forward"),
    Fault(SAVERS + "nothing_leaks_from_later_tokens_through_a_wrapper", "a query sees its successor",
          "refattn/ops/visibility.py", "self.k_positions <= self.q_positions[..., at, :]",
          "self.k_positions <= self.q_positions[..., at, :] + 1"),
    Fault(SAVERS + "parameters_can_be_stored_and_read", "a row is stored as a plain tuple", "refattn/tree.py",
          "lambda self: (row, (tuple(self),))", "lambda self: (tuple, (tuple(self),))"),
]
SAVED = [
    Fault(SAVERS + "a_plain_stack_keeps_so_much_for_each_layer", "the norm saves means as wide as x",
          "refattn/ops/layer_norm.py", "self.Saved(inputs, middle, rstd)", "self.Saved(inputs, middle + 0.0 * x, rstd)"),
    Fault(SAVERS + "the_peak_of_a_reversible_stack_does_not_depend_on_its_depth", "every input that is recovered is kept",
          REVERSIBLE, "            sums.add(i, self._gathered(",
          '            sums.kept = [*getattr(sums, "kept", []), y1]\n            sums.add(i, self._gathered('),
    Fault(SAVERS + "checkpoints_every_root_of_the_depth_need_its_root", "what was used is kept until its segment ends",
          CHECKPOINT, "kept.pop()", "kept[i - segment[0]]"),
    Fault(SAVERS + "the_price_is_one_more_forward", "every layer is run twice", CHECKPOINT,
          "x, kept = self.inner.step(i, inputs, x, block=block)",
          "x, kept = self.inner.step(i, inputs, x + 0.0 * self.inner.step(i, inputs, x, block=block)[0], block=block)"),
    Fault(SAVERS + "micro_batches_that_accumulate_compute_nothing_twice", "a part goes forward twice", PARTS,
          "y, kept = self.inner.forward(self._part(wide, at), block=block)",
          "y, kept = (self.inner.forward(self._part(wide, at), block=block)[i] for i in (0, 1))"),
    Fault(SAVERS + "the_hidden_layer_is_never_there_at_once", "nothing is cut", CHUNKED,
          "return [slice(start, min(start + self.rows, n)) for start in range(0, max(n, 1), self.rows)]",
          "return [slice(0, n)]"),
]
OF_LAYERS = [*STACKED, *READINGS, *SIZES, *WHOLE, *SAVED]
