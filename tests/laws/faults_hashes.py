"""Faults of LSH attention that the laws have been seen to find."""

from __future__ import annotations

from laws.faults_operations import Fault

LSH, SLOTS, SOFTMAX = "refattn/schemes/lsh.py", "refattn/ops/slots.py", "refattn/ops/softmax.py"
ATTEND = "refattn/ops/attend_slots.py"

OF_HASHES = [
    Fault("test_vjp.py::test_vjp_is_the_adjoint_of_the_derivative",
          "the length that a key is divided by is taken for a constant", ATTEND,
          "dk = (dk - k * xp.sum(k * dk, axis=-1, keepdims=True)) / root", "dk = dk / root"),
    Fault("test_definition.py::test_forward_equals_definition",
          "a window does not wrap around the end of all rounds", SLOTS,
          'moved = _moved(x, 1 if window.wrap == "rounds" else rounds, o)', "moved = _moved(x, rounds, o)"),
    Fault("test_counted.py::test_stated_costs_are_counted_ones",
          "the exponentials that merge rounds are not stated", LSH,
          "pairs + tokens * rounds, tokens", "pairs, tokens"),
    Fault("test_edges.py::test_poison_in_slots_that_nobody_sees_changes_nothing",
          "padding keeps what it holds, and is multiplied by 0", LSH,
          "return where(valid[:, :, None], x, 0.0), where(valid[:, :, None], v, 0.0), valid", "return x, v, valid"),
    Fault("test_rows_sum.py::test_ones_come_out_as_ones",
          "rounds are added without their gauges", SOFTMAX,
          "return xp.sum(w * o, axis=1) / z,", "return xp.sum(o, axis=1) / z,"),
]
