"""What an installed refattn must do with its core dependencies alone, away from the checkout."""

import importlib
import sys

import numpy as np

import refattn

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

print(f"refattn {refattn.__version__} in {where}: forward, vjp and cost of {scheme} as they should be")
