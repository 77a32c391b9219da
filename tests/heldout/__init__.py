"""Faults that the kit's dictionary of mistakes does not have, each a NumPy kernel that is right but for one or two steps.

    kernel.py    the right kernel, in steps that a fault replaces
    reported.py  faults told in public reports
    pairs.py     two mistakes of the dictionary in one kernel
"""
