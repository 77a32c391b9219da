"""Faults of sparse attention and its words that the laws have been seen to find; what a fault is stands in faults.py."""

from __future__ import annotations

from laws.faults_operations import Fault

SPARSE, ROWS, ENGINE = "refattn/schemes/sparse.py", "refattn/rows.py", "backends/rows_engine.py"
ATTEND, COUNTS, ITEMS = "refattn/ops/attend_rows.py", "refattn/ops/attend_counts.py", "backends/by_item.py"
LOOPS, COUNTING, ROUNDING = "backends/numba_rows.py", "backends/counting_rows.py", "backends/rounding_rows.py"

TEXTS = [
    Fault("test_definition.py::test_forward_equals_definition", "counts are forgotten", ATTEND,
          "    e = weigh(weights(s, ok, spread(c, rows)), rows)\n", "    e = weights(s, ok, spread(c, rows))\n"),
    Fault("test_definition.py::test_forward_equals_definition", "a query that sees nothing gets the row of another", ROWS,
          "        place = np.full(self.n, len(self._order))\n", "        place = np.zeros(self.n, dtype=np.int64)\n"),
    Fault("test_definition.py::test_forward_equals_definition", "alignment is forgotten", SPARSE,
          "        return visibility.offset(True, self.align, n, m)\n", "        return 0\n"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative", "entries of keys in the order of queries", ATTEND,
          "row_sums(turn(ds, rows), q, rows.T)", "row_sums(ds, q, rows.T)"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative", "counts are forgotten in the backward", ATTEND,
          "    p = weigh(weights(s, ok, spread(lse, rows)), rows)\n", "    p = weights(s, ok, spread(lse, rows))\n"),
    Fault("test_definition.py::test_forward_equals_definition", "heads come back in the order of their patterns", SPARSE,
          "places = [order.index(h) for h in range(len(order))]", "places = list(range(len(order)))"),
    Fault("test_definition.py::test_forward_equals_definition", "heads with patterns of their own read tiled keys", SPARSE,
          "h % heads.kv if heads.tiled else h // heads.group", "h % heads.kv"),
    Fault("test_batch.py::test_an_axis_of_length_one_is_a_repeated_one", "a mask has as many rows as queries", SPARSE,
          "(rows.row if a > 1 else 0 * rows.row) * b", "rows.row * b"),
    Fault("test_edges.py::test_poison_in_slots_that_nobody_sees_changes_nothing", "0·NaN of hidden entries", ROWS,
          "    if ok is None:\n        return q, k, v\n", "    if True:\n        return q, k, v\n"),
    Fault("test_edges.py::test_rows_that_see_nothing_are_zero_and_pull_nothing", "0 times an infinite cotangent", SPARSE,
          "xp.where(none, 0.0, heads.split(do))", "heads.split(do)"),
    Fault("test_edges.py::test_axes_of_length_zero", "the largest of no scores in the definition", SPARSE,
          "xp.max(xp.concat([s, filled(s, (*s.shape[:-1], 1), -math.inf)], axis=-1), axis=-1, keepdims=True)",
          "xp.max(s, axis=-1, keepdims=True)"),
    Fault("test_dtypes.py::test_dtypes_of_outputs_gradients_and_statistics", "counts are float64", ROWS,
          "like), like.dtype, copy=False)", "like), b.xp.float64, copy=False)"),
    Fault("test_definition.py::test_forward_equals_definition", "members see, but are not seen", COUNTS,
          "self.members[0][..., at, :] | self.members[1]", "self.members[0][..., at, :]"),
    Fault("test_definition.py::test_forward_equals_definition", "members see later keys, whatever holds the pattern", COUNTS,
          "        if self.within is not None:\n", "        if False:\n"),
    Fault("test_definition.py::test_forward_equals_definition", "a member's position is its place among the queries", SPARSE,
          "for i in range(offset, offset + n)]", "for i in range(n)]"),
    Fault("test_definition.py::test_forward_equals_definition", "a pair that members add counts once more", COUNTS,
          "xp.where(c > 0.0, c, 1.0), c)", "c + 1.0, c)"),
    Fault("test_edges.py::test_poison_in_slots_that_nobody_sees_changes_nothing", "0·NaN of pairs that nobody sees", COUNTS,
          "    q, k, v = select(see, q, k, v)\n    p = weights", "    p = weights"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative", "members' pairs have no slope", COUNTS,
          "        dk, dv = (part[1], part[2]) if dk is None else (dk + part[1], dv + part[2])\n",
          "        dk, dv = part[1], part[2]\n"),
]
COSTS = [
    Fault("test_counted.py::test_stated_costs_are_counted_ones", "one product of the backward is not stated", SPARSE,
          "nnz * (3 * d + 2 * e)", "nnz * (2 * d + 2 * e)"),
    Fault("test_counted.py::test_the_spying_namespace_counts_the_same", "a rule that counts no product", COUNTING,
          '_made(p.reading, "macs", (*lead, rows.n, e), gathered, terms, terms)',
          '_made(p.reading, "flops", (*lead, rows.n, e), gathered, terms, terms)'),
    Fault("test_counted.py::test_peak_is_an_upper_bound_that_is_not_idle", "what is gathered is forgotten", SPARSE,
          "    most: int = lists + 2 * gathered + queries", "    most: int = lists + queries"),
    Fault("test_counted.py::test_counted_peaks_are_what_the_allocator_sees", "what is gathered is not counted", COUNTING,
          "if cut else gathered,), FLOAT)", "if cut else 0,), FLOAT)"),
    Fault("test_cost.py::test_useful_macs_count_visible_pairs", "multiplicities are multiplied", SPARSE,
          "found[pattern] += pattern.nnz(n, m, offset)", "found[pattern] += pattern.weight(n, m, offset)"),
]
OF_LOOPS = [  # the same laws on the compiled loops
    Fault("test_overrides.py::test_an_override_is_the_generic_text", "counts are forgotten", LOOPS,
          "            s[t] *= count[t]\n            total += s[t]\n", "            total += s[t] * count[t]\n"),
    Fault("test_overrides.py::test_an_override_is_the_generic_text", "the rest of eight is left out", LOOPS,
          "        j0, x0 = col[t], s[t - first]\n", "        j0, x0 = col[t], s[0] * s.dtype.type(0)\n"),
    Fault("test_edges.py::test_rows_that_see_nothing_are_zero_and_pull_nothing", "0 / 0 where nothing is seen", LOOPS,
          "        if z == zero:\n", "        if z < zero:\n"),
    Fault("test_batch.py::test_shared_key_heads_are_copied_ones", "shared keys get what the last head brings", ENGINE,
          "                for i in shared[key]:\n", "                for i in shared[key][-1:]:\n"),
    Fault("test_batch.py::test_items_alone_are_items_together", "every item has the members of the first", ITEMS,
          "        members = np.flatnonzero(_at(pairs.members[1], at, own))\n",
          "        members = np.flatnonzero(_at(pairs.members[1], (0,) * len(at), own))\n"),
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative", "shared keys get what the last head of an item brings",
          ITEMS, "            total[there] += _summed(part, total[there].shape)\n",
          "            total[there] = _summed(part, total[there].shape)\n"),
]
SPARSES = [*TEXTS, *COSTS, *OF_LOOPS]
