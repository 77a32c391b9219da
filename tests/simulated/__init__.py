"""Simulated attention kernels: NumPy programs that round where real kernels round.

    arithmetic.py   formats, products in several orders of summation, exponentials in two bases
    kernel.py       one kernel as a set of choices: forward whole, by tiles or by splits of the keys; backward by tiles
    styles.py       the published ways to combine those choices, drawn at random
    draws.py        inputs, masks and optional terms for them
    reading.py      the rounding reading of the same inputs, and how far a kernel is from it, in units of its bound
"""
