"""One BLAS thread in each test process: matrices here are small, and processes share the cores (-n auto)."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
