"""Feature maps φ: what linear attention has in place of the exponential, exp(q·k) ≈ φ(q)·φ(k); each with its vjp."""
