"""Execution pipes of a multiprocessor, and instruction mixes: instructions per pipe."""

from __future__ import annotations

import enum
from collections import Counter


class Pipe(enum.Enum):
    """Execution pipe of an instruction.

    FMA    fp32 and half precision multiply, add and FMA; integer multiply
    ALU    bit operations, comparisons, selects, packing
    XU     reciprocals, roots, exponentials, and conversions that are not packed
    LSU    loads and stores of any memory, shuffles
    FP64   double precision arithmetic
    OTHER  branches, barriers, the uniform datapath: they take issue slots only
    """

    FMA = "FMA"
    ALU = "ALU"
    XU = "XU"
    LSU = "LSU"
    FP64 = "FP64"
    OTHER = "other"


Mix = Counter[Pipe]
"""Instructions of one thread, by pipe; 0.5 is an instruction that serves two values."""
