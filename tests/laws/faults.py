"""Faults that the laws have been seen to find: each is planted in a copy of the package, and the law it belongs to must fail.

The text that a fault replaces stands exactly once in its file; a change of that text changes the fault here.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """law: file::test in tests/laws that must fail. mistake: what is wrong, in words. file: where, from the top level."""

    law: str
    mistake: str
    file: str
    old: str
    new: str


DENSE, BASE, VISIBILITY = "refattn/schemes/dense.py", "refattn/schemes/base.py", "refattn/ops/visibility.py"
HEADS, SOFTMAX, SCORES = "refattn/ops/heads.py", "refattn/ops/softmax.py", "refattn/ops/scores.py"
BACKEND, PRECISION = "refattn/backend.py", "refattn/precision.py"
NUMPY, ARRAY_API = "backends/numpy_backend.py", "backends/array_api_backend.py"
PRESETS = "_BF16, _FP16, _TF32, _FP32, _FP64 = 2.0**-8, 2.0**-11, 2.0**-11, 2.0**-24, 2.0**-53"
NORMALISER = "    z = xp.sum(e, axis=-1, keepdims=True)\n"

BATCH = [
    Fault("test_batch.py::test_items_alone_are_items_together", "gradients of what items share are averaged, not added",
          HEADS, "return xp.sum(dx, axis=axes, keepdims=True) if axes", "return xp.mean(dx, axis=axes, keepdims=True) if axes"),
    Fault("test_batch.py::test_problems_stacked_along_a_new_axis_are_problems_alone", "the group axis is counted from the left",
          HEADS, "xp.sum(dx, axis=self.axis)", "xp.sum(dx, axis=1 if self.tiled else 2)"),
    Fault("test_batch.py::test_shared_key_heads_are_copied_ones", "tiled and grouped heads are exchanged",
          HEADS, 'heads == "tiled")', 'heads == "grouped")'),
    Fault("test_batch.py::test_one_head_needs_no_head_axis", "NumPy's float64 scalars are taken for Python numbers",
          BACKEND, 'if not hasattr(x, "shape"):', 'if isinstance(x, float) or not hasattr(x, "shape"):'),
    Fault("test_batch.py::test_an_axis_of_length_one_is_a_repeated_one", "one row for all queries is sliced by blocks",
          VISIBILITY, "return x if x.shape[-2] == 1 else x[..., at, :]", "return x[..., at, :]"),
]
REPORTS = [
    Fault("test_bug_reports.py::test_the_scale_is_taken_from_all_heads_together_or_from_the_values", "the width of all heads",
          DENSE, "        d = q.shape[-1]\n", "        d = q.shape[-1] * (q.shape[-3] if q.ndim > 2 else 1)\n"),
    Fault("test_bug_reports.py::test_lse_to_base_two_merged_as_a_natural_logarithm", "lse to base two",
          DENSE, "c + xp.log(z))\n", "(c + xp.log(z)) / math.log(2.0))\n"),
    Fault("test_bug_reports.py::test_merging_a_chunk_that_sees_nothing", "0 / 0 where nothing is seen",
          DENSE, "    none = z == 0.0\n", "    none = z < 0.0\n"),
    Fault("test_bug_reports.py::test_a_length_that_is_no_multiple_of_the_block", "the last block is left out unless it is full",
          "refattn/shapes.py", "range(0, max(n, 1), step)", "range(0, max(n - step + 1, 1), step)"),
    Fault("test_bug_reports.py::test_sequences_of_length_zero_among_packed_ones", "earlier sequences are seen",
          VISIBILITY, "self.q_segments[..., at, :] == self.k_segments", "self.q_segments[..., at, :] >= self.k_segments"),
    Fault("test_bug_reports.py::test_masks_of_several_kinds_joined_by_or", "or for and",
          VISIBILITY, "see & factor", "see | factor"),
    Fault("test_bug_reports.py::test_the_gradient_through_the_normaliser_is_lost", "weights are taken for constants of the sum",
          DENSE, "    ds = p * ((dp if keep is None else dp / keep_rate) - D)", "    ds = p * (dp if keep is None else dp / keep_rate)"),
    Fault("test_bug_reports.py::test_a_numpy_scalar_in_the_configuration_widens_every_result", "float64 scalars stay what they are",
          DENSE, "        plain_fields(self)\n", ""),
    Fault("test_bug_reports.py::test_a_reduction_to_a_scalar_is_no_array", "NumPy's float64 scalars are taken for Python numbers",
          BACKEND, 'if not hasattr(x, "shape"):', 'if isinstance(x, float) or not hasattr(x, "shape"):'),
    Fault("test_bug_reports.py::test_positions_beyond_32_bits", "positions are 32-bit integers",
          VISIBILITY, "self.k_positions <= self.q_positions[..., at, :]",
          'self.k_positions.astype("int32") <= self.q_positions[..., at, :].astype("int32")'),
    Fault("test_bug_reports.py::test_sizes_so_equal_that_a_wrong_axis_goes_unnoticed", "powers of two alone",
          "refattn/catalogue.py", "ODD = _sizes(2, 6, 3, 7, 9, 5, 4)", "ODD = _sizes(2, 4, 2, 8, 8, 4, 4)"),
]
CAUSAL = [
    Fault("test_causal.py::test_later_tokens_do_not_change_earlier_rows", "a query sees its successor",
          VISIBILITY, "self.k_positions <= self.q_positions[..., at, :]", "self.k_positions <= self.q_positions[..., at, :] + 1"),
    Fault("test_causal.py::test_earlier_rows_pull_nothing_from_later_tokens", "the backward forgets who saw whom",
          DENSE, "_rows_vjp(q[..., at, :], k, v, sink, _at(keep, at), see.rows(at),", "_rows_vjp(q[..., at, :], k, v, sink, _at(keep, at), None,"),
    Fault("test_causal.py::test_the_definition_sees_no_later_key", "a query sees its successor in the definition",
          DENSE, "i[..., None, :, None] >= j[..., None, None, :]", "i[..., None, :, None] + 1 >= j[..., None, None, :]"),
]
COSTS = [
    Fault("test_cost.py::test_stated_macs_and_exps_are_counted_ones", "one product of the backward is not stated",
          DENSE, "rows * m * (3 * d + 2 * e)", "rows * m * (2 * d + 2 * e)"),
    Fault("test_cost.py::test_useful_macs_count_visible_pairs", "the whole square is called useful",
          DENSE, "(visibility.pairs(n, m, offset) if self.causal else n * m)", "n * m"),
    Fault("test_cost.py::test_peak_is_an_upper_bound_that_is_not_idle", "a bound that says nothing",
          DENSE, "tiles = 5 + see", "tiles = 50 + see"),
    Fault("test_counted.py::test_stated_costs_are_counted_ones", "the exponential of the sink is not stated",
          DENSE, "exps = rows * m + (0 if given.sink is None else rows)", "exps = rows * m"),
    Fault("test_counted.py::test_the_spying_namespace_counts_the_same", "multiply-adds are counted as operations",
          "backends/counting_arithmetic.py", 'r.add("macs", out.size * a.shape[-1])', 'r.add("macs", 2 * out.size * a.shape[-1])'),
    Fault("test_counted.py::test_shapes_are_those_of_values_and_definition_has_no_branch_on_data", "a branch on data",
          DENSE, "    none = z == 0.0\n", "    none = (z == 0.0) & bool(xp.any(z == 0.0))\n"),
    Fault("test_counted.py::test_work_does_not_depend_on_block_and_nothing_stays_alive", "weights are kept after the call",
          DENSE, "    e = weights(s, see, c)\n", "    e = _rows.kept = weights(s, see, c)\n"),
    Fault("test_counted.py::test_peak_is_an_upper_bound_that_is_not_idle", "two tiles of the backward are forgotten",
          DENSE, "tiles = 5 + see", "tiles = 3 + see"),
    Fault("test_counted.py::test_stated_costs_hold_at_the_smallest_sizes", "at least one row is stated",
          DENSE, "forward = Count(rows * m * (d + e), exps, rows * (e + 1))", "forward = Count(rows * m * (d + e), exps, rows * e + max(rows, 1))"),
    Fault("test_counted.py::test_counted_peaks_are_what_the_allocator_sees", "what is freed stays counted",
          "backends/counting_array.py", "            self.reading.running.live -= self.own", "            pass"),
    Fault("test_counted.py::test_useful_macs_count_visible_pairs", "one key more than there are",
          VISIBILITY, "min(max(x, 0), m)", "min(max(x, 0), m + 1)"),
    Fault("test_counted.py::test_dense_at_a_million_by_hand", "the diagonal is left out",
          VISIBILITY, "return up_to(offset + n) - up_to(offset)", "return up_to(offset + n - 1) - up_to(offset)"),
]
TEXTS = [
    Fault("test_definition.py::test_forward_equals_definition", "what dropout keeps is not made up for",
          DENSE, "(z if keep is None else z * keep_rate), lse", "z, lse"),
    Fault("test_definition.py::test_block_does_not_matter", "gradients of keys are those of the last block",
          DENSE, "return part if total is None else total + part", "return part"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative", "the slope of the softcap lacks a square",
          SCORES, "ds * (1.0 - bent * bent)", "ds * (1.0 - bent)"),
    Fault("test_vjp.py::test_the_vjp_is_linear_in_its_cotangents", "dlse replaces do·o",
          DENSE, "D if dlse is None else D - xp.where(none, 0.0, dlse)", "D if dlse is None else -xp.where(none, 0.0, dlse)"),
    Fault("test_strict.py::test_texts_run_on_the_strict_device_with_equal_values", "new arrays are made on the host",
          ARRAY_API, 'device = None if like is None or self.name == "jax" else like.device', "device = None"),
    Fault("test_strict.py::test_two_libraries_in_one_call_are_refused_and_both_named", "the first array decides",
          BACKEND, "if found is not None and found.name != other.name:", "if False:"),
    Fault("test_overrides.py::test_an_override_is_the_generic_text", "overrides are never looked up",
          "refattn/kernels.py", "override = of(*args).kernels.get(name)", "override = None"),
    Fault("test_overrides.py::test_a_wrong_override_is_found", "a bound that everything is within",
          "backends/rounding_array.py", "np.inf, self.error * INFLATION)", "np.inf, self.error + 1e9)"),
    Fault("test_overrides.py::test_the_generic_text_runs_where_an_override_declines", "declining is not understood",
          "refattn/kernels.py", "if out is NotImplemented else out", "if out is None else out"),
    Fault("test_permutation.py::test_keys_may_be_permuted", "the first key counts twice in the normaliser, the last one not",
          DENSE, NORMALISER, "    z = xp.sum(e[..., :-1], axis=-1, keepdims=True) + e[..., :1]\n"),
    Fault("test_permutation.py::test_queries_permute_with_their_rows", "all queries of a block have the mask of the first",
          VISIBILITY, "factors.append(query_rows(self.mask, at))", "factors.append(self.mask[..., at.start : at.start + 1, :])"),
    Fault("test_rows_sum.py::test_ones_come_out_as_ones", "an epsilon in the denominator",
          DENSE, NORMALISER, "    z = xp.sum(e, axis=-1, keepdims=True) + 1e-9\n"),
    Fault("test_rows_sum.py::test_values_receive_what_their_rows_pull", "weights of the backward are not normalised",
          DENSE, "    p = weights(s, see, lse)\n", "    p = weights(s, see, row_max(s, see))\n"),
]
EDGES = [
    Fault("test_edges.py::test_rows_that_see_nothing_are_zero_and_pull_nothing", "0 times an infinite cotangent",
          DENSE, "    o, do = xp.where(none, 0.0, o), xp.where(none, 0.0, do)\n", ""),
    Fault("test_edges.py::test_poison_in_slots_that_nobody_sees_changes_nothing", "0 times NaN in a product",
          DENSE, "    q, k, v = _select(see, q, k, v)\n    s, _", "    s, _"),
    Fault("test_edges.py::test_some_slots_are_seen_by_nobody", "an instrument that sees everything",
          "tests/laws/seen.py", "definition(*probe)[0] > 0.0", "definition(*probe)[0] >= 0.0"),
    Fault("test_edges.py::test_axes_of_length_zero", "the largest of no scores",
          SOFTMAX, "if s.shape[-1] == 0:", "if False:"),
    Fault("test_layouts.py::test_layouts_do_not_matter", "memory is read in the order in which it lies",
          NUMPY, "return x.astype(np.float32) if x.dtype.name in HALF else x",
          'return np.frombuffer(x.tobytes("A"), x.dtype).reshape(x.shape)'),
    Fault("test_layouts.py::test_a_repeated_axis_of_stride_zero_is_a_copied_one", "copies get the sum of their gradients",
          NUMPY, "return x.astype(like.dtype, copy=False)",
          "return np.broadcast_to(x.sum(0, keepdims=True), x.shape) if 0 in like.strides[:1] else x.astype(like.dtype, copy=False)"),
    Fault("test_layouts.py::test_nothing_that_is_given_is_written_and_results_are_new_memory", "queries are scaled where they lie",
          DENSE, "    q, k, v = _select(see, q, k, v)\n    s, _", "    q *= 1.0\n    q, k, v = _select(see, q, k, v)\n    s, _"),
]
BITS = [
    Fault("test_dtypes.py::test_dtypes_of_outputs_gradients_and_statistics", "statistics are stored in the dtype of the inputs",
          BASE, "return b.narrow(x, like) if name in scheme.stored else b.settle(x)", "return b.narrow(x, like)"),
    Fault("test_dtypes.py::test_dtypes_on_the_strict_device", "a float64 number takes part in float32 arithmetic",
          SCORES, "products * self.scale, None",
          "products * of(products).lift(self.scale, products), None"),
    Fault("test_dtypes.py::test_values_are_those_of_a_correct_kernel_of_that_dtype", "half precision is computed in half precision",
          NUMPY, "return x.astype(np.float32) if x.dtype.name in HALF else x", "return x"),
    Fault("test_dtypes.py::test_half_precision_is_widened_once_and_rounded_once", "results are rounded twice",
          NUMPY, "return x.astype(like.dtype, copy=False)", "return x.astype(np.float16).astype(like.dtype, copy=False)"),
    Fault("test_determinism.py::test_the_same_bits_every_time", "sums run forwards and backwards in turn",
          DENSE, NORMALISER,
          '    _rows.calls = getattr(_rows, "calls", 0) + 1\n'
          "    z = xp.sum(xp.flip(e, axis=-1) if _rows.calls % 2 else e, axis=-1, keepdims=True)\n"),
    Fault("test_determinism.py::test_the_same_bits_from_several_threads_at_once", "threads share a scratch array",
          DENSE, "    e = weights(s, see, c)\n    z = xp.sum(e, axis=-1, keepdims=True)\n",
          "    _rows.e = weights(s, see, c)\n    z = xp.sum(_rows.e, axis=-1, keepdims=True)\n    e = _rows.e\n"),
    Fault("test_determinism.py::test_a_reading_in_one_thread_is_not_seen_in_another", "the active backend is a global variable",
          BACKEND, 'ContextVar("refattn_backend", default=None)',
          'type("Global", (), {"now": None, "get": lambda self: self.now, "set": lambda self, x: setattr(self, "now", x), '
          '"reset": lambda self, _: setattr(self, "now", None)})()'),
]
READINGS = [
    Fault("test_readings.py::test_balls_are_within_the_bound_of_fp64", "float64 is said to round to 60 bits",
          PRECISION, PRESETS, PRESETS.replace("-53", "-60")),
    Fault("test_readings.py::test_the_bound_of_fp64_is_not_vacuous", "float64 is said to round to 44 bits",
          PRECISION, PRESETS, PRESETS.replace("-53", "-44")),
    Fault("test_readings.py::test_a_float32_run_is_within_the_bound_of_fp32", "float32 is said to round to 32 bits",
          PRECISION, PRESETS, PRESETS.replace("-24", "-32")),
    Fault("test_readings.py::test_definition_and_forward_hold_the_same_numbers", "1/√d is rounded to float64 in one of two texts",
          DENSE, "s = xp.sum(k * q, axis=-1) * self._scale(q)", "s = xp.sum(k * q, axis=-1) * (self.scale or max(q.shape[-1], 1) ** -0.5)"),
    Fault("test_readings.py::test_the_vjp_is_what_jax_differentiates_forward_to", "the gradient of the sink has the wrong sign",
          DENSE, "-xp.exp(sink - lse) * D", "xp.exp(sink - lse) * D"),
    Fault("test_readings.py::test_an_exponential_wrong_in_the_thirteenth_digit_is_outside", "float64 is said to round to 44 bits",
          PRECISION, PRESETS, PRESETS.replace("-53", "-44")),
    Fault("test_readings.py::test_balls_have_the_shapes_of_values_where_an_axis_has_length_zero", "a sum of nothing has no value",
          "backends/exact_rules.py", "keepdims=keepdims, initial=ZERO)", "keepdims=keepdims)"),
]
FAULTS = [*BATCH, *REPORTS, *CAUSAL, *COSTS, *TEXTS, *EDGES, *BITS, *READINGS]
