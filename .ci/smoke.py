"""What an installed refattn must do with its core dependencies alone, away from the checkout: compute, and judge.

The example kernels lie in a folder `examples` beside this file.
"""

import contextlib
import importlib
import importlib.util
import io
import sys
from pathlib import Path

import numpy as np

import refattn
import refattn.cli

heavy = {"cupy", "matplotlib", "numba", "scipy"} & set(sys.modules)
assert not heavy, f"import refattn loads {sorted(heavy)}"
where = refattn.__path__[0]
assert where.startswith(sys.prefix), f"refattn comes from {where}, not from {sys.prefix}"

importlib.import_module("refattn.backends.numpy_backend")

scheme = refattn.Dense(causal=True, align="bottom_right")
rng = np.random.default_rng(0)
q, k, v, do = (rng.normal(size=shape) for shape in [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), (2, 3, 5, 6)])
o, saved = scheme.forward(q, k, v)

scores = np.where(np.tri(5, 7, 2, dtype=bool), q @ k.swapaxes(-1, -2) / 2, -np.inf)
p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
np.testing.assert_allclose(o, p @ v, rtol=1e-12)
np.testing.assert_allclose(saved.lse, np.log(np.exp(scores).sum(axis=-1)), rtol=1e-12)

gradients = scheme.vjp(saved, do)
np.testing.assert_allclose(gradients.v, p.swapaxes(-1, -2) @ do, rtol=1e-12)
# The scores are linear in q and in k, so both gradients say the same about a common factor.
np.testing.assert_allclose(np.vdot(gradients.q, q), np.vdot(gradients.k, k), rtol=1e-9)

cost = scheme.cost(type(gradients)(q=q.shape, k=k.shape, v=v.shape))
assert cost.forward.macs == 2 * 3 * 5 * 7 * (4 + 6), cost

extras = [name for name in ("ml_dtypes", "rich", "hypothesis", "safetensors") if importlib.util.find_spec(name)]
assert not extras, f"{', '.join(extras)} there: these are not the core dependencies alone"
examples = Path(__file__).absolute().parent / "examples"
for name, dtype in (("corrected", "float32"), ("corrected", "float64"), ("off_by_one", "float32")):
    first = "OK" if name == "corrected" else "FAIL"
    kernel, text = f"{examples / name}.py", io.StringIO()
    command = ["check", f"{kernel}:attention", "--vjp", f"{kernel}:attention_vjp", "--scheme", str(scheme), "--dtype", dtype]
    command += [] if (name, dtype) == ("corrected", "float32") else ["--only", "family=normal,shared heads"]
    with contextlib.redirect_stdout(text):
        status = refattn.cli.main(command)
    assert (status, text.getvalue().split()[0]) == (int(first == "FAIL"), first), text.getvalue()
    assert ("[F21]" in text.getvalue()) == (first == "FAIL"), text.getvalue()

print(f"refattn {refattn.__version__} in {where}: forward, vjp, cost and check of {scheme} as they should be")
