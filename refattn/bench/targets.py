"""What a scheme is held to: the largest ratio that it must not exceed, and the one that is aimed at."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """must and goal: bounds of a ratio to `against`; upper: whether they are largest values (False: smallest)."""

    must: float
    goal: float
    upper: bool = True

    def met(self, ratio: float, bound: float) -> bool:
        """Whether a measured ratio keeps to one of the bounds, with the tenth that repeated runs differ by."""
        return ratio <= bound * 1.1 if self.upper else ratio >= bound / 1.1


class Key(NamedTuple):
    """Which measurement a target is for: "ours" against "theirs" at something done."""

    ours: str
    theirs: str
    scheme: str
    dtype: str
    work: str


FORWARD, BOTH = "forward", "forward and backward"
SDPA, GEMM = "torch SDPA", "GEMM rate"

TARGETS: dict[Key, Target] = {
    Key("numba", SDPA, "dense", "float32", FORWARD): Target(1.15, 1.00),
    Key("numba", SDPA, "dense", "float32", BOTH): Target(1.05, 0.95),
    Key("numba", SDPA, "causal", "float32", FORWARD): Target(1.15, 0.95),
    Key("numba", SDPA, "causal", "float32", BOTH): Target(1.05, 0.90),
    Key("numba", SDPA, "dense", "float64", FORWARD): Target(1.00, 0.85),
    Key("numba", SDPA, "dense", "float64", BOTH): Target(0.80, 0.65),
    Key("numba", GEMM, "dense", "float32", FORWARD): Target(0.65, 0.80, upper=False),
    Key("numba", GEMM, "dense", "float32", BOTH): Target(0.72, 0.80, upper=False),
    Key("generic", SDPA, "dense", "float32", BOTH): Target(1.25, 1.05),
}
PROCESS = {  # what a whole process is measured for
    "import refattn, s": Target(0.3, 0.15),
    "first kernels of a dtype, nothing cached, s": Target(6.0, 3.0),
    "first kernels of a dtype, cached, s": Target(6.0, 0.3),
    "extra memory, dense forward and backward, n = 4096, of one input": Target(5.0, 3.0),
    "two threads, n = 2048, times one": Target(1.7, 1.95, upper=False),
}
