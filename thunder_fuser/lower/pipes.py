"""Pipes of a multiprocessor, and instruction mixes: how many instructions each of them takes."""

from __future__ import annotations

import enum
from collections import Counter


class Pipe(enum.Enum):
    """Where an instruction goes after it was issued.

    FMA    products and sums in fp32 and half precision, and integer products
    ALU    bits, comparisons, selections, packing
    XU     reciprocals, roots, exponentials, and conversions that are not packed
    LSU    loads and stores of any memory, shuffles
    FP64   arithmetic in double precision
    OTHER  branches, barriers, the uniform datapath: issue slots alone
    """

    FMA = "FMA"
    ALU = "ALU"
    XU = "XU"
    LSU = "LSU"
    FP64 = "FP64"
    OTHER = "other"


Mix = Counter[Pipe]
"""Instructions of one thread, by pipe; halves are one that serves two values."""
